"""What ReduceAcrossThreads refuses."""

from tests.transforms.reductions.test_split_rows_across_cluster import BEFORE as CLUSTER
from tests.transforms.refusals.case import case, on, rows
from tvm_hopper.transforms.reductions.reduce_across_threads import ReduceAcrossThreads

REDUCTION = """
def func(Y: T.Buffer((8, ROWS), "float32")):
    for bx in T.thread_binding(8, thread="blockIdx.x", memory_bound="row_reduction"):
        for ty in T.thread_binding(ROWS, thread="threadIdx.y"):
            for tx in T.thread_binding(COUNT, thread="threadIdx.x"):
                with T.sblock("kernel"):
                    own = T.sblock_alloc_buffer((1,), DTYPE, scope="local")
                    total = T.sblock_alloc_buffer((1,), DTYPE, scope="local")
                    with T.sblock("cross"):
                        T.attr(T.comm_reducer(lambda x, y: x + y, [T.Cast(DTYPE, 0)]),
                            "reduce_scope", 0)
                        T.tvm_thread_allreduce(T.uint32(1), own[0], CONDITION, total[0], AXIS)
"""


def _case(
    name, match, rows="1", count="32", dtype='"float32"', condition="T.bool(True)", axis="tx"
):
    words = {"ROWS": rows, "COUNT": count, "DTYPE": dtype, "CONDITION": condition, "AXIS": axis}
    return case(name, REDUCTION, (ReduceAcrossThreads,), match, *words.items())


PAIR = REDUCTION.replace(
    "T.comm_reducer(lambda x, y: x + y, [T.Cast(DTYPE, 0)])",
    "T.comm_reducer(lambda x, y, u, v: (x, y + v), [T.float32(0), T.float32(0)])",
).replace(
    "T.uint32(1), own[0], CONDITION, total[0], AXIS",
    "T.uint32(2), own[0], own[0], CONDITION, total[0], total[0], AXIS",
)

ACROSS_THREADS = [
    *rows(on(PAIR, (ReduceAcrossThreads,)))("""
pairs by their order
    ROWS => 1
    COUNT => 32
    DTYPE => "float32"
    CONDITION => T.bool(True)
    AXIS => tx
    need a commutative rule, since threads combine in any order
    """),
    _case("threads that are no part of a warp", "24 threads of a row; need a multiple", "4", "24"),
    _case("threads that cross warps", "48 threads of a row; need a multiple of 32", "2", "48"),
    _case("a part of a warp", "need whole warps of 32 threads", count="8"),
    _case("a row along y", "found threads ty; need a row's threads along", axis="ty"),
    _case("threads that stay away", "the condition tx < 3; need no condition", condition="tx < 3"),
    *rows(on(CLUSTER, (ReduceAcrossThreads, ReduceAcrossThreads)))(r"""
a part of a warp in a cluster
    (64, thread => (16, thread
    for tx in => for ty in T.thread_binding(2, thread="threadIdx.y"):\n             for tx in
    16 threads of a row; need whole warps where a cluster shares it
    """),
    case(
        "a reduction of a cluster in a loop, without clusters",
        CLUSTER,
        (ReduceAcrossThreads,),
        "found rows of 4 thread blocks of a cluster in it, for sm_80; need a processor with",
        ('with T.sblock("cross"', 'for r in range(3):\n                     with T.sblock("cross"'),
        (
            "    for bx in",
            '    T.func_attr({"target": T.target("nvidia/nvidia-a100")})\n    for bx in',
        ),
    ),
    _case("halves across threads", "found float16; need 32 bits to shuffle", dtype='"float16"'),
]
