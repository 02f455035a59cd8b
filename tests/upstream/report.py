"""The table of TVM's schedules, as Markdown."""

from __future__ import annotations

from collections.abc import Mapping

from .catalogue import SCHEDULES, Schedule
from .judging import OURS, STOCK, TARGETS, Judgement, judge

Row = Mapping[str, Judgement]
COLUMNS = ("TVM, `cp.async`", *TARGETS)
HEAD = """# Asynchronous schedules of TVM

Apache TVM has tests of its software pipelines and of `cp.async`. Their programs are schedules for
Ampere. This page says what becomes of each one, untouched, under
`PassContext(config={"tvm_hopper.async_copy": "auto"})`, for an H200 and an A100. The column "TVM"
has TVM's own kernel with `tirx.use_async_copy`. Every kernel runs in the simulator under three
schedules of its asynchronous operations. Its values are compared with the program without its
schedule (`verify(..., against=...)`).

`python -m tests.upstream` prints this page, and tests compare each row with what comes out.

* right: the verdict is `clean`, and every value is that of the plain program;
* error: a race. In TVM's two, the copies of an iteration are committed apart in the loop and
  together before it, so the number that TVM waits for is right in the loop only;
* incomplete: TVM's kernel has fragments in "warp" memory, which the simulator does not know;
* TVM's own: no asynchronous stage or scope copies into shared memory, so the function stays TVM's;
* no kernel: no loop is bound to threads, so TVM makes none and the build is refused.
"""
TAIL = """
The programs are in `tests/upstream`, with the files and tests of apache/tvm that they are from.
Some there read elements that are never written; here they read written ones. The products are 128
x 128 x 192 instead of 4096 in each direction.

- Stages that compute run iterations apart if shared arrays are between them
  ([pipelines](barrier_pipeline.md)). Stages that hand on registers, such as fragments, stay in one
  iteration, and `explain` says so: apart, the nested product was 10% slower.
- `storage_align` on a tile that is copied asynchronously is left out, which `explain` says; under
  `tvm_hopper.strict` it is an error. A tile that `ldmatrix` reads is swizzled instead.
- What the lowering refuses of such a function leaves the function to TVM with a warning; under
  `tvm_hopper.strict` it is an error.
- Chunks that threads copy for later iterations are issued after this iteration's `ldmatrix`, if
  there are three slots or more.

## Figures

One H200 ([tables](../benchmarks/results/async_schedules_2026-11-23.md)). The products by
`mma.sync` at 4096 in each direction, with TVM's own intrinsics (`python -m
benchmarks.async_products`; cuBLAS takes 201.6 us):

| built | pipeline | us | times as fast as TVM's |
|---|---|---|---|
| TVM, `cp.async` | simple | 561.1 | 1.000 |
| sm_90a, TMA | simple | 387.1 | 1.449 |
| sm_80, `cp.async` | simple | 440.2 | 1.275 |
| TVM, `cp.async` | nested | 443.4 | 1.000 |
| sm_90a, TMA | nested | 384.2 | 1.147 |
| sm_80, `cp.async` | nested | 404.5 | 1.090 |

Other forms at 2 GiB (`python -m benchmarks.async_schedules --only large`; programs in
`tvm_hopper/testing/ampere_forms.py`). The last column is TVM's kernel as a share of copy speed.
Where that is 0.92 or more, nothing can be 1.1 times as fast:

| form | of the kind | sm_90a | sm_80 | TVM's, of copy speed |
|---|---|---|---|---|
| rows of float16, copied by 8 elements | TVM's test | 14.74 | 15.05 | 0.07 |
| rows of float16, by 4 | TVM's test | 14.87 | 15.19 | 0.06 |
| rows of float32, by 4 | TVM's test | 8.22 | 8.35 | 0.12 |
| rows of float32, by 1 | TVM's test | 8.63 | 8.77 | 0.11 |
| rows of float32, doubled between | TVM's test, a second tile | 2.40 | 6.68 | 0.10 |
| five-point stencil of rows, stored by each thread | TVM's test | 1.01 | 1.03 | 0.11 |
| five-point stencil of rows, by a second tile | TVM's test, a second tile | 1.33 | 1.28 | 0.09 |
| columns of two tensors, added (TVM's values are wrong) | TVM's test | 1.14 | 1.13 | 0.10 |
| columns, padded (TVM's values are wrong) | TVM's test | 1.04 | 1.04 | 0.11 |
| copied and doubled, float16 by 16 bytes | tiles side by side | 0.99 | 1.00 | 0.93 |
| float32 by 16 bytes | tiles side by side | 1.00 | 1.00 | 0.97 |
| float32 by 8 bytes | tiles side by side | 1.00 | 1.01 | 0.97 |
| float32 by 4 bytes | tiles side by side | 1.04 | 1.05 | 0.92 |
| copied, doubled, copied out by 16 bytes | tiles side by side | 1.00 | 1.00 | 0.97 |
| the same by 4 bytes | tiles side by side | 1.05 | 1.05 | 0.92 |
| five-point stencil, tiles of 8 x 128, 4 stages | tiles side by side | 1.10 | 1.09 | 0.88 |
| five-point stencil, 16 x 128, 3 stages | tiles side by side | 1.09 | 0.88 | 0.90 |
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
