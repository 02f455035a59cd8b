"""Which loops may leave out turns, which turns run, and what is found although they do."""

import functools
import random
from dataclasses import replace

import numpy as np
import pytest
from tvm import tirx
from tvm.script import tirx as T

from tests.sim_kernels.kernels import scheduled
from tests.sim_kernels.mutate import instructions
from tvm_hopper import ir
from tvm_hopper.sim.leave_out import plan_savings
from tvm_hopper.sim.loop_cuts.plan import CutPlan, plan_cuts
from tvm_hopper.sim.loop_cuts.shift import Known, Shift, shift_of
from tvm_hopper.sim.loop_cuts.threshold import iterations_to_run
from tvm_hopper.sim.protocol.expr import compile_expr
from tvm_hopper.simulation import Program, load, verify
from tvm_hopper.verification import case
from tvm_hopper.verification.launches import bound_launches, run_launches

from . import ptx
from .hand_threaded import F32, I32, U64, Local, Static, hand_threaded
from .kernels import lower

TURNS = 64
GIVEN = {"A": np.zeros(TURNS, "int32")}
PROBLEM = {"m": 64, "n": 16, "k": 16 * TURNS}


# -- claims on expressions ------------------------------------------------------------------------


def _random_expression(rng, k, depth):
    if depth == 0:
        return rng.choice([k, tirx.IntImm("int32", rng.randrange(1, 12))])
    a, b = (_random_expression(rng, k, depth - 1) for _ in range(2))
    constant = tirx.IntImm("int32", rng.choice([1, 2, 3, 4, 7, 8, 15, 16]))
    kind = rng.randrange(9)
    if kind == 0:
        return a + b
    if kind == 1:
        return a - b
    if kind == 2:
        return a * constant
    if kind == 3:
        return tirx.FloorDiv(a, constant)
    if kind == 4:
        return tirx.FloorMod(a, constant)
    if kind == 5:
        return a >> tirx.IntImm("int32", rng.randrange(4))
    if kind == 6:
        return a & constant
    if kind == 7:
        return tirx.Div(a, constant)
    return tirx.Mod(a, constant) ^ constant


@pytest.mark.parametrize("seed", range(200))
def test_a_claim_holds_for_every_turn(seed):
    rng = random.Random(seed)
    k = tirx.Var("k", "int32")
    expression = _random_expression(rng, k, 3)
    claim = shift_of(expression, Known({k: Shift(1, 1, True)}))
    if claim is None:
        return
    value = compile_expr(expression)
    values = [value({k: turn}) for turn in range(4 * claim.period + 64)]
    assert all(
        later == before + claim.step
        for before, later in zip(values, values[claim.period :], strict=False)
    ), (expression, claim)
    assert not claim.positive or min(values) >= 0


def test_a_value_that_has_a_name_of_its_own():
    k, q = tirx.Var("k", "int32"), tirx.Var("q", "int32")
    value = compile_expr(tirx.Let(q, k * 3, q * q + k))
    assert [value({k: turn}) for turn in range(3)] == [0, 10, 38]


def test_a_condition_on_threads_beside_a_constant_says_who():
    tx = tirx.Var("tx", "int32")
    value = compile_expr(tirx.bitwise_and(tirx.const(True, "bool"), tx < 2))
    who = value({tx: np.arange(4)})
    assert who.dtype == bool  # an index of integers would name the first two threads, twice each
    assert who.tolist() == [True, True, False, False]


@pytest.mark.parametrize(
    ("make", "claim"),
    [
        (lambda k: (k >> 2) + 1 & 1, (8, 0)),
        (lambda k: k * 64, (1, 64)),
        (lambda k: (k + 3) & 3, (4, 0)),
        (lambda k: tirx.Div(tirx.Mod(k, 12), 6), (12, 0)),
        (lambda k: tirx.Mod(k * 70, 10), (1, 0)),
    ],
)
def test_claims_are_as_short_as_they_can_be(make, claim):
    k = tirx.Var("k", "int32")
    assert shift_of(make(k), Known({k: Shift(1, 1, True)}))[:2] == claim


def test_nothing_is_claimed_of_a_square():
    k = tirx.Var("k", "int32")
    assert shift_of(k * k, Known({k: Shift(1, 1, True)})) is None


# -- turns that run -------------------------------------------------------------------------------


def _changing_at(turns, *places):
    truth = np.zeros((turns, 1), bool)
    truth[list(places)] = True
    return truth


