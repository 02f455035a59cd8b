"""What is refused about kernels whose time is that of their bytes."""

from tests.transforms.refusals.case import case
from tests.transforms.test_hint_loads import ALWAYS
from tests.transforms.test_hint_loads import BEFORE as HINTS
from tests.transforms.test_limit_registers import BEFORE as LIMITS
from tvm_hopper.transforms import HintLoads, LimitRegisters

MEMORY_BOUND = [
    case(
        "more threads than an SM has",
        LIMITS,
        (LimitRegisters,),
        "9 thread blocks of 256 threads; need at most 2048 threads of an SM",
        ('sm": 4', 'sm": 9'),
    ),
    case(
        "a hint on what does not load into registers",
        HINTS,
        (HintLoads,),
        "found a block that does not load into registers; need one that stores what it loads",
        ALWAYS,
        ('"float16", scope="local"', '"float16", scope="shared"'),
    ),
]
