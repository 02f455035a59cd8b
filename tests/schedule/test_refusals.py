"""What `hs.matmul` cannot serve is one clear error, and the schedule stays as it was."""

import pytest
import tvm
from tvm import s_tir, te
from tvm.script import tirx as T

from tests.schedule.refuse import refuse
from tvm_hopper import schedule as hs
from tvm_hopper.errors import ScheduleError
from tvm_hopper.testing import workloads

SHAPE = (256, 256, 256)
EXACT = {"acc_dtype": "float16", "cast": "none", "out_dtype": "float16"}


def multiply(x, y):
    return x.astype("float32") * y.astype("float32")


def product(a, b, name="C", shape=SHAPE, **given):
    m, n, k = shape
    axis = te.reduce_axis((0, k), "k")
    value = given.get("value", multiply)
    return te.compute((m, n), lambda i, j: te.sum(value(a[i, axis], b[j, axis]), axis), name=name)


def operands(dtype="float16", shape=SHAPE):
    m, n, k = shape
    return te.placeholder((m, k), dtype, name="A"), te.placeholder((n, k), dtype, name="B")


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
    a, _ = operands()
    _, b = operands("bfloat16")
    refuse(
        te.create_prim_func([a, b, product(a, b)]),
        r"found A float16, B bfloat16; need operands of one type, two of float8",
    )


# -- blocks around the product


def test_computation_before_the_product():
    a, b = operands()
    relu = te.compute(a.shape, lambda *i: te.max(a(*i), te.const(0, "float16")), name="R")
    func = te.create_prim_func([a, b, product(relu, b)])
    refuse(func, r"block R: found a computation before the matmul C; need float16 or bfloat16")


def test_prologue_that_tvm_cannot_inline():
    a, b = operands()
    cast = te.compute(a.shape, lambda *i: a(*i).astype("float32"), name="A_cast")
    func = te.create_prim_func([a, b, cast, product(cast, b)])  # the cast is an output too
    refuse(
        func,
        r"block A_cast: found A_cast\[.*\] computed from A\[.*\], which TVM cannot inline \(.*\);",
    )


def test_block_behind_the_product_that_tvm_cannot_inline():
    a, b = operands()
    c = product(a, b)
    d = te.compute((256,), lambda i: c[i, i], name="D")
    refuse(
        te.create_prim_func([a, b, d]),
        r"block D: found a read of C\[v_i, v_i\], by which elements of the product are used more "
        r"than once, .*; need each element of the product for one element of the output; make",
    )


