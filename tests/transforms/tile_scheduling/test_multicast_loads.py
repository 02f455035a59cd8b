"""What thread blocks of a cluster load for one another, and whom they tell of slots."""

import pytest
import tvm

from tests.transforms.scripts import check, nest, notes_of, parse, run
from tvm_hopper import ir
from tvm_hopper.errors import LoweringError
from tvm_hopper.facts.arch import SM_90A
from tvm_hopper.transforms import MulticastLoads
from tvm_hopper.transforms.common.explain_notes import ArrivalsNote, FallbackNote, RemarkNote
from tvm_hopper.transforms.common.multicast_groups import Sharing, plan_shared_loads

BEFORE = """
def func(A_map: T.handle("tensormap"), B_map: T.handle("tensormap"),
    D: T.Buffer((1024,), "float32")):
    for bx in T.thread_binding(8, thread="blockIdx.x", share_loads=1):
        for rank in T.thread_binding(2, thread="blockIdx.z"):
            for tx in T.thread_binding(384, thread="threadIdx.x"):
                with T.sblock("kernel", reads=[], writes=[], kernel=1):
                    a = T.sblock_alloc_buffer((2, 1, 64, 64), "float16", scope="shared.dyn")
                    b = T.sblock_alloc_buffer((2, 2, 64, 64), "float16", scope="shared.dyn")
                    if tx < 128:
                        if tx == 0:
                            for k in T.serial(8):
                                T.call_extern("int32", "tvm_hopper.await_free", 0, k)
                                with T.sblock("load", reads=[],
                                    writes=[a[k % 2, 0, 0:64, 0:64], b[k % 2, 0:2, 0:64, 0:64]],
                                    channel=0):
                                    T.call_extern("int32", "tvm_hopper.fill_slot", 0, k)
                                    T.call_extern("int32", "tvm_hopper.tma_load",
                                        T.address_of(a[k % 2, 0, 0, 0]), T.address_of(A_map),
                                        k * 64, (bx * 2 + rank) * 64)
                                    for panel in range(2):
                                        for part in range(4):
                                            T.call_extern("int32", "tvm_hopper.tma_load",
                                                T.address_of(b[k % 2, panel, part * 16, 0]),
                                                T.address_of(B_map),
                                                k * 128 + panel * 64, part * 16)
                    else:
                        for k in T.serial(8):
                            T.call_extern("int32", "tvm_hopper.await_filled", 0, k)
                            with T.sblock("release", reads=[], writes=[], release=[0, 2]):
                                if tx % 128 == 0:
                                    T.call_extern("int32", "tvm_hopper.free_slot", 0, k)
                        D[tx] = T.float32(0)
"""
TWO_LOOPS = nest(BEFORE, "for panel")
IN = " " * 36
CALL = f'T.call_extern("int32", "tvm_hopper.tma_load",\n{IN}    T.address_of(a'
HALVES = (  # A in two boxes
    (f"{IN}{CALL}", f"{IN}for half in range(2):\n{IN} {CALL}"),
    ("a[k % 2, 0, 0, 0])", "a[k % 2, 0, half * 32, 0])"),
)
FREE = 'T.call_extern("int32", "tvm_hopper.free_slot", 0, k'
SHARED = """\
                                    for box in range(4):
                                        T.call_extern("int32", "tvm_hopper.tma_multicast",
                                            T.address_of(b[k % 2, (rank * 4 + box) // 4 % 2,
                                            (rank * 4 + box) % 4 * 16, 0]), T.address_of(B_map),
                                            T.uint16(3), k * 128 + (rank * 4 + box) // 4 % 2 * 64,
                                            (rank * 4 + box) % 4 * 16)
"""
AFTER = (
    (", share_loads=1", ""),
    (
        '    for bx in T.thread_binding(8, thread="blockIdx.x"):\n',
        '    for c in T.thread_binding(2, thread="clusterCtaIdx.z"):\n'
        '     for bx in T.thread_binding(8, thread="blockIdx.x"):\n',
    ),
    (TWO_LOOPS, SHARED),
    ("release=[0, 2]", "release=[0, 4]"),
    (
        f"{FREE})\n",
        f"{FREE}, T.uint32(0))\n{IN}{FREE}, T.uint32(1))\n",
    ),
    (
        "                        D[tx] = T.float32(0)\n",
        "                        D[tx] = T.float32(0)\n"
        "                        T.ptx.barrier.cluster.arrive.release.aligned()\n"
        "                        T.ptx.barrier.cluster.wait.acquire.aligned()\n",
    ),
)


def test_blocks_of_a_cluster_load_for_one_another():
    func = parse(BEFORE)
    got = run(func, MulticastLoads())
    (kernel,) = ir.kernels(got)
    assert plan_shared_loads(kernel, SM_90A) is None
    simple = tvm.tirx.transform.StmtSimplify()
    check(run(got, simple), run(parse(BEFORE, *AFTER), simple))


def test_two_by_two():
    """Blocks 0 and 1 share A, 0 and 2 B; nobody tells a block that it shares nothing with."""
    a_of_row = ("(bx * 2 + rank) * 64", "(bx * 2 + rank // 2) * 64")
    b_of_column = ("panel * 64, part * 16", "panel * 64, rank % 2 * 64 + part * 16")
    func = parse(
        BEFORE, a_of_row, b_of_column, *HALVES, ('T.thread_binding(2, thread="blockIdx.z")',
        'T.thread_binding(4, thread="blockIdx.z")'),
    )  # fmt: skip
    plan = plan_shared_loads(ir.kernels(func)[0], SM_90A)
    a, b = (x.sharing for x in plan.boxes)
    assert (a.groups, a.masks, a.places) == ((0, 0, 1, 1), (3, 3, 12, 12), (0, 1, 0, 1))
    assert (b.groups, b.masks, b.places) == ((0, 1, 0, 1), (5, 10, 5, 10), (0, 0, 1, 1))
    assert plan.peers(0) == [(0, 1, 2), (0, 1, 3), (0, 2, 3), (1, 2, 3)]
    assert plan.peers(1) == []
    text = run(func, MulticastLoads()).script()
    assert text.count('"tvm_hopper.tma_multicast"') == 2
    assert text.count('"tvm_hopper.free_slot"') == 3


@pytest.mark.parametrize(
    ("groups", "count"),
    [((0, 0), 2), ((0, 1), 1), ((0, 0, 1), 1), ((0, 1, 0, 1), 2), ((0,) * 8, 8)],
)
def test_how_many_load_the_same(groups, count):
    assert Sharing(groups).count == count


def test_what_explain_says():
    odd = ("for part in range(4)", "for part in range(3)"), ("range(2)", "range(1)")
    fill = 'T.call_extern("int32", "tvm_hopper.fill_slot", 0, k)\n'
    load = 'T.call_extern("int32", "tvm_hopper.tma_load", T.address_of(a[k % 2, 0, 0, 0]), '
    own = (fill, f"{fill}{IN}{load}T.address_of(B_map), k, 0)\n")
    func = parse(BEFORE, own).with_attr("target", tvm.target.Target("nvidia/nvidia-h200"))
    arrivals, shared, slow = notes_of(run(func, MulticastLoads()))
    assert arrivals == ArrivalsNote(0, full=1, empty=4)
    assert shared == RemarkNote("b: loaded once for 2 blocks of a cluster")
    assert slow == FallbackNote(
        "tile a: 2 blocks of a cluster that load all of it each; faster with 2 boxes or a "
        "multiple; it has 1"
    )
    with pytest.raises(LoweringError, match="found tiles of too few boxes"):
        run(parse(BEFORE, *odd), MulticastLoads())
