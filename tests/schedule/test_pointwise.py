"""hs.pointwise: what it refuses, what it chooses, what its schedules are made of."""

from __future__ import annotations

import functools
import re

import numpy as np
import pytest
import tvm
from tvm import s_tir, te, tirx, topi

from tests.schedule.programs import module, tensor
from tests.schedule.refuse import refuse
from tvm_hopper import capture, explain, ir, schedule as hs
from tvm_hopper.errors import ScheduleError
from tvm_hopper.requests import keys
from tvm_hopper.simulation import verify
from tvm_hopper.testing import memory_bound

TARGET = "nvidia/nvidia-h200"


refuse = functools.partial(refuse, helper=hs.pointwise)


def chosen(mod, config=None):
    sch = s_tir.Schedule(mod)
    hs.pointwise(sch, config=config)
    (kernel,) = ir.kernels(sch.mod["main"])
    return kernel, str(kernel.annotations[keys.CHOSEN])


def test_explain_shows_the_choice_and_what_came_after_it():
    sch = s_tir.Schedule(memory_bound.gelu_mul(64, 4096))
    hs.pointwise(sch)
    (kernel,) = explain(sch, TARGET).kernels
    (note,) = [x for x in kernel.notes if x.startswith("pointwise")]
    assert note.startswith("pointwise: ")
    assert "KiB of an SM in flight; then " in note


def test_elements_are_numbered_all_along():
    kernel, text = chosen(memory_bound.gelu_mul(8, 1024), hs.PointwiseConfig(128, 2))
    assert ir.static_int(kernel.extent) == 8 * 1024 // (128 * 2 * 8)
    assert text.startswith("128 threads, 2 vectors of 8 each")


def test_what_columns_share_is_loaded_along_rows():
    kernel, _ = chosen(memory_bound.scale_shift(6, 1024), hs.PointwiseConfig(128, 1))
    assert ir.static_int(kernel.extent) == 6 * 1024 // (128 * 4)  # float32 is the widest


def test_elements_that_32_bits_do_not_number_go_by_rows():
    kernel, _ = chosen(memory_bound.copy(1 << 16, 1 << 16), hs.PointwiseConfig(512, 1))
    assert ir.static_int(kernel.extent) == (1 << 16) * (1 << 16) // 4096


def test_rows_of_odd_length_go_element_by_element():
    _, text = chosen(memory_bound.scale_shift(6, 1001))
    assert "vectors of 1 each" in text


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((40, 28), "int8"), ((16, 3, 7, 7), "float16"), ((33, 31), "int8")],
    ids=str,
)
def test_vectors_of_rows_that_are_none_are_whole_all_along(shape, dtype):
    x = te.placeholder(shape, dtype, name="X")
    sch = s_tir.Schedule(module(x, te.compute(shape, lambda *i: x(*i), name="Y")))
    hs.pointwise(sch)
    text = capture.cuda_sources(tvm.compile(sch.mod, TARGET))[0]
    assert re.search(r"\(u?int4\*\)\(X_ptr", text), text


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("given", [{"threads": 64, "chunks": 3}, {"chunks": 16}], ids=str)
def test_threads_have_no_vectors_behind_a_rows_end(given):
    x, b = tensor(40, 33), tensor(33, name="B")
    mod = module(x, b, te.compute((40, 33), lambda i, j: x[i, j] + b[j], name="Y"))
    sch = s_tir.Schedule(mod)
    hs.pointwise(sch, config=hs.PointwiseConfig(**given))
    assert verify(sch, against=mod).verdict == "clean"


def test_threads_have_no_vectors_behind_the_last_element():
    _, text = chosen(memory_bound.copy(4, 31), hs.PointwiseConfig(threads=512, vector=1))
    assert text == "512 threads, 1 vectors of 1 each: 4 KiB of an SM in flight"


def test_small_programs_have_small_thread_blocks():
    _, small = chosen(memory_bound.copy(64, 512))
    _, large = chosen(memory_bound.copy(1 << 14, 512))
    assert small.startswith("32 threads")
    assert large.startswith("256 threads, 1 vectors")


def test_dear_arithmetic_has_more_vectors_in_flight():
    """Where all results have 16 bits it is not dear any more: the functions are short ones."""
    _, text = chosen(memory_bound.silu_mul(1 << 14, 4096, "float32"))
    assert text.startswith("512 threads, 2 vectors")
    _, text = chosen(memory_bound.silu_mul(1 << 14, 4096))
    assert text.startswith("1024 threads, 1 vectors")


