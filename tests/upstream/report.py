"""The table of TVM's schedules, as Markdown."""

from __future__ import annotations

from collections.abc import Mapping

from .catalogue import SCHEDULES, Schedule
from .judging import OURS, STOCK, TARGETS, Judgement, judge

Row = Mapping[str, Judgement]
COLUMNS = ("TVM, `cp.async`", *TARGETS)
HEAD = """# Asynchronous schedules of TVM

Apache TVM has tests of its software pipelines and of `cp.async`, whose programs are schedules for
Ampere. Each is built here untouched, once by TVM with `tirx.use_async_copy`, and under
`PassContext(config={"tvm_hopper.async_copy": "auto"})` for an H200 and an A100. Every kernel runs
in the simulator under three schedules of its asynchronous operations, and what it computes is
compared with the program without its schedule (`verify(..., against=...)`).

This page is printed by `python -m tests.upstream`, and tests compare each row with what comes out.

* right: the verdict is `clean`, and every value is that of the plain program;
* error: a race. In TVM's two, the copies of an iteration stand apart, so that each is a group in
  the loop and both are one in front of it; the number that TVM waits for is right in the loop only;
* incomplete: TVM's kernel has fragments in "warp" memory, which the simulator does not know;
* TVM's own: nothing in an asynchronous stage or scope is a copy into shared memory, so that the
  function stays TVM's, its stages the threads' own work;
* no kernel: no loop is bound to threads, so that TVM makes none.
"""
TAIL = """
The programs are in `tests/upstream`, with the files and tests of apache/tvm that they are from.
Some there read elements that nobody wrote, since no test of them looks at values; here they read
those that were written. The products are 128 x 128 x 192 instead of 4096 in each direction.

Stages of statements that compute make no difference to a kernel of ours: asynchronous copies alone
run ahead, and `explain` says so. `storage_align` on a tile that is copied asynchronously is left
out, which `explain` says too; under `tvm_hopper.strict` it is an error. In place of padding a tile
that `ldmatrix` reads, brought by TMA or by `cp.async`, is swizzled: eight rows of 16 bytes are in
all banks. What the lowering refuses of such a function leaves it to TVM with a warning, and is an
error under `tvm_hopper.strict`.

Chunks that threads copy by `cp.async` for later trips are issued behind the `ldmatrix` of this one,
if there are three slots or more: the tensor cores start first, and the last trips, which load
nothing, are peeled off the loop, since the assembler moves nothing over a condition.

The two products at 4096 in each direction, with TVM's own intrinsics, timed on an H200 by
`python -m benchmarks.async_products`, right on whole and on normal numbers
([with the machine](../benchmarks/results/async_products_2026-11-22_1947.md)):

| built | pipeline | us | times as fast as TVM's |
|---|---|---|---|
| TVM, `cp.async` | simple | 557.1 | 1.000 |
| sm_90a, TMA | simple | 390.2 | 1.428 |
| sm_80, `cp.async` | simple | 473.2 | 1.177 |
| TVM, `cp.async` | nested | 442.0 | 1.000 |
| sm_90a, TMA | nested | 391.8 | 1.128 |
| sm_80, `cp.async` | nested | 438.6 | 1.008 |

cuBLAS, which multiplies by WGMMA and stores float16, took 201.6 us.
"""


def judge_all(schedule: Schedule) -> dict[str, Judgement]:
    """Judge a schedule in every column."""
    stock = judge(schedule, "sm_80", STOCK)
    return {COLUMNS[0]: stock, **{x: judge(schedule, x, OURS) for x in TARGETS}}


def row(schedule: Schedule, judgements: Row) -> str:
    """Return the row of a schedule."""
    cells = [schedule.name, f"`{schedule.test}`", *(str(judgements[x]) for x in COLUMNS)]
    return "| " + " | ".join(cells) + " |"


def document(rows: Mapping[str, Row]) -> str:
    """Return the page for the judgements of every schedule, by its name."""
    counts = {x: sum(rows[s.name][x].is_right for s in SCHEDULES) for x in COLUMNS}
    said = ", ".join(f"{x} {n}" for x, n in counts.items())
    lines = [
        HEAD,
        f"Right, of {len(SCHEDULES)}: {said}.",
        "",
        "| schedule | TVM's test | " + " | ".join(COLUMNS) + " |",
        "|" + "---|" * (2 + len(COLUMNS)),
        *(row(x, rows[x.name]) for x in SCHEDULES),
        TAIL,
    ]
    return "\n".join(lines).rstrip() + "\n"
