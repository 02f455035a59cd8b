"""Turn annotated copies into asynchronous operations, by what each one asks for.

    for p, r, s in grid(2, 128, 64):             annotations={"tvm_hopper.async_copy": "tma", ...}
        A_shared[p, r, s] = if_then_else(
            m + r < M and k + p * 64 + s < K, A[m + r, k + p * 64 + s], 0)
  ->
    A_map = tvm_stack_alloca("tensormap", 1)                          on the host, at each call
    cuTensorMapEncodeTiled(A_map, A, dims (K, M), box (64, 128), 128 B swizzle, zero fill)
    with sblock(annotations={"tvm_hopper.async_op": "tma_load"}):
        for p in range(2):
            tma_load(&A_shared[p, 0, 0], A_map, k + p * 64, m)

    for p, r, s in grid(2, 128, 64): C[m + r, n + p * 64 + s] = C_shared[p, r, s]
  ->
    with sblock(annotations={"tvm_hopper.async_op": "tma_store"}):
        for p in range(2):
            cp.async.bulk.tensor.2d.global(C_map, n + p * 64, m, &C_shared[p, 0, 0])

    ... = A_shared[p, i, j]                             in plain loops, under a swizzle
  ->
    ... = A_shared[p, i, (j // 8 ^ i % 8) * 8 + j % 8]

The hardware XORs what it writes and reads under a swizzle, and what the tensor core reads; plain
loads and stores have to do it themselves.  A load out of bounds is filled with zeros by the
hardware, and a store there left out, which is what the predicate says; any other predicate or fill
is refused.  A map ends where the predicate says, which may be inside the tensor.  It has the
dimensions of the tensor that are longer than one, five at most; a box has at most 256 rows, and
longer panels take several.

Before: tiles are panels (LayoutShared).  After: no `async_copy` annotation is left; a `tma_load`
call has no barrier yet.
Not here: barriers, groups and waiting (insert_syncs.py, lower_channels.py), multicast.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.ir import StringImm
from tvm.tirx.transform import prim_func_pass

from tvm_hopper import ir
from tvm_hopper.codegen_patches.ptx import tma
from tvm_hopper.facts import tensor_map as maps
from tvm_hopper.plan.notes import TensorMapNote, note_kernels
from tvm_hopper.plan.tma_plan import TmaTransfer, find_run_time_rules, plan_tma_copies
from tvm_hopper.requests.keys import ASYNC_OP, TMA_LOAD

from .swizzled_accesses import swizzle_accesses

L2_PROMOTION_BYTES = 128


def rewrite_copies(
    kernel: ir.For, plan: tuple[TmaTransfer, ...], no_input: list[ir.Var], names: ir.Names
) -> ir.Stmt:
    """Encode a map per copy on the host and replace the copy nests by boxes."""
    host: list[Any] = []
    planned: dict[Any, Any] = {}
    for transfer in plan:
        handle = tirx.tvm_stack_alloca("tensormap", 1)
        tensor_map = ir.Var(names.take(f"{transfer.copy.tensor.buffer.name}_map"), handle.ty)
        host += [
            tirx.Bind(tensor_map, handle),
            _encode_unless_empty(transfer, tensor_map, no_input),
        ]
        planned[transfer.copy.nest] = _box_block(transfer, tensor_map)
    return ir.seq(
        host,
        swizzle_accesses(
            ir.replace_nodes(kernel, ir.Stmt, planned), [transfer.copy for transfer in plan]
        ),
    )


def _encode_unless_empty(
    transfer: TmaTransfer, tensor_map: ir.Var, no_input: list[ir.Var]
) -> ir.Stmt:
    """Encode a map, unless the tensor holds nothing: then none can exist, and nothing is loaded."""
    stmt = ir.seq(_run_time_checks(transfer), _encode(transfer, tensor_map))
    for symbol in no_input:
        if ir.uses([x.extent for x in transfer.dims], symbol):
            stmt = ir.IfThenElse(symbol > 0, stmt, None)
    return stmt


def _run_time_checks(transfer: TmaTransfer) -> list[ir.Stmt]:
    """Check what the driver would refuse without a word about which tensor."""
    tensor = transfer.copy.tensor
    step = maps.STRIDE_ALIGNMENT // tensor.element_bytes
    return [
        ir.make_assert(
            tirx.truncmod(value, tirx.IntImm(ir.dtype_of(value), step)).equal(0),
            f"{tensor.buffer.name}: found {text} of no multiple of {step} elements; need one, "
            f"{maps.STRIDE_ALIGNMENT} bytes; pass a copy, or a view of wider rows",
        )
        for value, text in find_run_time_rules(transfer)
    ]


def _encode(transfer: TmaTransfer, tensor_map: ir.Var) -> Any:
    buffer, rank = transfer.copy.tensor.buffer, len(transfer.dims)
    return tirx.call_packed(
        "runtime.cuTensorMapEncodeTiled",
        tensor_map,
        StringImm(ir.dtype_of(buffer)),
        rank,
        _base_pointer(buffer),
        *(ir.simplify(tirx.Cast("int64", x.extent)) for x in transfer.dims),
        *(x.stride_bytes for x in transfer.dims[1:]),
        *transfer.box,
        *[1] * rank,
        maps.INTERLEAVE_NONE,
        maps.SWIZZLE_CODE[transfer.swizzle],
        maps.L2_PROMOTION_CODE[L2_PROMOTION_BYTES],
        maps.OOB_CODE["zero"],
    )


def _base_pointer(buffer: ir.Var) -> Any:
    """Return the address of a tensor's first element, which its data pointer alone need not be."""
    if ir.is_const(buffer.ty.elem_offset, 0):
        return buffer.data
    first = [tirx.IntImm(ir.dtype_of(x), 0) for x in buffer.shape]
    return tirx.address_of(tirx.BufferLoad(buffer, first))


