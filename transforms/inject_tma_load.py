"""Copy shared tiles with the tensor memory accelerator: one tensor map a tensor, one load a box.

    for p, r, s in grid(2, 128, 64):             annotations={"tvm_hopper.async_copy": "tma", ...}
        A_shared[p, r, s] = if_then_else(
            m + r < M and k + p * 64 + s < K, A[m + r, k + p * 64 + s], 0)
  ->
    A_map = tvm_stack_alloca("tensormap", 1)                          on the host, at each call
    cuTensorMapEncodeTiled(A_map, A, dims (K, M), box (64, 128), 128 B swizzle, zero fill)
    with sblock(annotations={"tvm_hopper.async_op": "tma_load"}):
        for p in range(2):
            tma_load(&A_shared[p, 0, 0], A_map, k + p * 64, m)

A load out of bounds is filled with zeros by the hardware, which is what the predicate says; any
other predicate or fill is refused. A box has at most 256 rows: longer panels take several.

Before: tiles are panels (LayoutShared).  After: no `async_copy` annotation is left; a `tma_load`
call has no barrier yet.
Not here: barriers and waiting (pipeline_mbarriers.py), multicast.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tvm import sym, tirx
from tvm.ir import StringImm
from tvm.tirx.transform import prim_func_pass

from tvm_hopper import ir
from tvm_hopper.analysis.bounds import is_exact_bounds
from tvm_hopper.analysis.copies import CopyNest, find_copies
from tvm_hopper.errors import cannot_lower, found_and_need
from tvm_hopper.facts import tensor_map as maps
from tvm_hopper.facts.hopper import dtype_bytes
from tvm_hopper.keys import ASYNC_OP, SWIZZLE, TMA_LOAD

L2_PROMOTION_BYTES = 128
MAX_COORDINATE = (1 << 31) - 1  # PTX ISA 9.1, 9.7.9.27.1.2: .s32


@dataclass(frozen=True)
class TmaLoad:
    """One tile: `origin` are the tensor's indices of element (p, 0, 0), outermost first."""

    copy: CopyNest
    origin: tuple[Any, ...]
    row_axis: int
    box_rows: int
    swizzle: int

    def __post_init__(self) -> None:
        longest = max((d or 0) for d in self.tensor_map.dims)
        if longest > MAX_COORDINATE:
            raise cannot_lower(
                self.copy.where,
                f"a dimension of {longest}",
                f"at most {MAX_COORDINATE}: the instruction's coordinates have 32 bits",
            )
        if broken := self.tensor_map.check():
            strides = [s for s in self.tensor_map.strides_bytes if s is not None and s % 16]
            size = dtype_bytes(ir.dtype_of(self.copy.source))
            inner = ir.static_int(self.copy.source.shape[-1])
            fix = "copy the tensor into one of another shape or type"
            if strides and inner is not None:
                fix = (
                    f"pad its last dimension from {inner} to {-(-inner * size // 16) * 16 // size}"
                )
            raise cannot_lower(self.copy.where, *found_and_need(broken), fix)

    @property
    def tensor_map(self) -> maps.TensorMap:
        """The map, innermost dimension first; what only run time knows is None."""
        buffer, dtype = self.copy.source, ir.dtype_of(self.copy.source)
        dims = tuple(ir.static_int(x) for x in reversed(buffer.shape))
        return maps.TensorMap(
            dtype, dims, self._static_strides(), self.box, swizzle_bytes=self.swizzle
        )

    @property
    def box(self) -> tuple[int, ...]:
        """Elements of one load, innermost dimension first."""
        sizes = [1] * len(self.origin)
        sizes[self.row_axis] = self.box_rows
        sizes[-1] = int(self.copy.tile.shape[2])
        return tuple(reversed(sizes))

    @property
    def strides_bytes(self) -> tuple[Any, ...]:
        """Distance of neighbours in each dimension but the innermost, from there outwards."""
        buffer = self.copy.source
        size, strides = dtype_bytes(ir.dtype_of(buffer)), []
        step: Any = tirx.IntImm("int64", size)
        for extent in reversed(list(buffer.shape)[1:]):
            step = step * tirx.Cast("int64", extent)
            strides.append(ir.simplify(step))
        return tuple(strides)

    def _static_strides(self) -> tuple[int | None, ...]:
        return tuple(ir.static_int(stride) for stride in self.strides_bytes)


def plan_tma_loads(kernel: ir.For) -> tuple[TmaLoad, ...]:
    """Plan a load for every annotated copy; every reason to refuse is raised here."""
    return tuple(_plan_load(copy) for copy in find_copies(kernel))


