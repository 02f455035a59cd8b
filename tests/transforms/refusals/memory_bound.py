"""What is refused about kernels whose time is that of their bytes."""

from tests.transforms.refusals.case import case
from tests.transforms.test_hint_vectors import ALWAYS
from tests.transforms.test_hint_vectors import BEFORE as HINTS
from tests.transforms.test_launch_together import BEFORE as TOGETHER
from tests.transforms.test_limit_registers import BEFORE as LIMITS
from tests.transforms.test_spread_rows import BEFORE as ROWS
from tests.transforms.test_stage_rows import KERNEL as STAGED
from tvm_hopper.transforms import (
    HintVectors,
    LaunchTogether,
    LimitRegisters,
    SpreadRows,
    StageRows,
    WidenFunctions,
)

FLOAT8 = """
@T.prim_func(private=True, s_tir=True)
def func(X: T.Buffer((4,), "float8_e4m3fn"), Y: T.Buffer((4,), "float32")):
    T.func_attr({"target": T.target("nvidia/nvidia-a100")})
    for i in range(4):
        Y[i] = T.Cast("float32", X[i])
"""
MEMORY_BOUND = [
    case(
        "a conversion of float8 on a chip that has none",
        FLOAT8,
        (WidenFunctions,),
        "tensor X: found a conversion from float8_e4m3fn; need a chip of compute capability 8.9",
    ),
    case(
        "more threads than an SM has",
        LIMITS,
        (LimitRegisters,),
        "9 thread blocks of 256 threads; need at most 2048 threads of an SM",
        ('sm": 4', 'sm": 9'),
    ),
    case(
        "thread blocks that are in a cluster already",
        TOGETHER,
        (LaunchTogether,),
        "clusters of 2 thread blocks that work together; need thread blocks that share nothing",
        ("for bx in", 'for rank in T.thread_binding(2, thread="clusterCtaIdx.z"):\n     for bx in'),
    ),
    case(
        "a cluster without a loop over parts",
        ROWS,
        (SpreadRows,),
        "found a loop on threadIdx.z: none; need one of 4, over parts",
        ('"threadIdx.z"', '"threadIdx.y"'),
    ),
    case(
        "a cluster of another size",
        ROWS,
        (SpreadRows,),
        "found a loop on threadIdx.z: one of 4; need one of 8, over parts",
        ('cluster": 4', 'cluster": 8'),
    ),
    case(
        "a cluster along an axis that is taken",
        ROWS,
        (SpreadRows,),
        "found another loop on blockIdx.z; need an axis of its own",
        (
            "for tz in",
            'for bz in T.thread_binding(2, thread="blockIdx.z"):\n         for tz in',
        ),
    ),
    case(
        "a shared array that parts of a row do not share out",
        ROWS,
        (SpreadRows,),
        "found an array in shared memory that thread blocks of a cluster do not share out; need an",
        (
            'own = T.sblock_alloc_buffer((1,), "float32", scope="local")',
            'own = T.sblock_alloc_buffer((1,), "float32", scope="shared")',
        ),
    ),
    case(
        "a hint on what does not load into registers",
        HINTS,
        (HintVectors,),
        "found a block that does not load into registers; need one that stores what it loads",
        ALWAYS,
        ('"float16", scope="local"', '"float16", scope="shared"'),
    ),
    case(
        "staged rows of no multiple of 16 bytes",
        STAGED,
        (StageRows,),
        "rows of 257 elements for 1 thread blocks; need contiguous parts, each of a multiple of 16",
        ("X: T.Buffer((1000, 256)", "X: T.Buffer((1000, 257)"),
    ),
    case(
        "the same row staged in each turn",
        STAGED,
        (StageRows,),
        "found no rows of a thread block, one a turn; need loads of whole rows into registers",
        ("= X[r * 16 + bx, tx", "= X[bx, tx"),
    ),
]