def _box_block(transfer: TmaTransfer, tensor_map: ir.Var) -> ir.SBlockRealize:
    tile, p = transfer.copy.tile.buffer, transfer.copy.loops[0]
    panels, rows, _ = (int(extent) for extent in tile.shape)

    def one(panel: Any, part: Any) -> Any:
        row = part * transfer.box_rows
        start = [ir.substitute(x.coordinate, {p.loop_var: panel}) for x in transfer.dims]
        if transfer.row_dims:  # parts follow the outermost dimension of the rows
            cut = transfer.row_dims[0]
            start[cut] = start[cut] + part * transfer.dims[cut].box
        # 32 bits: PTX ISA 9.1, 9.7.9.27.1.2; loops may count in 64.
        coordinates = [ir.as_int32(ir.simplify(x)) for x in start]
        address = tirx.address_of(tirx.BufferLoad(tile, [panel, ir.simplify(row), 0]))
        encoded = tirx.address_of(tensor_map)
        if not transfer.copy.fills_shared:
            return tma.store(address, encoded, coordinates)
        return tirx.call_extern("int32", TMA_LOAD, address, encoded, *coordinates)

    boxes = ir.make_loop("panel", panels, lambda panel:
        ir.make_loop("part", rows // transfer.box_rows, lambda part: one(panel, part)))  # fmt: skip
    return ir.opaque_block(
        transfer.copy.block.name_hint,
        boxes,
        reads=[ir.full_region(transfer.copy.src.buffer)],
        writes=[ir.full_region(transfer.copy.dst.buffer)],
        annotations={ASYNC_OP: transfer.copy.op.name},
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
    for transfer in plan:
        extents = [*transfer.copy.tensor.buffer.shape, *(x.extent for x in transfer.dims)]
        for var in ir.find_all(extents, ir.Var):
            if not any(var.same_as(x) for x in found):
                found.append(var)
    return found


@prim_func_pass(opt_level=0, name="tvm_hopper.LowerCopies")
class LowerCopies:
    """See the module's docstring for the rewrite."""

    def transform_function(self, func, mod, ctx):
        """Replace the annotated copies of one function."""
        notes = {}
        names = ir.Names(param.name for param in func.params)

        def inject(kernel: ir.For) -> ir.Stmt:
            if not (plan := plan_tma_copies(kernel)):
                return kernel
            notes[ir.number_of(func, kernel)] = [_facts(transfer) for transfer in plan]
            no_tile, no_input = find_guards(kernel, plan)
            after = rewrite_copies(kernel, plan, no_input, names)
            assert not plan_tma_copies(after), "LowerCopies left a copy behind"
            return guard_empty(after, no_tile)

        return note_kernels(ir.map_kernels(func, inject), notes)


def _facts(transfer: TmaTransfer) -> TensorMapNote:
    """Return what `explain` says of a transfer."""
    return TensorMapNote(
        transfer.copy.tensor.buffer.name,
        tuple(str(x.extent) for x in transfer.dims),
        tuple(transfer.box),
        transfer.swizzle,
        transfer.tensor_map.box_bytes,
    )
