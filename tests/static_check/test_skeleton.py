"""Exploration of the role skeleton: what it proves, what it finds, and when it says incomplete."""

import pytest
from tvm.script import tirx as T

from tests.seeded.catalogue import BY_ID, GOLDEN, slow_but_hopper
from tests.seeded.golden import g1_warp_specialized, g7_persistent
from tests.seeded.lowering import lower
from tests.static_check.kernels import kernel
from tvm_hopper.sim.protocol.check import explore, explore_skeleton, extract_skeletons
from tvm_hopper.sim.protocol.trace import UnanalysableError, trace_cta


def explored(built, **options):
    lowered = lower(built.func)
    return explore_skeleton(lowered.device, lowered.host, **options)


@pytest.mark.parametrize("golden", [*map(slow_but_hopper, GOLDEN)], ids=lambda golden: golden.name)
def test_finishes_on_a_right_kernel(golden):
    report = explored(golden.build())
    assert report.verdict == "clean", report.findings
    assert report.states < 10_000


@pytest.mark.parametrize("stages", [2, 3, 4])
@pytest.mark.parametrize("extra", [-1, 0, 1])
def test_proves_rings_of_two_to_four_slots(stages, extra):
    report = explored(g1_warp_specialized.build(stages=stages, trips=2 * stages + extra))
    assert report.verdict == "clean"
    assert report.covers == "CTA (0, 0, 0)"


def test_one_slot_and_a_pending_group_wait_for_each_other():
    # G1 releases a slot one step late: with a single slot the producer waits for that for ever
    report = explored(g1_warp_specialized.build(stages=1, trips=2))
    assert "DEADLOCK" in report.rules


@pytest.mark.parametrize(("trips", "verdict"), [(2, "error"), (3, "error"), (4, "clean")])
def test_a_phase_reset_shows_unless_trips_divide_by_twice_the_stages(trips, verdict):
    # M18: right by luck when every slot has completed an even number of phases
    assert explored(g7_persistent.build("M18", stages=2, trips=trips)).verdict == verdict


def test_deadlock_names_who_waits_for_what():
    report = explored(BY_ID["M61"].build())
    (text,) = {f.message for f in report.findings if f.rule == "DEADLOCK"}
    assert "cta0/warp0 waits empty at byte" in text
    assert "cta0/warp_group1 waits at barrier 1" in text


def test_missing_bytes_are_named():
    (text,) = {f.message for f in explored(BY_ID["M05"].build()).findings if "MISMATCH" in f.rule}
    assert text == "all arrivals are there, 16 bytes are expected that no copy delivers"


def test_a_budget_that_overflows_is_incomplete():
    report = explored(GOLDEN[0].build(), max_states=20)
    assert report.verdict == "incomplete"
    assert "more than 20 states" in report.findings[0].message


def test_a_cut_loop_is_told():
    report = explored(g1_warp_specialized.build(trips=12), max_iterations=5)
    assert report.verdict == "clean"
    assert report.covers == "CTA (0, 0, 0) with at most 5 iterations"


CONSUMED = 8


@pytest.mark.parametrize("filled", [CONSUMED, CONSUMED - 1])
def test_roles_that_a_cut_alone_divides_are_followed_to_their_end(filled):
    """A loop around another one with barriers is cut earlier than the loop of the other role."""

    @T.inline
    def emit(X, tx, sf, bars, reg):
        if tx == 0:
            T.ptx.mbarrier.init.shared.b64(T.address_of(bars[0]), T.uint32(1))
            T.ptx.mbarrier.init.shared.b64(T.address_of(bars[1]), T.uint32(128))
        T.tvm_storage_sync("shared")
        if tx < 128:
            if tx == 0:
                for i in T.serial(filled):
                    T.cuda.mbarrier_wait(T.address_of(bars[1]), (i + 1) % 2)
                    T.ptx.mbarrier.arrive.shared.b64(T.address_of(bars[0]))
        else:
            for i in T.serial(CONSUMED):
                T.cuda.mbarrier_wait(T.address_of(bars[0]), i % 2)
                for _ in T.serial(3):
                    T.ptx.bar.sync(T.uint32(1), T.uint32(128))
                T.ptx.mbarrier.arrive.shared.b64(T.address_of(bars[1]))

    report = explore_skeleton(kernel(emit))
    assert {f.rule for f in report.findings} == (set() if filled == CONSUMED else {"DEADLOCK"})
    assert report.covers == "CTA (0, 0, 0)"
    few = explore_skeleton(kernel(emit), max_states=30)
    assert few.verdict == "incomplete"


