"""Each rule by which two programs count as the same, and what it must not say."""

import pytest

from tests.mutants import equivalence
from tests.mutants.equivalence import MORE, ORDER, SAME, reason
from tests.mutants.recording import Operation
from tvm_hopper.sim.machine.memory import SHARED

ALL = tuple(range(32))


def op(name, lanes=ALL, **operands):
    return Operation(name, lanes, tuple(operands.items()))


def warps(*each):
    """Return what the warps of one CTA do."""
    return {("k", (0, 0, 0), f"warp{i}"): list(x) for i, x in enumerate(each)}


WAIT = op("cuda_mbarrier_wait", **{"0": 64, "1": 0})
OTHER_WAIT = op("cuda_mbarrier_wait", **{"0": 72, "1": 0})
FENCE = op("fence_proxy")
STORE = op("store", **{"0": 0, "1": 4, "2": 7})
LOAD = op("load", **{"0": 0, "1": 4})
MEET = op("tvm_storage_sync", **{"0": "shared", "1": 0, "2": -1})
EXPECT = op("mbarrier_arrive_expect_tx", (0,), addr=64, tx_count=8)
SECOND_EXPECT = op(EXPECT.name, (0,), addr=72, tx_count=8)
ARRIVE = op("mbarrier_arrive", (0,), addr=72)
COPY = op("cp_async_bulk_tensor_g2s", (0,), dst_mem=1024, mbar=64, box="a")
ROW_COPY = op("cp_async_bulk_g2s", (0,), dst_mem=1024, mbar=64, size=8)
SECOND_COPY = op("cp_async_bulk_tensor_g2s", (0,), dst_mem=2048, mbar=64, box="b")
WGMMA_FENCE = op("wgmma_fence")
WGMMA = op("wgmma_f16_ss", d="r", a_desc=1)
SUM = op("wgmma_f16_ss", d="r", a_desc=1, b_desc=2, scale_d=1)
MMA = op("ptx_legacy_mma", **{"0": "m16n8k16"})


def pending(count):
    return op("wgmma_wait_group", group=count)


def bar(number, count=32):
    return op("bar_sync", a=number, b=count)


def init(addr):
    return op("mbarrier_init", (0,), addr=addr, count=1)


