"""LowerSplitK: the loop of a sum on the blocks of a cluster, the exchange, and who stores what."""

import pytest
import tvm

from tests.transforms.scripts import check, notes_of, parse, run
from tvm_hopper import ir
from tvm_hopper.facts.arch import SM_90A
from tvm_hopper.transforms import LowerSplitK
from tvm_hopper.transforms.common.explain_notes import RemarkNote
from tvm_hopper.transforms.split_k.lower_split_k_plan import plan_split_k

BEFORE = """
def func(D: T.Buffer((128, 16), "float32"), E: T.Buffer((128,), "float32")):
    for bx in T.thread_binding(2, thread="blockIdx.x"):
        for tx in T.thread_binding(128, thread="threadIdx.x"):
                with T.sblock("kernel", reads=[], writes=[]):
                    acc = T.sblock_alloc_buffer((8,), scope="local")
                    for i in T.serial(8, pragma_unroll=8):
                        acc[i] = T.float32(0.0)
                    for part in T.serial(4, across_cluster=1):
                        for k in range(2):
                            with T.sblock("product", reads=[acc[0:8]], writes=[acc[0:8]],
                                async_op="wgmma"):
                                T.call_extern("int32", "multiply", acc.data, part * 2 + k)
                    for g in T.serial(4, pragma_unroll=4):
                        for e in range(2):
                            D[tx, bx * 8 + g * 2 + e] = acc[g * 2 + e]
"""
EXCHANGE = """
                    with T.sblock("publish", reads=[acc[0:8]], writes=[sums[0:8, 0:128]],
                        disjoint_writes=1):
                        for i in T.serial(8, pragma_unroll=8):
                            sums[i, tx] = acc[i]
                    T.ptx.barrier.cluster.arrive.release.aligned()
                    T.ptx.barrier.cluster.wait.acquire.aligned()
                    with T.sblock("gather", reads=[], writes=[]):
                        remote = T.sblock_alloc_buffer((1,), "uint32", scope="local")
                        word = T.sblock_alloc_buffer((1,), scope="local")
                        remote[0] = T.uint32(0)
                        word[0] = T.float32(0.0)
GATHER
                    T.ptx.barrier.cluster.arrive.release.aligned()
"""
READ = """
{pad}T.ptx.mapa.shared__cluster.u32({pad}    remote[0],
    T.cuda.cvta_generic_to_shared(T.address_of(sums[{at}, tx])), T.uint32({peer}) {pad})
{pad}T.ptx["ld.shared::cluster.f32"](word[0], remote[0])
{pad}acc[{to}] = {value}
"""


def gather(pad, to, at, peers):
    """Return the lines that add one register's parts."""
    old = f"acc[{to}] + word[0]"
    return "".join(
        READ.format(pad=pad, to=to, at=at, peer=n, value=old if n else "word[0]").lstrip("\n")
        for n in range(peers)
    )


def written(parts, gather_lines, store):
    """Write the whole function that a cluster of so many blocks runs."""
    return (
        """
def func(D: T.Buffer((128, 16), "float32"), E: T.Buffer((128,), "float32")):
    for part in T.thread_binding(PARTS, thread="blockIdx.z"):
        for rank in T.thread_binding(PARTS, thread="clusterCtaIdx.z"):
            for bx in T.thread_binding(2, thread="blockIdx.x"):
                for tx in T.thread_binding(128, thread="threadIdx.x"):
                  with T.sblock("kernel", reads=[], writes=[]):
                    acc = T.sblock_alloc_buffer((8,), scope="local")
                    sums = T.sblock_alloc_buffer((8, 128), scope="shared.dyn")
                    for i in T.serial(8, pragma_unroll=8):
                        acc[i] = T.float32(0.0)
                    for k in range(2):
                        with T.sblock("product", reads=[acc[0:8]], writes=[acc[0:8]],
                            async_op="wgmma"):
                            T.call_extern("int32", "multiply", acc.data, part * 2 + k)
""".replace("PARTS", str(parts))
        + EXCHANGE.strip("\n").replace("GATHER", gather_lines.rstrip("\n"))
        + "\n"
        + store
        + "                    T.ptx.barrier.cluster.wait.acquire.aligned()\n"
    )


ONE_EACH = written(
    4,
    '                        for i in T.serial(2, annotations={"pragma_unroll": 2}):\n'
    + gather(" " * 28, "i", "i + part * 2", 4),
    """\
                    for e in range(2):
                        D[tx, bx * 8 + part * 2 + e] = acc[e]
""",
)


