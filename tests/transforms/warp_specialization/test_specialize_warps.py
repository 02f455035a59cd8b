"""SpecializeWarps: a producer loads, consumers do all else, and channels hand slots over."""

import pytest
from tvm import s_tir, tirx

from tests.transforms.pipeline.test_plan_ring_buffers import (
    ASK_CONSUMERS,
    ASK_PENDING,
    ASK_PERSISTENT,
    BEFORE,
    K_LOOP,
    LOAD,
    LOAD_Q,
    NESTED,
    OUTSIDE,
    PLAIN_READER,
    PLANNED,
    SECOND,
    around_k,
)
from tests.transforms.scripts import check, nest, notes_of, parse, run
from tvm_hopper import ir
from tvm_hopper.requests.keys import FREE_SLOT, SHIFT
from tvm_hopper.transforms import PlanRingBuffers, SpecializeWarps
from tvm_hopper.transforms.common.channel import find_calls
from tvm_hopper.transforms.common.explain_notes import (
    ArrivalsNote,
    FallbackNote,
    RingNote,
    RolesNote,
)

# Two consumers, and a warp group for the producer: 384 threads.
ROLES = """
def func(A_map: T.handle("tensormap"), B_map: T.handle("tensormap"), C: T.Buffer((4,), "float32")):
    for bx in T.thread_binding(3, thread="blockIdx.x"):
        for tx in T.thread_binding(384, thread="threadIdx.x"):
            with T.sblock("kernel", reads=[], writes=[C[0:4]], kernel=1):
                acc = T.sblock_alloc_buffer((4,), scope="local")
                a = T.sblock_alloc_buffer((2, 2, 64, 64), "float16", scope="shared.dyn", align=1024)
                b = T.sblock_alloc_buffer((2, 1, 16, 32), "float32", scope="shared.dyn", align=1024)
                T.attr(T.int32(0), "tirx.launch_bounds_min_blocks_per_sm", 1)
                T.attr("tvm_hopper", "hand_threaded", 1)
                if tx < 128:
                    T.ptx["setmaxnreg.dec.sync.aligned.u32"](40)
                    if tx == 0:
                        with T.sblock("tile", reads=[], writes=[], tile_work=1):
                            for k in T.serial(8, disable_unroll=True):
                                trip: T.let[T.int32] = k
                                T.call_extern("int32", "tvm_hopper.await_free", 0, trip)
                                with T.sblock("load_a", reads=[],
                                    writes=[a[trip % 2, 0:2, 0:64, 0:64],
                                    b[trip % 2, 0, 0:16, 0:32]], async_op="tma_load", channel=0):
                                    T.call_extern("int32", "tvm_hopper.fill_slot", 0, trip)
                                    for panel in range(2):
                                        T.call_extern("int32", LOAD,
                                            T.address_of(a[trip % 2, panel, 0, 0]),
                                            T.address_of(A_map), k * 128 + panel * 64, bx * 64)
                                    T.call_extern("int32", LOAD,
                                        T.address_of(b[trip % 2, 0, 0, 0]), T.address_of(B_map),
                                        k * 32, 0)
                else:
                    T.ptx["setmaxnreg.inc.sync.aligned.u32"](232)
                    with T.sblock("tile", reads=[], writes=[], tile_work=1):
                        for i in range(4):
                            acc[i] = T.float32(0)
                        for k in T.serial(8, disable_unroll=True):
                            trip: T.let[T.int32] = k
                            T.call_extern("int32", "tvm_hopper.await_filled", 0, trip)
                            with T.sblock("mma", reads=[a[trip % 2, 0:2, 0:64, 0:64],
                                b[trip % 2, 0, 0:16, 0:32], acc[0:4]], writes=[acc[0:4]],
                                async_op="wgmma"):
                                T.call_extern("int32", "mma", acc[0],
                                    T.address_of(a[trip % 2, 0, 0, 0]),
                                    T.address_of(b[trip % 2, 0, 0, 0]), (tx - 128) // 128, k)
                            with T.sblock("release", reads=[], writes=[], release=[0, 2]):
                                if (tx - 128) % 128 == 0:
                                    T.call_extern("int32", "tvm_hopper.free_slot", 0, trip)
                        with T.sblock("store", reads=[acc[0:4]], writes=[C[0:4]]):
                            C[(tx - 128) % 4] = acc[0]
""".replace("LOAD", repr(LOAD))