@pytest.mark.parametrize(
    ("before", "after", "rule"),
    [
        ([STORE], [STORE], SAME),
        ([STORE], [op("tvm_hopper_code_fence"), STORE], "for compilers alone"),
        ([STORE], [op("setmaxnreg", nreg=40), STORE], "a hint"),
        ([op("setmaxnreg", nreg=48)], [op("setmaxnreg", nreg=40)], "a hint"),
        ([FENCE], [FENCE, FENCE], "the same again"),
        ([WAIT, LOAD], [WAIT, WAIT, LOAD], "the same again"),
        ([STORE], [STORE, STORE], "the same again"),
        ([EXPECT], [op(EXPECT.name, (5,), addr=64, tx_count=8)], "another lane of the warp"),
        ([MEET], [op(MEET.name, **{"0": "shared", "1": 1, "2": -1})], "not in the CUDA text"),
        ([bar(7), bar(7)], [bar(8), bar(7)], "another number of a barrier"),
        ([COPY, SECOND_COPY], [SECOND_COPY, COPY], ORDER),
        ([EXPECT, COPY, SECOND_COPY], [COPY, SECOND_COPY, EXPECT], ORDER),
        ([EXPECT, ROW_COPY], [ROW_COPY, EXPECT], ORDER),
        ([EXPECT, SECOND_EXPECT], [SECOND_EXPECT, EXPECT], ORDER),
        ([init(64), init(72), WAIT, ARRIVE], [init(72), init(64), WAIT, ARRIVE], ORDER),
        ([WAIT, OTHER_WAIT], [OTHER_WAIT, WAIT], ORDER),
        ([WAIT, WGMMA_FENCE, WGMMA], [WGMMA_FENCE, WAIT, WGMMA], ORDER),
        ([MMA, FENCE], [FENCE, MMA], ORDER),
        ([init(72), WAIT, ARRIVE, STORE], [init(72), WAIT, STORE, ARRIVE], ORDER),
        ([WGMMA, pending(1)], [WGMMA, pending(0)], MORE),
    ],
)
def test_a_rule_says_why_two_programs_are_the_same(before, after, rule):
    assert reason(warps(before), warps(after)) == rule


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([STORE], []),
        ([bar(7, 64), bar(7, 64)], [bar(8, 64), bar(7, 64)]),  # others come there, too
        ([bar(7), op("bar_arrive", a=8, b=64)], [bar(8), op("bar_arrive", a=8, b=64)]),
        ([bar(7)], [bar(0)]),  # everybody's
        ([STORE], [op("store", **{"0": 0, "1": 4, "2": 8})]),  # another value
        ([STORE, LOAD, STORE], [STORE, STORE, LOAD]),  # a load changes places with a store
        ([FENCE], []),
        ([FENCE, STORE], [STORE, FENCE]),
        ([ARRIVE], [ARRIVE, ARRIVE]),
        ([EXPECT], [EXPECT, EXPECT]),
        ([EXPECT, op(EXPECT.name, (0,), addr=64, tx_count=4)],
         [op(EXPECT.name, (0,), addr=64, tx_count=4), EXPECT]),
        ([COPY], [COPY, COPY]),
        ([COPY, op(COPY.name, (0,), dst_mem=1024, mbar=64, box="b")],
         [op(COPY.name, (0,), dst_mem=1024, mbar=64, box="b"), COPY]),  # one place, in turn
        ([init(64), WAIT], [op("mbarrier_init", (0,), addr=64, count=2), WAIT]),
        ([init(64), op("mbarrier_init", (0,), addr=64, count=2), WAIT],
         [op("mbarrier_init", (0,), addr=64, count=2), init(64), WAIT]),
        ([WAIT, COPY], [COPY, WAIT]),
        ([WAIT], [op(WAIT.name, **{"0": 64, "1": 1})]),
        ([WGMMA_FENCE, WGMMA], [WGMMA, WGMMA_FENCE]),
        ([MMA, WAIT], [WAIT, MMA]),
        ([init(72), WAIT, STORE, ARRIVE], [init(72), WAIT, ARRIVE, STORE]),
        ([WGMMA, pending(0)], [WGMMA, pending(1)]),
        ([WGMMA, pending(1), ARRIVE], [WGMMA, ARRIVE, pending(1)]),
        ([op("store", (0,), x=1)], [op("store", (1,), x=1)]),  # lanes of plain accesses matter
        ([EXPECT, ARRIVE], [EXPECT, op("mbarrier_arrive", (1,), addr=72)]),  # two lanes now
    ],
)  # fmt: skip
def test_no_rule_covers_what_may_matter(before, after):
    assert reason(warps(before), warps(after)) == ""


def test_all_warps_meet_once_more_or_none():
    once, twice = [STORE, MEET, LOAD], [STORE, MEET, MEET, LOAD]
    assert reason(warps(once, once), warps(twice, twice)) == "meetings that order nothing"
    assert reason(warps(once, once), warps(twice, once)) == ""
    early = [MEET, STORE, MEET, LOAD]
    assert reason(warps(once, once), warps(early, twice)) == ""


GROUP_WAIT, RELEASE = op("wgmma_wait_group", group=0), op("mbarrier_arrive", (0,), addr=72)


def group(*each):
    return {("k", (0, 0, 0), f"cta/wg0/warp{i}"): list(x) for i, x in enumerate(each)}


def test_any_warp_of_a_group_releases_behind_its_wait():
    first = group([GROUP_WAIT, RELEASE], [GROUP_WAIT])
    second = group([GROUP_WAIT], [GROUP_WAIT, op("mbarrier_arrive", (7,), addr=72)])
    assert reason(first, second) == "another warp of the group"
    early = group([GROUP_WAIT], [op("mbarrier_arrive", (7,), addr=72), GROUP_WAIT])
    assert reason(first, early) == ""
    elsewhere = group([GROUP_WAIT], [GROUP_WAIT, op("mbarrier_arrive", (7,), addr=80)])
    assert reason(first, elsewhere) == ""
    twice = group([GROUP_WAIT, RELEASE], [GROUP_WAIT, RELEASE])
    assert reason(first, twice) == ""


@pytest.mark.parametrize("weaker", [2, 1])
def test_a_release_is_behind_the_groups_that_are_complete(weaker):
    """Where a later wait for all groups stands for the one in front of the release."""
    commit = op("wgmma_commit_group")

    def trips(*groups):
        each = [[WAIT, SUM, commit, pending(n), RELEASE] for n in groups]
        return group([x for trip in each for x in trip] + [GROUP_WAIT])

    assert reason(trips(0, 0, 0), trips(0, weaker, 0)) == ""
    late = [WAIT, SUM, commit, WAIT, GROUP_WAIT, RELEASE]
    early = [WAIT, SUM, commit, GROUP_WAIT, RELEASE, WAIT, GROUP_WAIT]
    assert reason(group(early), group(late)) == ""


