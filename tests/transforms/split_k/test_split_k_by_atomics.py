"""split_k_by_atomics: parts are added to an output that a kernel in front sets to zero."""

from tests.transforms.scripts import check, check_other_kernel_stays, parse, run
from tvm_hopper import ir
from tvm_hopper.transforms.split_k.split_k_by_atomics import plan_atomic_split_k, split_k_by_atomics

HEAD = """
def func(D: T.Buffer((100, 16), "float16")):
"""
BEFORE = (
    HEAD
    + """
    for bx in T.thread_binding(2, thread="blockIdx.x"):
        for tx in T.thread_binding(128, thread="threadIdx.x"):
            with T.sblock("kernel", reads=[], writes=[D[0:100, 0:16]]):
                acc = T.sblock_alloc_buffer((8,), scope="local")
                for i in range(8):
                    acc[i] = T.float32(1.0)
                for part in T.serial(4, across_cluster=6):
                    for k in range(2):
                        with T.sblock("product", reads=[acc[0:8]], writes=[acc[0:8]]):
                            acc[k] = acc[k] + T.Cast("float32", part * 2 + k)
                with T.sblock("out", reads=[acc[0:8]], writes=[D[0:100, 0:16]]):
                    tile = T.sblock_alloc_buffer((100, 8), "float16", scope="shared.dyn")
                    for e in range(8):
                        tile[tx, e] = T.Cast("float16", acc[e])
                    for i, j in T.grid(100, 8):
                        with T.sblock("copy", reads=[tile[i, j]], writes=[D[i, bx * 8 + j]],
                            async_copy="tma"):
                            D[i, bx * 8 + j] = tile[i, j]
"""
)
ADDING = """
    for bx in T.thread_binding(2, thread="blockIdx.x"):
        for tx in T.thread_binding(128, thread="threadIdx.x"):
            for part in T.serial(4, across_blocks="blockIdx.z"):
                with T.sblock("kernel", reads=[D[0:100, 0:16]], writes=[D[0:100, 0:16]]):
                    acc = T.sblock_alloc_buffer((8,), scope="local")
                    for i in range(8):
                        acc[i] = T.if_then_else(part == 0, T.float32(1.0), T.float32(0.0))
                    for k in range(2):
                        with T.sblock("product", reads=[acc[0:8]], writes=[acc[0:8]]):
                            acc[k] = acc[k] + T.Cast("float32", part * 2 + k)
                    with T.sblock("out", reads=[acc[0:8]], writes=[D[0:100, 0:16]]):
                        tile = T.sblock_alloc_buffer((100, 8), "float16", scope="shared.dyn")
                        for e in range(8):
                            tile[tx, e] = T.Cast("float16", acc[e])
                        for i, j in T.grid(100, 8):
                            with T.sblock("copy", reads=[D[i, bx * 8 + j], tile[i, j]],
                                writes=[D[i, bx * 8 + j]], async_copy="tma", reduce="add"):
                                D[i, bx * 8 + j] = D[i, bx * 8 + j] + tile[i, j]
"""


def test_parts_are_added_behind_a_kernel_of_zeros():
    got = run(parse(BEFORE), split_k_by_atomics)
    zero, adding = ir.kernels(got)
    (both,) = (x for x in ir.find_all(got.body, ir.SeqStmt) if ir.uses_node(x, zero))
    alone = got.with_body(ir.replace_nodes(got.body, ir.SeqStmt, {both: adding}))
    check(alone, parse(HEAD + ADDING))
    extents = {tag: int(axis.extent) for tag, axis in ir.thread_axes(zero).items()}
    assert extents == {"blockIdx.x": 2, "threadIdx.x": 256}  # 1600 elements, four a thread
    (store,) = ir.find_all(zero, ir.BufferStore)
    assert ir.is_zero(store.value)
    assert plan_atomic_split_k(zero) is plan_atomic_split_k(adding) is None


def test_other_kernels_and_ways_stay():
    other = parse(BEFORE, ("across_cluster=6", "across_cluster=1"))
    assert run(other, split_k_by_atomics).same_as(other)
    check_other_kernel_stays(other, other, split_k_by_atomics)