def test_each_block_of_a_cluster_stores_a_piece():
    func = parse(BEFORE)
    got = run(func, LowerSplitK())
    (kernel,) = ir.kernels(got)
    assert plan_split_k(kernel, SM_90A) is None
    extents = {tag: int(axis.extent) for tag, axis in ir.thread_axes(kernel).items()}
    assert extents == {
        "blockIdx.x": 2, "blockIdx.z": 4, "clusterCtaIdx.z": 4, "threadIdx.x": 128,
    }  # fmt: skip
    simple = tvm.tirx.transform.StmtSimplify()
    check(run(got, simple), run(parse(ONE_EACH), simple))


@pytest.mark.parametrize(("parts", "pieces"), [(2, 2), (3, 2), (4, 1), (5, 1), (8, 1)])
def test_pieces_of_a_block(parts, pieces):
    """Of four pieces; where they are no multiple some blocks have fewer, or none."""
    func = parse(
        BEFORE,
        ("T.serial(4, across", f"T.serial({parts}, across"),
    )
    (kernel,) = ir.kernels(func)
    plan = plan_split_k(kernel, SM_90A)
    (share,) = plan.shares
    assert (share.registers, share.step) == ((0, 1), 2)
    assert share.per_block(parts) == pieces
    got = run(func, LowerSplitK())
    guards = ir.find_all(got.body, ir.IfThenElse)
    assert bool(guards) == (4 % parts != 0)


STORE = """\
                    for g in T.serial(4, pragma_unroll=4):
                        for e in range(2):
                            D[tx, bx * 8 + g * 2 + e] = acc[g * 2 + e]
"""
TWICE = """\
                    for g in T.serial(2, pragma_unroll=2):
                        for e in range(4):
                            D[tx, bx * 8 + g * 4 + e] = acc[g * 4 + e]
"""


@pytest.mark.parametrize(("second", "gathers"), [(STORE, 1), (TWICE, 2)])
def test_two_stores(second, gathers):
    """The same pieces are gathered once; others anew, behind the store of the first ones."""
    func = parse(BEFORE, (STORE, STORE + second))
    got = run(func, LowerSplitK())
    names = [x.name_hint for x in ir.find_all(got.body, ir.SBlock)]
    assert names.count("gather") == gathers
    (kernel,) = ir.find_all(got.body, ir.SBlock, lambda x: x.name_hint == "kernel")
    order = [_kind(x) for x in ir.statements(kernel.body)][2:]
    between = ["gather"] if gathers == 2 else []
    assert order == [
        "publish", "arrive", "wait", "gather", "store", *between, "arrive", "store", "wait",
    ]  # fmt: skip


def _kind(stmt):
    if isinstance(stmt, ir.SBlockRealize):
        return stmt.block.name_hint
    if isinstance(stmt, ir.Evaluate):
        return str(stmt.value.op.name).rpartition("_")[2]
    return "store"


IN_TURNS = """
def func(D: T.Buffer((128, 16), "float32"), E: T.Buffer((128,), "float32")):
    with T.sblock("root", reads=[], writes=[]):
        with T.sblock("parts", reads=[], writes=[]):
            sums = T.sblock_alloc_buffer((2, 9, 128))
            for block in T.thread_binding(1, thread="blockIdx.x"):
                for thread in T.thread_binding(256, thread="threadIdx.x"):
                    with T.sblock("zero", reads=[], writes=[sums[0:2, 0:9, 0:128]]):
                        for i in range(4):
                            if T.Cast("int64", i) < T.int64(1):
                                sums[T.Cast("int32", T.Cast("int64", thread)) // 128, 8,
                                    T.Cast("int32", T.Cast("int64", thread)) % 128] = T.float32(0)
            for part in T.thread_binding(4, thread="blockIdx.z"):
                for bx in T.thread_binding(2, thread="blockIdx.x"):
                    for tx in T.thread_binding(128, thread="threadIdx.x"):
                        with T.sblock("kernel", reads=[], writes=[]):
                            acc = T.sblock_alloc_buffer((8,), scope="local")
                            for i in T.serial(8, pragma_unroll=8):
                                acc[i] = T.float32(0.0)
                            for k in range(2):
                                with T.sblock("product", reads=[acc[0:8]], writes=[acc[0:8]],
                                    async_op="wgmma"):
                                    T.call_extern("int32", "multiply", acc.data, part * 2 + k)
                            if part > 0:
                                with T.sblock("take", reads=[acc[0:8], sums[0:2, 0:9, 0:128]],
                                    writes=[acc[0:8]]):
                                    seen = T.sblock_alloc_buffer((1,), "uint32", scope="local")
                                    seen[0] = T.uint32(0)
                                    T.cuda.wait_until(seen[0],
                                        T.address_of(sums[bx, 8, tx // 32 * 32]),
                                        seen[0] == T.Cast("uint32", part), ptx_type="u32")
                                    for i in T.serial(8, pragma_unroll=8):
                                        acc[i] = sums[bx, i, tx] + acc[i]
                            if part < 3:
                                with T.sblock("hand_on", reads=[acc[0:8]],
                                    writes=[sums[0:2, 0:9, 0:128]]):
                                    for i in T.serial(8, pragma_unroll=8):
                                        sums[bx, i, tx] = acc[i]
                                    T.cuda.warp_sync()
                                    if tx % 32 == 0:
                                        T.ptx["st.release.gpu.global.u32"](T.address_of(sums[bx, 8,
                                            tx // 32 * 32]), T.Cast("uint32", part) + T.uint32(1))
                            if part == 3:
                                for g in T.serial(4, pragma_unroll=4):
                                    for e in range(2):
                                        D[tx, bx * 8 + g * 2 + e] = acc[g * 2 + e]
"""


