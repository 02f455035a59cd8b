"""hs.row_reduction: what it refuses, what it chooses, what its schedules are made of."""

from __future__ import annotations

import dataclasses
import functools

import pytest
import tvm
from tvm import s_tir, te
from tvm.script import tirx as T

from tests.schedule.programs import axis, module, tensor
from tests.schedule.refuse import refuse
from tvm_hopper import explain, ir, schedule as hs
from tvm_hopper.errors import LoweringError, ScheduleError
from tvm_hopper.facts.devices import Chip
from tvm_hopper.requests import keys
from tvm_hopper.schedule.memory_bound.estimate import MemoryModel
from tvm_hopper.schedule.memory_bound.work import RowWork
from tvm_hopper.schedule.row_reduction.model import choose_rows
from tvm_hopper.testing import memory_bound

TARGET = "nvidia/nvidia-h200"


refuse = functools.partial(refuse, helper=hs.row_reduction)


def chosen(mod, config=None):
    sch = s_tir.Schedule(mod)
    hs.row_reduction(sch, config=config)
    (kernel,) = ir.kernels(sch.mod["main"])
    return kernel, str(kernel.annotations[keys.CHOSEN])


# -- what it is ----------------------------------------------------------------------------------


def test_explain_shows_the_choice_and_what_came_after_it():
    sch = s_tir.Schedule(memory_bound.rms_norm(64, 4096))
    hs.row_reduction(sch)
    (kernel,) = explain(sch, TARGET).kernels
    (note,) = kernel.notes
    assert note.startswith("row reduction: ")
    assert "threads a row" in note
    assert "; then " in note


def test_a_configuration_is_taken_as_it_is():
    config = hs.RowReductionConfig(threads=64, rows=3, vector=4, preload=True)
    kernel, text = chosen(memory_bound.rms_norm(9, 1024), config)
    assert ir.static_int(kernel.extent) == 3
    assert text.startswith("64 threads a row, 4 vectors of 4 each, 3 rows a thread block")


def test_a_block_says_which_function_is_meant():
    sch = s_tir.Schedule(memory_bound.softmax(4, 64))
    hs.row_reduction(sch, "M")
    assert keys.MEMORY_BOUND in ir.kernels(sch.mod["main"])[0].annotations


def test_what_is_dear_and_used_twice_is_kept_or_computed_again():
    kept, _ = chosen(memory_bound.softmax(8, 256), hs.RowReductionConfig(recompute=False))
    again, _ = chosen(memory_bound.softmax(8, 256), hs.RowReductionConfig(recompute=True))
    count = lambda x: str(x).count("T.exp")  # noqa: E731
    assert count(kept) == 1
    assert count(again) == 2


# -- what it refuses -----------------------------------------------------------------------------


def test_no_reduction():
    refuse(memory_bound.copy(4, 64), "no block with a reduction axis; need one; .*hs.pointwise")


def test_cumulative_sums_by_name():
    @T.prim_func(private=True, s_tir=True)
    def func(X: T.Buffer((4, 64), "float32"), Y: T.Buffer((4, 64), "float32")):
        for i, j in T.grid(4, 64):
            with T.sblock("Y"):
                vi, vj = T.axis.remap("SS", [i, j])
                Y[vi, vj] = T.if_then_else(vj > 0, Y[vi, vj - 1], T.float32(0)) + X[vi, vj]

    refuse(tvm.IRModule({"main": func}), "block Y: found a cumulative sum or another recurrence")


def columns():
    x, k = tensor(64, 32), axis(64)
    return x, te.compute((32,), lambda j: te.sum(x[k, j], axis=k), name="Y")


def axes_in_front():
    x, k, m = tensor(8, 4, 16), axis(8), axis(16, "m")
    return x, te.compute((4,), lambda i: te.sum(x[k, i, m], axis=[k, m]), name="Y")


def a_product():
    a, b, k = tensor(32, 64, name="A"), tensor(32, 64, name="B"), axis(64)
    return a, b, te.compute((32, 32), lambda i, j: te.sum(a[i, k] * b[j, k], axis=k), name="C")


def two_lengths():
    (x, s), (z, r) = row_sum(), row_sum((4, 32), "Z", "R")
    return x, z, s, r


def another_shape():
    x, s = row_sum()
    return x, s, te.compute((4, 64, 2), lambda i, j, c: x[i, j] * s[i] + c, name="Y")


