"""Programs that were once lowered to wrong kernels: each is right now, or refused."""

from collections.abc import Callable

import numpy as np
import pytest
import tvm
import tvm.script
from tvm import s_tir, te

import tvm_hopper
from tvm_hopper import schedule as hs
from tvm_hopper.cuda_build import records
from tvm_hopper.errors import HopperError

TARGET = "nvidia/nvidia-h200"
CONFIG = hs.MatmulConfig(tile=(64, 64, 64), stages=2, consumers=1)


def integers(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).integers(-2, 3, shape).astype("float16")


def right_or_refused(make: Callable, inputs: dict, output: str, want: np.ndarray) -> None:
    """Fail on a wrong number; a refusal by name is as good as the right ones."""
    try:
        ex = tvm.compile(make(), target=TARGET)
    except HopperError as error:
        refusal = str(error)
    else:
        refusal = ""
    if refusal:
        assert "; need " in refusal
        return
    result = tvm_hopper.simulate(ex, inputs)
    np.testing.assert_array_equal(result.outputs[output].astype("float64"), want)
    result.require_clean()  # right by the order in which thread blocks ran is not right


def product(m: int, n: int, k: int, a: tuple[int, int], b: tuple[int, int]) -> list:
    """C[i, j] = sum over k of A[i, k] B[j, k], of tensors that may be larger than the loops."""
    tensors = [te.placeholder(s, "float16", name=x) for s, x in ((a, "A"), (b, "B"))]
    axis = te.reduce_axis((0, k), "k")
    left, right = (lambda *i, t=t: t(*i).astype("float32") for t in tensors)
    c = te.compute((m, n), lambda i, j: te.sum(left(i, axis) * right(j, axis), axis), "C")
    return [*tensors, c]


@pytest.mark.parametrize(("a", "b"), [((64, 72), (64, 72)), ((64, 72), (64, 64))])
def test_a_sum_over_a_part_of_k(a: tuple[int, int], b: tuple[int, int]) -> None:
    def make() -> tvm.IRModule:
        sch = s_tir.Schedule(te.create_prim_func(product(64, 64, 60, a, b)))
        hs.matmul(sch, "C", CONFIG)
        return sch.mod

    x, y = integers(*a), integers(*b)
    want = x[:, :60].astype("float64") @ y[:, :60].T.astype("float64")
    right_or_refused(make, {"A": x, "B": y}, "C", want)


PART = """
@I.ir_module
class Module:
    @T.prim_func(s_tir=True)
    def main(
        A: T.Buffer((60, 64), "float16"),
        B: T.Buffer((60, 64), "float16"),
        C: T.Buffer((64, 64), "float32"),
    ):
        for i, j, k in T.grid(60, 60, 64):
            with T.sblock("C"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                with T.init():
                    C[vi, vj] = T.float32(0)
                C[vi, vj] = C[vi, vj] + T.Cast("float32", A[vi, vk]) * T.Cast("float32", B[vj, vk])
"""


def test_a_part_of_the_output_is_written() -> None:
    def make() -> tvm.IRModule:
        sch = s_tir.Schedule(tvm.script.from_source(PART))
        hs.matmul(sch, "C", CONFIG)
        return sch.mod

    x, y = integers(60, 64), integers(60, 64)
    before = np.full((64, 64), 7, "float32")
    want = before.astype("float64")
    want[:60, :60] = x.astype("float64") @ y.T.astype("float64")
    right_or_refused(make, {"A": x, "B": y, "C": before}, "C", want)


def by_hand(change: Callable[[str], str]) -> tvm.IRModule:
    """Schedule a 128 x 128 x 128 product by one tile a block; change the text of the result."""
    sch = s_tir.Schedule(te.create_prim_func(product(128, 128, 128, (128, 128), (128, 128))))
    hs.matmul(sch, "C", CONFIG)
    return tvm.script.from_source(change(sch.mod.script()))


STORE = "C[v0, v1] = C_local[v0, v1]"


def test_a_row_sum_behind_the_product() -> None:
    def change(text: str) -> str:
        text = text.replace('C: T.Buffer((128, 128), "float32")', 'C: T.Buffer((128,), "float32")')
        text = text.replace("T.reads(C_local[v0, v1])", "T.reads(C_local[v0, v1], C[v0])")
        text = text.replace("T.writes(C[v0, v1])", "T.writes(C[v0])")
        assert STORE in text
        return text.replace(STORE, "C[v0] = C[v0] + C_local[v0, v1]")

    x, y = integers(128, 128), integers(128, 128)
    want = (x.astype("float64") @ y.T.astype("float64")).sum(1)
    inputs = {"A": x, "B": y, "C": np.zeros(128, "float32")}
    right_or_refused(lambda: by_hand(change), inputs, "C", want)


def test_persistent_tiles_of_different_depth() -> None:
    def change(text: str) -> str:
        text = text.replace("A: T.Buffer", 'L: T.Buffer((2,), "int32"), A: T.Buffer', 1)
        assert "for k_0 in T.serial(2," in text
        text = text.replace("for k_0 in T.serial(2,", "for k_0 in T.serial(L[i_0],")
        column = 'for j_0 in T.thread_binding(2, thread="blockIdx.x"'
        assert column in text
        head, _, tail = text.partition(column)
        tail = tail[tail.index("):") :]
        return f'{head}{column}, annotations={{"tvm_hopper.persistent": 2}}{tail}'

    x, y = integers(128, 128), integers(128, 128)
    depth = np.array([1, 2], "int32")
    want = x.astype("float64") @ y.T.astype("float64")
    want[:64] = x[:64, :64].astype("float64") @ y[:, :64].T.astype("float64")
    right_or_refused(lambda: by_hand(change), {"L": depth, "A": x, "B": y}, "C", want)


