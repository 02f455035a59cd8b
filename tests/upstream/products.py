"""Products on the tensor cores of TVM's tests, `get_mma_schedule` there, at a size to simulate.

The schedule is `tvm_hopper.testing.ampere_products`. The intrinsics make the calls of TVM's, whose
import takes 25 seconds.
"""

# mypy: disable-error-code="valid-type"

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace

import tvm
import tvm_ffi
from tvm import s_tir
from tvm.script import tirx as T

from tvm_hopper.testing import ampere_products, tensor_cores

from .pipelines import Notes

SHAPE = (128, 128, 192)
SIDE, LANES = tensor_cores.SIDE, tensor_cores.LANES
REGISTERS = SIDE * SIDE // LANES
PLACE = "tirx.index_map.shared_16x16_to_ldmatrix_32x8_layout"
FILL, STORE = "hopper_test_fill_by_call", "hopper_test_store_by_call"


def product(outer: Notes, inner: Notes | None = None) -> tvm.IRModule:
    """Schedule C = A B, float16 to float32, its loop over tiles and that over steps pipelined."""
    return ampere_products.schedule(SHAPE, (outer, inner or {}), by_call())


def plain() -> tvm.IRModule:
    """Return the same product, not scheduled."""
    return tensor_cores.matmul(*SHAPE)


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


def by_call() -> tensor_cores.Intrinsics:
    """Register intrinsics that fill and store a fragment by one call, as TVM's do."""
    names = tensor_cores.register(tensor_cores.ProductKind())
    found = replace(names, fill=FILL, store=STORE)
    if s_tir.TensorIntrin.get(STORE, allow_missing=True) is not None:
        return found

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
    return found