LATE_RELEASE = (
    ("release=[0", "release=[1"),
    ("if (tx - 128) % 128 == 0:", "if (tx - 128) % 128 == 0 and trip >= 1:"),
    ('"tvm_hopper.free_slot", 0, trip)', '"tvm_hopper.free_slot", 0, trip - 1)'),
)
# A producer of one warp, whose registers nobody wants; 256 threads of 8 warps read for themselves.
PLAIN_ROLES = (
    PLAIN_READER,
    ("T.thread_binding(384", "T.thread_binding(288"),
    ('                T.attr(T.int32(0), "tirx.launch_bounds_min_blocks_per_sm", 1)\n', ""),
    ('                    T.ptx["setmaxnreg.dec.sync.aligned.u32"](40)\n', ""),
    ('                    T.ptx["setmaxnreg.inc.sync.aligned.u32"](232)\n', ""),
    ("if tx < 128:", "if tx < 32:"),
    ("(tx - 128) // 128", "(tx - 32) // 128"),
    ("(tx - 128) % 4", "(tx - 32) % 4"),
    ("release=[0, 2]", "release=[0, 8]"),
    (
        "                                if (tx - 128) % 128 == 0:\n",
        "                                T.cuda.warp_sync()\n"
        "                                if (tx - 32) % 32 == 0:\n",
    ),
)


def asking(key, value=1):
    """Return the change that annotates the pipelined loop of PLANNED."""
    return ("num_slots=2", f"num_slots=2, {key}={value}")


def roles(func):
    """Return the producer's and the consumer's statements."""
    (branch,) = ir.find_all(func.body, ir.IfThenElse, lambda x: x.else_case is not None)
    return branch.then_case, branch.else_case


def calls(part):
    """Name the calls of channels in a role, each with its channel, in order."""
    return ", ".join(f"{x.name.removeprefix('tvm_hopper.')} {x.channel}" for x in find_calls(part))


def test_a_producer_loads_and_consumers_do_the_rest():
    check(run(parse(PLANNED), SpecializeWarps()), parse(ROLES))


def test_a_pending_group_delays_the_release_by_a_trip():
    got = run(parse(PLANNED, asking("wgmma_pending")), SpecializeWarps())
    check(got, parse(ROLES, *LATE_RELEASE))


def test_plain_consumers_arrive_once_a_warp():
    got = run(parse(PLANNED, PLAIN_READER, asking("consumers", 2)), SpecializeWarps())
    check(got, parse(ROLES, *PLAIN_ROLES))


def test_loops_that_do_not_ask_and_do_not_multiply_stay():
    func = parse(PLANNED, PLAIN_READER)
    check(run(func, SpecializeWarps()), func)


def test_slots_that_plain_threads_read_beside_a_product_are_free_once_both_are_done():
    """No group may still be reading when a warp arrives for its own plain loads."""
    reader = (
        '                        with T.sblock("mma"',
        '                        T.call_extern("int32", "look", b[trip % 2, 0, 0, tx % 32])\n'
        '                        with T.sblock("mma"',
    )
    got = run(parse(PLANNED, asking("wgmma_pending"), reader), SpecializeWarps())
    (release,) = ir.find_all(got.body, ir.SBlock, lambda x: x.name_hint == "release")
    notes = {str(key): [*map(int, value)] for key, value in release.annotations.items()}
    assert notes == {"tvm_hopper.release": [0, 8]}
    assert "T.cuda.warp_sync()" in release.script()


def test_slots_are_given_back_behind_their_last_reader():
    """Threads read one tile, and the product another: each has a channel, and goes back by itself.

    What is awaited later is awaited where it is read.
    """
    block = nest(BEFORE, 'T.sblock("mma"')
    reader = """\
                        with T.sblock("look", reads=[a[0:2, 0:64, 0:64]], writes=[]):
                            T.call_extern("int32", "look", a[0, 0, tx % 64])
"""
    other = block.replace("a[0:2, 0:64, 0:64], ", "").replace("T.address_of(a[0, 0, 0]),", "")
    changes = (block, reader + other), ("[0, 0, 1]", "[0, 0, 1, 1]"), ("[0, 1, 2]", "[0, 1, 2, 3]")
    got = run(parse(BEFORE, *changes), PlanRingBuffers(), SpecializeWarps())
    producer, consumer = roles(got)
    assert calls(producer) == "await_free 0, fill_slot 0, await_free 1, fill_slot 1"
    assert calls(consumer) == "await_filled 0, free_slot 0, await_filled 1, free_slot 1"
    releases = ir.find_all(got.body, ir.SBlock, lambda x: x.name_hint == "release")
    notes = [[*map(int, x.annotations["tvm_hopper.release"])] for x in releases]
    assert notes == [[0, 8], [0, 2]], "each warp that reads, and each warp group that multiplies"