def test_a_fence_of_lanes_that_did_nothing_since_their_last():
    some, meet = op("fence_proxy", ALL[:31]), bar(7, 64)
    two, last = op("load", (0, 1)), op("load", (0, 31))
    before = [STORE, FENCE, meet, two, FENCE, meet]
    known = "a fence of lanes that did nothing"
    assert reason(warps(before, before), warps([*before[:4], some, meet], before)) == known
    assert reason(warps(before, before), warps(before, [*before[:4], some, meet])) == known
    mine = [STORE, FENCE, meet, last, FENCE, meet]
    assert reason(warps(mine, mine), warps([*mine[:4], some, meet], mine)) == ""
    # the other warp did something between its fence and the barrier, or meets a third one there
    later = [STORE, FENCE, LOAD, *before[2:]]
    assert reason(warps(before, later), warps([*before[:4], some, meet], later)) == ""
    three = [*before[:2], bar(7, 96), *before[3:]]
    assert reason(warps(three, before), warps([*three[:4], some, meet], before)) == ""
    for between in (WAIT, MEET, LOAD, ARRIVE):
        first, second = [FENCE, between, FENCE], [FENCE, between, some]
        assert reason(warps(first), warps(second)) == "", between


def test_a_fence_of_a_warp_that_touched_nothing():
    fence = op("fence_proxy", space="shared::cta")
    busy, idle = [MEET, STORE, fence, bar(7, 64)], [MEET, fence, bar(7, 64)]
    known = "a fence in front of any access"
    assert reason(warps(busy, idle), warps(busy, [MEET, bar(7, 64)])) == known
    assert reason(warps(busy, idle), warps([MEET, STORE, bar(7, 64)], idle)) == ""
    early = [STORE, *busy]  # which the other warp hears of
    assert reason(warps(early, idle), warps(early, [MEET, bar(7, 64)])) == ""


def test_a_fence_of_all_who_meet_is_in_front_of_the_meeting_or_behind_it():
    """PTX ISA 9.1, 8.9.1: somewhere on the path from a write to an asynchronous access."""
    known = "a fence in front of a meeting or behind it"
    meet = bar(7, 64)
    before = [STORE, FENCE, meet, WGMMA]
    after = [STORE, meet, FENCE, WGMMA]
    assert reason(warps(before, before), warps(after, after)) == known
    twice = [STORE, FENCE, meet, STORE, FENCE, meet, WGMMA]
    last = [STORE, meet, STORE, FENCE, meet, FENCE, WGMMA]
    assert reason(warps(twice, twice), warps(last, last)) == known
    # no fence, one in front of the write, or of one warp alone, or behind what reads
    for other in (
        [STORE, meet, WGMMA],
        [FENCE, STORE, meet, WGMMA],
        [STORE, meet, WGMMA, FENCE],
    ):
        assert reason(warps(before, before), warps(other, other)) == ""
    assert reason(warps(before, before), warps(after, [STORE, meet, WGMMA])) == ""
    # with a wait in front the fence may be for what has been read
    read = [WAIT, FENCE, STORE, FENCE, meet, WGMMA]
    written = [WAIT, STORE, FENCE, meet, WGMMA]
    assert reason(warps(read, read), warps(written, written)) == ""


def test_a_meeting_that_one_warp_alone_is_around_orders_nothing():
    """Barriers and copies of warp 0; the others come to the next meeting with nothing done."""
    before = warps([init(64), MEET, COPY, FENCE, MEET, LOAD], [MEET, FENCE, MEET, LOAD])
    after = warps([init(64), COPY, FENCE, MEET, LOAD], [FENCE, MEET, LOAD])
    assert reason(before, after) == "meetings that order nothing"
    moved = warps([MEET, init(64), COPY, FENCE, MEET, LOAD], [MEET, FENCE, MEET, LOAD])
    assert reason(before, moved) == "meetings that order nothing"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        # the other warp waits for the barrier that the meeting publishes
        (
            ([init(64), MEET, COPY, MEET], [MEET, WAIT, MEET]),
            ([init(64), COPY, MEET], [WAIT, MEET]),
        ),
        # the other warp did something in front of it
        (([MEET, COPY, MEET], [STORE, MEET, MEET]), ([COPY, MEET], [STORE, MEET])),
        # ordinary accesses, that a fence of the other warp may be for
        (([STORE, MEET, MEET], [MEET, FENCE, MEET]), ([STORE, MEET], [FENCE, MEET])),
        # no other meeting follows
        (([init(64), MEET, COPY], [MEET]), ([init(64), COPY], [])),
    ],
)
def test_other_meetings_are_needed(before, after):
    assert reason(warps(*before), warps(*after)) == ""


