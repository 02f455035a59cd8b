"""hs.column_reduction, and sums of columns beside rows: what they choose, and what they refuse."""

import functools

import pytest
from tvm import s_tir, te

from tests.schedule.programs import axis, module, tensor
from tests.schedule.refuse import refuse
from tvm_hopper import explain, ir, schedule as hs
from tvm_hopper.errors import ScheduleError
from tvm_hopper.requests import keys
from tvm_hopper.schedule.column_reduction.apply import chosen_columns
from tvm_hopper.simulation import verify
from tvm_hopper.testing import backward, columns, memory_bound

TARGET = "nvidia/nvidia-h200"


refuse = functools.partial(refuse, helper=hs.column_reduction)


def test_sums_of_few_rows_are_one_kernel():
    """Two of them would leave most SMs without a thread block."""
    sch = s_tir.Schedule(columns.column_sum(762, 2048))
    hs.column_reduction(sch, "S")
    (kernel,) = explain(sch, TARGET).kernels
    assert "kept in registers" in str(kernel)
    two = s_tir.Schedule(columns.column_sum(762, 2048))
    hs.column_reduction(two, "S", hs.ColumnReductionConfig(blocks=4))
    assert len(explain(two, TARGET).kernels) == 2


def test_explain_shows_both_kernels():
    sch = s_tir.Schedule(columns.column_sum(4096, 1024))
    hs.column_reduction(sch, "S")
    first, second = explain(sch, TARGET).kernels
    assert first.notes[0].startswith("column reduction: ")
    assert "partial results of a column" in first.notes[0]
    assert second.notes[0].startswith("row reduction: ")


def test_a_persistent_kernel_says_what_is_in_flight():
    sch = s_tir.Schedule(backward.rms_norm_backward(4096, 4096))
    hs.row_reduction(sch)
    note = explain(sch, TARGET).kernels[0].notes[0]
    assert "in flight" in note
    assert "; then " in note


def test_a_configuration_is_taken_as_it_is():
    sch = s_tir.Schedule(columns.column_sum(512, 1024))
    config = hs.ColumnReductionConfig(threads=64, rows=2, flight=2, blocks=4, vector=4)
    hs.column_reduction(sch, config=config)
    kernel = ir.kernels(sch.mod["main"])[0]
    assert ir.static_int(kernel.extent) == 16
    assert "8 partial results" in str(kernel.annotations[keys.CHOSEN])


def test_rows_ask_for_their_blocks():
    sch = s_tir.Schedule(backward.rms_norm_backward(512, 1024))
    hs.row_reduction(sch, config=hs.RowReductionConfig(threads=64, rows=2, persistent=200, ahead=2))
    kernel = ir.kernels(sch.mod["main"])[0]
    assert ir.static_int(kernel.extent) == 200
    assert int(kernel.annotations[keys.BLOCKS_PER_SM]) == 2
    loops = ir.find_all(kernel, ir.For, lambda x: keys.PREFETCH_ROWS in x.annotations)
    assert [int(x.annotations[keys.PREFETCH_ROWS]) for x in loops] == [2]


# -- what is refused


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("shape", [(10, 16, 7), (33, 5, 3), (3, 64, 1), (6, 3, 8, 1)], ids=str)
@pytest.mark.parametrize("behind", [False, True])
def test_columns_of_several_dimensions(shape, behind):
    """No strip ends with them, and a block behind counts them as they are."""
    x = te.placeholder(shape, "float32", name="X")
    k = te.reduce_axis((0, shape[0]), name="k")
    s = te.compute(shape[1:], lambda *i: te.sum(x(k, *i), axis=k), name="S")
    y = te.compute(shape[1:], lambda *i: s(*i) / 3.0, name="Y")
    mod = module(x, y if behind else s)
    sch = s_tir.Schedule(mod)
    hs.column_reduction(sch)
    verify(sch, against=mod, runs=(("on_wait", 0),)).require_clean()


