"""Stores that combine: values, verdicts, that each sync is needed, and seeded bugs."""

import functools
from collections.abc import Collection

import numpy as np
import pytest

from tests.sim_kernels.each_sync import rules_broken
from tests.sim_kernels.mutate import change, instructions, with_argument
from tvm_hopper.facts.reductions import BITWISE, LEGAL
from tvm_hopper.simulation import Program, load, verify
from tvm_hopper.testing import reductions
from tvm_hopper.testing.reductions import Split

SLOW = pytest.mark.slow
ROWS, WIDTH, PARTS = 12, 256, 3
FORMS = [
    (mechanism, operation, dtype)
    for mechanism, operations in LEGAL.items()
    for operation, dtypes in operations.items()
    for dtype in dtypes
]
QUICK = [("tma", "add", "float32"), ("bulk", "max", "bfloat16"), ("tma", "xor", "int32")]


def plain(operation="add", dtype="float32"):
    return reductions.columns(
        ROWS, WIDTH, dtype, operation, PARTS if operation in BITWISE else None
    )


def check(mod, split):
    report = verify(reductions.schedule(mod, split).mod, against=mod).require_clean()
    assert "values compared" in str(report)


@pytest.mark.parametrize(
    ("mechanism", "operation", "dtype"),
    [*QUICK, *(pytest.param(*form, marks=SLOW) for form in FORMS if form not in QUICK)],
)
def test_every_operation(mechanism, operation, dtype):
    check(plain(operation, dtype), Split(PARTS, mechanism=mechanism))


@pytest.mark.parametrize(
    "split",
    [
        Split(PARTS, share=False),  # a serial loop: no block waits for its own reductions
        pytest.param(Split(1), marks=SLOW),
        pytest.param(Split(12, 64), marks=SLOW),
    ],
)
def test_parts(split):
    check(plain(), split)


@SLOW
def test_columns_that_no_block_fills():
    check(reductions.columns(ROWS, 200), Split(PARTS, 128))


# -- each sync, and seeded bugs

ADD = "cp_reduce_async_bulk_tensor"
FENCE, MEET = "fence_proxy", "tvm_storage_sync"
COMMIT, DONE = "cp_async_bulk_commit_group", "cp_async_bulk_wait_group"
REMOVED = {
    (FENCE, 0): {"PROXY_FENCE_MISSING"},
    (MEET, 0): {"RACE_READ_INFLIGHT"},
    (COMMIT, 0): {"BULK_GROUP_MISUSE"},
    (DONE, 0): {"EXIT_PENDING_ASYNC"},
}


@functools.cache
def right() -> Program:
    return load(reductions.schedule(plain(), Split(PARTS, mechanism="tma")).mod)


def changed(name, which=None, new=None) -> Program:
    """Change an instruction of the kernel that adds; the one that stores the zeros stays."""
    program = right()
    (adding,) = [n for n, func in program.kernels.items() if instructions(func, ADD)]
    one = Program(program.host, {adding: program.kernels[adding]})
    return Program(program.host, {**program.kernels, **change(one, name, which, new).kernels})


def found(program: Program, want: Collection[str] = ()) -> set[str]:
    x = np.random.default_rng(1).integers(-3, 4, (ROWS, WIDTH)).astype("float32")
    return rules_broken(program, {"X": x}, want)


def test_the_kernels_are_clean():
    assert found(right()) == set()


@pytest.mark.parametrize(("instruction", "which"), REMOVED)
def test_simulator_misses_it(instruction, which):
    want = REMOVED[instruction, which]
    assert want <= found(changed(instruction, which), want)


def test_no_other_sync_is_emitted():
    (adding,) = [func for func in right().kernels.values() if instructions(func, ADD)]
    names = {name for name, _ in REMOVED}
    assert all(len(instructions(adding, name)) == 1 for name in names)
    assert not instructions(adding, "bar_sync_count")


def without_zeros() -> Program:
    """Launch nothing that sets the initial value."""
    from tvm import tirx

    from tvm_hopper import ir

    program = right()
    (first,) = [n for n, func in program.kernels.items() if not instructions(func, ADD)]
    func = program.kernels[first]
    stores = dict.fromkeys(ir.find_all(func.body, tirx.BufferStore), ir.seq())
    empty = func.with_body(ir.replace_nodes(func.body, ir.Stmt, stores))
    return Program(program.host, {**program.kernels, first: empty})


def test_sums_that_start_from_nothing_are_seen():
    assert "UNINIT_READ" in found(without_zeros())


def test_a_plain_store_instead_of_a_reduction_is_seen():
    """Blocks that store where others add: a race."""
    from tvm_hopper.codegen_patches.ptx import tma

    def store(call):
        tensor_map, coordinate, tile = call.args[:3]
        return tma.store(tile.args[0], tensor_map, [coordinate])

    wrong = changed(ADD, 0, store)
    assert {"RACE_WRITE_WRITE"} & found(wrong)


def test_verify_sees_elements_that_are_added_elsewhere():
    wrong = changed(ADD, 0, with_argument(1, lambda old: old * 0))
    report = verify(wrong, against=plain())
    assert "WRONG_VALUE" in {x.rule for x in report.findings}