def test_a_cta_that_stores_nothing_may_be_added():
    shared = op("store", **{"0": SHARED | 1024, "1": 4, "2": 7})
    busy, idle = warps([LOAD, STORE]), [LOAD, WGMMA, shared, bar(7)]
    assert reason(busy, busy | {("k", (1, 0, 0), "warp0"): idle}) == equivalence.IDLE
    assert reason(busy, busy | {("k", (1, 0, 0), "warp0"): [*idle, STORE]}) == ""
    away = op("mbarrier_arrive", (0,), addr=1 << 24 | 64)  # into another CTA
    assert reason(busy, busy | {("k", (1, 0, 0), "warp0"): [away]}) == ""


@pytest.mark.parametrize(
    ("before", "after", "rule"),
    [
        ([LOAD, STORE], [LOAD, STORE, LOAD, op("store", **{"0": 0, "1": 4, "2": 7})], ""),
        (
            [op("load", **{"0": 9}), STORE],
            [op("load", **{"0": 9}), STORE] * 2,
            "the same again",
        ),
        ([pending(1), pending(0)], [pending(0)], "a wait right behind another"),
        ([pending(0), pending(1)], [pending(1)], ""),
        (
            [pending(0), WAIT, SUM, pending(0)],
            [WAIT, SUM, pending(0)],
            "a wait right behind another",
        ),
        ([pending(0), ARRIVE, SUM, pending(0)], [ARRIVE, SUM, pending(0)], ""),
        ([pending(0), STORE, SUM, pending(0)], [STORE, SUM, pending(0)], ""),
        ([pending(0), WAIT, SUM, pending(1)], [WAIT, SUM, pending(1)], ""),
        ([FENCE, MEET], [MEET, FENCE], ORDER),
        ([op("fence_proxy", (0,)), MEET], [MEET, op("fence_proxy", (0,))], ""),
    ],
)
def test_statements_again_and_fences_around_meetings(before, after, rule):
    assert reason(warps(before), warps(after)) == rule


def test_a_wait_that_leaves_all_groups_pending():
    commit, known = op("wgmma_commit_group"), "a wait for no group"
    one = [SUM, commit, pending(1), LOAD, SUM, commit, pending(1), STORE]
    assert reason(warps(one), warps([*one[:2], *one[3:]])) == known
    assert reason(warps(one), warps([*one[:6], STORE])) == ""
    later = [*one, SUM, commit, pending(1), STORE]  # one is pending already
    assert reason(warps(later), warps([*later[:10], STORE])) == ""


def product(a, scale_d=1):
    return op("wgmma_f16_ss", d="r", a_desc=a, b_desc=2, scale_d=scale_d)


def test_terms_of_one_sum_change_places():
    assert reason(warps([product(1), product(3)]), warps([product(3), product(1)])) == ORDER
    cleared = [product(1, 0), product(3)], [product(3), product(1, 0)]
    assert reason(warps(cleared[0]), warps(cleared[1])) == ""


def test_matrices_into_different_registers_change_places():
    one, other, same = (
        op("ptx_legacy_ldmatrix", **{"3": r, "5": a}) for r, a in ("xa", "yb", "xc")
    )
    assert reason(warps([one, other]), warps([other, one])) == ORDER
    assert reason(warps([one, same]), warps([same, one])) == ""
    first, second = (op("ptx_legacy_mma", **{"10": "c", "11": n}) for n in (0, 4))
    assert reason(warps([first, second]), warps([second, first])) == ORDER


@pytest.mark.parametrize(("sem", "rule"), [("", "element by element"), ("acquire", "")])
def test_weak_loads_lane_by_lane(sem, rule):
    def ld(*lanes):
        places = b"".join((64 + 4 * lane).to_bytes(4, "little") for lane in lanes)
        return op(
            "ld", lanes, **{"0": f"{{'sem': '{sem}'}}", "addr": ((len(lanes),), "uint32", places)}
        )

    assert reason(warps([ld(0, 1, 2)]), warps([ld(0, 2), ld(1)])) == rule


def waited(place, phase):
    return op(WAIT.name, (0,), **{"0": place, "1": phase & 1, "phase": phase})