@pytest.mark.parametrize(
    ("turns", "period", "truths", "expected"),
    [
        (64, 8, [], (8, 8)),
        (70, 8, [], (14, 8)),
        (64, 1, [], (2, 1)),
        (16, 8, [], (16, 0)),
        (3, 1, [], (3, 0)),
        (64, 8, [_changing_at(64, 0)], (16, 8)),
        (64, 8, [_changing_at(64, 63)], (8, 8)),
        (64, 8, [_changing_at(64, 40)], (8, 24)),
    ],
)
def test_turns_that_run(turns, period, truths, expected):
    assert iterations_to_run(turns, period, truths) == expected


@pytest.mark.parametrize("seed", range(50))
def test_turns_left_out_are_like_those_of_the_period_before(seed):
    rng = np.random.default_rng(seed)
    turns, period = int(rng.integers(20, 90)), int(rng.integers(1, 9))
    truth = _changing_at(turns, *rng.integers(0, turns, 3))
    first, last = iterations_to_run(turns, period, [truth])
    if first + last < turns:
        assert (turns - first - last) % period == 0
        assert first >= period <= last
        for turn in range(first, turns - last):
            window = first - period + (turn - first) % period
            assert truth[turn] == truth[window]


# -- kernels --------------------------------------------------------------------------------------


@functools.cache
def product(**config):
    _, kernel = scheduled(PROBLEM, (64, 16, 16), stages=2, consumers=2, **config)
    return load(kernel)


def with_condition(program, name, which, condition):
    """Put one instruction under a condition on the turn of the loop around it."""
    ((kernel, func),) = program.kernels.items()
    chosen = instructions(func, name)[which]
    (loop,) = [
        loop
        for loop in ir.find_all(func.body, tirx.For, lambda loop: int(loop.extent) == TURNS)
        if any(chosen.same_as(x) for x in ir.find_all(loop, tirx.Evaluate, lambda x: True))
    ]
    guarded = tirx.IfThenElse(condition(loop.loop_var), chosen, None)
    body = ir.replace_nodes(func.body, tirx.Evaluate, {chosen: guarded})
    return Program(program.host, {kernel: func.with_body(body)})


def test_both_roles_are_cut_alike():
    report = verify(product()).require_clean()
    assert report.cuts == ("k_0: 8 of 64 iterations, period 4",)
    assert "loop k_0: 8 of 64 iterations, period 4" in str(report)
    assert report.to_json()["cuts"] == list(report.cuts)


def test_a_pending_group_moves_the_turns():
    report = verify(product(wgmma_pending=1)).require_clean()
    assert report.cuts == ("k_0: 12 of 64 iterations, period 4",)


@pytest.mark.parametrize("turn", [0, 1, 7, 40, 60])
@pytest.mark.parametrize(
    ("name", "rules"),
    [
        ("mbarrier_arrive_nocount", {"DEADLOCK", "MBAR_TX_MISMATCH"}),
        ("mbarrier_arrive_expect_tx", {"DEADLOCK", "MBAR_TX_MISMATCH"}),
        ("wgmma_wait_group", {"RACE_OVERWRITE_BUSY", "WGMMA_REG_INFLIGHT"}),
    ],
)
def test_what_one_turn_lacks_is_found(name, rules, turn):
    wrong = with_condition(product(), name, 0, lambda k: tirx.NE(k, tirx.IntImm("int32", turn)))
    report = verify(wrong, runs=(("eager", 0), ("on_wait", 0), ("lifo", 0)))
    assert report.verdict == "error"
    assert rules & {found.rule for found in report.findings}


def test_what_only_the_skeleton_would_miss_is_judged_by_whole_runs():
    """Fewer turns of one role than of the other block, or leave copies that nobody waits for."""
    program = product()
    ((kernel, func),) = program.kernels.items()
    loops = [x for x in ir.find_all(func.body, tirx.For, lambda x: True) if int(x.extent) == TURNS]
    assert len(loops) == 2
    for loop, fewer in ((loops[0], TURNS - 4), (loops[1], TURNS - 4), (loops[1], TURNS - 8)):
        short = tirx.For(
            loop.loop_var, loop.min, tirx.IntImm("int32", fewer), loop.kind, loop.body,
            annotations=loop.annotations,
        )  # fmt: skip
        body = ir.replace_nodes(func.body, tirx.For, {loop: short})
        report = verify(Program(program.host, {kernel: func.with_body(body)}))
        assert report.verdict == "error", fewer


def missing_arrive(turn):
    return with_condition(
        product(), "mbarrier_arrive_nocount", 0, lambda k: tirx.NE(k, tirx.IntImm("int32", turn))
    )


def test_a_finding_is_that_of_the_whole_run():
    report = verify(missing_arrive(40), runs=(("eager", 0),))
    (found,) = [found for found in report.findings if found.agents]
    assert found.rule == "DEADLOCK"
    assert "iteration 42" in " ".join(found.statements)
    assert report.runs == (("eager", 0, "error"),)