def read_elsewhere():
    x, s = row_sum()
    return x, s, te.compute((4, 64), lambda i, j: x[i, j] * s[3 - i], name="Y")


def no_row():
    x, k = tensor(4), axis(64)
    return x, te.compute((4,), lambda i: te.sum(x[i] * k, axis=k), name="Y")


def row_sum(shape=(4, 64), name="X", result="S", dtype="float32"):
    x = tensor(*shape, dtype=dtype, name=name)
    k = axis(x.shape[1])
    return x, te.compute(shape[:1], lambda i: te.sum(x[i, k], axis=k), name=result)


@pytest.mark.parametrize(
    ("build", "match"),
    [
        (columns, "dimension 0 of 2: of columns, not of rows; need the last dimension"),
        (axes_in_front, "a reduction over .*k, .*m; need one axis, the last, or several that lie"),
        (a_product, "found the index .*; need a row for each result"),
        (two_lengths, "4 rows of 32 elements next to 4 of 64 in block S; need rows of one"),
        (another_shape, "a result of 4 x 64 x 2 elements next to 4 rows of 64"),
        (read_elsewhere, r"tensor S: found the index \[.*\] of a result of this function"),
        (no_row, "no tensor along .*k; need a row to reduce"),
        (
            lambda: row_sum(dtype="float16"),
            "a reduction in float16; need float32 or .*; cast the input to float32",
        ),
        (lambda: row_sum((4, te.var("n"))), "rows of n elements; need a length that is known"),
        (lambda: row_sum((4, 1)), "rows of 1 elements; need 2 or more"),
        (lambda: row_sum((0, 64)), "no elements; need one or more along each dimension"),
    ],
)
def test_programs_that_are_none_of_rows(build, match):
    refuse(module(*build()), match)


def test_rows_that_do_not_fit():
    match = "block S, tensor H: found a row of results that does not fit .*; need results that only"
    refuse(memory_bound.add_rms_norm(4, 1 << 20), match)


def test_rows_that_cannot_wait_in_shared_memory():
    for program, match in (
        (memory_bound.add_rms_norm(4, 1024), "stage=True for elements of H that are computed and"),
        (memory_bound.row_sum(4, 1001), "rows of 1001 elements of bfloat16; need rows of a mult"),
        (memory_bound.row_sum(4, 1 << 20), "rows of 2097152 bytes; need at most 230400 bytes in"),
    ):
        refuse(program, match, hs.RowReductionConfig(stage=True))
    match = "stage=True, rows=2 for one row; need two rows or more"
    refuse(memory_bound.row_sum(1, 64), match, hs.RowReductionConfig(rows=2, stage=True))
    match = "of which each thread block has a part of a row; give another cluster="
    config = hs.RowReductionConfig(threads=64, cluster=4, stage=True)
    refuse(memory_bound.row_sum(4, 1024), match, config)


def test_what_rows_share_that_no_bulk_copy_brings():
    x, k = tensor(4, 1032, dtype="float16"), axis(1032)
    w = tensor(1032, dtype="int8", name="W")
    s = te.compute((4,), lambda i: te.sum(x[i, k].astype("float32"), axis=k), name="S")
    y = te.compute(x.shape, lambda i, j: s[i] * w[j].astype("float32"), name="Y")
    match = "preload=True for rows of 1032 elements of int8; need a multiple of 16 bytes of each"
    refuse(module(x, w, y), match, hs.RowReductionConfig(stage=True, preload=True))
    hs.row_reduction(s_tir.Schedule(module(x, w, y)), config=hs.RowReductionConfig(stage=True))


def test_pairs_of_which_the_last_of_equal_values_is_taken():
    x = tensor(4, 64)
    best = te.comm_reducer(
        lambda a, b: tuple(tvm.tirx.Select(a[1] >= b[1], x, y) for x, y in zip(a, b, strict=True)),
        lambda i, v: (tvm.tirx.const(-1, i), te.min_value(v)),
        name="best",
    )
    k = axis(64)
    first, greatest = te.compute((4,), lambda i: best((k, x[i, k]), axis=k), name="Y")
    sch = s_tir.Schedule(module(x, first, greatest))
    hs.row_reduction(sch)
    with pytest.raises(LoweringError, match="a commutative rule"):
        explain(sch, TARGET)


