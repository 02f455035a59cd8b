"""What `hs.matmul` cannot serve is one clear error, and the schedule stays as it was."""

import pytest
import tvm
from tvm import s_tir, te
from tvm.script import tirx as T

from tests.schedule.programs import (
    MULTIPLY_ADD,
    module,
    multiply,
    operands,
    product,
    tensor,
    written,
)
from tests.schedule.refuse import refuse
from tvm_hopper import schedule as hs
from tvm_hopper.errors import ScheduleError
from tvm_hopper.testing import workloads

SHAPE = (256, 256, 256)
EXACT = {"acc_dtype": "float16", "cast": "none", "out_dtype": "float16"}


# -- tensors that TMA or WGMMA cannot take


@pytest.mark.parametrize(
    ("options", "match"),
    [
        (
            {"k": 100},
            r"block C, tensor A: found K = 100 float16 elements, rows 200 bytes apart; need a "
            r"multiple of 16 bytes; pad K to 104; also tensor B: found K = 100",
        ),
        ({"n": 1001, "layout": "NN"}, r"tensor B: found N = 1001 .*2002 bytes.*pad N to 1008"),
        ({"m": 100, "layout": "TN"}, r"tensor A: found M = 100 .*200 bytes.*pad M to 104"),
        (
            {"m": "m", "layout": "TN"},
            r"tensor A: found M = m, symbolic, so rows any multiple of 2 bytes apart; need a "
            r"multiple of 16 bytes; make M static, or a multiple of 8",
        ),
        ({"dtype": "float32", "cast": "none"}, r"tensor A: found float32; .* give operands=\"tf32"),
        (
            {"dtype": "int8"},
            r"block C, tensor C: found a sum in float32; need a sum in int32 of products of int8",
        ),
        ({"acc_dtype": "float64", "out_dtype": "float64"}, r"tensor C: found a sum in float64"),
        (EXACT, r"block C, tensor C: found a sum in float16; .*give accumulate=\"float32\""),
    ],
    ids=["K", "N", "M", "symbolic-M", "float32", "int8", "float64", "float16-sum"],
)
def test_tensors(options, match):
    refuse(workloads.matmul(**{"m": 128, "n": 128, "k": 128, **options}), match)