def test_operations_that_follow_one_another_are_one_group():
    """No slot goes back between them: that would wait for the first one alone."""
    block = nest(BEFORE, 'T.sblock("mma"')
    first = block.replace(", b[0, 0:16, 0:32]", "").replace(", T.address_of(b[0, 0, 0])", "")
    second = block.replace("a[0:2, 0:64, 0:64], ", "").replace("T.address_of(a[0, 0, 0]),", "")
    stages = ("[0, 0, 1]", "[0, 1, 2, 2]"), ("[0, 1, 2]", "[0, 1, 2, 3]"), ("=[0])", "=[0, 1])")
    got = run(parse(BEFORE, (block, first + second), *stages), PlanRingBuffers(), SpecializeWarps())
    _, consumer = roles(got)
    assert calls(consumer) == "await_filled 0, await_filled 1, free_slot 0, free_slot 1"


def test_loads_of_two_loops_go_to_one_producer():
    got = run(parse(BEFORE, SECOND), PlanRingBuffers(), SpecializeWarps())
    producer, consumer = roles(got)
    assert calls(producer) == "await_free 0, fill_slot 0, await_free 1, fill_slot 1"
    assert calls(consumer) == "await_filled 0, free_slot 0, await_filled 1, free_slot 1"


def test_a_load_outside_of_loops_is_the_producer_s_too():
    """Its slot is given back behind the last statement, which may read it."""
    got = run(parse(BEFORE, *OUTSIDE), PlanRingBuffers(), SpecializeWarps())
    producer, consumer = roles(got)
    assert calls(producer) == "await_free 0, fill_slot 0, await_free 1, fill_slot 1"
    assert calls(consumer) == "await_filled 0, await_filled 1, free_slot 1, free_slot 0"


def test_each_role_keeps_the_loops_around_its_statements():
    got = run(parse(BEFORE, NESTED), PlanRingBuffers(), SpecializeWarps())
    for role in roles(got):
        names = [loop.loop_var.name for loop in ir.find_all(role, ir.For)]
        assert [name for name in names if name in "nk"] == ["n", "k"]


def test_the_option_s_pending_groups_give_way_to_a_ring_of_one_slot():
    single = ("[0, 0, 1]", "[0, 0, 0]")
    for changes, slots, pending in (((single,), 1, 0), ((), 2, 1)):
        func = parse(BEFORE, *changes).with_attr("tvm_hopper.wgmma_pending", 1)
        got = run(func, PlanRingBuffers(), SpecializeWarps())
        ring, roles, _, *fallbacks = notes_of(got)
        assert (ring.num_slots, roles.pending) == (slots, pending)
        assert [type(x) for x in fallbacks] == [FallbackNote] * (1 - pending)


def test_facts_for_explain():
    got = run(parse(BEFORE), PlanRingBuffers(), SpecializeWarps())
    assert notes_of(got) == (
        RingNote(channel=0, num_slots=2, tx_bytes=18432),
        RolesNote(producer_threads=128, consumer_threads=256, pending=0, registers=(40, 232)),
        ArrivalsNote(channel=0, full=1, empty=2),
    )


def test_facts_of_plain_consumers():
    got = run(parse(BEFORE, PLAIN_READER, ASK_CONSUMERS), PlanRingBuffers(), SpecializeWarps())
    _, roles, counts = notes_of(got)
    assert roles == RolesNote(producer_threads=32, consumer_threads=256, pending=0, registers=None)
    assert counts == ArrivalsNote(channel=0, full=1, empty=8)


def test_annotations_reach_the_roles_through_the_plan_of_rings():
    """What a user wrote on the loop is still there when roles are planned."""
    got = run(parse(BEFORE, ASK_PENDING), PlanRingBuffers(), SpecializeWarps())
    check(got, parse(ROLES, *LATE_RELEASE))


# -- programs of other kinds


def test_a_block_of_the_program_may_have_our_block_s_name():
    run(parse(BEFORE, ('"store"', '"kernel"')), PlanRingBuffers(), SpecializeWarps())


