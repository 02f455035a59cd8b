"""What the simulator says of a product from which each synchronisation is taken away in turn."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

import pytest
import tvm
from tvm import tirx

from tests.sim_kernels.kernels import scheduled
from tests.sim_kernels.mutate import change, instructions, name_of
from tvm_hopper import ir
from tvm_hopper.simulation import Program, load, simulate
from tvm_hopper.static_check import check_sync
from tvm_hopper.testing import workloads

POLICIES = ("eager", "on_wait", "lifo", "random", "starve:producer", "starve:consumer")
HINTS = {"prefetch"}  # which order nothing: a kernel without them is right too
Table = Mapping[tuple, set[str]]  # ..., an instruction, which of them: rules broken without it
# Of a ring that a producer fills and warp groups multiply from.
OF_A_RING = {
    ("mbarrier_init", 0): {"MBAR_USE_BEFORE_INIT"},
    ("mbarrier_init", 1): {"MBAR_USE_BEFORE_INIT"},
    ("fence_mbarrier_init", 0): {"MBAR_INIT_FENCE"},
    ("tvm_storage_sync", 0): {"MBAR_INIT_UNPUBLISHED"},
    ("mbarrier_wait", 0): {"MBAR_MISSING_WAIT"},
    ("mbarrier_arrive_expect_tx", 0): {"DEADLOCK"},
    ("mbarrier_wait", 1): {"RACE_READ_INFLIGHT"},
    ("wgmma_fence", 0): {"WGMMA_FENCE_MISSING"},
    ("wgmma_commit_group", 0): {"WGMMA_REG_INFLIGHT"},
    ("wgmma_wait_group", 0): {"WGMMA_REG_INFLIGHT"},
    ("mbarrier_arrive_nocount", 0): {"DEADLOCK"},
}


def emitted_by(program: Program) -> list[str]:
    """Return the names of a kernel's instructions but for hints, in the order of the program."""
    kernel = program.kernels["main_kernel"]
    calls = ir.find_all(kernel.body, tirx.Evaluate, lambda x: isinstance(x.value, tvm.ir.Call))
    names = [name_of(statement.value) for statement in calls]
    return [name for name in names if name not in HINTS]


def product(problem: Mapping[str, Any], tile: tuple[int, int, int], **config: Any) -> Any:
    """Return a product as our passes emit it, and values for its arguments."""
    mod, module = scheduled(problem, tile, **config)
    names = [p.name for p in mod["main"].params]
    return load(module), dict(zip(names, workloads.make_inputs(mod, seed=1), strict=False))


def in_another_order(program: Program, order: Collection[int]) -> Program:
    """Return a product whose statements behind the wait for a slot are in another order."""
    ((name, kernel),) = program.kernels.items()
    (commit,) = instructions(kernel, "wgmma_commit_group")
    (step,) = ir.find_all(kernel.body, tirx.SeqStmt, lambda x: any(map(commit.same_as, x.seq)))
    names = [x for x in step.seq if isinstance(x, tirx.Bind)]
    wait_filled, *known = [x for x in step.seq if not isinstance(x, tirx.Bind)]
    changed = ir.seq(*names, wait_filled, *(known[x] for x in order))
    body = ir.replace_nodes(kernel.body, tirx.SeqStmt, {step: changed})
    return Program(program.host, {name: kernel.with_body(body)})


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


def make_tests(
    right: Callable[..., tuple[Program, Mapping[str, Any]]],
    table: Table,
    others: Collection[str],
    policies: Collection[str] = POLICIES,
    **options: Any,
) -> tuple[Callable[..., None], Callable[..., None], Callable[..., None]]:
    """Make the tests of a table: right kernels are clean, each sync is needed, none is missing.

    `right` makes a kernel and its values, of the words that stand in front of the instructions of
    the table. `others` are no syncs.
    """
    kinds = list(dict.fromkeys(key[:-2] for key in table))

    def broken(kind: tuple, program: Program, want: Collection[str] = ()) -> set[str]:
        return rules_broken(program, right(*kind)[1], want, policies, **options)

    @pytest.mark.parametrize("kind", kinds, ids=str)
    def is_clean(kind: tuple) -> None:
        program = right(*kind)[0]
        checked = {x.rule for x in check_sync(program.kernels["main_kernel"], program.host)}
        assert broken(kind, program) | checked == set()

    @pytest.mark.parametrize("key", table, ids=lambda key: "-".join(map(str, key)))
    def without_one(key: tuple) -> None:
        *kind, name, which = key
        rules = broken(kind, change(right(*kind)[0], name, which), table[key])
        assert table[key] <= rules, rules
        assert bool(rules) == bool(table[key])

    @pytest.mark.parametrize("kind", kinds, ids=str)
    def is_complete(kind: tuple) -> None:
        names = [name for name in emitted_by(right(*kind)[0]) if name not in others]
        found = {(*kind, name, i) for name in names for i in range(names.count(name))}
        assert found == {key for key in table if key[:-2] == kind}

    return is_clean, without_one, is_complete