def test_strided_operand():
    @T.prim_func(s_tir=True)
    def main(a: T.handle, b: T.handle, C: T.Buffer((128, 128), "float32")):
        A = T.match_buffer(a, (128, 128), "float16", strides=[260, 1])
        B = T.match_buffer(b, (128, 128), "float16", strides=[256, 2])
        for i, j, k in T.grid(128, 128, 128):
            with T.sblock("C"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                with T.init():
                    C[vi, vj] = T.float32(0)
                C[vi, vj] = C[vi, vj] + T.Cast("float32", A[vi, vk]) * T.Cast("float32", B[vj, vk])

    refuse(
        tvm.IRModule({"main": main}),
        r"tensor A: found row stride = 260 .*pad row stride to 264; also tensor B: found stride 2",
    )


def test_operand_outside_global_memory():
    sch = s_tir.Schedule(workloads.matmul(*SHAPE))
    sch.bind(sch.get_loops(sch.cache_read("C", 0, "shared"))[0], "threadIdx.x")
    refuse(sch.mod, r"tensor A_shared: found scope shared; need a tensor in global memory")


def test_mixed_types():
    (a, _), (_, b) = operands(*SHAPE), operands(*SHAPE, "bfloat16")
    refuse(
        module(a, b, product(a, b)),
        r"found A float16, B bfloat16; need operands of one type, two of float8",
    )


# -- blocks around the product


def test_computation_before_the_product():
    a, b = operands(*SHAPE)
    relu = te.compute(a.shape, lambda *i: te.max(a(*i), te.const(0, "float16")), name="R")
    match = r"block R: found a computation before the matmul C; need float16 or bfloat16"
    refuse(module(a, b, product(relu, b)), match)


def test_prologue_that_tvm_cannot_inline():
    a, b = operands(*SHAPE)
    cast = te.compute(a.shape, lambda *i: a(*i).astype("float32"), name="A_cast")
    refuse(
        module(a, b, cast, product(cast, b)),  # the cast is an output too
        r"block A_cast: found A_cast\[.*\] computed from A\[.*\], which TVM cannot inline \(.*\);",
    )


@pytest.mark.parametrize(
    ("shape", "value", "match"),
    [
        (
            (100,),
            lambda c: lambda i: c[i, i],
            r"block D: found a read of C\[v_i, v_i\], by which elements of the product are used "
            r"more than once, .*; need each element of the product for one element of the output; ",
        ),
        (
            (100, 208),
            lambda c: lambda i, j: c[i, j // 2],
            r"block D: found a read of C\[v_i, v_j // 2\]",
        ),
        (
            (100, 112),
            lambda c: lambda i, j: te.if_then_else(j < 104, c[i, j], te.const(3, "float32")),
            r"block D: found a read of C.* under a condition, which",
        ),
    ],
    ids=["diagonal", "each twice", "condition"],
)
def test_elements_that_are_no_output_each(shape, value, match):
    a, b = operands(100, 104, 72)
    refuse(module(a, b, te.compute(shape, value(product(a, b)), name="D")), match)


@pytest.mark.parametrize("is_output", [False, True], ids=["inside", "output"])
def test_two_elements_of_the_product_for_one_of_the_output(is_output):
    a, b = operands(*SHAPE)
    c = product(a, b)
    mirrored = te.compute(SHAPE[:2], lambda i, j: c[i, 255 - j], name="M")
    d = te.compute(SHAPE[:2], lambda i, j: c[i, j] + mirrored[i, j], name="D")
    tensors = [a, b, c, d] if is_output else [a, b, d]
    refuse(module(*tensors), r"block [MD]: found .*; need .*; make the block a separate kernel")


STORE = """
for i, j in T.grid(64, 64):
    with T.sblock("D"):
        vi, vj = T.axis.remap("SS", [i, j])
        {}
"""


def test_other_element_of_the_output_behind_the_product():
    refuse(
        written(
            shapes=((64, 64), (64, 64), None),
            after=STORE.format("D[vi, vj] = D[vj, vi] + C[vi, vj]"),
            more=', D: T.Buffer((64, 64), "float32")',
        ),
        r"block D: found a read of D\[vj, vi\] in a store to D\[vi, vj\]; need the element that is",
    )


# -- blocks that are no matmul


def test_block_that_is_no_reduction():
    refuse(
        workloads.matmul(*SHAPE, epilogue=("relu",)),
        r"block relu: found no initial value; need the block of a product",
        block="relu",
    )


def test_block_that_was_scheduled_before():
    sch = s_tir.Schedule(workloads.matmul(*SHAPE))
    hs.matmul(sch, "C", hs.MatmulConfig(tile=(128, 128, 64)))
    with pytest.raises(ScheduleError, match=r"block C: .*; C is scheduled already, C_update is"):
        hs.matmul(sch, "C")


def test_a_refusal_is_one_error_without_another_behind_it():
    with pytest.raises(ScheduleError) as raised:
        hs.matmul(s_tir.Schedule(workloads.matmul(64, 64, 60)), "C")
    assert raised.value.__context__ is None


def test_unknown_block():
    match = r"block Z: found none of that name in function main; need one of C"
    refuse(workloads.matmul(*SHAPE), match, block="Z")


def test_a_batch_whose_elements_are_neighbours_in_an_operand():
    a, b = (
        tensor(64, 64, 8, dtype="float16", name="A"),
        tensor(8, 64, 64, dtype="float16", name="B"),
    )
    k = te.reduce_axis((0, 64), "k")
    value = lambda x, i, j: te.sum(multiply(a[i, k, x], b[x, j, k]), k)  # noqa: E731
    c = te.compute((8, 64, 64), value, name="C")
    refuse(
        module(a, b, c),
        r"tensor A: found the index .* store A so that neighbours along k, or along its rows, are",
    )


def test_a_sum_of_two_axes_that_operands_order_differently():
    a, b = (
        tensor(64, 4, 16, dtype="float16", name="A"),
        tensor(64, 16, 4, dtype="float16", name="B"),
    )
    k0, k1 = te.reduce_axis((0, 4), "k0"), te.reduce_axis((0, 16), "k1")
    value = lambda i, j: te.sum(multiply(a[i, k0, k1], b[j, k1, k0]), [k0, k1])  # noqa: E731
    c = te.compute((64, 64), value, name="C")
    refuse(module(a, b, c), r"tensor B: found the index .* store B so that neigh")


@pytest.mark.parametrize(
    ("value", "match"),
    [
        (lambda x, y: x.astype("float32"), r"found the value C.*; need C\[\.\.\.\] \+ x"),
        (lambda x, y: (x + y).astype("float32"), r"found the value C.*; need C\[\.\.\.\] \+ x"),
        (lambda x, y: (x + x).astype("float32") * y.astype("float32"), r"computed inside the prod"),
        (
            lambda x, y: multiply(x, y) + multiply(y, x),
            r"found the value C.*; need C\[\.\.\.\] \+ x",
        ),
        (
            lambda x, y: x.astype("bfloat16").astype("float32") * y.astype("float32"),
            r"found operand A cast to bfloat16, which can change its value; need casts to float32",
        ),
    ],
    ids=["sum", "sum-of-both", "expression", "two-products", "narrow-cast"],
)
def test_value_that_is_no_product(value, match):
    a, b = operands(*SHAPE)
    refuse(module(a, b, product(a, b, value=value)), match)


def test_maximum_instead_of_a_sum():
    a, b = operands(*SHAPE)
    k = te.reduce_axis((0, 256), "k")
    c = te.compute(SHAPE[:2], lambda i, j: te.max(multiply(a[i, k], b[j, k]), k), name="C")
    refuse(module(a, b, c), r"block C: found the value T.max\(.*need C\[")


@pytest.mark.parametrize(
    ("left", "match"),
    [
        (lambda i, k: (i + k, k), r"tensor A: found the index v_i \+ v_k; need one loop"),
        (lambda i, k: (i, i), r"tensor A: found the index \[v_i, v_i\]; need an operand indexed"),
    ],
    ids=["sum", "diagonal"],
)
def test_index_that_is_no_matrix(left, match):
    a, b = operands(512, 256, 256)
    refuse(module(a, b, product(a, b, shape=SHAPE, left=left)), match)


def test_operands_indexed_alike():
    a, b = operands(*SHAPE)
    k = te.reduce_axis((0, 256), "k")
    c = te.compute(SHAPE[:2], lambda i, j: te.sum(multiply(a[i, k], b[i, k]), k), name="C")
    refuse(module(a, b, c), r"block C: found both operands indexed alike")


def test_output_that_is_a_vector():
    a, b = operands(*SHAPE)
    k = te.reduce_axis((0, 256), "k")
    c = te.compute((256,), lambda i: te.sum(multiply(a[i, k], b[0, k]), k), name="C")
    sch = s_tir.Schedule(module(a, b, c))  # `hs.matmul` gives it a row of its own
    with pytest.raises(ScheduleError, match=r"block C: found the output index .*; need C\[m, n\]"):
        hs.pad(sch, "C", (64, 64, 64))


def test_empty_shape():
    refuse(workloads.matmul(64, 64, 0, cast_stage=True), r"block C: found K=0; need a shape")
    refuse(workloads.matmul(0, 128, 128), r"block C: found M=0; need a shape without empty dim")


# -- blocks that are scheduled already, or that are no plain loops


def bound(sch):
    sch.bind(sch.get_loops("C")[0], "blockIdx.x")


def tiled(sch):
    sch.split(sch.get_loops("C")[0], [None, 16])


def predicated(sch):
    sch.fuse(*sch.split(sch.get_loops("C")[0], [None, 65]))


def decomposed(sch):
    sch.decompose_reduction("C", sch.get_loops("C")[2])


def with_a_store(sch):
    sch.reverse_compute_at(sch.cache_write("C", 0, "global"), sch.get_loops("C")[0])


def blockized(sch):
    sch.blockize(sch.get_loops("C")[1])


@pytest.mark.parametrize(
    ("change", "block", "match"),
    [
        (bound, "C", r"block C: found loop i0 that is scheduled already; need plain serial loops"),
        (tiled, "C", r"block C: found v_i0 bound to i0_0 \* 16 \+ i0_1; need one loop"),
        (predicated, "C", r"block C: found the predicate .* < 256; need none"),
        (decomposed, "C_update", r"block C_update: found no initial value"),
        (with_a_store, "C", r"block C: found other statements between its loops"),
        (blockized, "C_o", r"block C_o: found For; need one multiply-add"),
    ],
)
def test_blocks_that_are_scheduled(change, block, match):
    sch = s_tir.Schedule(workloads.matmul(*SHAPE))
    change(sch)
    refuse(sch.mod, match, block=block)


ONE_ROW = 'vi = T.axis.spatial(1, 0)\nvj, vk = T.axis.remap("SR", [j, k])'
NO_LOOP = "vi, vj, vk = T.axis.spatial(1, 0), T.axis.spatial(1, 0), T.axis.reduce(1, 0)"


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"loops": "", "axes": NO_LOOP, "shapes": ((1, 8), (1, 8), (1, 1))}, "found no loops"),
        (
            {"loops": "for again, i, j, k in T.grid(2, 64, 64, 64):"},
            "found loop again that repeats it; need one product",
        ),
        (
            {"loops": "for i in range(8, 64):\n    for j, k in T.grid(64, 64):"},
            "found loop i from 8; need from 0",
        ),
    ],
)
def test_loops_that_are_none_of_a_product(options, match):
    refuse(written(**options), f"block C: {match}")


