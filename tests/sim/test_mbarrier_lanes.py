"""One instruction of a warp on mbarriers: each lane has its own barrier, bytes, count, state."""

import functools

import numpy as np
import pytest
from tvm.script import tirx as T

from tvm_hopper.sim.machine.mbarrier import MAX_COUNT
from tvm_hopper.simulation import simulate, verify

from . import ptx
from .hand_threaded import F32, U32, U64, Local, Shared, hand_threaded
from .kernels import POLICIES, lower

X = np.arange(256, dtype="float32")
GIVEN = {"X": X}


@hand_threaded(128, smem=512, then=lower)
def made(X: F32[256], Y: F32[128], tx, bar: Shared[U64], *, lanes, own):
    """Initialise a barrier in each of some lanes, or one in all of them; all wait for one."""
    if tx < lanes:
        ptx.init_mbarrier(bar[tx if own else 0], 128)
        T.ptx.fence.mbarrier_init.release.cluster()
    T.cuda.cta_sync()
    ptx.arrive(bar[(lanes - 1) if own else 0])
    ptx.wait(bar[(lanes - 1) if own else 0], 0)
    Y[tx] = X[tx]


@pytest.mark.parametrize("lanes", [1, 16, 32])
def test_each_lane_makes_its_own_barrier(lanes):
    """Re-initialisation of a valid mbarrier object is undefined (PTX ISA, mbarrier.init)."""
    verify(made(lanes, True), GIVEN).require_clean()
    again = {"MBAR_REINIT_LIVE", "RACE_WRITE_WRITE"}
    assert lanes == 1 or simulate(made(lanes, False), GIVEN).rules >= again


@functools.cache
def expected(second, come, form="arrive.expect_tx"):
    """Let lanes 0 and 1 expect 128 and `second` bytes, each on its barrier; `come` come."""
    alone = form == "expect_tx"
    name = (
        f"mbarrier.{form}.relaxed.cta.shared::cta.b64" if alone else f"mbarrier.{form}.shared.b64"
    )

    @hand_threaded(128, smem=2048)
    def main(X: F32[256], Y: F32[128], tx, tile: Shared[F32], bar: Shared[U64]):
        ptx.set_up(tx, (bar[200], 1), (bar[201], 1), sync=T.cuda.cta_sync)
        if tx < 2:
            T.ptx[name](
                T.address_of(bar[200 + tx]),
                T.uint32(128) + T.Cast("uint32", tx) * T.uint32(second - 128),
            )
        if tx == 0:
            ptx.load_bytes(tile[0], X[0], 128, bar[200])
            ptx.load_bytes(tile[32], X[32], come, bar[201])
        if alone and tx < 2:
            ptx.arrive(bar[200 + tx])
        ptx.wait(bar[200], 0)
        ptx.wait(bar[201], 0)
        if tx < 96:
            Y[tx] = tile[tx]
        else:
            Y[tx] = T.float32(0)

    return lower(main)


@pytest.mark.parametrize("form", ["arrive.expect_tx", "expect_tx"])
def test_each_lane_expects_its_own_bytes(form):
    program = expected(256, 256, form)
    assert verify(program, GIVEN).verdict == "clean"
    assert np.array_equal(simulate(program, GIVEN).outputs["Y"][:96], X[:96])


def test_bytes_that_one_lane_expects_too_many():
    report = verify(expected(4096, 256), GIVEN)
    assert {f.rule for f in report.findings} == {"MBAR_TX_MISMATCH", "DEADLOCK"}


@hand_threaded(128, smem=512, then=lower)
def states(
    X: F32[256], Y: F32[128], tx, bar: Shared[U64], state: Local[U64], ok: Local[U32], *, swapped,
):  # fmt: skip
    """Let two lanes wait by state on barriers in phases 0 and 1, by its own or a wrong one."""
    if tx < 2:
        ptx.init_mbarrier(bar[tx], 1)
        T.ptx.fence.mbarrier_init.release.cluster()
    T.cuda.cta_sync()
    if tx == 0:
        ptx.arrive(bar[1])
    ptx.wait(bar[1], 0)
    T.cuda.cta_sync()
    if tx < 2:
        T.ptx["mbarrier.arrive.shared::cta.b64"](state[0], T.address_of(bar[tx]))
        ok[0] = T.uint32(0)
        if swapped:
            state[0] = T.bitwise_xor(state[0], T.uint64(1))
        while ok[0] == T.uint32(0):
            T.ptx["mbarrier.try_wait.shared::cta.b64"](ok[0], T.address_of(bar[tx]), state[0])
    Y[tx] = X[tx]


@pytest.mark.parametrize(("policy", "seed"), POLICIES)
def test_each_lane_gets_the_phase_of_its_own_barrier(policy, seed):
    simulate(states(False), GIVEN, policy, seed).require_clean()


def test_a_state_of_another_phase_never_completes():
    assert simulate(states(True), GIVEN).rules == {"DEADLOCK"}


@functools.cache
def stated(form, state, drops, count=1):
    """Let thread 0 arrive by a form, with or without a state, and thread 32 plainly, two times."""
    bytes_too = "expect_tx" in form

    @hand_threaded(128)
    def main(X: F32[256], Y: F32[128], tx, tile: Shared[F32], bar: Shared[U64], got: Local[U64]):
        ptx.set_up(tx, (bar[100], 2), sync=T.cuda.cta_sync)
        if tx == 0:
            if state:
                T.ptx[f"mbarrier.{form}.shared::cta.b64"](
                    got[0], T.address_of(bar[100]), T.uint32(512 if bytes_too else count)
                )
            else:
                T.ptx[f"mbarrier.{form}.shared::cta.b64"](
                    T.address_of(bar[100]), T.uint32(512 if bytes_too else count)
                )
            if bytes_too:
                ptx.load_bytes(tile[0], X[0], 512, bar[100])
        if tx == 32:
            ptx.arrive(bar[100])
        ptx.wait(bar[100], 0)
        T.cuda.cta_sync()
        if tx == 32:
            ptx.arrive(bar[100])
        if tx == 0 and not drops:
            ptx.arrive(bar[100])
        ptx.wait(bar[100], 1)
        if bytes_too:
            Y[tx] = tile[tx]
        else:
            Y[tx] = X[tx]

    return lower(main)


