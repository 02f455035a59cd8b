"""CTAs that wait for each other must be on the device together, or wait for earlier ones alone."""

import numpy as np
import pytest
from tvm.script import tirx as T

from tvm_hopper.facts.arch import SM_80, SM_90A
from tvm_hopper.sim import RunOptions
from tvm_hopper.sim.cta_selection import choose_blocks
from tvm_hopper.sim.launch.arguments import complete
from tvm_hopper.sim.launch.limits import resident_ctas
from tvm_hopper.simulation import simulate, verify
from tvm_hopper.verification.launches import bound_launches

from .hand_threaded import F32, U32, Local, hand_threaded
from .kernels import lower

QUICK = (("eager", 0), ("on_wait", 0), ("random", 1))


def chain(tiles, parts, backwards=False):
    """Build a chain a tile: part z waits for part z - 1 of its tile, or for part z + 1."""

    @hand_threaded(32, grid=(tiles, None, parts))
    def main(C: F32[32], F: U32[tiles], bx, bz, tx, v: Local[U32], turn: Local[U32]):
        turn[0] = T.Cast("uint32", parts - 1 - bz if backwards else bz)
        if tx == 0:
            v[0] = T.uint32(0)
            while v[0] != turn[0]:
                T.ptx["ld.acquire.gpu.global.u32"](v[0], T.address_of(F[bx]))
            T.ptx["st.release.gpu.global.u32"](T.address_of(F[bx]), turn[0] + T.uint32(1))
        if bx == 0 and bz == 0:
            C[tx] = T.float32(1)

    return lower(main)


def given(tiles):
    return {"C": np.zeros(32, "float32"), "F": np.zeros(tiles, "uint32")}


def test_ctas_that_wait_for_earlier_ones_need_no_room():
    verify(chain(1, 40), given(1), runs=QUICK, num_sms=1).require_clean()


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("more", [{}, {"max_ctas": 40}, {"blocks": [(0, 0, z) for z in range(40)]}])
def test_ctas_that_wait_for_later_ones_must_fit(more):
    program = chain(1, 40, backwards=True)
    verify(program, given(1), runs=QUICK, num_sms=2, **more).require_clean()
    (found,) = verify(program, given(1), runs=QUICK, num_sms=1, **more).findings
    assert found.rule == "DEADLOCK"
    assert "launched up to 40 apart, and a device of 1 SMs holds 32 at once" in found.message
    assert found.policy == "in_turn"


def test_ctas_that_hear_of_nobody_need_no_room():
    program = chain(80, 1)
    verify(program, given(80), runs=QUICK, num_sms=1, max_ctas=80).require_clean()


def test_groups_are_as_far_apart_as_they_are_launched():
    values, _ = complete(chain(40, 3).arguments, given(40))
    (launch,) = bound_launches(chain(40, 3), values, 132)
    choice = choose_blocks(launch.func, launch.setup, 8)
    assert len(choice.blocks) == 3
    assert choice.span == 2 * 40 + 1  # x counts first
    report = verify(chain(40, 3, backwards=True), given(40), runs=QUICK, num_sms=2)
    assert {one.rule for one in report.findings} == {"DEADLOCK"}
    verify(chain(40, 3, backwards=True), given(40), runs=QUICK, num_sms=3).require_clean()


def test_a_run_that_does_not_end_is_incomplete(monkeypatch):
    from tvm_hopper.verification import every_cta

    run = every_cta.run_launches
    no_time = RunOptions(every_cta.POLICY, budget_s=0.0)
    monkeypatch.setattr(every_cta, "run_launches", lambda *args: run(*args[:-1], no_time))
    (found,) = verify(chain(1, 40), given(1), runs=QUICK, num_sms=1).findings
    assert found.rule == "INCOMPLETE"
    assert "the run did not end" in found.message


@pytest.mark.parametrize(
    ("threads", "dynamic", "static", "arch", "room"),
    [
        (32, 0, 0, SM_90A, 32),  # CTAs of an SM
        (1024, 0, 0, SM_90A, 2),  # threads
        (100, 0, 0, SM_90A, 16),  # of whole warps
        (32, 100 << 10, 0, SM_90A, 2),  # shared memory
        (32, 0, 48 << 10, SM_80, 3),
        (32, 227 << 10, 0, SM_90A, 1),
    ],
)
def test_what_an_sm_holds(threads, dynamic, static, arch, room):
    setup = {"block": (threads, 1, 1), "dyn_smem_bytes": dynamic}
    shared = [("tile", "shared", static, 16)] if static else []
    assert resident_ctas(setup, shared, arch, 10) == 10 * room


def test_a_cluster_begins_when_the_one_before_has_ended():
    result = simulate(chain(1, 5), given(1), policy="in_turn").require_clean()
    assert result.blocks == tuple((0, 0, z) for z in range(5))
    assert simulate(chain(1, 5, backwards=True), given(1), policy="in_turn").rules == {"DEADLOCK"}


def neighbours(ctas, missing=-1):
    """Build a chain: each CTA loads the word of the one before until that is there."""

    @hand_threaded(32, grid=ctas)
    def main(F: U32[ctas + 1], bx, tx, v: Local[U32]):
        if tx == 0:
            v[0] = T.Cast("uint32", T.if_then_else(bx == 0, 1, 0))
            while v[0] == T.uint32(0):
                T.ptx["ld.acquire.gpu.global.u32"](v[0], T.address_of(F[bx]))
            if bx != missing:
                T.ptx["st.release.gpu.global.u32"](T.address_of(F[bx + 1]), T.uint32(1))

    return lower(main)


@pytest.mark.parametrize("policy", ["eager", "lifo", "random"])
def test_a_loop_of_loads_is_woken_by_its_words_alone(policy):
    result = simulate(neighbours(40), {"F": np.zeros(41, "uint32")}, policy=policy)
    assert not result.findings, result.findings
    assert result.steps < 40 * 20  # 800; woken by every change: 1 600 or more


def test_a_loop_of_loads_that_nothing_ends():
    result = simulate(neighbours(4, missing=2), {"F": np.zeros(5, "uint32")})
    assert {f.rule for f in result.findings} == {"DEADLOCK"}
    assert "spins in: " in str(result)
