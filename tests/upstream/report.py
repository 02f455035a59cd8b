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
* no kernel: no loop is bound to threads, so that TVM makes none, and the build is refused.
"""
TAIL = """
The programs are in `tests/upstream`, with the files and tests of apache/tvm that they are from.
Some there read elements that nobody wrote, since no test of them looks at values; here they read
those that were written. The products are 128 x 128 x 192 instead of 4096 in each direction.

Stages of statements that compute run trips apart where shared arrays stand between them
([stages](schedule.md)). What hands registers on, as fragments here, stays in one iteration, and
`explain` says so: with the stages of the nested product run apart, its fragments handed on from
trip to trip, it took 438 instead of 400 us at 4096 in each direction, and 452 instead of 422 for
sm_80 ([apart](../benchmarks/results/async_products_2026-11-23_0232.md),
[together](../benchmarks/results/async_products_2026-11-23_0204.md)). `storage_align` on a tile that
is copied asynchronously is left out, which `explain` says too; under `tvm_hopper.strict` it is an
error. In place of padding a tile
that `ldmatrix` reads, brought by TMA or by `cp.async`, is swizzled: eight rows of 16 bytes are in
all banks. What the lowering refuses of such a function leaves it to TVM with a warning, and is an
error under `tvm_hopper.strict`.

Chunks that threads copy by `cp.async` for later trips are issued behind the `ldmatrix` of this one,
if there are three slots or more: the tensor cores start first, and the last trips, which load
nothing, are peeled off the loop, since the assembler moves nothing over a condition.

The two products at 4096 in each direction, with TVM's own intrinsics, timed on an H200 by
`python -m benchmarks.async_products`, right on whole and on normal numbers
([with the machine](../benchmarks/results/async_products_2026-11-23_0922.md)):

| built | pipeline | us | times as fast as TVM's |
|---|---|---|---|
| TVM, `cp.async` | simple | 561.1 | 1.000 |
| sm_90a, TMA | simple | 387.1 | 1.449 |
| sm_80, `cp.async` | simple | 440.2 | 1.275 |
| TVM, `cp.async` | nested | 443.4 | 1.000 |
| sm_90a, TMA | nested | 384.2 | 1.147 |
| sm_80, `cp.async` | nested | 404.5 | 1.090 |

cuBLAS, which multiplies by WGMMA and stores float16, took 201.6 us.

## At real size

What was timed on an H200 at 2 GiB, tensors in and out together, each form built from one schedule
by TVM (`cp.async`) and by us, values compared with float64 first: all forms, also those without
gain (`python -m benchmarks.async_schedules --only large`; tables of
[19:17](../benchmarks/results/async_schedules_2026-11-22_1917.md),
[19:48](../benchmarks/results/async_schedules_2026-11-22_1948.md),
[22:44](../benchmarks/results/async_schedules_2026-11-22_2244.md),
[23:17](../benchmarks/results/async_schedules_2026-11-22_2317.md) and, of the stencils and what is
doubled between, [09:49](../benchmarks/results/async_schedules_2026-11-23_0949.md) and
[15:30](../benchmarks/results/async_schedules_2026-11-23_1530.md); the programs are
those of `tvm_hopper/testing/ampere_forms.py`). TVM's tests have one form: a thread for each row of
a tile, which it copies, computes and stores by itself. The others are what a schedule for copy
speed looks like.

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

In the form of TVM's tests, a thread for each row, what is copied, doubled and copied out runs 2.40
times as fast, a stencil through a second tile 1.33 times, and the product by `mma.sync` above 1.45
and 1.15 times. Where TVM's kernel is at 0.92 of copy speed or more nothing can be 1.1 times as
fast, as of tiles that threads copy side by side. For sm_80
three stages of 16 x 128 are slow, and not for want of loads under way: with TVM's two barriers a
trip, which leave three groups where ours leaves two,
[0.87 instead of 0.88](../benchmarks/results/async_texts_2026-11-23_0528.md). Eight thread blocks of
28 KB on an SM, where TVM's has five for its registers, leave little of L1, which copies of 8 bytes
go through; that this is why was not shown.

Of small kernels of one thread block, as TVM's tests are, the start and the end count. The products
at 128 x 128 x 192 spent half of their time in stores of 4 bytes each; a lane has two elements side
by side, and stored in pairs they took
[5.5 and 5.3 us where TVM's take 7.9 and 8.1](../benchmarks/results/async_texts_2026-11-23_0528.md)
(0.94 and 0.98 times as fast before), measured on texts edited by hand, with the stores that the
pass PairStores makes now. The same table has what is left there: trips that load nothing need no
fence and no barrier, iterations of a loop without WGMMA may be unrolled, and the assembler puts a
loop around each box that `threadIdx.x == 0` issues (`BRA.U.ANY` in SASS), none where `elect.sync`
names a lane, as in front of the loop: together 4.7 us. Chosen so in each turn, too, the large
products were 1.39 and 1.08 instead of 1.43 and 1.13 times as fast, on another day.
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