def test_two_large_tensors_and_one_have_the_largest_thread_blocks():
    for name, threads, blocks in (("gelu_mul", 1024, 2), ("sum_and_difference", 256, None)):
        kernel, text = chosen(getattr(memory_bound, name)(1 << 14, 4096))
        assert text.startswith(f"{threads} threads, 1 vectors")
        assert kernel.annotations.get(keys.BLOCKS_PER_SM) == blocks


@pytest.mark.parametrize(
    ("rows", "hint", "kept"),
    [
        (24966, None, (36 << 20) // (1024 * 16)),  # as many as store 36 MiB
        (10533, None, (36 << 20) // (1024 * 16)),
        (10532, None, None),  # less than 288 MiB
        (24966, False, None),
    ],
)
def test_the_end_of_a_result_stays_in_l2(rows, hint, kept):
    mod = memory_bound.silu_mul(rows, 14336)
    kernel, _ = chosen(mod, hs.PointwiseConfig(threads=1024, hint=hint))
    assert kernel.annotations.get(keys.KEPT_END) == kept


def test_large_thread_blocks_begin_together():
    kernel, _ = chosen(memory_bound.silu_mul(24966, 14336))
    assert kernel.annotations[keys.LAUNCHED_TOGETHER] == 4
    alone = hs.PointwiseConfig(together=1)
    for mod, config in (
        (memory_bound.silu_mul(24966, 14336), alone),
        (memory_bound.copy(8192, 8192), None),
    ):
        assert keys.LAUNCHED_TOGETHER not in chosen(mod, config)[0].annotations


def test_thread_blocks_of_which_there_may_be_few_begin_alone():
    rows = tirx.Var("rows", "int32")
    x, z = (te.placeholder((rows, 14336), "bfloat16", name=c) for c in "XZ")
    y = te.compute((rows, 14336), lambda i, j: x[i, j] + z[i, j], name="Y")
    kernel, _ = chosen(module(x, z, y))
    assert keys.KEPT_END not in kernel.annotations
    assert keys.LAUNCHED_TOGETHER not in kernel.annotations


def test_explain_says_whose_stores_stay_in_l2():
    def remarks(rows):
        sch = s_tir.Schedule(memory_bound.copy(rows, 8192))
        hs.pointwise(sch)
        (kernel,) = explain(sch, TARGET).kernels
        return [x for x in kernel.notes if x.startswith("L2")]

    assert remarks(20000) == ["L2 evicts last what the last 9216 of the thread blocks store"]
    assert not remarks(8192)


def test_thread_blocks_that_share_an_sm():
    kernel, text = chosen(memory_bound.copy(1 << 14, 512), hs.PointwiseConfig(blocks=16))
    assert text.startswith("128 threads, 1 vectors")
    assert kernel.annotations[keys.BLOCKS_PER_SM] == 16
    mod = memory_bound.gelu_mul(9, 1032, "float16")
    sch = s_tir.Schedule(mod)
    hs.pointwise(sch, config=hs.PointwiseConfig(threads=1024, blocks=2))
    assert verify(sch, against=mod, runs=(("on_wait", 0),)).verdict == "clean"


def test_a_reduction():
    refuse(memory_bound.row_sum(4, 64), "found a reduction of rows; need .*; take hs.row_reduction")
    refuse(memory_bound.row_sum(4, 128), "of 128 elements; need elementwise blocks, .*row_reduc")


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_one_element(shape):
    x = tensor(*shape)
    y = te.compute(shape, lambda *i: x(*i) + 1.0, name="Y")
    refuse(module(x, y), "block Y: found a result of one element; need two or more")


def test_vectors_of_bool():
    x = tensor(512, dtype="float16", name="X")
    mod = module(x, te.compute((512,), lambda i: x[i] > te.const(0, "float16"), name="Y"))
    assert "vectors of 8 each" in chosen(mod)[1]
    sch = s_tir.Schedule(mod)
    hs.pointwise(sch)
    ex = tvm.compile(sch.mod, TARGET)
    assert capture.lookup(ex).compile().cubin
    (text,) = capture.cuda_sources(ex)
    assert "(ushort" not in text  # TVM's type for them: two bytes for each
    assert "*(int2*)(((signed char*)Y_ptr)" in text


def test_outputs_of_two_shapes():
    x, z = tensor(4, 64), tensor(64, name="Z")
    y = te.compute((4, 64), lambda i, j: x[i, j] + 1.0, name="Y")
    q = te.compute((64,), lambda j: z[j] * 2.0, name="Q")
    mod = module(x, z, y, q)
    sch = s_tir.Schedule(mod)
    hs.pointwise(sch)
    assert len(ir.kernels(sch.mod["main"])) == 2
    assert verify(sch, against=mod).verdict == "clean"


def test_values_that_two_shapes_share():
    x = tensor(4, 64)
    e = te.compute((4, 64), lambda i, j: te.exp(x[i, j]), name="E")
    y = te.compute((4, 64), lambda i, j: e[i, j] + 1.0, name="Y")
    q = te.compute((4, 32), lambda i, j: e[i, j] * 2.0, name="Q")
    refuse(module(x, y, q), "block Q: found .* elements next to .* need outputs of one shape")


def test_transposed_outputs():
    @tvm.script.tirx.prim_func(private=True, s_tir=True)
    def func(
        X: tvm.script.tirx.Buffer((4, 64), "float32"), Y: tvm.script.tirx.Buffer((64, 4), "float32")
    ):
        for i, j in tvm.script.tirx.grid(4, 64):
            with tvm.script.tirx.sblock("Y"):
                vi, vj = tvm.script.tirx.axis.remap("SS", [i, j])
                Y[vj, vi] = X[vi, vj]

    refuse(tvm.IRModule({"main": func}), "the output index .*; need its loops' variables in their")


def test_results_that_are_read_elsewhere():
    x = tensor(64)
    e = te.compute((64,), lambda i: te.exp(x[i]), name="E")
    y = te.compute((64,), lambda i: e[i] + e[63 - i], name="Y")
    refuse(module(x, y), "tensor E: found the index .* of a result of this function")


def test_nothing():
    refuse(memory_bound.copy(0, 64), "no elements; need one or more along each dimension")


def test_a_scheduled_function():
    bound = s_tir.Schedule(memory_bound.copy(4, 64))
    bound.bind(bound.get_loops("Y")[0], "blockIdx.x")
    refuse(bound.mod, "scheduled already; need plain serial loops")


def test_elements_without_bytes_of_their_own():
    x = tensor(64, 64, dtype="int4", name="X")
    y = te.compute((64, 64), lambda *i: x(*i).astype("float16"), "Y")
    refuse(module(x, y), "tensor X: found elements of type int4; need one of bool, float8")


def test_no_schedule_no_block_and_no_configuration():
    with pytest.raises(ScheduleError, match="need a schedule"):
        hs.pointwise(memory_bound.copy(4, 64))
    refuse(memory_bound.copy(4, 64), "none of that name", block="Z")
    refuse(memory_bound.copy(4, 64), "need an hs.PointwiseConfig or None", config=4)


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"threads": 48}, "threads=48; need a multiple of 32"),
        ({"threads": 16}, "threads=16; need 32 or more"),
        ({"chunks": 17}, "chunks=17; need at most 16"),
        ({"vector": 3}, "vector=3; need a power of two"),
        ({"blocks": 33}, "blocks=33; need at most 32"),
        ({"threads": 512, "blocks": 8}, "blocks=8 thread blocks of 512 threads; need at most 2048"),
    ],
)
def test_illegal_configurations(given, match):
    with pytest.raises(ScheduleError, match=match):
        hs.PointwiseConfig(**given)