@pytest.mark.parametrize(
    ("options", "match"),
    [
        (
            {"loops": "for j, k in T.grid(64, 64):", "axes": ONE_ROW,
             "shapes": ((1, 64), (64, 64), (1, 64))},
            "found no loop over M; need one loop a dimension",
        ),
        (
            {"at": "2, vi, vj", "shapes": ((64, 64), (64, 64), (4, 64, 64))},
            "found C, of which it writes a part; need an output whose",
        ),
    ],
)  # fmt: skip
def test_steps_take_a_product_as_it_is(options, match):
    """`hs.matmul` gives these a form that serves."""
    with pytest.raises(ScheduleError, match=f"block C: {match}"):
        hs.pad(s_tir.Schedule(written(**options)), "C", (64, 64, 64))


# -- forms of the update that are no sum of products


def test_cast_that_changes_values_is_refused():
    a, b = operands(*SHAPE, "bfloat16")
    narrow = lambda x, y: (x.astype("float16") * y.astype("float16")).astype("float32")  # noqa: E731
    match = r"operand [AB] cast to float16, which can change its"
    refuse(module(a, b, product(a, b, value=narrow)), match)


@pytest.mark.parametrize(
    "value",
    [
        f"T.max(C[vi, vj], {MULTIPLY_ADD})",
        f'{MULTIPLY_ADD} + T.Cast("float32", B[vi, vk]) * T.Cast("float32", A[vj, vk])',
    ],
    ids=["maximum", "two products"],
)
def test_update_that_does_not_add_to_its_element_is_refused(value):
    match = r"block C: found .*need C\[\.\.\.\] \+ x\[\.\.\.\] \* y\[\.\.\.\]"
    refuse(written(update=f"C[vi, vj] = {value}"), match)
