"""Each rule by which two programs count as the same, and what it must not say."""

import pytest

from tests.mutants import equivalence
from tests.mutants.equivalence import MORE, ORDER, SAME, reason
from tests.mutants.recording import Operation

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
ARRIVE = op("mbarrier_arrive", (0,), addr=72)
COPY = op("cp_async_bulk_tensor_g2s_cluster", (0,), dst_mem=1024, mbar=64, box="a")
SECOND_COPY = op("cp_async_bulk_tensor_g2s_cluster", (0,), dst_mem=2048, mbar=64, box="b")
WGMMA_FENCE = op("wgmma_fence")
WGMMA = op("wgmma_f16_ss", d="r", a_desc=1)
MMA = op("ptx_legacy_mma", **{"0": "m16n8k16"})


def pending(count):
    return op("wgmma_wait_group", group=count)


def init(addr):
    return op("mbarrier_init", (0,), addr=addr, count=1)


@pytest.mark.parametrize(
    ("before", "after", "rule"),
    [
        ([STORE], [STORE], SAME),
        ([STORE], [op("tvm_hopper_code_fence"), STORE], "for compilers alone"),
        ([STORE], [op("setmaxnreg", nreg=40), STORE], "registers are a hint"),
        ([op("setmaxnreg", nreg=48)], [op("setmaxnreg", nreg=40)], "registers are a hint"),
        ([FENCE], [FENCE, FENCE], "the same again"),
        ([WAIT, LOAD], [WAIT, WAIT, LOAD], "the same again"),
        ([STORE], [STORE, STORE], "the same again"),
        ([EXPECT], [op(EXPECT.name, (5,), addr=64, tx_count=8)], "another lane of the warp"),
        ([MEET], [op(MEET.name, **{"0": "shared", "1": 1, "2": -1})], "not in the CUDA text"),
        ([COPY, SECOND_COPY], [SECOND_COPY, COPY], ORDER),
        ([EXPECT, COPY, SECOND_COPY], [COPY, SECOND_COPY, EXPECT], ORDER),
        ([init(64), init(72)], [init(72), init(64)], ORDER),
        ([WAIT, OTHER_WAIT], [OTHER_WAIT, WAIT], ORDER),
        ([WAIT, WGMMA_FENCE, WGMMA], [WGMMA_FENCE, WAIT, WGMMA], ORDER),
        ([MMA, FENCE], [FENCE, MMA], ORDER),
        ([WGMMA, pending(1)], [WGMMA, pending(0)], MORE),
    ],
)
def test_a_rule_says_why_two_programs_are_the_same(before, after, rule):
    assert reason(warps(before), warps(after)) == rule


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([STORE], []),
        ([STORE], [op("store", **{"0": 0, "1": 4, "2": 8})]),  # another value
        ([STORE, LOAD, STORE], [STORE, STORE, LOAD]),  # a load changes places with a store
        ([FENCE], []),
        ([FENCE, STORE], [STORE, FENCE]),
        ([ARRIVE], [ARRIVE, ARRIVE]),
        ([EXPECT], [EXPECT, EXPECT]),
        ([COPY], [COPY, COPY]),
        ([COPY, op(COPY.name, (0,), dst_mem=1024, mbar=64, box="b")],
         [op(COPY.name, (0,), dst_mem=1024, mbar=64, box="b"), COPY]),  # one place, in turn
        ([init(64)], [op("mbarrier_init", (0,), addr=64, count=2)]),
        ([init(64), op("mbarrier_init", (0,), addr=64, count=2)],
         [op("mbarrier_init", (0,), addr=64, count=2), init(64)]),
        ([WAIT, COPY], [COPY, WAIT]),
        ([WAIT], [op(WAIT.name, **{"0": 64, "1": 1})]),
        ([WGMMA_FENCE, WGMMA], [WGMMA, WGMMA_FENCE]),
        ([MMA, WAIT], [WAIT, MMA]),
        ([WGMMA, pending(0)], [WGMMA, pending(1)]),
        ([WGMMA, pending(1), ARRIVE], [WGMMA, ARRIVE, pending(1)]),
        ([op("store", (0,), x=1)], [op("store", (1,), x=1)]),  # lanes of plain accesses matter
        ([EXPECT, ARRIVE], [EXPECT, op("mbarrier_arrive", (1,), addr=72)]),  # two lanes now
    ],
)  # fmt: skip
def test_no_rule_covers_what_may_matter(before, after):
    assert reason(warps(before), warps(after)) == ""


def test_all_warps_meet_once_more_or_none():
    one, both = [MEET, MEET], [MEET]
    assert reason(warps(both, both), warps(one, one)) == "the same again"
    assert reason(warps(both, both), warps(one, both)) == ""


def test_a_warp_that_is_missing_is_never_the_same():
    assert reason(warps([STORE], [STORE]), warps([STORE])) == ""


def test_every_rule_is_tried():
    source = test_a_rule_says_why_two_programs_are_the_same.pytestmark[0].args[1]
    assert {row[2] for row in source} == {SAME, ORDER, MORE, *equivalence.RULES}