def _plan_load(copy: CopyNest) -> TmaLoad:
    source, (p, r, s) = copy.source, copy.loops
    variables = [loop.loop_var for loop in (p, r, s)]
    if source.ty.strides or not ir.is_const(source.ty.elem_offset, 0):
        raise cannot_lower(
            copy.where,
            f"strides {list(source.ty.strides)}",
            "a compact tensor",
            "copy it, or declare it with its whole shape",
        )
    rows = [axis for axis, x in enumerate(copy.source_indices) if ir.depends_on(x, [r.loop_var])]
    inner = len(copy.source_indices) - 1
    steps = {v: [_step(x, v) for x in copy.source_indices] for v in variables}
    expected: dict[ir.Var, list[int | None]] = {
        r.loop_var: [int(axis in rows) for axis in range(inner + 1)],
        s.loop_var: [int(axis == inner) for axis in range(inner + 1)],
        p.loop_var: [int(axis == inner) * int(s.extent) for axis in range(inner + 1)],
    }
    if int(p.extent) == 1:
        steps[p.loop_var] = expected[p.loop_var]
    if len(rows) != 1 or rows[0] == inner or steps != expected:
        raise cannot_lower(
            copy.where,
            f"index {list(copy.source_indices)}",
            f"rows along one dimension of {source.name}, columns along its last, each with step 1",
            "cache_read the tensor with its last dimension as the tile's last",
        )
    if copy.condition is not None:
        _check_fill(copy)
    for stride, extent in zip(
        _symbolic_strides(source), reversed(list(source.shape)[1:]), strict=True
    ):
        if stride % 16:
            raise cannot_lower(
                copy.where,
                f"a symbolic dimension {extent}, so rows at multiples of {stride} bytes",
                "rows at multiples of 16 bytes",
                "make every dimension but the first static",
            )
    origin = tuple(
        ir.simplify(ir.substitute(x, {r.loop_var: 0, s.loop_var: 0})) for x in copy.source_indices
    )
    num_rows = int(r.extent)
    box_rows = next(
        n
        for n in range(min(num_rows, maps.MAX_BOX), 0, -1)
        if num_rows % n == 0 and (n == num_rows or n % 8 == 0)
    )
    return TmaLoad(copy, origin, rows[0], box_rows, int(copy.block.annotations[SWIZZLE]))


def _step(index: Any, var: ir.Var) -> int | None:
    """Return by how much an index grows with a variable, None if not evenly."""
    unit = ir.simplify(ir.substitute(index, {var: var + 1}) - index)
    return ir.static_int(unit)


def _symbolic_strides(buffer: ir.Var) -> list[int]:
    """Return a known divisor of each stride in bytes, from the innermost row outwards."""
    size, divisors, step = dtype_bytes(ir.dtype_of(buffer)), [], None
    for extent in reversed(list(buffer.shape)[1:]):
        step = extent if step is None else step * ir.cast_like(extent, step)
        if ir.static_int(ir.simplify(step)) is not None:
            divisors.append(0)  # static: the tensor map's own rules judge it
            continue
        known = sym.Analyzer().modular_set(ir.simplify(step))
        divisors.append(int(known.coeff) * size if int(known.base) == 0 else 1)
    return divisors


def _check_fill(copy: CopyNest) -> None:
    if not ir.is_zero(copy.fill):
        raise cannot_lower(copy.where, f"a fill of {copy.fill} out of bounds", "a fill of 0")
    shape = tuple(copy.source.shape)
    if not is_exact_bounds(copy.condition, copy.source_indices, shape, copy.loops):
        raise cannot_lower(
            copy.where,
            f"the predicate {copy.condition}",
            f"exactly the bounds of {copy.source.name}{list(shape)}, by which the hardware fills",
            "apply any other predicate where the tile is used",
        )


def rewrite_tma_loads(
    kernel: ir.For, plan: tuple[TmaLoad, ...], no_input: list[ir.Var], names: ir.Names
) -> ir.Stmt:
    """Encode a map per load on the host and replace the copy nests by loads."""
    host: list[Any] = []
    planned: dict[Any, Any] = {}
    for load in plan:
        handle = tirx.tvm_stack_alloca("tensormap", 1)
        tensor_map = ir.Var(names.take(f"{load.copy.source.name}_map"), handle.ty)
        host += [tirx.Bind(tensor_map, handle), _encode_unless_empty(load, tensor_map, no_input)]
        planned[load.copy.nest] = _load_block(load, tensor_map)
    return ir.seq(host, ir.replace_nodes(kernel, ir.Stmt, planned))


def _encode_unless_empty(load: TmaLoad, tensor_map: ir.Var, no_input: list[ir.Var]) -> ir.Stmt:
    """Encode a map, unless the tensor holds nothing: then none can exist, and nothing is loaded."""
    stmt = ir.seq(_encode(load, tensor_map))
    for symbol in no_input:
        if ir.uses(list(load.copy.source.shape), symbol):
            stmt = ir.IfThenElse(symbol > 0, stmt, None)
    return stmt