def test_a_scheduled_function():
    sch = s_tir.Schedule(memory_bound.row_sum(4, 64))
    hs.row_reduction(sch)
    refuse(sch.mod, "found what TVM cannot schedule|several|blocks|scheduled already")
    bound = s_tir.Schedule(memory_bound.row_sum(4, 64))
    bound.bind(bound.get_loops("Y")[0], "blockIdx.x")
    refuse(bound.mod, "scheduled already; need plain serial loops")


def test_several_functions():
    both = {"a": memory_bound.row_sum(4, 64)["main"], "b": memory_bound.row_max(4, 64)["main"]}
    sch = s_tir.Schedule(tvm.IRModule(both))
    for helper in (hs.row_reduction, hs.column_reduction, hs.pointwise):
        with pytest.raises(
            ScheduleError, match=r"a module of several functions \(a, b\); need one"
        ):
            helper(sch)
    sch.work_on("b")
    hs.row_reduction(sch)
    assert not ir.kernels(sch.mod["a"])
    assert ir.kernels(sch.mod["b"])


@pytest.mark.parametrize(
    ("block", "match"),
    [("mean", "no reduction; need a block with a reduction axis"), ("Z", "none of that name")],
)
def test_a_block_that_reduces_nothing(block, match):
    refuse(memory_bound.layer_norm(4, 64), match, block=block)


def test_no_schedule_and_no_configuration():
    with pytest.raises(ScheduleError, match="need a schedule"):
        hs.row_reduction(memory_bound.row_sum(4, 64))
    refuse(memory_bound.row_sum(4, 64), "need an hs.RowReductionConfig or None", config=4)


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"threads": 24}, "threads=24; need a power of two, or a multiple of 32"),
        ({"threads": 2048}, "threads=2048; need at most 1024"),
        ({"threads": 8, "rows": 2}, "8 x 2 = 16 threads of a thread block; need a multiple of 32"),
        ({"threads": 512, "rows": 4}, "512 x 4 = 2048 threads"),
        ({"vector": 3}, "vector=3; need a power of two"),
        ({"vector": 32}, "vector=32; need at most 16"),
        ({"rows": 0}, "rows=0; need 1 or more"),
        ({"preload": 1}, "preload=1; need a bool"),
        ({"recompute": "no"}, "recompute='no'; need a bool"),
        ({"reload": 1}, "reload=1; need a bool"),
        ({"hint": "last"}, "hint='last'; need a bool"),
        ({"blocks": 33}, "blocks=33; need at most 32"),
        ({"chunks": 17}, "chunks=17; need at most 16"),
        ({"cluster": 32}, "cluster=32; need at most 16"),
        ({"cluster": 3}, "cluster=3; need a power of two"),
        ({"stage": "shared"}, "stage='shared'; need a bool"),
        ({"threads": 16, "cluster": 2}, "threads=16 of each of the 2 thread blocks that share"),
        ({"threads": 512, "blocks": 8}, "blocks=8 thread blocks of 512 threads; need at most 2048"),
    ],
)
def test_illegal_configurations(given, match):
    with pytest.raises(ScheduleError, match=match):
        hs.RowReductionConfig(**given)


def test_vectors_that_rows_are_no_multiple_of():
    config = hs.RowReductionConfig(vector=16)
    refuse(memory_bound.row_sum(4, 100), "vector=16 for rows of 100 elements; need .*: 4", config)


def test_a_target_without_this_lowering():
    sch = s_tir.Schedule(memory_bound.row_sum(4, 64))
    hs.row_reduction(sch)
    with pytest.raises(LoweringError, match=r"tvm_hopper\.\w+ with target"):
        explain(sch, {"kind": "cuda", "arch": "sm_70"})


# -- the model -----------------------------------------------------------------------------------

WORK = RowWork(1 << 17, 4096, 8, loaded=2, shared=2, kept=0, reductions=1)
MODEL = MemoryModel(Chip())


def test_few_rows_have_eight_warps_where_a_thread_has_two_vectors():
    choice = choose_rows("here", dataclasses.replace(WORK, rows=1), hs.RowReductionConfig())
    assert (choice.tile.threads, choice.tile.chunks, choice.preload) == (256, 2, True)


@pytest.mark.parametrize(
    ("rows", "columns", "cluster", "chip"),
    [(6, 50264, 16, 132), (6, 50264, 8, 78), (74, 100277, 4, 132), (264, 100277, 1, 132)],
)
def test_few_long_rows_are_spread_by_clusters(rows, columns, cluster, chip):
    work = RowWork(rows, columns, 4, loaded=4, shared=0, kept=0, reductions=1, passes=1)
    choice = choose_rows("here", work, hs.RowReductionConfig(), MemoryModel(Chip(chip)))
    assert choice.is_streamed
    assert choice.tile.cluster == cluster


