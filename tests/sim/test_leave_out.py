"""Runs that leave out values and turns judge as whole runs do."""

from __future__ import annotations

import numpy as np
import pytest

from tests.seeded.catalogue import GOLDEN, MUTATIONS
from tests.seeded.lowering import lower as lower_golden
from tests.seeded.running import run as run_golden
from tests.seeded.running import tensors
from tvm_hopper.sim import run_host
from tvm_hopper.sim.leave_out import plan_savings
from tvm_hopper.sim.shortcuts import NOTHING_LEFT_OUT
from tvm_hopper.verification.launches import bound_launches, run_launches

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
        run_launches(launches, values, [], policy, seed, [None], shortcuts=shortcuts)
        for shortcuts in ({}, savings.others)
    )
    return whole, short


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
    cut = [name for build, name in RINGS if ring_rules(build, name, "eager", 0)[1].cuts]
    assert len(cut) > len(RINGS) / 2


@pytest.mark.parametrize("mutation", [*GOLDEN, *MUTATIONS], ids=_id)
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
