"""Runs that leave out values and turns judge as whole runs do."""

import numpy as np
import pytest
from tvm.script import tirx as T

from tests.seeded.catalogue import GOLDEN, MUTATIONS, some_quick
from tests.seeded.lowering import lower as lower_golden
from tests.seeded.running import run as run_golden, tensors
from tvm_hopper.sim import RunOptions, run_host
from tvm_hopper.sim.kernel_code import compiled, touched_tensors
from tvm_hopper.sim.leave_out import NO_SAVINGS, plan_savings
from tvm_hopper.sim.loop_cuts.plan import plan_cuts
from tvm_hopper.sim.options import NOTHING_LEFT_OUT, Shortcuts
from tvm_hopper.sim.translate.steering import steering_of
from tvm_hopper.simulation import simulate
from tvm_hopper.verification.launches import bound_launches, run_launches

from .hand_threaded import U32, U64, Local, hand_threaded
from .kernels import lower
from .pointwise_rings import inputs, with_producer, without_producer
from .test_pointwise_rings import NEEDED_WITH, NEEDED_WITHOUT

RINGS = [(with_producer, name) for name in ("", *NEEDED_WITH)]
RINGS += [(without_producer, name) for name in ("", *NEEDED_WITHOUT)]
TURNS = 40
NUMBERS = {"M60"}  # shows in the numbers alone


def _id(kernel):
    return kernel.id if hasattr(kernel, "id") else kernel.name


def savings_of(program, values):
    launches = bound_launches(program, values, 132)
    return launches, plan_savings((one.func, one.setup["params"]) for one in launches)


def ring_rules(build, name, policy, seed):
    """Return the rules that a whole run finds, and those of a run that leaves out what it may."""
    program = build(name, trips=TURNS)
    values = {**inputs(TURNS), "C": np.zeros(TURNS * 256, "float32")}
    launches, savings = savings_of(program, values)
    whole, short = (
        run_launches(launches, values, [], [None], RunOptions(policy, seed), shortcuts)
        for shortcuts in ({}, savings.others)
    )
    return whole, short


@pytest.mark.sampled(every=10)
@pytest.mark.parametrize(("policy", "seed"), [("eager", 0), ("on_wait", 0), ("random", 1)])
@pytest.mark.parametrize(("build", "name"), RINGS, ids=lambda x: getattr(x, "__name__", x))
def test_a_ring_is_judged_alike_with_fewer_turns(build, name, policy, seed):
    whole, short = ring_rules(build, name, policy, seed)
    if short.shortcut_failed:
        assert name  # a right ring is in balance
    elif not short.findings:
        assert not whole.findings
    else:
        assert short.rules & whole.rules


def test_most_rings_are_cut():
    some = RINGS[::3]
    assert sum(bool(ring_rules(*ring, "eager", 0)[1].cuts) for ring in some) > len(some) / 2


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("mutation", some_quick([*GOLDEN, *MUTATIONS], 6), ids=_id)
def test_a_golden_kernel_is_judged_alike_without_values(mutation):
    kernel = mutation.build()
    lowered = lower_golden(kernel.func)
    arrays, _ = tensors(kernel)
    (launch,) = run_host(lowered.host, arrays)
    bound = launch.bind(lowered.device)
    savings = plan_savings([(lowered.device, bound["params"])])
    shortcuts = next(iter(savings.others.values()), NOTHING_LEFT_OUT)
    for policy in ("on_wait", "eager"):
        short = run_golden(kernel, lowered, policy, shortcuts=shortcuts)
        if short.shortcut_failed or not shortcuts.any:
            continue
        whole = run_golden(kernel, lowered, policy)
        assert bool(short.findings) == bool(whole.findings), short.findings
        if not short.cuts:
            assert short.rules == whole.rules


@pytest.mark.parametrize(
    ("golden", "reason"),
    [
        ("G4", "instruction cp_reduce_async_bulk_s2g"),
        ("G4 serial", "call cuda.wait_until"),
        ("G4 reader", "instruction red"),
    ],
)
def test_what_hands_values_on_is_run_with_values(golden, reason):
    (kernel,) = [one.build() for one in GOLDEN if one.name == golden]
    lowered = lower_golden(kernel.func)
    assert plan_cuts(lowered.device, {}).refused == reason
    (launch,) = run_host(lowered.host, tensors(kernel)[0])
    assert plan_savings([(lowered.device, launch.bind(lowered.device)["params"])]) == NO_SAVINGS


def test_an_address_from_a_register_is_stored_to_and_watched():
    """Translation sees no store to C: the run begins again, with a copy of C that is watched."""

    @hand_threaded(64, by_hand=False)
    def main(C: U32[64], tx, place: Local[U64]):
        place[0] = T.reinterpret("uint64", T.address_of(C[0]))
        T.ptx.st.relaxed.gpu.global_.b32(place[0], T.uint32(tx + 1))

    program = lower(main)
    (func,) = program.kernels.values()
    given = np.zeros(64, "uint32")
    result = simulate(program, {"C": given})
    assert not touched_tensors(func, {"C": given})[0]
    assert result.outputs["C"][0] in range(1, 65)
    assert not given.any()


@T.prim_func(check_well_formed=False)
def scaled_rows(X: T.Buffer((64, 8), "float32"), Y: T.Buffer((64, 8), "float32")):
    T.func_attr({"global_symbol": "main"})
    row = T.launch_thread("blockIdx.x", 2)
    lane = T.launch_thread("threadIdx.x", 32)
    x = T.alloc_buffer((8,), scope="local")
    total = T.alloc_buffer((1,), scope="local")
    place = T.alloc_buffer((1,), scope="local")
    for i in T.unroll(8):
        x[i] = X[row * 32 + lane, i]
    total[0] = x[0]
    for i in T.unroll(7):
        total[0] = total[0] + T.exp(x[i + 1])
    place[0] = T.Cast("float32", row * 32 + lane) * T.float32(1)
    for i in T.unroll(8):
        Y[T.Cast("int32", place[0]), i] = x[i] / total[0]


def test_arithmetic_is_left_out_unless_something_follows_from_it(monkeypatch):
    program = lower(scaled_rows)
    (kernel,) = program.kernels.values()
    names = {str(getattr(one, "name", one)) for one in steering_of(kernel)}
    assert "place" in names
    assert "total" not in names
    calls = []
    scope = compiled(kernel).run.__globals__
    real = scope["math"]
    monkeypatch.setitem(scope, "math", lambda *args: calls.append(args[0]) or real(*args))
    values = {"X": np.ones((64, 8), "float32"), "Y": np.zeros((64, 8), "float32")}
    launches, _ = savings_of(program, values)
    for shortcuts, count in (({}, 7 * 2), ({"main_kernel": Shortcuts(False)}, 0)):
        calls.clear()
        result = run_launches(launches, values, ["Y"], [None], shortcuts=shortcuts)
        assert not result.findings
        assert len(calls) == count