@pytest.mark.parametrize(
    ("changes", "unroll"),
    [({}, 4), ({"columns": 768}, 1), ({"rows": 100}, 1), ({"columns": 71, "shift": 7}, 1)],
)
def test_short_rows_come_by_fours(changes, unroll):
    work = dataclasses.replace(WORK, **{"columns": 64, "shared": 0, **changes})
    choice = choose_rows("here", work, hs.RowReductionConfig())
    assert choice.tile.unroll == unroll
    assert choice.config.unroll == (unroll if unroll > 1 else None)


@pytest.mark.parametrize(
    "given", [{"threads": 64}, {"chunks": 1, "threads": 32}, {"stage": True}, {"cluster": 2}]
)
def test_rows_of_a_thread_that_cannot_be_loaded_together(given):
    mod = memory_bound.row_sum(600, 32768)
    config = hs.RowReductionConfig(unroll=2, **given)
    refuse(mod, "unroll=2 for rows of 32768 elements", config, helper=hs.row_reduction)


def test_registers_bound_a_thread_block():
    wide = dataclasses.replace(WORK, columns=1 << 16)
    choice = choose_rows("here", wide, hs.RowReductionConfig(cluster=1, stage=False))
    assert choice.tile.threads == 1024
    assert not choice.preload


def test_what_does_not_fit_is_computed_again():
    long = dataclasses.replace(WORK, columns=1 << 16, shared=0, kept=4, reductions=2)
    assert choose_rows("here", long, hs.RowReductionConfig()).recompute


def test_more_barriers_take_longer():
    tile = choose_rows("here", WORK, hs.RowReductionConfig()).tile
    more = dataclasses.replace(WORK, reductions=8)
    assert MODEL.register_rate(more, tile, 4) < MODEL.register_rate(WORK, tile, 4)


def test_too_many_bytes_in_flight_cost_a_little():
    tile = choose_rows("here", WORK, hs.RowReductionConfig(threads=128)).tile
    crowded = MODEL.loaded_bytes * MODEL.rates.crowded_share
    assert MODEL.register_rate(WORK, tile, 12) == pytest.approx(crowded, rel=1e-3)
    assert MODEL.register_rate(WORK, tile, 12) < MODEL.register_rate(WORK, tile, 8)


def test_lanes_behind_a_row_bring_nothing():
    tile = choose_rows("here", WORK, hs.RowReductionConfig(threads=1024)).tile
    less = dataclasses.replace(WORK, columns=1024)
    assert MODEL.register_rate(less, tile, 2) < MODEL.register_rate(WORK, tile, 2)


def test_registers_are_kept_for_as_many_blocks_as_bring_enough_bytes():
    found = {n: choose_rows("here", _rows_of(n), hs.RowReductionConfig()) for n in (4096, 8192)}
    assert {n: (x.tile.threads, x.tile.chunks, x.blocks) for n, x in found.items()} == {
        4096: (256, 2, 5),
        8192: (256, 4, 4),
    }
    assert not any(x.reload for x in found.values())


def _rows_of(columns):
    return dataclasses.replace(WORK, columns=columns, again=True, moved=4)


@pytest.mark.parametrize("columns", [16384, 32768])
def test_rows_of_which_few_fit_an_sm_are_loaded_again(columns):
    work = dataclasses.replace(_rows_of(columns), unshared="a reason")
    choice = choose_rows("here", work, hs.RowReductionConfig())
    assert choice.reload
    assert choice.blocks > 1
    assert not choose_rows("here", work, hs.RowReductionConfig(reload=False)).reload


def test_one_thread_block_alone_lets_memory_wait():
    tile = choose_rows("here", _rows_of(32768), hs.RowReductionConfig(threads=1024)).tile
    long = _rows_of(32768)
    assert MODEL.register_rate(long, tile, 1) < MODEL.register_rate(long, tile, 2, reload=True)


@pytest.mark.parametrize("given", [{}, {"threads": 512, "chunks": 2}], ids=str)
def test_rows_that_do_not_fit_are_streamed(given):
    choice = choose_rows("here", _rows_of(1 << 20), hs.RowReductionConfig(**given))
    assert choice.is_streamed
    assert choice.tile.columns < 1 << 20
    assert "in parts" in choice.text


