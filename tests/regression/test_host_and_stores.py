"""Programs whose host half touched device memory, crashed a stock pass, or whose stores met."""

from typing import Any

import numpy as np
import pytest
import tvm
import tvm.script
from tvm import s_tir, te
from tvm.script import tirx as T

import tvm_hopper
from tests.sim_kernels.kernels import multiply_by_hand
from tvm_hopper import schedule as hs
from tvm_hopper.errors import HopperError, LoweringError, ScheduleError
from tvm_hopper.testing import workloads

TARGET = "nvidia/nvidia-h200"
CONFIG = hs.MatmulConfig(tile=(64, 64, 64), stages=2, consumers=1)


def product(rows: int = 128, read: int | None = None) -> list[Any]:
    """C = A B^T of `rows` x 64 elements; `read` rows of A are there."""
    a, b = (
        te.placeholder((size, 64), "float16", name=name)
        for size, name in ((read or rows, "A"), (64, "B"))
    )
    k = te.reduce_axis((0, 64), "k")
    wide = [lambda *i, t=t: t(*i).astype("float32") for t in (a, b)]
    c = te.compute((rows, 64), lambda i, j: te.sum(wide[0](i, k) * wide[1](j, k), k), "C")
    return [a, b, c]


def compiled(tensors: list[Any], config: hs.MatmulConfig = CONFIG) -> Any:
    sch = s_tir.Schedule(te.create_prim_func(tensors))
    hs.matmul(sch, "C", config)
    return tvm.compile(sch.mod, target=TARGET)


def run(ex: Any, rows: int = 128) -> tuple[np.ndarray, Any]:
    a, b = (np.random.default_rng(i).integers(-2, 3, (n, 64)) for i, n in ((0, rows), (1, 64)))
    result = tvm_hopper.simulate(ex, {"A": a.astype("float16"), "B": b.astype("float16")})
    return (a @ b.T).astype("float64"), result


# -- what would run on the host


def test_a_reduction_beside_the_product_stays_not_on_the_host() -> None:
    a, b, c = product()
    x, j = te.placeholder((64, 64), "float32", name="X"), te.reduce_axis((0, 64), "j")
    s = te.compute((64,), lambda i: te.sum(x[i, j], j), "S")
    with pytest.raises(
        ScheduleError, match="block S: found a reduction that is no part of the ker"
    ):
        compiled([a, b, x, c, s])


def test_rows_that_the_product_leaves_out_are_no_copy_on_the_host() -> None:
    """Of 128 rows 50 are taken; their pad to a tile was a plain copy, and left alone."""
    tensors = product(50, 128)
    ex = compiled(tensors, hs.MatmulConfig(tile=(128, 64, 64), stages=1))
    want, result = run(ex, 128)
    result.require_clean()
    np.testing.assert_array_equal(result.outputs["C"], want[:50])


@pytest.mark.parametrize("kind", ["serial", "parallel", "unroll", "vectorize"])
def test_loops_around_a_kernel(kind: str) -> None:
    sch = s_tir.Schedule(workloads.matmul(128, 64, 64))
    i, j, k = sch.get_loops("C")
    i0, i1, i2 = sch.split(i, [None, 1, 64])
    (j0, j1), (k0, k1) = sch.split(j, [None, 64]), sch.split(k, [None, 64])
    sch.reorder(i0, j0, i1, k0, i2, j1, k1)
    if kind != "serial":
        getattr(sch, kind)(i0)
    sch.bind(j0, "blockIdx.x")
    sch.bind(i1, "threadIdx.y")
    multiply_by_hand(sch, i1, k0)
    if kind != "serial":
        with pytest.raises(LoweringError, match=f"loop i0_0: found an? {kind}.* loop around a k"):
            tvm.compile(sch.mod, target=TARGET)
        return
    want, result = run(tvm.compile(sch.mod, target=TARGET))
    np.testing.assert_array_equal(result.outputs["C"], want)


# -- where the epilogue stores

