"""Statements that compute in several stages of a pipelined loop: values, verdicts, what is needed.

a = A[k]                        stage 0, asynchronous
c = 2 a, its columns turned     stage 1, in shared memory
e = c + a                       stage 2, in registers or in shared memory
acc += e * b                    stage 3
"""

import numpy as np
import pytest
import tvm
from tvm.script import tirx as T

from tests.sim_kernels.kernels import RUNS
from tests.sim_kernels.mutate import change, instructions
from tests.sim_kernels.ring_kernels import (
    add,
    block,
    check,
    copy,
    counted,
    indent,
    kernel,
    loop,
    new,
)
from tests.sim_kernels.test_pipeline_forms import annotated, tiles
from tvm_hopper import explain
from tvm_hopper.simulation import load, simulate, verify

H200 = "nvidia/nvidia-h200"
MECHANISMS = ("tma", "bulk", "cp_async")
SHARED = '{0} = T.sblock_alloc_buffer((8, 128), "float32", scope="shared.dyn")\n'
LOCAL = '{0} = T.sblock_alloc_buffer((8,), "float32", scope="local")\n'
DOUBLE = "for r in range(8):\n    c[r, 127 - tx] = a[r, tx] * T.float32(2)\n"


def body(by: str, row: str, through: str = "shared", other: str = "b") -> str:
    """Return an iteration of four statements behind its copies."""
    at = "[r, 127 - tx]" if through == "shared" else "[r]"
    alloc = (SHARED if through == "shared" else LOCAL).format("e")
    return block(
        new("a", "b"),
        SHARED.format("c") + alloc,
        copy("a", "A", row, by),
        copy("b", "B", row, by),
        DOUBLE,
        f"for r in range(8):\n    e{at} = c[r, tx] + a[r, tx]\n",
        add(f"e{at.replace('127 - tx', 'tx')} * {other}[r, tx]"),
    )


def wanted(a: np.ndarray, b: np.ndarray, through: str = "shared") -> np.ndarray:
    """Compute the same for tiles of A and B: [..., trips, 8, 128] becomes [..., 128]."""
    e = 2 * a[..., ::-1] + a
    return ((e[..., ::-1] if through == "shared" else e) * b).sum((-3, -2))


def case(trips, stages, by="tma", roles=False, through="shared", persistent=0) -> tvm.IRModule:
    asynchronous = sorted({*stages[:2]})
    head = f"for k in T.serial({trips}, {annotated(stages, asynchronous, roles)})"
    rows = 16 * max(trips, 1)
    work = body(by, f"(i * {trips} + k) * 8", through)
    return kernel(loop(head, work), rows=(rows, rows), persistent=persistent)


def judge(mod: tvm.IRModule, trips: int, through: str = "shared") -> None:
    check(mod, lambda a, b: wanted(tiles(a)[:, :trips], tiles(b)[:, :trips], through))


STAGES = (
    [0, 0, 1, 2, 3],
    [0, 0, 0, 1, 2],
    [0, 1, 1, 2, 2],
    [0, 0, 1, 3, 4],
    [0, 0, 2, 2, 3],
    [0, 0, 1, 1, 4],
)
WAYS = [(by, roles) for roles in (False, True) for by in MECHANISMS]
ROWS = [
    pytest.param(stages, by, roles, marks=() if WAYS[n % 6] == (by, roles) else pytest.mark.slow)
    for n, stages in enumerate(STAGES)
    for by, roles in WAYS
]


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(("stages", "by", "roles"), ROWS)
def test_what_each_stage_leaves_the_next_one_finds(stages, by, roles):
    mod = case(5, stages, by, roles)
    said = str(explain(tvm.compile(mod, target=H200)))
    assert "compute in one iteration" not in said
    assert "iterations late" in said or "iteration late" in said
    judge(mod, 5)


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("roles", [False, True])
@pytest.mark.parametrize("trips", [0, 1, 2, 3, 4])
def test_turns_around_the_number_of_stages(trips, roles):
    by = MECHANISMS[(trips + roles) % 3]
    judge(case(trips, [0, 0, 1, 2, 3], by, roles, "registers"), trips, "registers")


@pytest.mark.parametrize("roles", [pytest.param(False, marks=pytest.mark.slow), True])
def test_persistent_blocks_go_on_where_their_last_tile_ended(roles):
    """Five trips over two slots and over four: the next tile begins with another one."""
    judge(case(5, [0, 0, 1, 2, 3], "tma", roles, persistent=1), 5)