def _encode(load: TmaLoad, tensor_map: ir.Var) -> Any:
    buffer, rank = load.copy.source, len(load.origin)
    dims = [tirx.Cast("int64", extent) for extent in reversed(buffer.shape)]
    return tirx.call_packed(
        "runtime.cuTensorMapEncodeTiled",
        tensor_map,
        StringImm(ir.dtype_of(buffer)),
        rank,
        buffer.data,
        *map(ir.simplify, dims),
        *load.strides_bytes,
        *load.box,
        *[1] * rank,
        maps.INTERLEAVE_NONE,
        maps.SWIZZLE_CODE[load.swizzle],
        maps.L2_PROMOTION_CODE[L2_PROMOTION_BYTES],
        maps.OOB_CODE["zero"],
    )


def _load_block(load: TmaLoad, tensor_map: ir.Var) -> ir.SBlockRealize:
    tile, p = load.copy.tile, load.copy.loops[0]
    panels, rows, _ = (int(extent) for extent in tile.shape)

    def one(panel: Any, part: Any) -> Any:
        row = part * load.box_rows
        start = [ir.substitute(x, {p.loop_var: panel}) for x in load.origin]
        start[load.row_axis] = start[load.row_axis] + row
        # 32 bits: PTX ISA 9.1, 9.7.9.27.1.2; loops may count in 64.
        coordinates = [ir.as_int32(ir.simplify(x)) for x in reversed(start)]
        address = tirx.address_of(tirx.BufferLoad(tile, [panel, ir.simplify(row), 0]))
        return tirx.call_extern(
            "int32", TMA_LOAD, address, tirx.address_of(tensor_map), *coordinates
        )

    loads = ir.make_loop("panel", panels, lambda panel:
        ir.make_loop("part", rows // load.box_rows, lambda part: one(panel, part)))  # fmt: skip
    return ir.opaque_block(
        load.copy.block.name_hint,
        loads,
        reads=[ir.full_region(load.copy.source)],
        writes=[ir.full_region(tile)],
        annotations={ASYNC_OP: "tma_load"},
    )


def guard_empty(stmt: ir.Stmt, empty: list[ir.Var]) -> ir.Stmt:
    """Launch nothing where a symbolic extent is 0 and leaves no output tile."""
    for symbol in empty:
        stmt = ir.IfThenElse(symbol > 0, stmt, None)
    return stmt


def find_guards(kernel: ir.For, plan: tuple[TmaLoad, ...]) -> tuple[list[ir.Var], list[ir.Var]]:
    """Return the symbolic extents that leave no output tile when 0, and those that leave no input.

    Of the second kind is the k of a sum: over nothing it is 0, and has to be stored.
    """
    blocks = [loop.extent for loop in ir.thread_axes(kernel).values()]
    no_tile: list[ir.Var] = []
    no_input: list[ir.Var] = []
    for symbol in _symbols(load.copy.source for load in plan):
        empty = any(ir.is_const(ir.simplify(ir.substitute(x, {symbol: 0})), 0) for x in blocks)
        (no_tile if empty else no_input).append(symbol)
    return no_tile, no_input


def _symbols(buffers: Iterable[ir.Var]) -> list[ir.Var]:
    """Return the variables in the extents of buffers, each once."""
    found: list[ir.Var] = []
    for buffer in buffers:
        for var in ir.find_all(list(buffer.shape), ir.Var):
            if not any(var.same_as(x) for x in found):
                found.append(var)
    return found


@prim_func_pass(opt_level=0, name="tvm_hopper.InjectTmaLoad")
class InjectTmaLoad:
    """See the module's docstring for the rewrite."""

    def transform_function(self, func, mod, ctx):
        """Replace the annotated copies of one function."""
        notes = {}
        names = ir.Names(param.name for param in func.params)

        def inject(kernel: ir.For) -> ir.Stmt:
            if not (plan := plan_tma_loads(kernel)):
                return kernel
            notes[ir.number_of(func, kernel)] = {"tensor_maps": [_facts(load) for load in plan]}
            no_tile, no_input = find_guards(kernel, plan)
            after = rewrite_tma_loads(kernel, plan, no_input, names)
            assert not plan_tma_loads(after), "InjectTmaLoad left a copy behind"
            return guard_empty(after, no_tile)

        return ir.note_plan(ir.map_kernels(func, inject), notes)


def _facts(load: TmaLoad) -> dict[str, Any]:
    """Return what `explain` says of a load."""
    return {
        "tensor": load.copy.source.name,
        "dims": [str(x) for x in reversed(load.copy.source.shape)],
        "box": list(load.box),
        "swizzle": load.swizzle,
        "bytes": load.tensor_map.box_bytes,
    }