def test_a_single_slot_is_given_back_at_once_whatever_groups_are_pending():
    """The producer waits for it in front of the next tile's load: it would wait for ever."""
    func = parse(BEFORE, *OUTSIDE, ASK_PENDING, ASK_PERSISTENT)
    got = run(func, PlanRingBuffers(), SpecializeWarps())
    releases = ir.find_all(got.body, ir.SBlock, lambda x: x.name_hint == "release")
    assert [int(x.annotations["tvm_hopper.release"][0]) for x in releases] == [1, 0]


def test_a_producer_keeps_the_variables_that_it_uses():
    """An outer loop's, which the address needs; what the consumers alone use stays with them."""
    bound = (
        "                for n in range(3):\n",
        "                for n in range(3):\n"
        "                    at: T.let[T.int32] = n * 2\n"
        '                    own: T.let[T.int32] = n + T.Cast("int32", acc[0])\n'
        '                    T.call_extern("int32", "look", own)\n',
    )
    func = parse(BEFORE, NESTED, bound, ("k * 32", "at"))
    got = run(func, PlanRingBuffers(), SpecializeWarps())
    producer, consumer = roles(got)
    names = [[bind.var.name for bind in ir.find_all(x, tirx.Bind)] for x in (producer, consumer)]
    assert names == [["at", "trip"], ["at", "own", "trip"]]
    s_tir.analysis.verify_well_formed(got, assert_mode=True)


def test_a_load_around_a_loop_does_not_hold_back_pending_groups():
    """Its single slot is given back at once, whatever the ring of the product does."""
    look = ("tx // 128,", 'tx // 128 + T.Cast("int32", q[0, 0]),')
    func = parse(BEFORE, around_k(LOAD_Q, K_LOOP), look).with_attr("tvm_hopper.wgmma_pending", 1)
    got = run(func, PlanRingBuffers(), SpecializeWarps())
    releases = ir.find_all(got.body, ir.SBlock, lambda x: x.name_hint == "release")
    assert [int(x.annotations["tvm_hopper.release"][0]) for x in releases] == [1, 0]
    notes = notes_of(got)
    assert [x.pending for x in notes if isinstance(x, RolesNote)] == [1]
    assert not [x for x in notes if isinstance(x, FallbackNote)]


@pytest.mark.parametrize(
    ("extent", "last", "arrivals", "none"),
    [("8", "7", [2, 2], []), ("bx", "bx - 1", [2, 8, 0], ["bx < 1"])],
)
def test_a_tile_that_a_loop_reads_goes_back_in_its_last_iteration(extent, last, arrivals, none):
    """A next tile's load waits for it; a loop without iterations gives it back behind itself.

    There each warp speaks for itself, so it does in the last iteration, too.
    """
    look = ("tx // 128,", 'tx // 128 + T.Cast("int32", q[0, 0]),')
    func = parse(BEFORE, around_k(LOAD_Q, K_LOOP), look, ("range(8", f"range({extent}"))
    got = run(func, PlanRingBuffers(), SpecializeWarps())
    releases = ir.find_all(got.body, ir.SBlock, lambda x: x.name_hint == "release")
    assert [int(x.annotations["tvm_hopper.release"][1]) for x in releases] == arrivals
    ends = [str(ir.find_all(x, ir.IfThenElse)[0].condition) for x in releases]
    assert [x.partition(" and ")[2] for x in ends] == ["", f"k == {last}", *none]


def test_a_tile_that_is_read_late_goes_back_behind_the_loop():
    """The last iteration of the loop does not read it for the last time."""
    look = ("tx // 128,", 'tx // 128 + T.Cast("int32", q[0, 0]),')
    planned = run(parse(BEFORE, around_k(LOAD_Q, K_LOOP), look), PlanRingBuffers())

    def later(block, mutator):
        block = mutator.default_mutate(block)
        is_product = block.name_hint == "mma"
        return (
            ir.with_block(block, annotations={**block.annotations, SHIFT: 1})
            if is_product
            else block
        )

    got = run(planned.with_body(ir.mutate(planned.body, [(ir.SBlock, later)])), SpecializeWarps())
    _, consumer = roles(got)
    (loop,) = ir.find_all(consumer, ir.For, lambda x: x.loop_var.name == "k")
    assert [x.channel for x in find_calls(loop, FREE_SLOT)] == [1]
    assert [x.channel for x in find_calls(consumer, FREE_SLOT)] == [1, 0]