def test_element_of_the_product_for_two_of_the_output():
    a, b = operands(shape=(100, 104, 72))
    c = product(a, b, shape=(100, 104, 72))
    d = te.compute((100, 208), lambda i, j: c[i, j // 2], name="D")
    refuse(te.create_prim_func([a, b, d]), r"block D: found a read of C\[v_i, v_j // 2\]")


def test_element_of_the_product_under_a_condition():
    a, b = operands(shape=(64, 40, 64))
    c = product(a, b, shape=(64, 40, 64))
    d = te.compute(
        (64, 48), lambda i, j: te.if_then_else(j < 40, c[i, j], te.const(3, "float32")), name="D"
    )
    refuse(te.create_prim_func([a, b, d]), r"block D: found a read of C.* under a condition, which")


@pytest.mark.parametrize("is_output", [False, True], ids=["inside", "output"])
def test_two_elements_of_the_product_for_one_of_the_output(is_output):
    a, b = operands()
    c = product(a, b)
    mirrored = te.compute(SHAPE[:2], lambda i, j: c[i, 255 - j], name="M")
    d = te.compute(SHAPE[:2], lambda i, j: c[i, j] + mirrored[i, j], name="D")
    tensors = [a, b, c, d] if is_output else [a, b, d]
    refuse(
        te.create_prim_func(tensors),
        r"block [MD]: found .*; need .*; make the block a separate kernel",
    )


def test_other_element_of_the_output_behind_the_product():
    @T.prim_func(s_tir=True)
    def main(
        A: T.Buffer((64, 64), "float16"), B: T.Buffer((64, 64), "float16"),
        D: T.Buffer((64, 64), "float32"),
    ):  # fmt: skip
        C = T.sblock_alloc_buffer((64, 64), "float32")
        for i, j, k in T.grid(64, 64, 64):
            with T.sblock("C"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                with T.init():
                    C[vi, vj] = T.float32(0)
                C[vi, vj] = C[vi, vj] + T.Cast("float32", A[vi, vk]) * T.Cast("float32", B[vj, vk])
        for i, j in T.grid(64, 64):
            with T.sblock("D"):
                vi, vj = T.axis.remap("SS", [i, j])
                D[vi, vj] = D[vj, vi] + C[vi, vj]

    refuse(
        script(main),
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
    refuse(
        workloads.matmul(*SHAPE),
        r"block Z: found none of that name in function main; need one of C",
        block="Z",
    )


def test_a_batch_whose_elements_are_neighbours_in_an_operand():
    a = te.placeholder((64, 64, 8), "float16", name="A")
    b = te.placeholder((8, 64, 64), "float16", name="B")
    axis = te.reduce_axis((0, 64), "k")
    c = te.compute(
        (8, 64, 64),
        lambda x, i, j: te.sum(
            a[i, axis, x].astype("float32") * b[x, j, axis].astype("float32"), axis
        ),
        name="C",
    )
    refuse(
        te.create_prim_func([a, b, c]),
        r"tensor A: found the index .* store A so that neighbours along k, or along its rows, are",
    )


def test_a_sum_of_two_axes_that_operands_order_differently():
    a = te.placeholder((64, 4, 16), "float16", name="A")
    b = te.placeholder((64, 16, 4), "float16", name="B")
    k0, k1 = te.reduce_axis((0, 4), "k0"), te.reduce_axis((0, 16), "k1")
    c = te.compute(
        (64, 64),
        lambda i, j: te.sum(
            a[i, k0, k1].astype("float32") * b[j, k1, k0].astype("float32"), [k0, k1]
        ),
        name="C",
    )
    refuse(te.create_prim_func([a, b, c]), r"tensor B: found the index .* store B so that neigh")


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
    a, b = operands()
    refuse(te.create_prim_func([a, b, product(a, b, value=value)]), match)


def test_maximum_instead_of_a_sum():
    a, b = operands()
    k = te.reduce_axis((0, 256), "k")
    c = te.compute(
        SHAPE[:2],
        lambda i, j: te.max(a[i, k].astype("float32") * b[j, k].astype("float32"), k),
        name="C",
    )
    refuse(te.create_prim_func([a, b, c]), r"block C: found the value T.max\(.*need C\[")


def test_operands_indexed_alike():
    a, b = operands()
    k = te.reduce_axis((0, 256), "k")
    c = te.compute(
        SHAPE[:2],
        lambda i, j: te.sum(a[i, k].astype("float32") * b[i, k].astype("float32"), k),
        name="C",
    )
    refuse(te.create_prim_func([a, b, c]), r"block C: found both operands indexed alike")


@pytest.mark.parametrize(
    ("index", "match"),
    [
        (lambda i, k: (i + k, k), r"tensor A: found the index v_i \+ v_k; need one loop"),
        (lambda i, k: (i, i), r"tensor A: found the index \[v_i, v_i\]; need an operand indexed"),
    ],
    ids=["sum", "diagonal"],
)
def test_index_that_is_no_matrix(index, match):
    _, b = operands()
    a = te.placeholder((512, 256), "float16", name="A")
    k = te.reduce_axis((0, 256), "k")
    c = te.compute(
        SHAPE[:2],
        lambda i, j: te.sum(a[index(i, k)].astype("float32") * b[j, k].astype("float32"), k),
        name="C",
    )
    refuse(te.create_prim_func([a, b, c]), match)


def test_output_that_is_a_vector():
    a, b = operands()
    k = te.reduce_axis((0, 256), "k")
    c = te.compute(
        (256,),
        lambda i: te.sum(a[i, k].astype("float32") * b[0, k].astype("float32"), k),
        name="C",
    )
    sch = s_tir.Schedule(te.create_prim_func([a, b, c]))  # `hs.matmul` gives it a row of its own
    with pytest.raises(ScheduleError, match=r"block C: found the output index .*; need C\[m, n\]"):
        hs.pad(sch, "C", (64, 64, 64))


def test_empty_shape():
    refuse(workloads.matmul(64, 64, 0, cast_stage=True), r"block C: found K=0; need a shape")
    refuse(workloads.matmul(0, 128, 128), r"block C: found M=0; need a shape without empty dim")


# -- blocks that are scheduled already, or that are no plain loops


def script(body):
    """Parse one prim_func whose body is that of a matmul of 128."""
    return tvm.IRModule({"main": body})


def test_scheduled_loop():
    sch = s_tir.Schedule(workloads.matmul(*SHAPE))
    sch.bind(sch.get_loops("C")[0], "blockIdx.x")
    refuse(sch.mod, r"block C: found loop i0 that is scheduled already; need plain serial loops")


def test_tiled_loop():
    sch = s_tir.Schedule(workloads.matmul(*SHAPE))
    sch.split(sch.get_loops("C")[0], [None, 16])
    refuse(sch.mod, r"block C: found v_i0 bound to i0_0 \* 16 \+ i0_1; need one loop")


def test_predicate():
    sch = s_tir.Schedule(workloads.matmul(100, 128, 128))
    outer, inner = sch.split(sch.get_loops("C")[0], [None, 64])
    sch.fuse(outer, inner)
    refuse(sch.mod, r"block C: found the predicate .* < 100; need none")


def test_statements_between_the_loops():
    sch = s_tir.Schedule(workloads.matmul(*SHAPE))
    sch.decompose_reduction("C", sch.get_loops("C")[2])
    refuse(sch.mod, r"block C_update: found no initial value", block="C_update")
    sch = s_tir.Schedule(workloads.matmul(*SHAPE))
    store = sch.cache_write("C", 0, "global")
    sch.reverse_compute_at(store, sch.get_loops("C")[0])
    refuse(sch.mod, r"block C: found other statements between its loops")


def test_block_around_a_block():
    sch = s_tir.Schedule(workloads.matmul(*SHAPE))
    outer = sch.get(sch.blockize(sch.get_loops("C")[1])).name_hint
    refuse(sch.mod, rf"block {outer}: found For; need one multiply-add", block=str(outer))


def test_odd_loops():
    @T.prim_func(s_tir=True)
    def no_loop(
        A: T.Buffer((1, 8), "float16"), B: T.Buffer((1, 8), "float16"),
        C: T.Buffer((1, 1), "float32"),
    ):  # fmt: skip
        with T.sblock("C"):
            vi, vj, vk = T.axis.spatial(1, 0), T.axis.spatial(1, 0), T.axis.reduce(1, 0)
            with T.init():
                C[vi, vj] = T.float32(0)
            C[vi, vj] = C[vi, vj] + T.Cast("float32", A[vi, vk]) * T.Cast("float32", B[vj, vk])

    @T.prim_func(s_tir=True)
    def no_row_loop(
        A: T.Buffer((1, 64), "float16"), B: T.Buffer((64, 64), "float16"),
        C: T.Buffer((1, 64), "float32"),
    ):  # fmt: skip
        for j, k in T.grid(64, 64):
            with T.sblock("C"):
                vi = T.axis.spatial(1, 0)
                vj, vk = T.axis.remap("SR", [j, k])
                with T.init():
                    C[vi, vj] = T.float32(0)
                C[vi, vj] = C[vi, vj] + T.Cast("float32", A[vi, vk]) * T.Cast("float32", B[vj, vk])

    @T.prim_func(s_tir=True)
    def repeated(
        A: T.Buffer((64, 64), "float16"), B: T.Buffer((64, 64), "float16"),
        C: T.Buffer((64, 64), "float32"),
    ):  # fmt: skip
        for _again, i, j, k in T.grid(2, 64, 64, 64):
            with T.sblock("C"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                with T.init():
                    C[vi, vj] = T.float32(0)
                C[vi, vj] = C[vi, vj] + T.Cast("float32", A[vi, vk]) * T.Cast("float32", B[vj, vk])

    @T.prim_func(s_tir=True)
    def shifted(
        A: T.Buffer((64, 64), "float16"), B: T.Buffer((64, 64), "float16"),
        C: T.Buffer((64, 64), "float32"),
    ):  # fmt: skip
        for i in range(8, 64):
            for j, k in T.grid(64, 64):
                with T.sblock("C"):
                    vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                    with T.init():
                        C[vi, vj] = T.float32(0)
                    C[vi, vj] = C[vi, vj] + T.Cast("float32", A[vi, vk]) * T.Cast(
                        "float32", B[vj, vk]
                    )

    @T.prim_func(s_tir=True)
    def part(
        A: T.Buffer((64, 64), "float16"), B: T.Buffer((64, 64), "float16"),
        C: T.Buffer((4, 64, 64), "float32"),
    ):  # fmt: skip
        for i, j, k in T.grid(64, 64, 64):
            with T.sblock("C"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                with T.init():
                    C[2, vi, vj] = T.float32(0)
                C[2, vi, vj] = C[2, vi, vj] + T.Cast("float32", A[vi, vk]) * T.Cast(
                    "float32", B[vj, vk]
                )

    refuse(script(no_loop), r"block C: found no loops")
    refuse(script(repeated), r"block C: found loop _again that repeats it; need one product")
    refuse(script(shifted), r"block C: found loop i from 8; need from 0")
    for program, match in (
        (no_row_loop, r"block C: found no loop over M; need one loop a dimension"),
        (part, r"block C: found C, of which it writes a part; need an output whose"),
    ):  # `hs.matmul` gives both a form that serves; the steps take a product as it is
        sch = s_tir.Schedule(script(program))
        with pytest.raises(ScheduleError, match=match):
            hs.pad(sch, "C", (64, 64, 64))


# -- forms of the update that are no sum of products


def test_cast_that_changes_values_is_refused():
    a, b = operands("bfloat16")
    c = product(
        a,
        b,
        value=lambda x, y: (x.astype("float16") * y.astype("float16")).astype("float32"),
    )
    refuse(te.create_prim_func([a, b, c]), r"operand [AB] cast to float16, which can change its")


@pytest.mark.parametrize("update", ["maximum", "two products"])
def test_update_that_does_not_add_to_its_element_is_refused(update):
    maximum = update == "maximum"

    @T.prim_func(s_tir=True)
    def main(
        A: T.Buffer((256, 256), "float16"),
        B: T.Buffer((256, 256), "float16"),
        C: T.Buffer((256, 256), "float32"),
    ):
        for i, j, k in T.grid(256, 256, 256):
            with T.sblock("C"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                with T.init():
                    C[vi, vj] = T.float32(0)
                if maximum:
                    C[vi, vj] = T.max(
                        C[vi, vj], T.Cast("float32", A[vi, vk]) * T.Cast("float32", B[vj, vk])
                    )
                else:
                    C[vi, vj] = T.Cast("float32", A[vi, vk]) * T.Cast(
                        "float32", B[vj, vk]
                    ) + T.Cast("float32", B[vi, vk]) * T.Cast("float32", A[vj, vk])

    refuse(main, r"block C: found .*need C\[\.\.\.\] \+ x\[\.\.\.\] \* y\[\.\.\.\]")