@pytest.mark.parametrize("state", [False, True])
@pytest.mark.parametrize("form", ["arrive", "arrive_drop"])
@pytest.mark.parametrize("what", ["", ".expect_tx"])
def test_a_form_with_a_state_counts_as_the_one_without(form, what, state):
    program = stated(form + what, state, form == "arrive_drop")
    verify(program, GIVEN).require_clean()
    assert np.array_equal(simulate(program, GIVEN).outputs["Y"], X[:128])


@pytest.mark.parametrize("form", ["arrive", "arrive_drop"])
def test_who_left_is_not_waited_for_and_who_stayed_is(form):
    wrong = stated(f"{form}.expect_tx", True, form == "arrive")
    rules = {f.rule for f in verify(wrong, GIVEN).findings}
    assert rules & ({"DEADLOCK"} if form == "arrive" else {"MBAR_MISSING_WAIT"})


@pytest.mark.parametrize("count", [0, MAX_COUNT + 1])
def test_an_arrival_counts_for_one_at_least(count):
    """The count of an arrival is 1 to 2^20 - 1 (PTX ISA, contents of the mbarrier object)."""
    found = [f for f in simulate(stated("arrive", True, False, count), GIVEN).findings
             if f.rule == "ILLEGAL_OPERAND"]  # fmt: skip
    assert [f.message.split(": ")[1] for f in found] == [
        f"arrive count {count}; need 1 to {MAX_COUNT}"
    ]


@hand_threaded(32, smem=512, then=lower)
def known(X: F32[256], Y: F32[2], tx, tile: Shared[F32], bar: Shared[U64], *, how):
    """Let two lanes wait for a copy each; then each reads its own copy, or the other one's."""
    if tx < 2:
        ptx.init_mbarrier(bar[50 + tx], 1)
        T.ptx.fence.mbarrier_init.release.cluster()
    T.cuda.cta_sync()
    if tx < 2:
        ptx.expect_and_load(tile[tx * 32], X[tx * 32], 16, bar[50 + tx])
        ptx.wait(bar[50 + tx], 0)
    if how == "met":
        T.cuda.warp_sync()
    if tx < 2:
        Y[tx] = tile[(tx if how == "own" else 1 - tx) * 32]


@pytest.mark.parametrize("how", ["own", "met", "other"])
def test_a_lane_learns_of_the_barrier_that_it_waits_for(how):
    found = simulate(known(how), GIVEN).rules
    assert found == ({"RACE_READ_INFLIGHT"} if how == "other" else set())


@hand_threaded(64, smem=512, then=lower)
def published(X: F32[256], Y: F32[32], tx, tile: Shared[F32], bar: Shared[U64], *, how):
    """Let two lanes write a word and arrive on a barrier each; another warp waits for the first."""
    if tx < 2:
        ptx.init_mbarrier(bar[50 + tx], 1)
        T.ptx.fence.mbarrier_init.release.cluster()
    T.cuda.cta_sync()
    if tx == 0:
        tile[0] = X[0]
    if tx == 1:
        tile[1] = X[1]
    if tx < 2:
        ptx.arrive(bar[50 + tx])
    if tx >= 32:
        ptx.wait(bar[50], 0)
        if how == "both":
            ptx.wait(bar[51], 0)
        Y[tx - 32] = tile[0 if how == "own" else 1]


@pytest.mark.parametrize("how", ["own", "both", "other"])
def test_an_arrival_publishes_what_its_own_lane_did(how):
    found = simulate(published(how), GIVEN).rules
    assert found == ({"RACE_READ_INFLIGHT"} if how == "other" else set())


@hand_threaded(32, smem=512)
def _one_slot(X: F32[128], Y: F32[128], tx, tile: Shared[F32], bars: Shared[U64], *, way):
    """Let lane 0 fill one slot again and again; which lanes wait, and meet, is told by `way`."""
    ptx.set_up(tx, (bars[32], 1), (bars[33], 32), sync=T.cuda.warp_sync)
    for turn in T.serial(4):
        if tx == 0:
            ptx.expect_and_load(tile[0], X[turn * 32], 128, bars[32])
            if way == "elected":
                ptx.wait(bars[32], turn & 1)
        if way != "elected":
            ptx.wait(bars[32], turn & 1)
        if way == "meet":
            T.cuda.warp_sync()
        if way in ("arrive", "arrive alone"):
            ptx.arrive(bars[33])
        if tx == 0:
            if way == "arrive":
                ptx.wait(bars[33], turn & 1)
            ptx.store_and_wait(Y[turn * 32], tile[0], 128)


@pytest.mark.parametrize(
    ("way", "found"),
    [
        ("elected", set()),
        ("meet", set()),
        ("arrive", set()),
        ("arrive alone", {"MBAR_PHASE_ALIAS"}),
        ("nothing", {"MBAR_PHASE_ALIAS"}),
    ],
)
def test_a_lane_that_may_wait_for_a_later_phase(way, found):
    x = np.arange(128, dtype="float32")
    report = simulate(lower(_one_slot(way)), {"X": x})
    assert {one.rule for one in report.findings} - {"MBAR_MISSING_WAIT"} == found, str(report)