@pytest.mark.parametrize(
    ("columns", "more", "cluster", "rows"),
    [
        (16384, {}, 1, 0),
        (32768, {}, 4, 2),
        (32768, {"unshared": "a reason"}, 1, 0),
        (32768, {"reductions": 2, "shared": 4}, 8, 4),
        (131072, {}, 8, 2),
        (262144, {"reductions": 2}, 8, 1),
        (131072, {"unstaged": "a reason"}, 8, 0),
        (32768, {"reductions": 2, "shared": 0}, 4, 0),
        (65536, {"reductions": 2, "shared": 0}, 4, 1),
        (32768, {"reductions": 2, "shared": 0, "beside": True}, 1, 1),  # labels, read late
        (32768, {"loaded": 4, "shared": 4, "vector": 4}, 4, 0),
    ],
    ids=str,
)
def test_long_rows_wait_in_shared_memory_and_clusters_share_them(columns, more, cluster, rows):
    """`rows` of a thread block are staged, none if they wait in registers."""
    work = dataclasses.replace(_rows_of(columns), **more)
    choice = choose_rows("here", work, hs.RowReductionConfig())
    found = (choice.tile.cluster, choice.tile.rows if choice.stage else 0)
    assert found == (cluster, rows)
    assert choice.preload == (rows > 1) or not work.shared
    with tvm.target.Target({"kind": "cuda", "arch": "sm_80"}):
        choice = choose_rows("here", work, hs.RowReductionConfig())
    assert (choice.tile.cluster, choice.stage) == (1, False)


@pytest.mark.parametrize(
    ("rows", "columns", "cluster", "threads", "chunks"),
    [(64, 300000, 8, 512, 2), (500, 300000, 8, 512, 2), (64, 600000, 8, 1024, 2)],
)
def test_few_rows_in_shared_memory_have_1024_threads_on_an_sm(
    rows, columns, cluster, threads, chunks
):
    """With 128, the fewest, they took twice as long on an H200."""
    work = dataclasses.replace(_rows_of(columns), rows=rows, shared=0, kept=4, reductions=2)
    choice = choose_rows("here", work, hs.RowReductionConfig())
    tile = choice.tile
    assert choice.stage
    assert (tile.cluster, tile.threads, tile.chunks) == (cluster, threads, chunks)


def test_a_warp_loads_what_rows_share_first():
    """No barrier hides the load, and what LayerNorm needs of a row fits the registers beside it."""
    work = dataclasses.replace(_rows_of(1024), shared=4, reductions=2)
    choice = choose_rows("here", work, hs.RowReductionConfig())
    assert (choice.tile.threads, choice.preload) == (32, True)
    assert not choose_rows("here", _rows_of(1024), hs.RowReductionConfig()).preload


def test_a_tile_that_is_as_long_as_the_row_is_not_streamed():
    config = hs.RowReductionConfig(threads=128, chunks=4)
    assert not choose_rows("here", _rows_of(4096), config).is_streamed


@pytest.mark.parametrize("given", [{"threads": 64, "chunks": 8}, {"chunks": 16}], ids=str)
def test_threads_have_no_vectors_behind_a_rows_end(given):
    choice = choose_rows("here", _rows_of(512), hs.RowReductionConfig(**given))
    assert not choice.is_streamed
    assert choice.tile.columns == 512


@pytest.mark.parametrize(
    ("given", "threads"),
    [
        ({"chunks": 2, "rows": 3}, 320),
        ({"chunks": 2, "blocks": 4}, 512),
        ({"chunks": 1, "rows": 128}, 8),
    ],
    ids=str,
)
def test_threads_that_stream_rows_fit_an_sm(given, threads):
    work = dataclasses.replace(_rows_of(1 << 20), passes=2)
    assert choose_rows("here", work, hs.RowReductionConfig(**given)).tile.threads == threads


def test_a_cluster_of_which_one_thread_block_has_the_row():
    config = hs.RowReductionConfig(threads=64, cluster=4)
    match = "cluster=4 for rows of 100 elements, which 64 threads of one thread block have alone"
    refuse(memory_bound.row_sum(4, 100, "float32"), match, config)


@pytest.mark.parametrize(("rows", "hint"), [(64, False), (1 << 17, True), (None, True)])
def test_what_fits_the_cache_stays_there_for_whoever_comes_next(rows, hint):
    work = dataclasses.replace(_rows_of(4096), rows=rows)
    assert choose_rows("here", work, hs.RowReductionConfig()).hint == hint