def test_the_phase_before_the_first_is_over():
    before = [waited(72, -1), COPY, waited(72, 0), COPY]
    assert reason(warps(before), warps(before[1:])) == "the phase before the first"
    assert reason(warps(before), warps([*before[:2], COPY])) == ""
    assert reason(warps([waited(72, 1), COPY]), warps([COPY])) == ""  # parity 1, another phase


def test_a_release_that_nobody_waits_for():
    made, first = op("mbarrier_init", (0,), addr=72, count=2), [LOAD, ARRIVE]
    producer = [made, waited(72, 0)]
    both = warps(producer, [*first, *first], [*first, *first])
    spare = warps(producer, [*first, *first], [*first, LOAD])
    assert reason(both, spare) == "a release that nobody waits for"
    needed = warps(producer, [*first, *first], [LOAD, *first])
    assert reason(both, needed) == ""
    again = [*producer, waited(72, 1)]
    more = warps(again, [*first, *first], [*first, *first])
    assert reason(more, warps(again, [*first, *first], [*first, LOAD])) == ""
    away = op("mbarrier_arrive", (0,), addr=1 << 24 | 72)  # at another CTA's
    assert reason(warps(producer, [away, away]), warps(producer, [away])) == ""


def test_a_release_of_two_ctas_that_neither_waits_for():
    def ctas(each, rank_one):
        """Return a cluster of two whose consumers arrive at both, as often as is said."""
        both = op(
            "mbarrier_arrive", (0, 1), addr=((2,), "uint32", bytes((72, 0, 0, 0, 72, 0, 0, 1)))
        )
        return {
            ("k", (rank, 0, 0), warp): list(x)
            for rank, times in enumerate((each, rank_one))
            for warp, x in {
                "warp0": [op("mbarrier_init", (0,), addr=rank << 24 | 72, count=2),
                          waited(rank << 24 | 72, 0)],
                "warp1": [LOAD, both] * times,
            }.items()
        }  # fmt: skip

    assert reason(ctas(2, 2), ctas(2, 1)) == ""  # the load is gone, too
    spare, one = ctas(2, 2), ctas(2, 2)
    del one["k", (0, 0, 0), "warp1"][-1]
    assert reason(spare, one) == "a release that nobody waits for"
    del one["k", (0, 0, 0), "warp1"][1]
    assert reason(spare, one) == ""
    grid = {(x, (*block, 1), warp): ops for (x, block, warp), ops in spare.items()} | spare
    assert reason(grid, {**grid, **one}) == ""  # two clusters: whose barrier is meant is not known


def test_copies_behind_the_wait_for_the_grid_of_their_warp():
    wait = op("griddepcontrol", **{"0": "{'action': 'wait'}"})
    full = op(WAIT.name, **{"0": 64, "1": 0, "phase": 0})
    producer = [init(64), MEET, wait, EXPECT, COPY]
    both = warps(producer, [MEET, wait, full, STORE])
    known = "another one waits for the grid"
    assert reason(both, warps(producer, [MEET, full, STORE])) == known
    assert reason(both, warps(producer, [MEET, STORE, full])) == ""
    first = op(WAIT.name, **{"0": 64, "1": 1, "phase": -1})  # over before anything is copied
    before, after = [MEET, wait, first, STORE], [MEET, STORE]
    assert reason(warps(producer, before), warps(producer, after)) == ""
    late = [init(64), MEET, EXPECT, wait, COPY]
    assert (
        reason(warps(late, both["k", (0, 0, 0), "warp1"]), warps(late, [MEET, full, STORE])) == ""
    )
    stored = [MEET, wait, STORE, full]
    assert reason(warps(producer, stored), warps(producer, [MEET, STORE, full])) == ""


def test_a_wait_for_the_grid_in_lanes_that_do_nothing():
    def wait(*lanes):
        return op("griddepcontrol", lanes, **{"0": "{'action': 'wait'}"})

    idle = "a wait of idle lanes"
    whole = warps([MEET, wait(*ALL), EXPECT, COPY], [MEET, wait(*ALL)])
    assert reason(whole, warps([MEET, wait(0), EXPECT, COPY], [MEET])) == idle
    assert reason(whole, warps([MEET, wait(*ALL[1:]), EXPECT, COPY], [MEET])) == ""
    stores = warps([MEET, wait(*ALL), STORE])
    assert reason(stores, warps([MEET, wait(*ALL[:31]), STORE])) == ""


