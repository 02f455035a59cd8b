"""Parts of sums in a workspace, by blocks that load for one another: each sync, and what is stored.

Blocks of one part load for one another as those of whole sums do, so the same syncs are needed,
each of them (`test_shared_loads`); what is new are sums that two kernels hand over.
"""

import functools

import pytest
from tvm import tirx

from tests.sim_kernels.each_sync import make_tests, product, rules_broken
from tests.sim_kernels.kernels import scheduled
from tests.sim_kernels.test_shared_loads import DATA, REMOVED, TILE
from tvm_hopper import ir, schedule as hs
from tvm_hopper.simulation import Program, verify

PROBLEM = {"m": 128, "n": 16, "k": 160, "out_dtype": "float32"}
CONFIG = {"split_k": hs.SplitK(2, "workspace"), "cluster": (2, 1), "stages": 2, "consumers": 1}


@functools.cache
def right() -> tuple[Program, dict]:
    return product(PROBLEM, TILE, **CONFIG)


def found(program: Program) -> set[str]:
    return rules_broken(program, right()[1], allocator=True)


@pytest.mark.slow
def test_the_verdict():
    mod, module = scheduled(PROBLEM, TILE, **CONFIG)
    assert verify(module, against=mod).verdict == "clean"


test_the_kernels_are_clean, test_simulator_misses_it, test_every_sync_is_in_the_table = make_tests(
    right, REMOVED, DATA, allocator=True
)


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
