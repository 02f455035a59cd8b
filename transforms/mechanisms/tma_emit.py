"""Emit TMA loads and stores: a tensor map for each copy, an instruction for each box."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

from tvm import ir as tvm_ir, tirx
from tvm.ir import StringImm
from tvm_ffi import structural_equal

from tvm_hopper import ir
from tvm_hopper.codegen_patches.ptx import tma
from tvm_hopper.facts import tensor_map as maps
from tvm_hopper.facts.reductions import map_dtype
from tvm_hopper.requests.keys import TMA_LOAD, TMA_MULTICAST
from tvm_hopper.transforms.common.explain_notes import TensorMapNote
from tvm_hopper.transforms.common.shared_layout import panels
from tvm_hopper.transforms.common.transfer import Transfer, load_call, operation_notes

from .mechanism import CopyMechanism, Host
from .tma_plan import TmaTransfer, find_run_time_rules, plan_tma_copies, run_time_strides

ENCODE = "runtime.cuTensorMapEncodeTiled"


def is_encode(call: ir.Call) -> bool:
    """Tell a call that encodes a tensor map."""
    first = call.args[0] if len(call.args) else None
    return isinstance(first, StringImm) and first.value == ENCODE


def _group_by_map(transfers: Iterable[TmaTransfer]) -> list[list[TmaTransfer]]:
    """Put copies together whose maps say the same: the tensor, its extents and strides, the box."""
    groups: list[tuple[list[Any], list[TmaTransfer]]] = []
    for transfer in transfers:
        arguments = _arguments(transfer, transfer.tensor_map.box)
        arguments += [transfer.tail_box[transfer.row_dims[0]]] if transfer.has_tail else []
        alike = next((x for known, x in groups if structural_equal(known, arguments)), None)
        if alike is None:
            groups.append((arguments, [transfer]))
        else:
            alike.append(transfer)
    return [group for _, group in groups]


def emit_boxes(plan: Sequence[TmaTransfer], host: Host) -> dict[Any, Any]:
    """Put boxes in place of copies, and let the host encode the maps that several may share."""
    planned = {}
    for group in _group_by_map(plan):
        name, handle = group[0].copy.tensor.buffer.name, tirx.tvm_stack_alloca("tensormap", 1)
        tensor_map, tail_map = ir.Var(host.names.take(f"{name}_map"), handle.ty), None
        encoded = [(tensor_map, handle, False)]
        if group[0].has_tail:
            handle = tirx.tvm_stack_alloca("tensormap", 1)
            tail_map = ir.Var(host.names.take(f"{name}_tail_map"), handle.ty)
            encoded.append((tail_map, handle, True))
        for var, handle, is_tail in encoded:
            encode = _encode_unless_empty(group, var, host.no_input, is_tail)
            host.stmts += [tirx.Bind(var, handle), encode]
        planned.update({x.copy.nest: _box_block(x, tensor_map, tail_map) for x in group})
    return planned


def _encode_unless_empty(
    transfers: list[TmaTransfer], tensor_map: ir.Var, no_input: list[ir.Var], is_tail: bool
) -> ir.Stmt:
    """Encode a map, unless the tensor holds nothing: then none can exist, and nothing is loaded."""
    first = transfers[0]
    arguments = _arguments(first, first.tail_box if is_tail else first.tensor_map.box)
    encode = tirx.call_packed(ENCODE, tensor_map, *arguments)
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
    buffer, rank = transfer.declared, len(transfer.dims)
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


def _box_block(
    transfer: TmaTransfer, tensor_map: ir.Var, tail_map: ir.Var | None = None
) -> ir.SBlockRealize:
    """Build the block that copies a tile, box by box; the last one, maybe, by a map of its own."""
    load = load_call(transfer.copy, TMA_LOAD)
    tile, p = transfer.copy.tile.buffer, transfer.copy.loops[0]
    num_panels, *row_extents, _ = (int(loop.extent) for loop in transfer.copy.loops)
    rows = prod(row_extents)
    first_panel, first_row, _ = transfer.copy.tile.start(transfer.copy.loops)
    table = transfer.table
    parts = rows // transfer.box_rows // (1 if table is None else int(table.extent))

    def one(
        panel: Any,
        part: Any,
        tensor_map: ir.Var = tensor_map,
        row: Any = 0,
        moved: Any = 0,
        places: Sequence[Any] = (),
    ) -> Any:
        """Load a box to a row of its part, from so many rows further on.

        `places` are the coordinates, where they are known.
        """
        row = part * transfer.box_rows + row
        at = {p.loop_var: panel}
        if table is not None:
            at[table.loop_var] = part // parts
            part = part % parts
        start = [ir.substitute(x, at) for x in places or [x.coordinate for x in transfer.dims]]
        if transfer.row_dims:  # parts follow the outermost dimension of the rows
            cut = transfer.row_dims[0]
            start[cut] = start[cut] + part * transfer.tensor_map.box[cut] + moved
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

    if table is None:
        boxes = ir.make_loop("panel", num_panels, lambda panel:
            ir.make_loop("part", parts, lambda part: one(panel, part)))  # fmt: skip
    else:
        boxes = _boxes_by_table(transfer, one, num_panels, parts)
    filled: Any = rows
    if transfer.left is not None:
        boxes = _counted_boxes(transfer, boxes, one, tail_map, (num_panels, rows))
    elif tail_map is not None:
        last = ir.make_loop("panel", num_panels, lambda panel: one(panel, 0, tail_map))
        boxes = ir.IfThenElse(transfer.is_whole, boxes, ir.seq(last))
        whole_tile = tirx.IntImm("int32", rows)
        filled = tirx.Select(transfer.is_whole, whole_tile, ir.as_int32(transfer.tail))
    # a warp group may store its part alone, and a tile may have more rows than are filled
    part = [(first_panel, num_panels), (first_row, filled), (0, transfer.box[0])]
    ranges = [tvm_ir.Range.from_min_extent(first, extent) for first, extent in part]
    touched = tirx.BufferRegion(tile, ranges)
    whole = ir.full_region(transfer.declared)
    return ir.opaque_block(
        transfer.copy.block.name_hint,
        boxes,
        reads=[whole if transfer.copy.fills_shared else touched],
        writes=[touched if transfer.copy.fills_shared else whole],
        annotations=operation_notes(transfer.copy),
    )


def _boxes_by_table(transfer: TmaTransfer, one: Any, panels: int, parts: int) -> ir.Stmt:
    """Load the boxes of all places, which are read first: a load does not wait for the next one's.

    - `one`: makes a load.
    - `parts`: boxes of a place, above each other.
    """
    table = transfer.table
    assert table is not None
    binds, loads = [], []
    for number in range(int(table.extent)):
        places = []
        for x in transfer.dims:
            place = ir.substitute(x.coordinate, {table.loop_var: number})
            if ir.uses(x.coordinate, table.loop_var):
                var = ir.Var("place", ir.dtype_of(place))
                binds.append(tirx.Bind(var, ir.simplify(place)))
                place = var
            places.append(place)
        for part in range(parts):

            def load(panel: Any, at: int = number * parts + part, places: Any = places) -> Any:
                return one(panel, at, places=places)

            loads.append(ir.make_loop("panel", panels, load))
    return ir.seq(*binds, *loads)


def _counted_boxes(
    transfer: TmaTransfer, boxes: Any, one: Any, row_map: Any, size: tuple[int, int]
) -> ir.Stmt:
    """Load the rows that are left, and zeros from beyond the map for the others.

    - `boxes`: all of them, as where all rows are left.
    - `one`: makes a load.
    - `size`: panels and rows of the tile.
    """
    panels, rows = size
    height, beyond = transfer.box_rows, transfer.dims[transfer.row_dims[0]].extent

    def part_of(part: Any) -> ir.Stmt:
        left = ir.simplify(transfer.left - ir.cast_like(part * height, transfer.left))
        moved = tirx.Select(left > 0, ir.cast_like(0, beyond), beyond)
        whole = ir.make_loop(
            "panel", panels, lambda panel: one(panel, part, moved=moved), rolled=True
        )

        def row_of(row: Any) -> Any:
            place = ir.cast_like(row, beyond)
            moved = tirx.Select(ir.cast_like(row, left) < left, place, beyond)
            return ir.make_loop(
                "panel", panels, lambda panel: one(panel, part, row_map, row, moved), rolled=True
            )

        by_rows = ir.make_loop("row", height, row_of, rolled=True)
        is_whole = tirx.Or(left >= height, left <= 0)
        return ir.IfThenElse(is_whole, ir.seq(whole), ir.seq(by_rows))

    some = ir.make_loop("part", rows // height, part_of, rolled=True)
    return ir.IfThenElse(transfer.left >= rows, ir.seq(boxes), ir.seq(some))


def _note_of(transfers: list[TmaTransfer]) -> TensorMapNote:
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


TMA = CopyMechanism(
    "tma",
    plan_tma_copies,
    emit_boxes,
    lambda copy: panels(copy, "boxes", "TMA"),
    needs_panels=True,
    fills_by_bounds=True,
    row_units=(maps.STRIDE_ALIGNMENT,),
    title="TMA",
    notes=lambda plan: [_note_of(group) for group in _group_by_map(plan)],
    instructions={
        TMA_LOAD: lambda tile, box, *at, **on: tma.load(tile, box, at, **on),
        TMA_MULTICAST: lambda tile, box, mask, *at, **on: tma.load_multicast(
            tile, box, at, mask=mask, **on
        ),
    },
)