STORE = """
@T.prim_func(s_tir=True)
def main(A: T.Buffer((ROWS, 64), "float16"), B: T.Buffer((64, 64), "float16"),
         D: T.Buffer(SHAPE, "float32")):
    C = T.sblock_alloc_buffer((ROWS, 64), "float32")
    for i, j, k in T.grid(ROWS, 64, 64):
        with T.sblock("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = T.float32(0)
            C[vi, vj] = C[vi, vj] + T.cast(A[vi, vk], "float32") * T.cast(B[vj, vk], "float32")
    for i, j in T.grid(ROWS, 64):
        with T.sblock("D"):
            vi, vj = T.axis.remap("SS", [i, j])
            D[INDEX] = C[vi, vj]
"""


def storing(shape: str, index: str, rows: str) -> Any:
    text = STORE.replace("ROWS", rows).replace("SHAPE", shape).replace("INDEX", index)
    if rows == "m":
        text = text.replace("def main(", "def main(m: T.int32, ")
    sch = s_tir.Schedule(tvm.script.from_source(text, extra_vars={"T": T}))
    hs.matmul(sch, "C", CONFIG)
    return tvm.compile(sch.mod, target=TARGET)


# where the elements go; what of D they are
PLACES: dict[str, tuple[str, str, Any]] = {
    "transposed": ("(64, ROWS)", "vj, vi", lambda d, m: d.T),
    "offset": ("(ROWS + 2, 80)", "vi + 2, vj + 8", lambda d, m: d[2:, 8:72]),
    "every other row": ("(ROWS * 2, 64)", "vi * 2 + 1, vj", lambda d, m: d[1::2]),
    "reshaped": (
        "((ROWS + 15) // 16, 16, 64)",
        "vi // 16, vi % 16, vj",
        lambda d, m: d.reshape(-1, 64)[:m],
    ),
    "flat": ("(ROWS * 64,)", "vi * 64 + vj", lambda d, m: d.reshape(m, 64)),
    "flat with gaps": (
        "(ROWS * 100,)",
        "vi * 100 + vj",
        lambda d, m: d.reshape(m, 100)[:, :64],
    ),
    "upside down": ("(ROWS, 64)", "ROWS - 1 - vi, vj", lambda d, m: d[::-1]),
    "heads in front": (
        "(4, ROWS, 16)",
        "vj // 16, vi, vj % 16",
        lambda d, m: d.swapaxes(0, 1).reshape(m, 64),
    ),
}


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("rows", ["128", "100", "m"])
@pytest.mark.parametrize("name", PLACES)
def test_permutations_are_stored(name: str, rows: str) -> None:
    shape, index, part = PLACES[name]
    m = 100 if rows == "m" else int(rows)
    ex = storing(shape.replace("ROWS", rows), index.replace("ROWS", rows), rows)
    a, b = (np.random.default_rng(i).integers(-2, 3, (n, 64)) for i, n in ((0, m), (1, 64)))
    inputs: dict[str, Any] = {"A": a.astype("float16"), "B": b.astype("float16")}
    if rows == "m":  # of a symbolic shape only the array itself tells the size
        inputs["m"] = m
        inputs["D"] = np.zeros(eval(shape, {"ROWS": m}), "float32")
    result = tvm_hopper.simulate(ex, inputs)
    np.testing.assert_array_equal(part(result.outputs["D"], m), (a @ b.T).astype("float64"))


MEETING = {
    "rows around": ("(32, 64)", "vi % 32, vj"),
    "two rows in one": ("(64, 64)", "vi // 2, vj"),
    "diagonals": ("(192, 1)", "vi + vj, 0"),
    "one row": ("(1, 64)", "0, vj"),
}


@pytest.mark.parametrize("name", MEETING)
def test_stores_that_meet_are_refused(name: str) -> None:
    """The program's last element wins; in a kernel no order holds."""
    with pytest.raises(HopperError, match=r"(?s)found .*; need "):
        storing(*MEETING[name], "128")