def test_two_reductions_to_one_value_without_an_axis():
    x = tensor(3, 7)
    axes = [[te.reduce_axis((0, n), name=f"{name}{n}") for n in (3, 7)] for name in "km"]
    least = te.compute((1,), lambda _: te.min(x(*axes[0]), axis=axes[0]), name="L")
    total = te.compute((), lambda: te.sum(x(*axes[1]), axis=axes[1]), name="T")
    root = te.compute((), lambda: te.sqrt(te.abs(total())), name="R")
    mod = module(x, least, root)
    sch = s_tir.Schedule(mod)
    hs.column_reduction(sch)
    assert verify(sch, against=mod, runs=(("on_wait", 0),)).verdict == "clean"


def test_programs_that_reduce_no_columns():
    refuse(memory_bound.copy(4, 64), "no block with a reduction axis; need one; .*hs.pointwise")
    refuse(memory_bound.row_sum(4, 64), "of what is reduced; need .*: rows first, columns last")


def test_columns_of_unknown_number():
    x, k = te.placeholder((8, te.var("n")), "float32", name="X"), axis(8)
    y = te.compute((x.shape[1],), lambda j: te.sum(x[k, j], axis=k), name="Y")
    refuse(module(x, y), "n columns; need a number that is known")


def test_sums_in_sixteen_bits():
    x, k = tensor(8, 64, dtype="float16", name="X"), axis(8)
    y = te.compute((64,), lambda j: te.sum(x[k, j], axis=k), name="Y")
    refuse(module(x, y), "a reduction in float16; need float32 or .*; cast the input")


def test_reductions_of_several_shapes():
    x, z = (te.placeholder((8, n), "float32", name=s) for n, s in ((64, "X"), (32, "Z")))
    k, m = axis(8), axis(8, "m")
    y = te.compute((64,), lambda j: te.sum(x[k, j], axis=k), name="Y")
    w = te.compute((32,), lambda j: te.sum(z[m, j], axis=m), name="W")
    refuse(module(x, z, y, w), "8 rows of 32 columns next to 8 of 64 in block Y")


def test_one_value_of_one_dimension_and_one_beside_columns():
    x, k = tensor(64), axis(64)
    y = te.compute((1,), lambda i: te.sum(x[k], axis=k), name="Y")
    refuse(module(x, y), "64 elements of one dimension to one value; need two dimensions")
    z = tensor(8, 8, name="Z")
    a, b, d = (te.reduce_axis((0, 8), name) for name in "abd")
    all_of = te.compute((1,), lambda i: te.sum(z[a, b], axis=[a, b]), name="all")
    each = te.compute((8,), lambda j: te.sum(z[d, j], axis=d), name="each")
    refuse(module(z, all_of, each), "block each: found 8 rows of 8 columns next to 8 x 8 of 1")


@pytest.mark.parametrize("rows", [64, 8192])  # by columns, by groups of rows
def test_a_reduction_of_all_elements_about_another_is_refused(rows):
    x = te.placeholder((rows, 64), "float32", name="X")
    a, b, c, d = (
        te.reduce_axis((0, n), k) for n, k in [(rows, "a"), (64, "b"), (rows, "c"), (64, "d")]
    )
    mean = te.compute((1,), lambda i: te.sum(x[a, b], [a, b]), name="mean")
    scaled = te.compute((1,), lambda i: mean[i] / (64.0 * rows), name="scaled")
    value = te.compute((1,), lambda i: te.sum(x[c, d] - scaled[i], [c, d]), name="value")
    refuse(module(x, value), "value, tensor .*: found a reduction of what another block")


def test_one_row():
    refuse(columns.column_sum(1, 64), "block S: found a reduction over one row; need two rows")
    match = "one row next to sums of columns; need two rows"
    refuse(backward.rms_norm_backward(1, 64), match, helper=hs.row_reduction)


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"threads": 24}, "24 x 10 = 240 threads of a thread block; need a multiple of 32"),
        ({"rows": 1, "blocks": 1, "threads": 32}, "one partial result; need 2 or more"),
        ({"vector": 16}, "vector=16 for 64 columns; need at most 16 bytes"),
        ({"blocks": 16, "rows": 4, "threads": 32}, "64 rows for 16 thread blocks of 4 x "),
    ],
)
def test_configurations_that_do_not_fit(given, match):
    refuse(columns.column_sum(64, 64), match, hs.ColumnReductionConfig(flight=4, **given))


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"threads": 24, "rows": 1}, "24 x 1 = 24 threads of a thread block; need a multiple"),
        ({"vector": 3}, "vector=3; need a power of two"),
        ({"flight": 0}, "flight=0; need 1 or more"),
    ],
)
def test_illegal_configurations(given, match):
    with pytest.raises(ScheduleError, match=match):
        hs.ColumnReductionConfig(**given)