def test_two_products_with_one_constant_parity() -> None:
    a, b, c = product(128, 128, 64, (128, 64), (128, 64))
    e = te.placeholder((128, 128), "float16", name="E")
    half = te.compute((128, 128), lambda i, j: c[i, j].astype("float16"), "H")
    k = te.reduce_axis((0, 128), "k2")
    f32 = "float32"
    g = te.compute(
        (128, 128), lambda i, j: te.sum(half[i, k].astype(f32) * e[j, k].astype(f32), k), "G"
    )
    sch = s_tir.Schedule(te.create_prim_func([a, b, e, g]))
    hs.matmul(sch, "C", CONFIG)
    hs.matmul(sch, "G", hs.MatmulConfig(tile=(128, 64, 64), stages=2, consumers=2))
    ex = tvm.compile(sch.mod, target=TARGET)
    assert len(tvm_hopper.explain(ex).kernels) == 2


def test_builds_of_one_text_keep_their_options() -> None:
    sch = s_tir.Schedule(te.create_prim_func(product(64, 64, 64, (64, 64), (64, 64))))
    hs.matmul(sch, "C", CONFIG)
    with tvm.transform.PassContext(config={"tirx.enable_fast_math": True}):
        first = tvm.compile(sch.mod, target=TARGET)
    tvm.compile(sch.mod, target=TARGET)
    assert records.compiled(first).math_flags == ("--use_fast_math",)


def test_a_tensor_named_like_a_map() -> None:
    shape = (64, 64)
    a, b = (te.placeholder(shape, "float16", name=x) for x in ("A", "A_map"))
    k = te.reduce_axis((0, 64), "k")
    f32 = "float32"
    c = te.compute(shape, lambda i, j: te.sum(a[i, k].astype(f32) * b[j, k].astype(f32), k), "C")
    sch = s_tir.Schedule(te.create_prim_func([a, b, c]))
    hs.matmul(sch, "C", CONFIG)
    x, y = integers(*shape), integers(*shape)
    got = tvm_hopper.simulate(tvm.compile(sch.mod, target=TARGET), {"A": x, "A_map": y})
    np.testing.assert_array_equal(got.outputs["C"], x.astype("float64") @ y.T.astype("float64"))


RESHAPES = {  # index of the product -> index of the output, both as (row, column)
    "heads": ((140, 38), lambda c, x, y: c[x // 2, x % 2 * 38 + y]),
    "flat": ((5320,), lambda c, x: c[x // 76, x % 76]),
    "roll": ((70, 76), lambda c, i, j: c[i, (j + 8) % 76]),
}


@pytest.mark.parametrize("name", RESHAPES)
def test_a_ragged_product_under_another_index(name: str) -> None:
    shape, view = RESHAPES[name]

    def make() -> tvm.IRModule:
        a, b, c = product(70, 76, 72, (70, 72), (76, 72))
        d = te.compute(shape, lambda *point: view(c, *point), "D")
        sch = s_tir.Schedule(te.create_prim_func([a, b, d]))
        hs.matmul(sch, "C", CONFIG)
        return sch.mod

    x, y = integers(70, 72), integers(76, 72)
    want = x.astype("float64") @ y.T.astype("float64")
    want = np.roll(want, -8, 1) if name == "roll" else want.reshape(shape)
    right_or_refused(make, {"A": x, "B": y}, "D", want)


def test_threads_behind_a_condition_wait_once_for_a_copy() -> None:
    """18 rows by fours: some threads of the last block wait in front of its end, as all others."""
    a, b = (te.placeholder((rows, 16), "float16", name=x) for x, rows in (("A", 36), ("B", 18)))
    x = te.compute((18, 16), lambda i, j: a[i * 2, j], name="X")
    y = te.compute((18, 16), lambda i, j: x[i, j] + b[i, j], name="Y")
    c = te.compute((18, 16), lambda i, j: y[i, j] * te.const(2, "float16"), name="C")
    func = te.create_prim_func([a, b, c]).with_attr("global_symbol", "main")
    sch = s_tir.Schedule(tvm.IRModule({"main": func}))
    i, j = sch.get_loops("C")
    i0, k0, i1 = sch.split(i, [None, 1, 4])
    j0, j1 = sch.split(j, [None, 32])
    sch.reorder(i0, j0, k0, i1, j1)
    sch.bind(sch.fuse(i0, j0), "blockIdx.x")
    sch.set_scope("Y", 0, "shared.dyn")
    sch.compute_at("Y", k0)
    _, thread = sch.split(sch.fuse(*sch.get_loops("Y")[-2:]), [None, 64])
    sch.bind(thread, "threadIdx.x")
    sch.set_scope("X", 0, "shared.dyn")
    sch.compute_at("X", k0)
    hs.async_copy(sch, sch.get_sblock("X"), "tma")
    copy = sch.cache_read("Y", 1, "shared.dyn")
    sch.compute_at(copy, k0)
    hs.async_copy(sch, copy, "tma")
    _, thread = sch.split(sch.fuse(i1, j1), [None, 64])
    sch.bind(thread, "threadIdx.x")
    for key, value in (("stage", [1, 0, 1, 1]), ("order", [0, 1, 2, 3]), ("async_stages", [0, 1])):
        sch.annotate(k0, f"software_pipeline_{key}", value)
    given = {"A": integers(36, 16), "B": integers(18, 16)}
    result = tvm_hopper.simulate(tvm.compile(sch.mod, target=TARGET), given)
    np.testing.assert_array_equal(result.outputs["C"], (given["A"][::2] + given["B"]) * 2)
    result.require_clean()