def test_vectors_that_are_too_wide():
    config = hs.PointwiseConfig(vector=16)
    refuse(memory_bound.copy(4, 64), "found vector=16; need at most 16 bytes of the wid", config)
    config = hs.PointwiseConfig(vector=4)
    refuse(memory_bound.scale_shift(4, 102), "vector=4 for rows of 102 elements", config)


# -- parts of a tensor's columns ------------------------------------------------------------------


def gate(rows, columns, offset=None, parts=2, dtype="float16"):
    """Return X's columns from 0 times those from `offset`, and so on, as a split leaves them."""
    offset = columns if offset is None else offset
    x = te.placeholder((rows, offset * (parts - 1) + columns), dtype, name="X")

    def part(number):
        start = number * offset
        return te.compute((rows, columns), lambda i, j: x[i, j + start], name=f"P{number}")

    taken = [part(i) for i in range(parts)]

    def value(i, j):
        total = te.sigmoid(taken[0][i, j])
        for one in taken:
            total = total * one[i, j]
        return total

    return module(x, te.compute((rows, columns), value, name="Y"))


def text_of(mod, config=None):
    sch = s_tir.Schedule(mod)
    hs.pointwise(sch, config=config)
    assert verify(sch, against=mod).verdict == "clean"
    return capture.cuda_sources(tvm.compile(sch.mod, target=TARGET))[0]


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("parts", [2, 3])
def test_parts_of_columns_are_loaded_by_whole_vectors(parts):
    text = text_of(gate(5, 320, parts=parts), hs.PointwiseConfig(32, 1))
    assert text.count("*(uint4*)(X_ptr") == parts
    assert "X_ptr[" not in text