def test_gradients_that_do_not_fit():
    match = "rows of 1048576 elements next to sums of columns, 10 register bytes for each"
    refuse(backward.rms_norm_backward(64, 1 << 20), match, helper=hs.row_reduction)
    match = "rows that fit the registers of a thread block, or of 1 in a cluster"
    one = hs.RowReductionConfig(cluster=1)
    refuse(backward.rms_norm_backward(64, 1 << 16), match, one, helper=hs.row_reduction)
    config = hs.RowReductionConfig(persistent=100)
    match = "64 rows for 100 thread blocks of 1; need a row for each"
    refuse(backward.rms_norm_backward(64, 512), match, config, helper=hs.row_reduction)
    config = hs.RowReductionConfig(vector=8)
    match = "vector=8 for rows of 100 elements"
    refuse(backward.rms_norm_backward(64, 100), match, config, helper=hs.row_reduction)


@pytest.mark.parametrize(
    ("program", "given", "match"),
    [
        (
            memory_bound.softmax(64, 512),
            {"persistent": 4},
            "persistent=4 for rows that share no tensor; need sums of columns, or a tensor that",
        ),
        (
            memory_bound.rms_norm(1, 512),
            {"persistent": 4},
            "persistent=4 for one row; need two rows or more; leave persistent= out",
        ),
        (
            memory_bound.rms_norm(64, 1000),
            {"persistent": 4, "stage": True, "cluster": 4},
            "cluster=4, stage=True for rows of 1000 elements .*; need values that go together",
        ),
        (
            memory_bound.rms_norm(64, 256),
            {"persistent": 4, "cluster": 2},
            "cluster=2 for rows of 256 elements .*two vectors of a thread .*; leave some of them",
        ),
        (
            memory_bound.rms_norm(64, 1 << 20),
            {"persistent": 4},
            "rows of 1048576 elements next to what all rows share, .* leave persistent= out",
        ),
        (
            memory_bound.rms_norm(64, 512),
            {"ahead": 1},
            "ahead=1 for a program without sums of columns",
        ),
        (backward.rms_norm_backward(64, 512), {"blocks": 2}, "blocks=2 for sums of columns"),
    ],
)
def test_options_of_the_other_kind_of_kernel(program, given, match):
    refuse(program, match, hs.RowReductionConfig(**given), helper=hs.row_reduction)


def test_a_reduction_of_all_elements_is_one_of_groups_of_rows_first():
    sch = s_tir.Schedule(columns.mean(65536, 1024))
    hs.column_reduction(sch)
    first, second = explain(sch, TARGET).kernels
    assert all(x.notes[0].startswith("row reduction: ") for x in (first, second))
    assert chosen_columns(s_tir.Schedule(columns.mean(65536, 1024))).group == 64
    few = s_tir.Schedule(columns.mean(4096, 1024))  # of which few groups would be left
    assert chosen_columns(few).group is None


@pytest.mark.parametrize(
    ("mod", "config", "match"),
    [
        (columns.mean(64, 72), {"group": 5}, "group=5 of 64 rows; need a divisor"),
        (columns.mean(64, 72), {"group": 64}, "group=64 of as many rows; need two groups or more"),
        (columns.column_sum(64, 72), {"group": 4}, "group=4; need a reduction of all elements"),
    ],
)
def test_groups_that_cannot_be(mod, config, match):
    refuse(mod, match, hs.ColumnReductionConfig(**config))


def test_a_group_stands_alone():
    with pytest.raises(ScheduleError, match="group=4 next to threads=; need group= alone"):
        hs.ColumnReductionConfig(threads=32, group=4)