@pytest.mark.parametrize(
    "stages", [[0, 0, 1, 1, 3], pytest.param([0, 0, 1, 2, 4], marks=pytest.mark.slow)]
)
def test_what_hands_registers_on_runs_together(stages):
    mod = case(5, stages, through="registers")
    said = str(explain(tvm.compile(mod, target=H200)))
    if stages[3] == 1:
        assert "stages [1, 3] compute in one iteration: registers e are handed on in it" in said
    else:
        assert "later stages of [1, 2, 4] run 1 iteration late" in said
    judge(mod, 5, "registers")


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(
    ("extent", "by", "roles"), [("n", "tma", False), ("n", "bulk", True), ("L[i]", "tma", False)]
)
def test_turns_that_run_time_counts(extent, by, roles):
    head = f"for k in T.serial({extent}, {annotated([0, 0, 1, 2, 3], [0], roles)})"
    program = load(counted(loop(head, body(by, "(i * 5 + k) * 8")), tensors="AB"))
    rng = np.random.default_rng(2)
    a, b = (rng.integers(-3, 4, (80, 128)).astype("float32") for _ in range(2))
    for turns in (0, 1, 2, 5):
        values = {"A": a, "B": b, "L": np.array([turns, 5 - turns], "int32"), "n": turns}
        values["C"] = np.full((2, 128), 99, "float32")
        each = [turns, turns] if extent == "n" else [turns, 5 - turns]
        want = [wanted(tiles(a)[i, :n], tiles(b)[i, :n]) for i, n in enumerate(each)]
        result = simulate(program, values)
        assert not result.findings, f"{turns}: {result.findings[0]}"
        np.testing.assert_array_equal(result.outputs["C"], np.stack(want))
        if extent == "n":
            report = verify(program, values, RUNS)
            assert report.verdict == "clean", f"{turns}: {report}"


def test_a_pipeline_around_one():
    """Each turn of the outer loop, which loads `b`, begins the inner one anew."""
    inner = loop(
        f"for k in T.serial(3, {annotated([0, 1, 2], [0])})",
        block(
            new("a"),
            SHARED.format("c"),
            copy("a", "A", "((i * 3 + n) * 3 + k) * 8", "tma"),
            DOUBLE,
            add("c[r, tx] * b[r, tx]"),
        ),
    )
    outer = f"for n in T.serial(3, {annotated([0, 1], [0])})"
    mod = kernel(
        loop(outer, block(new("b"), copy("b", "B", "(i * 3 + n) * 8", "bulk"), inner)),
        rows=(144, 48),
    )
    check(
        mod,
        lambda a, b: (2 * a.reshape(2, 3, 3, 8, 128)[..., ::-1] * b.reshape(2, 3, 1, 8, 128)).sum(
            (1, 2, 3)
        ),
    )


@pytest.mark.parametrize("roles", [False, True])
def test_each_barrier_is_needed(roles):
    """One an iteration stands for all stages."""
    program = load(case(5, [0, 0, 0, 1, 2], roles=roles))
    name = "bar_sync_count" if roles else "tvm_storage_sync"
    (device,) = program.kernels.values()
    count = len(instructions(device, name))
    rng = np.random.default_rng(1)
    values = {x: rng.integers(-3, 4, (80, 128)).astype("float32") for x in "AB"}
    found = [
        {x.rule for x in simulate(change(program, name, n), values).findings}
        for n in range(0 if roles else 1, count)  # the first one publishes the mbarriers
    ]
    assert len(found) == 3  # in the loop, and in front of each turn behind it
    assert all({"RACE_READ_INFLIGHT", "RACE_OVERWRITE_BUSY"} & x for x in found), found


STORED = """
@T.prim_func(s_tir=True)
def main(A: T.Buffer((80, 128), "float32"), C: T.Buffer((80, 128), "float32")):
    T.func_attr({{"global_symbol": "main"}})
    for i in T.thread_binding(2, thread="blockIdx.x"):
        for tx in T.thread_binding(128, thread="threadIdx.x"):
{lines}
"""
LEAVES = """\
for r, c_o in T.grid(8, 128):
    with T.sblock("leave"):
        T.reads(o[r, c_o])
        T.writes(C[{row} + r, c_o])
        T.sblock_attr({{"tvm_hopper.async_copy": "{by}"}})
        C[{row} + r, c_o] = o[r, c_o]
"""


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(
    ("stages", "by", "roles"),
    [([0, 1, 2, 2], "tma", False), ([0, 1, 2, 3], "bulk", False), ([0, 1, 2, 4], "tma", True)],
)
def test_stores_go_with_what_writes_their_tile(stages, by, roles):
    row = "(i * 5 + k) * 8"
    work = loop(
        f"for k in T.serial(5, {annotated(stages, sorted({0, stages[3]}), roles)})",
        block(
            new("a", "c", "o"),
            copy("a", "A", row, by),
            DOUBLE,
            "for r in range(8):\n    o[r, tx] = c[r, tx] + T.float32(1)\n",
            LEAVES.format(row=row, by=by),
        ),
    )
    text = STORED.format(lines=indent(indent(indent(work))))
    mod = tvm.IRModule({"main": tvm.script.from_source(text, extra_vars={"T": T})})
    assert "1 iteration late" in str(explain(tvm.compile(mod, target=H200)))
    program = load(mod)
    a = np.random.default_rng(3).integers(-3, 4, (80, 128)).astype("float32")
    result = simulate(program, {"A": a})
    assert not result.findings, "\n".join(map(str, result.findings))
    np.testing.assert_array_equal(result.outputs["C"], 2 * a[:, ::-1] + 1)
    verify(program, {"A": a}, RUNS).require_clean()
