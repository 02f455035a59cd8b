"""Products on the tensor cores of TVM's tests, `get_mma_schedule` there, at a size to simulate.

From apache/tvm, `tests/python/s_tir/transform/test_s_tir_transform_inject_software_pipeline.py`
(Apache-2.0), `test_async_pipelined_mma_gemm_simple` and
`test_async_nested_pipeline_mma_gemm_ideal_annotation`. The schedule is TVM's own function
(`tvm.testing.tir.mma_schedule`) with the factors of those tests but for the numbers of thread
blocks and of steps along k. The intrinsics make the calls of TVM's, whose import takes 25 seconds.
"""

# mypy: disable-error-code="valid-type"

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, te
from tvm.script import tirx as T
from tvm.testing.tir import mma_schedule

from tvm_hopper.testing import tensor_cores

from .pipelines import Notes

M, N, STEPS = 128, 128, 6
SIDE, LANES = tensor_cores.SIDE, tensor_cores.LANES
REGISTERS = SIDE * SIDE // LANES
PLACE = "tirx.index_map.shared_16x16_to_ldmatrix_32x8_layout"
FILL, STORE = "hopper_test_fill_by_call", "hopper_test_store_by_call"


def product(outer: Notes, inner: Notes | None = None) -> tvm.IRModule:
    """Schedule C = A B, float16 to float32, its loop over tiles and that over steps pipelined."""
    sch = _scheduled()
    block = sch.get_sblock("C_o_update")
    for loop, notes in zip(sch.get_loops(block)[3:5], (outer, inner or {}), strict=True):
        for key, value in notes.items():
            sch.annotate(loop, key, value)
    return sch.mod


def plain() -> tvm.IRModule:
    """Return the same product, not scheduled."""
    return tvm.IRModule({"main": _workload()})


def _workload() -> tvm.tirx.PrimFunc:
    depth = STEPS * 2 * SIDE
    a = te.placeholder((M, depth), "float16", name="A")
    b = te.placeholder((depth, N), "float16", name="B")
    k = te.reduce_axis((0, depth), name="k")

    def term(i: Any, j: Any) -> Any:
        return te.sum(a[i, k].astype("float32") * b[k, j].astype("float32"), axis=k)

    func = te.create_prim_func([a, b, te.compute((M, N), term, name="C")])
    return func.with_attr("global_symbol", "main")


def _fragments(i: Any, j: Any) -> tuple[Any, ...]:
    return (i // SIDE, j // SIDE, *tensor_cores.narrow_place(i % SIDE, j % SIDE))


def _scheduled() -> s_tir.Schedule:
    names = tensor_cores.register(tensor_cores.ProductKind())
    _register()
    return mma_schedule(
        _workload(),
        SIDE,
        "float16",
        False,
        [1, M // 128, 1, 4, 2],
        [1, N // 128, 4, 1, 2],
        [STEPS, 2, 1],
        *[_fragments] * 3,
        names.load_a,
        names.load_b,
        names.multiply,
        FILL,
        STORE,
        "shared.dyn",
    )


@contextlib.contextmanager
def index_maps() -> Iterator[None]:
    """Know, while code is generated, where TVM's intrinsics have an element of a fragment."""
    if tvm.get_global_func(PLACE, allow_missing=True) is not None:
        yield
        return
    tvm_ffi.register_global_func(PLACE, lambda ind: tensor_cores.narrow_place(*ind))
    try:
        yield
    finally:
        tvm_ffi.registry.remove_global_func(PLACE)


def _register() -> None:
    """Register intrinsics that fill and store a fragment by one call, as TVM's do."""
    if s_tir.TensorIntrin.get(STORE, allow_missing=True) is not None:
        return
    names = tensor_cores.register(tensor_cores.ProductKind())

    @T.prim_func(s_tir=True)
    def fill(c: T.handle) -> None:
        C = T.match_buffer(c, [LANES, REGISTERS], dtype="float32", scope="warp", offset_factor=1)
        with T.sblock("root"):
            T.reads()
            T.writes(C[0:LANES, 0:REGISTERS])
            for _lane in T.thread_binding(0, LANES, "threadIdx.x"):
                T.evaluate(
                    T.cuda.mma_fill_legacy(REGISTERS, C.data, C.elem_offset, dtype="float32")
                )

    @T.prim_func(s_tir=True)
    def store(c: T.handle, out: T.handle) -> None:
        s0 = T.int32()
        s1 = T.int32()
        C = T.match_buffer(c, [LANES, REGISTERS], dtype="float32", scope="warp", offset_factor=1)
        D = T.match_buffer(
            out,
            [SIDE, SIDE],
            dtype="float32",
            scope="global",
            offset_factor=1,
            strides=[s0, s1],
        )
        with T.sblock("root"):
            T.reads(C[0:LANES, 0:REGISTERS])
            T.writes(D[0:SIDE, 0:SIDE])
            for _lane in T.thread_binding(0, LANES, "threadIdx.x"):
                T.evaluate(
                    T.cuda.mma_store_legacy(
                        SIDE,
                        SIDE,
                        D.access_ptr("w"),
                        C.data,
                        C.elem_offset,
                        s0,
                        dtype="float32",
                    )
                )

    s_tir.TensorIntrin.register(FILL, s_tir.TensorIntrin.get(names.fill).desc, fill)
    s_tir.TensorIntrin.register(STORE, s_tir.TensorIntrin.get(names.store).desc, store)
