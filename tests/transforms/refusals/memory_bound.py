"""What is refused about kernels whose time is that of their bytes."""

from tests.transforms.launch.test_add_cache_hints import ALWAYS, BEFORE as HINTS
from tests.transforms.launch.test_place_thread_blocks import (
    BEFORE as TOGETHER,
    FOUR_PER_SM as LIMITS,
)
from tests.transforms.memory_bound.test_stage_rows_in_shared import KERNEL as STAGED
from tests.transforms.reductions.test_split_rows_across_cluster import BEFORE as ROWS
from tests.transforms.refusals.case import case, on, rows
from tvm_hopper.transforms import (
    AddCacheHints,
    LowerFloatMath,
    PlaceThreadBlocks,
    PrefetchRows,
    ReduceAcrossThreads,
)

FLOAT8 = """
def func(X: T.Buffer((4,), "float8_e4m3fn"), Y: T.Buffer((4,), "float32")):
    T.func_attr({"target": T.target("nvidia/nvidia-a100")})
    for i in range(4):
        Y[i] = T.Cast("float32", X[i])
"""
MEMORY_BOUND = [
    *rows(on(FLOAT8, (LowerFloatMath,)))("""
a conversion of float8 on a chip that has none
    tensor X: found a conversion from float8_e4m3fn; need a chip of compute capability 8.9
    """),
    *rows(on(LIMITS, (PlaceThreadBlocks,)))("""
more threads than an SM has
    sm=4 => sm=9
    9 thread blocks of 256 threads; need at most 2048 threads of an SM
    """),
    *rows(on(TOGETHER, (PlaceThreadBlocks,)))(r"""
thread blocks that are in a cluster already
    for bx in => for rank in T.thread_binding(2, thread="clusterCtaIdx.z"):\n     for bx in
    clusters of 2 thread blocks that work together; need thread blocks that share nothing
    """),
    *rows(on(ROWS, (ReduceAcrossThreads,)))(r"""
a cluster without a loop over parts
    "threadIdx.z" => "threadIdx.y"
    found a loop on threadIdx.z: none; need one of 4, over parts
a cluster of another size
    cluster=4 => cluster=8
    found a loop on threadIdx.z: one of 4; need one of 8, over parts
a cluster along an axis that is taken
    for tz in => for bz in T.thread_binding(2, thread="blockIdx.z"):\n         for tz in
    found another loop on blockIdx.z; need a separate axis
    """),
    case(
        "a shared array that parts of a row do not distribute",
        ROWS,
        (ReduceAcrossThreads,),
        "found an array in shared memory that thread blocks of a cluster do not share; need an",
        (
            'own = T.sblock_alloc_buffer((1,), "float32", scope="local")',
            'own = T.sblock_alloc_buffer((1,), "float32", scope="shared")',
        ),
    ),
    *rows(on(HINTS, (AddCacheHints,)), ALWAYS=ALWAYS)("""
a hint on what does not load into registers
    + ALWAYS
    "float16", scope="local" => "float16", scope="shared"
    found a block that does not load into registers; need one that stores what it loads
    """),
    *rows(on(STAGED, (PrefetchRows,)))("""
staged rows of no multiple of 16 bytes
    X: T.Buffer((1000, 256) => X: T.Buffer((1000, 257)
    rows of 257 elements for 1 thread blocks; need contiguous parts, each of a multiple of 16
the same row staged in each turn
    = X[r * 16 + bx, tx => = X[bx, tx
    found no rows that the loop loads one by one; need loads of whole rows into registers
    """),
]
