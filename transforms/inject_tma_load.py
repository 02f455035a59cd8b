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

    ... = A_shared[p, i, j]                             in plain loops, under a swizzle
  ->
    ... = A_shared[p, i, (j // 8 ^ i % 8) * 8 + j % 8]

The hardware XORs what it writes under a swizzle, and what the tensor core reads; plain loads and
stores have to do it themselves.  A load out of bounds is filled with zeros by the hardware, which
is what the predicate says; any other predicate or fill is refused.  A map ends where the predicate
says, which may be inside the tensor.  It has the dimensions of the tensor that are longer than one,
five at most; a box has at most 256 rows, and longer panels take several.

Before: tiles are panels (LayoutShared).  After: no `async_copy` annotation is left; a `tma_load`
call has no barrier yet.
Not here: barriers and waiting (lower_channels.py), multicast.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.ir import StringImm
from tvm.tirx.transform import prim_func_pass

from tvm_hopper import ir
from tvm_hopper.facts import tensor_map as maps
from tvm_hopper.plan.notes import TensorMapNote, note_kernels
from tvm_hopper.plan.tma_plan import TmaTransfer, find_run_time_rules, plan_tma_loads
from tvm_hopper.requests.keys import ASYNC_OP, TMA_LOAD

from .swizzled_accesses import swizzle_accesses

L2_PROMOTION_BYTES = 128


def rewrite_tma_loads(
    kernel: ir.For, plan: tuple[TmaTransfer, ...], no_input: list[ir.Var], names: ir.Names
) -> ir.Stmt:
    """Encode a map per load on the host and replace the copy nests by loads."""
    host: list[Any] = []
    planned: dict[Any, Any] = {}
    for load in plan:
        handle = tirx.tvm_stack_alloca("tensormap", 1)
        tensor_map = ir.Var(names.take(f"{load.copy.tensor.buffer.name}_map"), handle.ty)
        host += [tirx.Bind(tensor_map, handle), _encode_unless_empty(load, tensor_map, no_input)]
        planned[load.copy.nest] = _load_block(load, tensor_map)
    return ir.seq(
        host,
        swizzle_accesses(ir.replace_nodes(kernel, ir.Stmt, planned), [load.copy for load in plan]),
    )


def _encode_unless_empty(load: TmaTransfer, tensor_map: ir.Var, no_input: list[ir.Var]) -> ir.Stmt:
    """Encode a map, unless the tensor holds nothing: then none can exist, and nothing is loaded."""
    stmt = ir.seq(_run_time_checks(load), _encode(load, tensor_map))
    for symbol in no_input:
        if ir.uses([x.extent for x in load.dims], symbol):
            stmt = ir.IfThenElse(symbol > 0, stmt, None)
    return stmt


def _run_time_checks(load: TmaTransfer) -> list[ir.Stmt]:
    """Check what the driver would refuse without a word about which tensor."""
    tensor = load.copy.tensor
    step = maps.STRIDE_ALIGNMENT // tensor.element_bytes
    return [
        ir.make_assert(
            tirx.truncmod(value, tirx.IntImm(ir.dtype_of(value), step)).equal(0),
            f"{tensor.buffer.name}: found {text} of no multiple of {step} elements; need one, "
            f"{maps.STRIDE_ALIGNMENT} bytes; pass a copy, or a view of wider rows",
        )
        for value, text in find_run_time_rules(load)
    ]


def _encode(load: TmaTransfer, tensor_map: ir.Var) -> Any:
    buffer, rank = load.copy.tensor.buffer, len(load.dims)
    return tirx.call_packed(
        "runtime.cuTensorMapEncodeTiled",
        tensor_map,
        StringImm(ir.dtype_of(buffer)),
        rank,
        _base_pointer(buffer),
        *(ir.simplify(tirx.Cast("int64", x.extent)) for x in load.dims),
        *(x.stride_bytes for x in load.dims[1:]),
        *load.box,
        *[1] * rank,
        maps.INTERLEAVE_NONE,
        maps.SWIZZLE_CODE[load.swizzle],
        maps.L2_PROMOTION_CODE[L2_PROMOTION_BYTES],
        maps.OOB_CODE["zero"],
    )


def _base_pointer(buffer: ir.Var) -> Any:
    """Return the address of a tensor's first element, which its data pointer alone need not be."""
    if ir.is_const(buffer.ty.elem_offset, 0):
        return buffer.data
    first = [tirx.IntImm(ir.dtype_of(x), 0) for x in buffer.shape]
    return tirx.address_of(tirx.BufferLoad(buffer, first))


def _load_block(load: TmaTransfer, tensor_map: ir.Var) -> ir.SBlockRealize:
    tile, p = load.copy.tile.buffer, load.copy.loops[0]
    panels, rows, _ = (int(extent) for extent in tile.shape)

    def one(panel: Any, part: Any) -> Any:
        row = part * load.box_rows
        start = [ir.substitute(x.coordinate, {p.loop_var: panel}) for x in load.dims]
        if load.row_dims:  # parts follow the outermost dimension of the rows
            cut = load.row_dims[0]
            start[cut] = start[cut] + part * load.dims[cut].box
        # 32 bits: PTX ISA 9.1, 9.7.9.27.1.2; loops may count in 64.
        coordinates = [ir.as_int32(ir.simplify(x)) for x in start]
        address = tirx.address_of(tirx.BufferLoad(tile, [panel, ir.simplify(row), 0]))
        return tirx.call_extern(
            "int32", TMA_LOAD, address, tirx.address_of(tensor_map), *coordinates
        )

    loads = ir.make_loop("panel", panels, lambda panel:
        ir.make_loop("part", rows // load.box_rows, lambda part: one(panel, part)))  # fmt: skip
    return ir.opaque_block(
        load.copy.block.name_hint,
        loads,
        reads=[ir.full_region(load.copy.tensor.buffer)],
        writes=[ir.full_region(tile)],
        annotations={ASYNC_OP: "tma_load"},
    )


def guard_empty(stmt: ir.Stmt, empty: list[ir.Var]) -> ir.Stmt:
    """Launch nothing where a symbolic extent is 0 and leaves no output tile."""
    for symbol in empty:
        stmt = ir.IfThenElse(symbol > 0, stmt, None)
    return stmt


def find_guards(kernel: ir.For, plan: tuple[TmaTransfer, ...]) -> tuple[list[ir.Var], list[ir.Var]]:
    """Return the symbolic extents that leave no output tile when 0, and those that leave no input.

    Of the second kind is the k of a sum: over nothing it is 0, and has to be stored.
    """
    blocks = [loop.extent for loop in ir.thread_axes(kernel).values()]
    no_tile: list[ir.Var] = []
    no_input: list[ir.Var] = []
    for symbol in _symbols(plan):
        empty = any(ir.is_const(ir.simplify(ir.substitute(x, {symbol: 0})), 0) for x in blocks)
        (no_tile if empty else no_input).append(symbol)
    return no_tile, no_input


def _symbols(plan: tuple[TmaTransfer, ...]) -> list[ir.Var]:
    """Return the variables in the extents of tensors and of their maps, each once."""
    found: list[ir.Var] = []
    for load in plan:
        extents = [*load.copy.tensor.buffer.shape, *(x.extent for x in load.dims)]
        for var in ir.find_all(extents, ir.Var):
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
            notes[ir.number_of(func, kernel)] = [_facts(load) for load in plan]
            no_tile, no_input = find_guards(kernel, plan)
            after = rewrite_tma_loads(kernel, plan, no_input, names)
            assert not plan_tma_loads(after), "InjectTmaLoad left a copy behind"
            return guard_empty(after, no_tile)

        return note_kernels(ir.map_kernels(func, inject), notes)


def _facts(load: TmaTransfer) -> TensorMapNote:
    """Return what `explain` says of a load."""
    return TensorMapNote(
        load.copy.tensor.buffer.name,
        tuple(str(x.extent) for x in load.dims),
        tuple(load.box),
        load.swizzle,
        load.tensor_map.box_bytes,
    )
