"""What the simulator says of a product from which each synchronisation is taken away in turn."""

from collections.abc import Collection, Mapping
from typing import Any

import tvm
from tvm import tirx

from tests.sim_kernels.kernels import scheduled
from tests.sim_kernels.mutate import change, name_of
from tvm_hopper import ir
from tvm_hopper.simulation import Program, load, simulate
from tvm_hopper.testing import workloads

POLICIES = ("eager", "on_wait", "lifo", "random", "starve:producer", "starve:consumer")
HINTS = {"prefetch"}  # which order nothing: a kernel without them is right too
Table = Mapping[tuple[str, int], set[str]]  # an instruction, which of them: rules broken without it


def emitted_by(program: Program) -> list[str]:
    """Return the names of a kernel's instructions but for hints, in the order of the program."""
    (kernel,) = program.kernels.values()
    calls = ir.find_all(kernel.body, tirx.Evaluate, lambda x: isinstance(x.value, tvm.ir.Call))
    names = [name_of(statement.value) for statement in calls]
    return [name for name in names if name not in HINTS]


def product(problem: Mapping[str, Any], tile: tuple[int, int, int], **config: Any) -> Any:
    """Return a product as our passes emit it, and values for its arguments."""
    mod, module = scheduled(problem, tile, **config)
    names = [p.name for p in mod["main"].params]
    return load(module), dict(zip(names, workloads.make_inputs(mod, seed=1), strict=False))


def rules_broken(
    program: Program,
    values: Mapping[str, Any],
    want: Collection[str] = (),
    policies: Collection[str] = POLICIES,
    **options: Any,
) -> set[str]:
    """Return the rules that a program breaks under any policy, or until those wanted are found."""
    rules: set[str] = set()
    for policy in policies:
        rules |= simulate(program, values, policy, seed=5, **options).rules
        if want and rules.issuperset(want):
            break
    return rules


def check_one(right: Program, values: Mapping[str, Any], table: Table, name: str, i: int) -> None:
    """Take one instruction away: the rules of the table are broken, or none where it has none."""
    want = table[name, i]
    rules = rules_broken(change(right, name, i), values, want)
    assert want <= rules, rules
    assert bool(rules) == bool(want)


def check_complete(right: Program, table: Table, others: Collection[str]) -> None:
    """Every instruction that a program has is in the table, but for `others`."""
    names = [name for name in emitted_by(right) if name not in others]
    assert {(name, i) for name in names for i in range(names.count(name))} == set(table)
