"""Emit TMA loads and stores: a tensor map for each copy, an instruction for each box."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import Any

from tvm import ir as tvm_ir
from tvm import tirx
from tvm.ir import StringImm
from tvm_ffi import structural_equal

from tvm_hopper import ir
from tvm_hopper.codegen_patches.ptx import tma
from tvm_hopper.facts import tensor_map as maps
from tvm_hopper.facts.reductions import map_dtype
from tvm_hopper.requests.keys import TMA_LOAD
from tvm_hopper.transforms.common.explain_notes import TensorMapNote
from tvm_hopper.transforms.common.transfer import Transfer, load_call, operation_notes

from .tma_plan import TmaTransfer, find_run_time_rules, run_time_strides


def group_by_map(transfers: Iterable[TmaTransfer]) -> list[list[TmaTransfer]]:
    """Put copies together whose maps say the same: the tensor, its extents and strides, the box."""
    groups: list[tuple[list[Any], list[TmaTransfer]]] = []
    for transfer in transfers:
        arguments = _arguments(transfer, transfer.tensor_map.box)
        arguments += [] if transfer.tail is None else [transfer.tail]
        alike = next((x for known, x in groups if structural_equal(known, arguments)), None)
        if alike is None:
            groups.append((arguments, [transfer]))
        else:
            alike.append(transfer)
    return [group for _, group in groups]


def encode_unless_empty(
    transfers: list[TmaTransfer], tensor_map: ir.Var, no_input: list[ir.Var], is_tail: bool = False
) -> ir.Stmt:
    """Encode a map, unless the tensor holds nothing: then none can exist, and nothing is loaded."""
    first = transfers[0]
    arguments = _arguments(first, first.tail_box if is_tail else first.tensor_map.box)
    encode = tirx.call_packed("runtime.cuTensorMapEncodeTiled", tensor_map, *arguments)
    stmt = ir.seq(_run_time_checks(transfers), encode)
    for symbol in no_input:
        if ir.uses([x.extent for x in first.dims], symbol):
            stmt = ir.IfThenElse(symbol > 0, stmt, None)
    return stmt


def _run_time_checks(transfers: list[TmaTransfer]) -> list[ir.Stmt]:
    """Check what the driver would refuse without a word about which tensor."""
    tensor = transfers[0].copy.tensor
    step = maps.STRIDE_ALIGNMENT // tensor.element_bytes
    rules: list[tuple[Any, str]] = []
    for value, text in (rule for each in transfers for rule in find_run_time_rules(each)):
        if not any(structural_equal(value, known) for known, _ in rules):
            rules.append((value, text))
    name, most = tensor.buffer.name, maps.MAX_STRIDE_BYTES // tensor.element_bytes - 1
    return [
        *(
            ir.make_assert(
                tirx.all(stride >= 0, tirx.Cast("int64", stride) <= tirx.IntImm("int64", most)),
                f"{name}: found {text} out of range; need 0 to {most} elements; pass a copy",
            )
            for stride, text in run_time_strides(transfers[0])
        ),
        *(
            ir.make_assert(
                tirx.truncmod(value, tirx.IntImm(ir.dtype_of(value), step)).equal(0),
                f"{name}: found {text} of no multiple of {step} elements; need one, "
                f"{maps.STRIDE_ALIGNMENT} bytes; pass a copy, or a view of wider rows",
            )
            for value, text in rules
        ),
    ]


def _arguments(transfer: TmaTransfer, box: tuple[Any, ...]) -> list[Any]:
    """Return the arguments of cuTensorMapEncodeTiled after the map itself."""
    buffer, rank = transfer.copy.tensor.buffer, len(transfer.dims)
    return [
        StringImm(_map_dtype(transfer.copy)),
        rank,
        _base_pointer(buffer),
        *(ir.simplify(tirx.Cast("int64", x.extent)) for x in transfer.dims),
        *(x.stride_bytes for x in transfer.dims[1:]),
        *box,
        *transfer.tensor_map.element_strides,
        maps.INTERLEAVE_NONE,
        maps.SWIZZLE_CODE[transfer.swizzle],
        maps.L2_PROMOTION_CODE[maps.L2_PROMOTION_BYTES],
        maps.OOB_CODE["zero"],
    ]


def _map_dtype(copy: Transfer) -> str:
    """Return the type that the map names, by which a reduction combines."""
    dtype = ir.dtype_of(copy.tensor.buffer)
    return map_dtype(copy.reduce, dtype) if copy.reduce else dtype


def _base_pointer(buffer: ir.Var) -> Any:
    """Return the address of a tensor's first element, which its data pointer alone need not be."""
    if ir.is_const(buffer.ty.elem_offset, 0):
        return buffer.data
    first = [tirx.IntImm(ir.dtype_of(x), 0) for x in buffer.shape]
    return tirx.address_of(tirx.BufferLoad(buffer, first))