def test_roles_of_more_trips_than_can_be_followed_are_incomplete():
    @T.inline
    def emit(X, tx, sf, bars, reg):
        if tx < 128:
            for _ in T.serial(20_000):
                T.ptx.bar.sync(T.uint32(1), T.uint32(256))
        else:
            for _, _1 in T.grid(10_000, 2):
                T.ptx.bar.sync(T.uint32(1), T.uint32(256))

    report = explore_skeleton(kernel(emit))
    assert report.verdict == "incomplete"
    assert "a loop is too long to follow every iteration" in report.findings[0].message


def test_a_wait_on_global_memory_is_left_to_the_simulator():
    """Whether another CTA stores the word is no matter of one CTA's roles."""
    report = explored(BY_ID["M49"].golden.build())
    assert (report.verdict, report.findings) == ("clean", ())


def test_first_and_last_cta_are_explored():
    report = explored(g7_persistent.build())
    assert report.covers == "CTA (0, 0, 0); CTA (1, 0, 0)"


def found_by_exploring(lowered, reduce, merge):
    (skeleton,) = extract_skeletons(lowered.device, lowered.host, last=False)
    stuck, states, complete = explore(skeleton, 50_000, reduce, merge)
    assert complete
    return bool(stuck), bool(skeleton.system.violations), states


# those whose states can all be visited; of wrong ones a search ends at its fourth deadlock
WRONG = (
    "M01", "M03", "M04", "M05", "M06", "M08", "M09", "M12", "M13", "M18", "M35", "M36", "M41",
    "M58", "M61",
)  # fmt: skip
MANY_STATES = ("G2", "G7", "softmax by clusters", "softmax, records by copies", "B multicast")
RIGHT = [slow_but_hopper(golden) for golden in GOLDEN if golden.name not in MANY_STATES]


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("built", [*(BY_ID[n] for n in WRONG), *RIGHT],
                         ids=lambda x: getattr(x, "id", getattr(x, "name", None)))  # fmt: skip
def test_reduced_and_full_exploration_agree(built):
    lowered = lower(built.build().func)
    *full, many = found_by_exploring(lowered, False, False)
    for flags in ((True, True), (True, False), (False, True)):
        *reduced, few = found_by_exploring(lowered, *flags)
        assert reduced == full
        if not any(full):
            assert few <= many


def refused(emit):
    with pytest.raises(UnanalysableError) as error:
        trace_cta(kernel(emit))
    return str(error.value)


def test_refuses_a_loop_whose_extent_is_data():
    @T.inline
    def emit(X, tx, sf, bars, reg):
        for _ in T.serial(T.Cast("int32", X[0])):
            T.ptx.bar.sync(T.uint32(1), T.uint32(256))

    assert "extent of loop" in refused(emit)


def test_refuses_too_many_events():
    @T.inline
    def emit(X, tx, sf, bars, reg):
        for _ in T.serial(1000):
            T.ptx.bar.sync(T.uint32(1), T.uint32(256))

    with pytest.raises(UnanalysableError, match="more than 100 synchronising instructions"):
        trace_cta(kernel(emit), max_events=100)


@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("barrier", "number of barrier"),
        ("mbarrier", "address of arrive"),
        ("parity", "operand of wait"),
        ("split", "block barrier between barrier.cluster.arrive and .wait"),
    ],
)
def test_what_cannot_be_followed_is_incomplete(what, text):
    @T.inline
    def emit(X, tx, sf, bars, reg):
        data = T.alloc_buffer((1,), "int32", scope="local")
        data[0] = T.Cast("int32", X[tx])
        if what == "barrier":
            T.ptx.bar.sync(T.Cast("uint32", data[0]), T.uint32(128))
        if what == "mbarrier":
            T.ptx.mbarrier.arrive.shared.b64(T.address_of(bars[data[0]]))
        if what == "parity":
            T.cuda.mbarrier_wait(T.address_of(bars[0]), data[0])
        if what == "split":
            T.ptx["barrier.cluster.arrive.aligned"]()
            T.ptx.bar.sync(T.uint32(1), T.uint32(256))
            T.ptx["barrier.cluster.wait.aligned"]()

    report = explore_skeleton(kernel(emit))
    assert report.verdict == "incomplete"
    assert text in report.findings[0].message


@pytest.mark.parametrize("all_come", [True, False])
@pytest.mark.parametrize("name", ["bar.red.popc.u32", "barrier.red.or.pred", "block"])
def test_a_barrier_with_votes_is_followed_as_a_barrier(name, all_come):
    @T.inline
    def emit(X, tx, sf, bars, reg):
        count = T.alloc_buffer((1,), "uint32", scope="local")
        if all_come or tx < 128:
            if name == "block":
                T.evaluate(T.cuda.syncthreads_or(1))
            else:
                T.ptx[name](count[0], T.uint32(1), T.uint32(256), T.bool(True))
        else:
            T.ptx.bar.sync(T.uint32(2), T.uint32(256))

    report = explore_skeleton(kernel(emit))
    assert {f.rule for f in report.findings} == (set() if all_come else {"DEADLOCK"})
