"""Matmuls on the tensor cores by `mma.sync`, over tiles that TMA brings, for tests.

C[i, j] = sum over k of A[i, k] B[k, j], or of A[i, k] B[j, k]

sch = tensor_cores.schedule(tensor_cores.matmul(128, 128, 64), tensor_cores.WarpTiling(stages=3))

The intrinsics load and multiply by the same calls as those of `tvm.s_tir.tensor_intrin.cuda`, whose
import takes 25 seconds; `TVM_INTRINSICS` names those.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tvm
from tvm import s_tir, te
from tvm.script import tirx as T

from tvm_hopper import schedule as hs

from .tiling import module_of

BLOCK = "C"
LANES, SIDE = 32, 16  # lanes of a warp; rows and columns of a fragment
ABBREVIATIONS = {
    "float16": "fp16",
    "bfloat16": "bf16",
    "float32": "fp32",
    "int8": "int8",
    "int32": "int32",
}


def matmul(
    m: int,
    n: int,
    k: int,
    dtype: str = "float16",
    out_dtype: str = "float32",
    transposed: bool = False,
) -> tvm.IRModule:
    """Build C = A B, or with `transposed` C = A B^T."""
    a = te.placeholder((m, k), dtype, name="A")
    b = te.placeholder((n, k) if transposed else (k, n), dtype, name="B")
    r = te.reduce_axis((0, k), name="k")

    def term(i: Any, j: Any) -> Any:
        other = b[j, r] if transposed else b[r, j]
        return te.sum(a[i, r].astype(out_dtype) * other.astype(out_dtype), axis=r)

    return module_of(a, b, te.compute((m, n), term, name=BLOCK))


def reference(a: np.ndarray, b: np.ndarray, transposed: bool = False) -> np.ndarray:
    """Compute the product in float64."""
    b = b.astype(np.float64)
    return a.astype(np.float64) @ (b.T if transposed else b)


# -- fragments


def fragment_depth(dtype: str) -> int:
    """Return how many elements along k an instruction takes."""
    return 32 if dtype == "int8" else 16


def narrow_place(i: Any, j: Any) -> tuple[Any, Any]:
    """Return lane and register of an element of a 16 x 16 fragment (PTX ISA 9.1, 9.7.14.5.8)."""
    return 4 * (i % 8) + (j % 8) // 2, 4 * (j // 8) + (i // 8) * 2 + j % 2


def wide_place(i: Any, j: Any) -> tuple[Any, Any]:
    """Return lane and register of an element of a 16 x 32 fragment of bytes."""
    return 4 * (i % 8) + (j % 16) // 4, 8 * (j // 16) + (i // 8) * 4 + j % 4


@dataclass(frozen=True)
class ProductKind:
    """What is multiplied, and how B lies."""

    dtype: str = "float16"
    out_dtype: str = "float32"
    transposed: bool = False

    @property
    def depth(self) -> int:
        """Elements along k of an instruction."""
        return fragment_depth(self.dtype)

    @property
    def place(self) -> Any:
        """Where an element of A or B is in registers."""
        return wide_place if self.depth == 32 else narrow_place

    @property
    def b_shape(self) -> tuple[int, int]:
        """Rows and columns of B for one instruction."""
        return (SIDE, self.depth) if self.transposed else (self.depth, SIDE)


@dataclass(frozen=True)
class Intrinsics:
    """Names of tensor intrinsics."""

    load_a: str
    load_b: str
    multiply: str
    fill: str
    store: str


TVM_INTRINSICS = Intrinsics(
    "mma_ldmatrix_f16_a_dyn",
    "mma_ldmatrix_f16_b_dyn",
    "mma_f16f16f32",
    "mma_fill_16x16_f32",
    "mma_store_16x16_f32_global_",
)


def register(kind: ProductKind) -> Intrinsics:
    """Register the intrinsics of a kind of product, once, and return their names."""
    word = f"hopper_test_{kind.dtype}_{kind.out_dtype}_{'nt' if kind.transposed else 'nn'}"
    names = Intrinsics(*(f"{word}_{x}" for x in ("load_a", "load_b", "multiply", "fill", "store")))
    if s_tir.TensorIntrin.get(names.store, allow_missing=True) is None:
        a_shape = (SIDE, kind.depth)
        s_tir.TensorIntrin.register(names.load_a, *_load(kind, a_shape, False, _rows_first))
        how = (_columns_first, False) if kind.transposed else (_rows_first, True)
        s_tir.TensorIntrin.register(names.load_b, *_load(kind, kind.b_shape, how[1], how[0]))
        s_tir.TensorIntrin.register(names.multiply, *_multiply(kind))
        s_tir.TensorIntrin.register(names.fill, *_fill(kind))
        s_tir.TensorIntrin.register(names.store, *_store(kind))
    return names


def _rows_first(lane: Any, stride: Any, width: int) -> Any:
    """Return where the row is whose address a lane gives: matrices one below the other first."""
    return stride * (lane % 16) + width * (lane // 16)


def _columns_first(lane: Any, stride: Any, width: int) -> Any:
    return stride * 8 * (lane // 16) + stride * (lane % 8) + width * (lane % 16 // 8)


def _load(kind: ProductKind, shape: tuple[int, int], trans: bool, row: Any) -> tuple[Any, Any]:
    rows, columns = shape
    dtype, place = kind.dtype, kind.place
    size = rows * columns // LANES
    width = 16 if dtype == "int8" else 8  # elements of 16 bytes

    @T.prim_func(s_tir=True)
    def description(registers: T.handle, memory: T.handle) -> None:
        shared = T.match_buffer(
            memory, (rows, columns), dtype, align=64, offset_factor=columns, scope="shared.dyn"
        )
        warp = T.match_buffer(
            registers, (LANES, size), dtype, align=64, offset_factor=columns, scope="warp"
        )
        with T.sblock("root"):
            T.reads(shared[0:rows, 0:columns])
            T.writes(warp[0:LANES, 0:size])
            for i, j in T.grid(rows, columns):
                with T.sblock("load"):
                    v0, v1 = T.axis.remap("SS", [i, j])
                    lane, local = T.meta_var(place(v0, v1))
                    T.reads(shared[v0, v1])
                    T.writes(warp[lane, local])
                    warp[lane, local] = shared[v0, v1]

    @T.prim_func(s_tir=True)
    def instruction(registers: T.handle, memory: T.handle) -> None:
        s0 = T.int32()
        s1 = T.int32()
        shared = T.match_buffer(
            memory,
            (rows, columns),
            dtype,
            align=64,
            offset_factor=columns,
            scope="shared.dyn",
            strides=[s0, s1],
        )
        warp = T.match_buffer(
            registers, (LANES, size), dtype, align=64, offset_factor=columns, scope="warp"
        )
        with T.sblock("root"):
            T.reads(shared[0:rows, 0:columns])
            T.writes(warp[0:LANES, 0:size])
            for lane in T.thread_binding(0, LANES, "threadIdx.x"):
                T.evaluate(
                    T.ptx_legacy.ldmatrix(
                        trans,
                        4,
                        ".b16",
                        warp.data,
                        warp.elem_offset + size * lane,
                        shared.access_ptr("r"),
                        row(lane, s0, width),
                        dtype=dtype,
                    )
                )

    return description, instruction


def _multiply(kind: ProductKind) -> tuple[Any, Any]:
    dtype, out_dtype, depth, place = kind.dtype, kind.out_dtype, kind.depth, kind.place
    size, out_size = SIDE * depth // LANES, SIDE * SIDE // LANES
    shape = f"m16n8k{depth}"
    short, short_out = ABBREVIATIONS[dtype], ABBREVIATIONS[out_dtype]

    def b_index(k: Any, j: Any) -> tuple[Any, Any]:
        return place(j, k) if kind.transposed else place(k, j)

    def widen(value: Any) -> Any:
        return value if dtype == out_dtype else T.Cast(out_dtype, value)

    def half(A: Any, B: Any, C: Any, lane: Any, number: int) -> Any:
        """Multiply by eight of the sixteen columns."""
        return T.ptx_legacy.mma(
            *(shape, "row", "col", short, short, short_out),
            *(A.data, A.elem_offset + lane * size),
            *(B.data, B.elem_offset + lane * size + number * (size // 2)),
            *(C.data, C.elem_offset + lane * out_size + number * (out_size // 2)),
            False,
            dtype=out_dtype,
        )

    def build(is_instruction: bool) -> Any:
        @T.prim_func(s_tir=True)
        def func(a: T.handle, b: T.handle, c: T.handle) -> None:
            A = T.match_buffer(a, (LANES, size), dtype, align=64, offset_factor=16, scope="warp")
            B = T.match_buffer(b, (LANES, size), dtype, align=64, offset_factor=16, scope="warp")
            C = T.match_buffer(
                c, (LANES, out_size), out_dtype, align=64, offset_factor=16, scope="warp"
            )
            with T.sblock("root"):
                T.reads(C[0:LANES, 0:out_size], A[0:LANES, 0:size], B[0:LANES, 0:size])
                T.writes(C[0:LANES, 0:out_size])
                if is_instruction:
                    for lane in T.thread_binding(0, LANES, "threadIdx.x"):
                        T.evaluate(half(A, B, C, lane, 0))
                        T.evaluate(half(A, B, C, lane, 1))
                else:
                    for i, j, k in T.grid(SIDE, SIDE, depth):
                        with T.sblock("multiply"):
                            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                            at_a = T.meta_var(place(vi, vk))
                            at_b = T.meta_var(b_index(vk, vj))
                            at_c = T.meta_var(narrow_place(vi, vj))
                            T.reads(C[at_c], A[at_a], B[at_b])
                            T.writes(C[at_c])
                            C[at_c] = C[at_c] + widen(A[at_a]) * widen(B[at_b])

        return func

    return build(False), build(True)


def _fill(kind: ProductKind) -> tuple[Any, Any]:
    dtype, size = kind.out_dtype, SIDE * SIDE // LANES
    zero = tvm.tirx.const(0, dtype)

    @T.prim_func(s_tir=True)
    def description(c: T.handle) -> None:
        C = T.match_buffer(c, [LANES, size], dtype=dtype, scope="warp")
        with T.sblock("root"):
            T.reads()
            T.writes(C[0:LANES, 0:size])
            for i, j in T.grid(SIDE, SIDE):
                with T.sblock("fill"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    lane, local = T.meta_var(narrow_place(vi, vj))
                    T.reads()
                    T.writes(C[lane, local])
                    C[lane, local] = zero

    @T.prim_func(s_tir=True)
    def instruction(c: T.handle) -> None:
        C = T.match_buffer(c, [LANES, size], dtype=dtype, scope="warp", offset_factor=1)
        with T.sblock("root"):
            T.reads()
            T.writes(C[0:LANES, 0:size])
            for lane in T.thread_binding(0, LANES, "threadIdx.x"):
                for x in T.serial(size):
                    C[lane, x] = zero

    return description, instruction


def _store(kind: ProductKind) -> tuple[Any, Any]:
    dtype, size = kind.out_dtype, SIDE * SIDE // LANES

    @T.prim_func(s_tir=True)
    def description(c: T.handle, out: T.handle) -> None:
        C = T.match_buffer(c, [LANES, size], dtype=dtype, scope="warp")
        D = T.match_buffer(out, [SIDE, SIDE], dtype=dtype, scope="global")
        with T.sblock("root"):
            T.reads(C[0:LANES, 0:size])
            T.writes(D[0:SIDE, 0:SIDE])
            for i, j in T.grid(SIDE, SIDE):
                with T.sblock("store"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    lane, local = T.meta_var(narrow_place(vi, vj))
                    T.reads(C[lane, local])
                    T.writes(D[vi, vj])
                    D[vi, vj] = C[lane, local]

    @T.prim_func(s_tir=True)
    def instruction(c: T.handle, out: T.handle) -> None:
        s0 = T.int32()
        s1 = T.int32()
        C = T.match_buffer(c, [LANES, size], dtype=dtype, scope="warp", offset_factor=1)
        D = T.match_buffer(
            out, [SIDE, SIDE], dtype=dtype, scope="global", offset_factor=1, strides=[s0, s1]
        )
        with T.sblock("root"):
            T.reads(C[0:LANES, 0:size])
            T.writes(D[0:SIDE, 0:SIDE])
            for lane in T.thread_binding(0, LANES, "threadIdx.x"):
                for x in T.serial(size):
                    D[8 * (x % 4 // 2) + lane // 4, 8 * (x // 4) + lane % 4 * 2 + x % 2] = C[
                        lane, x
                    ]

    return description, instruction


# -- the schedule


@dataclass(frozen=True)
class WarpTiling:
    """How a product is cut up.

    - `tile`: rows, columns and depth of what a thread block computes in one step.
    - `warps`: warps along the rows and along the columns.
    - `stages`: slots of the ring; None leaves the pipeline out.
    - `roles`: none: every thread both requests copies and computes.
    - `intrinsics`: none: those of this module.
    - `load`: the mechanism that brings the tiles.
    """

    tile: tuple[int, int, int] = (64, 64, 32)
    warps: tuple[int, int] = (2, 2)
    stages: int | None = 2
    roles: hs.Roles | None = None
    intrinsics: Intrinsics | None = field(default=None)
    load: str = "tma"


def schedule(mod: tvm.IRModule, tiling: WarpTiling) -> s_tir.Schedule:
    """Schedule a product as TVM does it for `mma.sync`; the copies and the loop are asked of us."""
    sch = s_tir.Schedule(mod)
    block = sch.get_sblock(BLOCK)
    kind = _kind_of(sch.get(block))
    names = tiling.intrinsics or register(kind)
    tile_m, tile_n, tile_k = tiling.tile
    warps_m, warps_n = tiling.warps

    hs.pad(sch, block, tiling.tile)
    crops = sch.get_consumers(block)
    i, j, k = sch.get_loops(block)
    i, i_inner = sch.split(i, [None, SIDE])
    j, j_inner = sch.split(j, [None, SIDE])
    k, k_inner = sch.split(k, [None, kind.depth])
    sch.reorder(i, j, k, i_inner, j_inner, k_inner)
    outer = sch.blockize(i_inner)
    block_m, warp_m, rows = sch.split(i, [None, warps_m, tile_m // SIDE // warps_m])
    block_n, warp_n, columns = sch.split(j, [None, warps_n, tile_n // SIDE // warps_n])
    k0, k1 = sch.split(k, [None, tile_k // kind.depth])
    sch.reorder(block_m, block_n, warp_m, warp_n, k0, k1, rows, columns)
    sch.bind(block_m, "blockIdx.y")
    sch.bind(block_n, "blockIdx.x")
    warp = sch.fuse(warp_m, warp_n)
    sch.bind(warp, "threadIdx.y")

    for index in range(2):
        copy = sch.cache_read(outer, index, "shared.dyn")
        sch.compute_at(copy, k0)
        hs.async_copy(sch, copy, tiling.load)
    fragments = [sch.cache_read(outer, index, "warp") for index in range(2)]
    for fragment in fragments:
        sch.compute_at(fragment, k1)
    result = sch.cache_write(outer, 0, "warp")
    store = None
    if crops:  # each element is stored under the crop's condition
        _store_by_lanes(sch, result, crops[0], warp)
    else:
        sch.reverse_compute_at(result, warp)
        store = _split_tile(sch, result, (SIDE, SIDE))
        sch.transform_layout(result, ("read", 0), _layout(narrow_place, (SIDE, SIDE)))
    sch.decompose_reduction(outer, k0)
    tiles = [
        _split_tile(sch, fragment, shape)
        for fragment, shape in zip(fragments, ((SIDE, kind.depth), kind.b_shape), strict=True)
    ]
    for fragment, shape in zip(fragments, ((SIDE, kind.depth), kind.b_shape), strict=True):
        sch.transform_layout(fragment, ("write", 0), _layout(kind.place, shape))
    for loop, name in zip(tiles, (names.load_a, names.load_b), strict=True):
        sch.tensorize(loop, name)
    sch.tensorize(sch.get_loops(block)[-3], names.multiply)
    sch.tensorize(sch.get_loops(sch.get_sblock(f"{BLOCK}_init"))[-2], names.fill)
    if store is not None:
        sch.tensorize(store, names.store)
    if tiling.stages is not None:
        hs.pipeline(sch, k0, stages=tiling.stages, roles=tiling.roles)
    return sch


def _kind_of(block: Any) -> ProductKind:
    reads = {str(region.source.name): region for region in block.reads}
    reduced = next(x.var for x in block.iter_vars if x.iter_type == tvm.tirx.IterVar.CommReduce)
    transposed = reads["B"].region[1].min.same_as(reduced)
    c = block.writes[0].source
    return ProductKind(str(reads["A"].source.dtype), str(c.dtype), transposed)


def _store_by_lanes(sch: s_tir.Schedule, result: Any, crop: Any, warp: Any) -> None:
    """Let each lane store the elements that it has, where they are inside of the output."""
    layout = _layout(narrow_place, (SIDE, SIDE))
    sch.transform_layout(result, ("read", 0), layout)
    sch.transform_block_layout(result, layout)
    sch.reverse_compute_at(result, warp)
    sch.bind(sch.get_loops(result)[-2], "threadIdx.x")
    sch.reverse_compute_inline(crop)


def _split_tile(sch: s_tir.Schedule, block: Any, shape: tuple[int, int]) -> Any:
    """Cut the two innermost loops of a copy into fragments; return the loop over one's rows."""
    rows, columns = sch.get_loops(block)[-2:]
    row_tiles, rows = sch.split(rows, [None, shape[0]])
    column_tiles, columns = sch.split(columns, [None, shape[1]])
    sch.reorder(row_tiles, column_tiles, rows, columns)
    return rows


def _layout(place: Any, shape: tuple[int, int]) -> Any:
    rows, columns = shape

    def layout(i: Any, j: Any) -> list[Any]:
        return [i // rows, j // columns, *place(i % rows, j % columns)]

    return layout
