"""Parts of sums in a workspace, by blocks that load for one another: each sync, and what is stored.

Blocks of one part load for one another as those of whole sums do, so the same syncs are needed,
each of them (`test_shared_loads`); what is new are sums that two kernels hand over.
"""

from __future__ import annotations

import functools
from collections.abc import Collection

import pytest
from tvm import tirx

from tests.sim_kernels.each_sync import emitted_by, rules_broken
from tests.sim_kernels.kernels import scheduled
from tests.sim_kernels.mutate import change
from tests.sim_kernels.test_shared_loads import DATA, REMOVED, TILE
from tvm_hopper import ir
from tvm_hopper import schedule as hs
from tvm_hopper.simulation import Program, load, verify
from tvm_hopper.testing import workloads

PROBLEM = {"m": 128, "n": 16, "k": 160, "out_dtype": "float32"}
CONFIG = {"split_k": hs.SplitK(2, "workspace"), "cluster": (2, 1), "stages": 2, "consumers": 1}


@functools.cache
def right() -> tuple[Program, dict]:
    mod, module = scheduled(PROBLEM, TILE, **CONFIG)
    names = [p.name for p in mod["main"].params]
    return load(module), dict(zip(names, workloads.make_inputs(mod, seed=1), strict=False))


def found(program: Program, want: Collection[str] = ()) -> set[str]:
    return rules_broken(program, right()[1], want, allocator=True)


def test_the_kernels_are_clean():
    assert found(right()[0]) == set()


@pytest.mark.slow
def test_the_verdict():
    mod, module = scheduled(PROBLEM, TILE, **CONFIG)
    assert verify(module, against=mod).verdict == "clean"


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize(("instruction", "which"), REMOVED)
def test_simulator_misses_it(instruction, which):
    want = REMOVED[instruction, which]
    rules = found(change(right()[0], instruction, which), want)
    assert want <= rules, rules


def test_every_sync_is_in_the_table():
    program = right()[0]
    one = Program(program.host, {"main_kernel": program.kernels["main_kernel"]})
    names = [name for name in emitted_by(one) if name not in DATA]
    assert {(name, i) for name in names for i in range(names.count(name))} == set(REMOVED)


def of_sums(func: tirx.PrimFunc) -> list[tirx.BufferStore]:
    """Return the stores of a kernel to what the next one adds up."""
    return ir.find_all(func.body, ir.BufferStore, lambda x: "sums" in x.buffer.name)


def without_sums(func: tirx.PrimFunc) -> tirx.PrimFunc:
    stores = of_sums(func)
    return func.with_body(
        ir.replace_nodes(func.body, ir.BufferStore, dict.fromkeys(stores, ir.seq()))
    )


def at_the_same_place(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Let all parts store where the first one does."""
    (part,) = ir.find_all(of_sums(func)[0], ir.Var, lambda x: x.name == "block")
    zero = ir.cast_like(0, part)
    again = {x: ir.substitute(x, {part: zero}) for x in of_sums(func)}
    return func.with_body(ir.replace_nodes(func.body, ir.BufferStore, again))


@pytest.mark.parametrize(
    ("wrong", "rules"),
    [(without_sums, {"UNINIT_READ"}), (at_the_same_place, {"RACE_WRITE_WRITE", "UNINIT_READ"})],
)
def test_sums_that_are_not_all_there(wrong, rules):
    program = right()[0]
    kernels = {**program.kernels, "main_kernel": wrong(program.kernels["main_kernel"])}
    assert rules <= found(Program(program.host, kernels))