@pytest.mark.parametrize(("columns", "blocks"), [(128, 65), (4096, 2050)])
def test_parts_of_short_rows_fill_thread_blocks(columns, blocks):
    """A thread block for each row of 128 elements would have 16 vectors."""
    kernel, _ = chosen(gate(1025, columns), hs.PointwiseConfig(256, chunks=None))
    assert ir.static_int(kernel.extent) == blocks


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(("rows", "columns"), [(6, 2688), (64, 4096)])
def test_tiles_that_are_no_whole_rows_are_loaded_by_whole_vectors(rows, columns):
    """Elements are numbered all along: a tile begins inside a row, no vector does."""
    text = text_of(memory_bound.copy(rows, columns), hs.PointwiseConfig(64, 2))
    assert text.count("*(uint4*)(X_ptr") == text.count("*(uint4*)(Y_ptr") == 2
    assert "nv_bfloat164*)(" not in text


ELSEWHERE = {
    "turned": ((7, 3, 128), (3, 7, 128), lambda x, i, j, k: x[j, i, k]),
    "rows below one another": ((7, 3, 128), (21, 128), lambda x, i, j: x[i // 3, i % 3, j]),
    "halves": ((14, 256), (14, 128), lambda x, i, j: x[i, j] * x[i, j + 128]),
}


@pytest.mark.parametrize("name", list(ELSEWHERE))
def test_what_lies_elsewhere_is_loaded_by_whole_vectors_where_tiles_are_no_whole_rows(name):
    shape, wanted, value = ELSEWHERE[name]
    x = te.placeholder(shape, "float16", name="X")
    mod = module(x, te.compute(wanted, lambda *i: te.sigmoid(value(x, *i)), name="Y"))
    text = text_of(mod, hs.PointwiseConfig(64, 1))
    assert text.count("*(uint4*)(X_ptr") == 1 + (name == "halves")
    assert "X_ptr[" not in text


def test_rows_that_a_table_names_are_loaded_by_whole_vectors_where_tiles_are_no_whole_rows():
    x, place = tensor(14, 24), tensor(14, dtype="int32", name="P")
    mod = module(x, place, te.compute((14, 24), lambda i, j: x[place[i], j] * 2, name="Y"))
    sch = s_tir.Schedule(mod)
    hs.pointwise(sch, config=hs.PointwiseConfig(32, 1))
    (text,) = capture.cuda_sources(tvm.compile(sch.mod, target=TARGET))
    assert "X_ptr[" not in text


def test_parts_that_begin_in_a_vector_are_loaded_one_by_one():
    assert "*(uint4*)(X_ptr" not in text_of(gate(5, 32, 35))


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(("columns", "offset"), [(24, 24), (32, 40)], ids=["columns", "offset"])
def test_parts_that_begin_at_a_vector_are_loaded_by_vectors(columns, offset):
    assert "*(uint4*)(X_ptr" in text_of(gate(5, columns, offset))


def test_one_part_alone_is_inlined():
    x = tensor(5, 64, dtype="float16", name="X")
    part = te.compute((5, 32), lambda i, j: x[i, j + 32], name="P")
    mod = module(x, te.compute((5, 32), lambda i, j: part[i, j] * part[i, j], name="Y"))
    assert text_of(mod).count("X_local") == 0


@pytest.mark.parametrize("columns", [14, 28])
def test_vectors_go_over_the_end_of_a_row(columns):
    shape = (2, 8, columns, columns)
    x, b = te.placeholder(shape, "float16", name="X"), tensor(8, dtype="float16", name="B")
    gated = te.compute(
        (2, 4, columns, columns), lambda n, c, h, w: x[n, c, h, w] * x[n, c + 4, h, w], name="G"
    )
    for y in (te.compute(shape, lambda n, c, h, w: x[n, c, h, w] * b[c], name="Y"), gated):
        sch = s_tir.Schedule(module(x, *([b] if y is not gated else []), y))
        hs.pointwise(sch)
        (text,) = capture.cuda_sources(tvm.compile(sch.mod, TARGET))
        assert set(re.findall(r"\*\((\w+)\*\)\([XYG]_ptr", text)) == {"uint4"}


def padded(dtype="float16", size=28):
    x = te.placeholder((1, 2, size, size), dtype, name="X")
    around = topi.nn.pad(x, [0, 0, 1, 1], [0, 0, 1, 1])
    return module(x, topi.nn.relu(around))


@pytest.mark.parametrize(
    ("dtype", "size", "vector"), [("float16", 28, 2), ("float32", 10, 2), ("int8", 14, 4)]
)
def test_padding_loads_under_conditions_and_computes_then(dtype, size, vector):
    """A thread has few elements, so that those of a warp are a cache line."""
    mod = padded(dtype, size)
    assert f"vectors of {vector} each" in chosen(mod)[1]
    text = text_of(mod).split("main_kernel(")[-1]
    assert "first_ptr" in text
    assert text.rindex("condval") < text.index("max(")


def test_images_of_a_few_elements():
    """A vector of the result goes on in the next channel: its places are four at most."""
    x = tensor(2, 2, 2, 768)
    turned = te.compute(
        (2, 768, 2, 2), lambda n, c, h, w: x[n, h, w, c].astype("float16"), name="turned"
    )
    sch = s_tir.Schedule(module(x, turned))
    hs.pointwise(sch)
    (text,) = capture.cuda_sources(tvm.compile(sch.mod, target=TARGET))
    assert "make_longlong4" not in text
    given = {"X": np.random.default_rng(0).standard_normal((2, 2, 2, 768)).astype("float32")}
    verify(sch.mod, given, target=TARGET, against=module(x, turned), progress=False).require_clean()


@pytest.mark.parametrize(("columns", "threads"), [(128, 256), (256, 256), (512, 128)])
def test_thread_blocks_have_several_short_rows_that_share_a_tensor(columns, threads):
    """Else a row of 128 columns would be a vector for each lane of one warp."""
    _, said = chosen(memory_bound.scale_shift(8192, columns))
    assert said.startswith(f"{threads} threads"), said


def test_a_chosen_mask_of_all_heads_is_computed_for_each_element():
    """One value for several elements is no row's: the choice is made where it is used."""
    mask = te.placeholder((2, 24, 40), "bool", name="mask")
    scores = te.placeholder((2, 3, 24, 40), "float16", name="scores")
    low = te.placeholder((1,), "float16", name="low")
    chosen = te.compute(
        (2, 24, 40), lambda b, i, j: tirx.Select(mask[b, i, j], low[0], tirx.const(0, "float16"))
    )
    total = te.compute((2, 3, 24, 40), lambda b, h, i, j: scores[b, h, i, j] + chosen[b, i, j])
    func = te.create_prim_func([mask, scores, low, total])
    sch = s_tir.Schedule(func)
    hs.pointwise(sch)
    assert verify(sch, against=func).verdict == "clean"


def test_bytes_are_loaded_by_vectors_where_rows_are_short():
    """Eight elements of a byte, of rows of 64: only what one vector has must lie together."""
    a, x = (te.placeholder((2, 3, 64, 64), t, name=n) for t, n in (("int8", "A"), ("float16", "X")))
    zero = tirx.const(0, "int8")
    y = te.compute((2, 3, 64, 64), lambda *i: tirx.Select(a[i] != zero, x[i], -x[i]), name="Y")
    sch = s_tir.Schedule(te.create_prim_func([a, x, y]))
    hs.pointwise(sch)
    (kernel,) = explain(sch, TARGET).kernels
    assert not kernel.fallbacks