def test_blocks_that_add_in_turn():
    simple = tvm.tirx.transform.StmtSimplify()
    got = run(parse(BEFORE, ("across_cluster=1", "across_cluster=4")), LowerSplitK())
    check(run(got, simple), run(parse(IN_TURNS), simple))
    (remark,) = notes_of(got, 1)
    assert "one after another; the last one stores" in remark.text


def test_the_first_part_alone_begins_with_the_initial_value():
    start = "acc[i] = T.float32(0.0)"
    func = parse(BEFORE, (start, "acc[i] = E[tx]"))
    want = "acc[i] = T.if_then_else(part == 0, E[tx], T.float32(0.0))"
    got = run(func, LowerSplitK())
    expected = parse(ONE_EACH, (start, want))
    simple = tvm.tirx.transform.StmtSimplify()
    check(run(got, simple), run(expected, simple))


def test_what_explain_says():
    func = parse(BEFORE).with_attr("target", tvm.target.Target("nvidia/nvidia-h200"))
    (note,) = notes_of(run(func, LowerSplitK()))
    assert note == RemarkNote(
        "loop part: 4 thread blocks of a cluster sum a part each; their sums are added in the "
        "order of the parts, through shared memory, and each block stores 1 of 4 pieces of the tile"
    )


TWO_KERNELS = """
def func(D: T.Buffer((128, 16), "float32"), E: T.Buffer((128,), "float32")):
    with T.sblock("root", reads=[], writes=[]):
        with T.sblock("parts", reads=[], writes=[]):
            sums = T.sblock_alloc_buffer((4, 2, 8, 128))
            for part in T.thread_binding(4, thread="blockIdx.z"):
                for bx in T.thread_binding(2, thread="blockIdx.x"):
                    for tx in T.thread_binding(128, thread="threadIdx.x"):
                        with T.sblock("kernel", reads=[], writes=[]):
                            acc = T.sblock_alloc_buffer((8,), scope="local")
                            for i in T.serial(8, pragma_unroll=8):
                                acc[i] = T.float32(0.0)
                            for k in range(2):
                                with T.sblock("product", reads=[acc[0:8]], writes=[acc[0:8]],
                                    async_op="wgmma"):
                                    T.call_extern("int32", "multiply", acc.data, part * 2 + k)
                            with T.sblock("publish", reads=[acc[0:8]],
                                writes=[sums[0:4, 0:2, 0:8, 0:128]]):
                                for i in T.serial(8, pragma_unroll=8):
                                    sums[part, bx, i, tx] = acc[i]
            for part in T.thread_binding(4, thread="blockIdx.z"):
                for bx in T.thread_binding(2, thread="blockIdx.x"):
                    for tx in T.thread_binding(128, thread="threadIdx.x"):
                        with T.sblock("kernel", reads=[], writes=[]):
                            acc = T.sblock_alloc_buffer((8,), scope="local")
                            with T.sblock("gather", reads=[sums[0:4, 0:2, 0:8, 0:128]],
                                writes=[acc[0:8]]):
                                for i in T.serial(2, pragma_unroll=2):
                                    acc[i] = (sums[0, bx, i + part * 2, tx] + sums[1, bx,
                                        i + part * 2, tx] + sums[2, bx, i + part * 2, tx] + sums[3,
                                        bx, i + part * 2, tx])
                            for e in range(2):
                                D[tx, bx * 8 + part * 2 + e] = acc[e]
"""
BY_KERNELS = ("across_cluster=1", "across_cluster=2")


def test_two_kernels_that_meet_in_a_workspace():
    simple = tvm.tirx.transform.StmtSimplify()
    got = run(parse(BEFORE, BY_KERNELS), LowerSplitK())
    check(run(got, simple), run(parse(TWO_KERNELS), simple))


def test_the_first_part_alone_begins_with_an_initial_value():
    got = run(parse(BEFORE, BY_KERNELS, ("T.float32(0.0)", "T.float32(2.0)")), LowerSplitK())
    assert "T.if_then_else(part == 0, T.float32(2.0), T.float32(0.0))" in got.script()