def test_loads_of_lanes_that_do_nothing_else():
    loads, stores = op("load", (8,), **{"0": 0, "1": 4}), op("store", (0,), **{"0": 0, "1": 4})
    rule = "a load of lanes that do nothing else"
    assert reason(warps([stores]), warps([loads, stores])) == rule
    shuffle = op("shfl_sync")
    assert reason(warps([stores, shuffle]), warps([loads, stores, shuffle])) == ""


def test_products_committed_with_the_next_ones():
    commit = op("wgmma_commit_group")
    sums = [product(1), commit, product(3), commit, pending(0), STORE]
    assert reason(warps(sums), warps([sums[0], *sums[2:]])) == "one group of products"
    assert reason(warps(sums), warps([*sums[:3], *sums[4:]])) == ""  # the last are in no group
    some = [*sums[:4], pending(1), STORE, pending(0)]
    assert reason(warps(some), warps([some[0], *some[2:]])) == ""


def test_a_meeting_before_anything_is_read():
    start = [init(64), MEET, EXPECT, COPY, MEET, EXPECT, WAIT, LOAD, MEET, STORE]
    other = [MEET, MEET, WAIT, LOAD, MEET, STORE]
    rule = "meetings that order nothing"
    assert reason(warps(start, other), warps([*start[:4], *start[5:]], other[1:])) == rule
    read = [MEET, LOAD, MEET, WAIT, LOAD, MEET, STORE]
    assert reason(warps(start, read), warps([*start[:4], *start[5:]], [*read[:2], *read[3:]])) == ""


def test_an_mbarrier_that_nobody_comes_to():
    other = op("mbarrier_init", (0,), addr=64, count=2)
    assert reason(warps([init(64)]), warps([other])) == "an mbarrier that nobody comes to"
    for use in (WAIT, EXPECT, COPY, op("mbarrier_arrive", (0,), addr=1 << 24 | 64)):
        assert reason(warps([init(64), use]), warps([other, use])) == ""


def test_a_fence_of_registers_within_one_sum():
    sums = [WGMMA_FENCE, product(1), WAIT, WGMMA_FENCE, product(3)]
    assert reason(warps(sums), warps([*sums[:3], sums[4]])) == "one sum"
    assert reason(warps(sums), warps(sums[1:])) == ""
    stored = [*sums[:3], STORE, *sums[3:]]
    assert reason(warps(stored), warps([*stored[:4], stored[5]])) == ""
    cleared = [*sums[:4], product(3, 0)]
    assert reason(warps(cleared), warps([*cleared[:3], cleared[4]])) == ""


def test_a_wait_for_the_grid_before_comes_earlier():
    wait = op("griddepcontrol", **{"0": "{'action': 'wait'}"})
    assert reason(warps([LOAD, wait, STORE]), warps([wait, LOAD, STORE])) == ORDER
    early, late = (
        op(wait.name, (31,), **{"0": wait.operand("0")}),
        op(wait.name, ALL[:31], **{"0": wait.operand("0")}),
    )
    assert reason(warps([LOAD, wait, STORE]), warps([early, LOAD, late, STORE])) == ORDER
    assert (
        reason(warps([wait, STORE]), warps([late, early, STORE])) == "each lane waits for the grid"
    )
    assert reason(warps([wait, STORE]), warps([late, STORE])) == ""
    assert reason(warps([wait, LOAD, STORE]), warps([LOAD, wait, STORE])) == ""


def test_a_warp_that_is_missing_is_never_the_same():
    assert reason(warps([STORE], [STORE]), warps([STORE])) == ""


def test_every_rule_is_tried():
    rows = test_a_rule_says_why_two_programs_are_the_same.pytestmark[0].args[1]
    own = {
        "another warp of the group",
        "a wait right behind another",
        "meetings that order nothing",
        *("the phase before the first", "a release that nobody waits for", "one sum"),
        *("a wait for no group", *equivalence.LAST_RULES),
        *("an mbarrier that nobody comes to", "each lane waits for the grid"),
        *("a wait of idle lanes", "a load of lanes that do nothing else"),
        "one group of products",
        "one value by any lanes",  # these two: test_places.py
        "element by element",
        # these: test_last_uses.py
        *("a release behind the last wait", "a count that nobody waits for"),
        *("an arrival at a barrier that nobody waits at", "another warp stays for the cluster"),
        "a barrier right behind the cluster's",
    }  # tests of their own
    assert {row[2] for row in rows} | own == {
        SAME,
        ORDER,
        MORE,
        *equivalence.RULES,
        *equivalence.LAST_RULES,
    }