def box_block(
    transfer: TmaTransfer, tensor_map: ir.Var, tail_map: ir.Var | None = None
) -> ir.SBlockRealize:
    """Build the block that copies a tile, box by box; the last one, maybe, by a map of its own."""
    load = load_call(transfer.copy, TMA_LOAD)
    tile, p = transfer.copy.tile.buffer, transfer.copy.loops[0]
    panels, *row_extents, _ = (int(loop.extent) for loop in transfer.copy.loops)
    rows = prod(row_extents)
    first_panel, first_row, _ = transfer.copy.tile.start(transfer.copy.loops)

    def one(panel: Any, part: Any, tensor_map: ir.Var = tensor_map) -> Any:
        row = part * transfer.box_rows
        start = [ir.substitute(x.coordinate, {p.loop_var: panel}) for x in transfer.dims]
        if transfer.row_dims:  # parts follow the outermost dimension of the rows
            cut = transfer.row_dims[0]
            start[cut] = start[cut] + part * transfer.tensor_map.box[cut]
        # 32 bits: PTX ISA 9.1, 9.7.9.27.1.2; loops may count in 64.
        coordinates = [ir.as_int32(ir.simplify(x)) for x in start]
        place = [ir.simplify(first_panel + panel), ir.simplify(first_row + row), 0]
        address = tirx.address_of(tirx.BufferLoad(tile, place))
        encoded = tirx.address_of(tensor_map)
        if transfer.copy.reduce:
            return tma.reduce(address, encoded, coordinates, transfer.copy.reduce)
        if not transfer.copy.fills_shared:
            return tma.store(address, encoded, coordinates)
        return tirx.call_extern("int32", load, address, encoded, *coordinates)

    boxes = ir.make_loop("panel", panels, lambda panel:
        ir.make_loop("part", rows // transfer.box_rows, lambda part: one(panel, part)))  # fmt: skip
    filled: Any = rows
    if tail_map is not None:
        last = ir.make_loop("panel", panels, lambda panel: one(panel, 0, tail_map))
        boxes = ir.IfThenElse(transfer.is_whole, boxes, ir.seq(last))
        whole_tile = tirx.IntImm("int32", rows)
        filled = tirx.Select(transfer.is_whole, whole_tile, ir.as_int32(transfer.tail))
    # a warp group may store its part alone, and a tile may have more rows than are filled
    part = [(first_panel, panels), (first_row, filled), (0, transfer.box[0])]
    ranges = [tvm_ir.Range.from_min_extent(first, extent) for first, extent in part]
    touched = tirx.BufferRegion(tile, ranges)
    whole = ir.full_region(transfer.copy.tensor.buffer)
    return ir.opaque_block(
        transfer.copy.block.name_hint,
        boxes,
        reads=[whole if transfer.copy.fills_shared else touched],
        writes=[touched if transfer.copy.fills_shared else whole],
        annotations=operation_notes(transfer.copy),
    )


def guard_empty(stmt: ir.Stmt, empty: list[ir.Var]) -> ir.Stmt:
    """Launch nothing where a symbolic extent is 0 and leaves no output tile."""
    for symbol in empty:
        stmt = ir.IfThenElse(symbol > 0, stmt, None)
    return stmt


def find_guards(
    kernel: ir.For, plan: tuple[TmaTransfer, ...], others: list[Transfer]
) -> tuple[list[ir.Var], list[ir.Var]]:
    """Return the symbolic extents that leave no output tile when 0, and those that leave no input.

    Of the second kind is the k of a sum: over nothing it is 0, and has to be stored. `others` are
    copies without a map, whose input nobody has to encode.
    """
    blocks = [loop.extent for loop in ir.thread_axes(kernel).values()]

    def leaves_no_tile(symbol: ir.Var) -> bool:
        return any(ir.is_const(ir.simplify(ir.substitute(x, {symbol: 0})), 0) for x in blocks)

    mapped: list[Any] = []
    for transfer in plan:
        mapped += [*transfer.copy.tensor.buffer.shape, *(x.extent for x in transfer.dims)]
    mapped = _symbols(mapped)
    every = _symbols([*mapped, *(x for copy in others for x in copy.tensor.buffer.shape)])
    return [x for x in every if leaves_no_tile(x)], [x for x in mapped if not leaves_no_tile(x)]


def _symbols(extents: list[Any]) -> list[ir.Var]:
    """Return the variables in extents, each once."""
    found: list[ir.Var] = []
    for var in ir.find_all(extents, ir.Var):
        if not any(var.same_as(x) for x in found):
            found.append(var)
    return found


def note_of(transfers: list[TmaTransfer]) -> TensorMapNote:
    """Return what `explain` says of copies that share a map."""
    transfer = transfers[0]
    return TensorMapNote(
        transfer.copy.tensor.buffer.name,
        tuple(str(x.extent) for x in transfer.dims),
        tuple(transfer.box),
        transfer.swizzle,
        transfer.tensor_map.box_bytes,
        transfer.tensor_map.element_strides,
        maps.L2_PROMOTION_BYTES,
        len(transfers),
    )