def test_no_time_for_the_whole_run_is_a_doubt(monkeypatch):
    def without_time(*args, **more):
        result = run_launches(*args, **more)
        return result if result.cuts else replace(result, findings=(), out_of_budget=True)

    monkeypatch.setattr(case, "run_launches", without_time)
    report = verify(missing_arrive(40), runs=(("eager", 0),))
    assert report.runs == (("eager", 0, "skipped"),)
    doubts = [one.message for one in report.findings if "with fewer iterations" in one.message]
    assert doubts == [
        "eager(0) with fewer iterations (k_0: 28 of 64 iterations, period 4) found DEADLOCK; "
        "with all iterations the time ended first"
    ]


# -- what is left out of no run -------------------------------------------------------------------


def ring(body, turns=TURNS):
    """One warp waits for its own arrival in each turn; `body` says with which parity."""

    @hand_threaded(32)
    def main(A: I32[turns], C: I32[32], tx, full: Static[U64], phase: Local[I32]):
        if tx == 0:
            ptx.init_mbarrier(full[0], 1)
        T.tvm_storage_sync("shared")
        phase[0] = 0
        for k in T.serial(turns):
            if tx == 0:
                ptx.arrive(full[0])
            body(A, full, phase, k)
            T.cuda.warp_sync()
        C[tx] = tx

    return lower(main)


@T.inline
def by_turn(A, full, phase, k):
    ptx.wait(full[0], k & 1)


@T.inline
def by_register(A, full, phase, k):
    ptx.wait(full[0], phase[0])
    phase[0] = phase[0] ^ 1


@T.inline
def by_data(A, full, phase, k):
    ptx.wait(full[0], A[k] & 1)


@T.inline
def with_a_square(A, full, phase, k):
    ptx.wait(full[0], k * k & 1)


def planned(program):
    ((_, func),) = program.kernels.items()
    return plan_cuts(func, {})


def test_a_parity_of_the_turn_is_cut():
    program = ring(by_turn)
    ((_, cut),) = planned(program).cuts
    assert (cut.name, cut.period) == ("k", 2)
    report = verify(program, GIVEN).require_clean()
    assert report.cuts == ("k: 4 of 64 iterations, period 2",)


@pytest.mark.parametrize("body", [by_register, with_a_square], ids=["register", "square"])
def test_what_is_not_known_to_repeat_runs_in_full(body):
    program = ring(body)
    plan = planned(program)
    assert plan == CutPlan("")
    report = verify(program, GIVEN).require_clean()
    assert report.cuts == ()


def test_control_that_depends_on_data_is_run_with_data():
    program = ring(by_data)
    assert planned(program).refused == "cuda.mbarrier_wait depends on data"
    turns = np.arange(TURNS, dtype="int32")
    unknown = verify(program).findings  # errors first, of the numbers that were drawn
    assert [x.rule for x in unknown] == ["DEADLOCK", "INCOMPLETE", "INCOMPLETE"]
    report = verify(program, {"A": turns}).require_clean()
    assert {verdict for _, _, verdict in report.runs} == {"clean"}
    assert "by the contents of A in this call" in str(report)
    wrong = verify(program, {"A": turns // 2})
    assert wrong.verdict == "error"
    assert "error" in {verdict for _, _, verdict in wrong.runs}


@pytest.mark.parametrize(("value", "verdict"), [("equal", "clean"), ("own", "error")])
def test_lanes_that_write_one_place_are_run_with_values(value, verdict):
    @hand_threaded(32, by_hand=False)
    def main(A: F32[32], C: F32[2], tx):
        C[tx // 16] = A[0 if value == "equal" else tx]

    program = lower(main)
    assert planned(program).refused == ""
    numbers = np.arange(32, dtype="float32")
    report = verify(program, {"A": numbers})
    assert report.verdict == verdict, str(report)
    if verdict == "error":
        assert {found.rule for found in report.findings} == {"RACE_WRITE_WRITE"}


def test_a_tensor_that_is_read_and_written_keeps_all_turns():
    @hand_threaded(32, by_hand=False)
    def main(A: F32[TURNS * 32], tx):
        for k in T.serial(TURNS):
            A[k * 32 + tx] = A[k * 32 + tx] + 1.0
            T.tvm_storage_sync("shared")

    program = lower(main)
    assert planned(program).storing
    values = {"A": np.zeros(TURNS * 32, "float32")}
    launches = bound_launches(program, values, 132)
    savings = plan_savings((one.func, one.setup["params"]) for one in launches)
    assert [shortcuts.cuts for shortcuts in savings.others.values()] == [{}]
    assert verify(program).cuts == ()
