"""`box_pixels`: cut the images of a convolution into boxes, which are the rows of a product.

    C[n, y, x, o] += P[n, y + r, x + s, c] * W[r, s, c, o]      P is X, and zeros around it
  ->
    X_boxes[n, a, b, p, r, s, c] =
        if_then_else(inside, X[n, a * 8 + p // 16 + r - 1, b * 16 + p % 16 + s - 1, c], 0)
    C_boxes[n, a, b, p, o] += X_boxes[n, a, b, p, r, s, c] * W[r, s, c, o]
    C_whole[n, a * 8 + p // 16, b * 16 + p % 16, o] = C_boxes[n, a, b, p, o]
    C[n, y, x, o] = C_whole[n, y, x, o]

A tile has one box: 128 pixels here. The product has rows `p` and a batch of boxes, so that nothing
behind this knows of images. Boxes reach over the edges of images; the last block leaves out what
lies outside. Neither `X_boxes` nor `C_whole` is stored: a box of a tensor map is loaded, with steps
between its elements where windows move by more than one, and zeros outside of the tensor.

No primitive cuts axes into boxes of which the rows outside are anything. `hs.matmul` does this by
itself; a trace of it replays on `hs.box_pixels(mod, block, rows)`.
"""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass, replace
from typing import Any

import tvm
from tvm import s_tir, sym, tirx
from tvm.tirx import IterVar

from tvm_hopper import ir
from tvm_hopper.errors import cannot_schedule
from tvm_hopper.facts import tensor_map as maps
from tvm_hopper.facts.wgmma import instruction_k
from tvm_hopper.requests.targets import chip_of_target
from tvm_hopper.schedule import origins
from tvm_hopper.schedule.arguments import as_int, label

from .axes import contiguous_axis, sort_axes
from .boxes_of_images import choose_box
from .config import MatmulConfig
from .fuse import with_prologue
from .model import UNTRANSPOSED, as_product, rank_both, with_tile
from .normalize import check_rewrite, with_functions
from .outputs import output_dtypes
from .product_shape import ProductShape
from .recognize import product_loads
from .replace_load import replace_load
from .ring_and_order import SYMBOLIC_BATCH, known
from .windows import Windows, find_windows, split_groups

MOST_ROWS = 1024  # of a box: tiles of a cluster
NARROW = (16, 32)  # depths of tiles of few channels: swizzles of 32 and 64 bytes


def box_pixels(
    mod: tvm.IRModule | tirx.PrimFunc, block: str, rows: int, depth: int = 64, tiles: int = 1
) -> Any:
    """Cut the images of a convolution into boxes of a number of pixels.

    Parameters
    ----------
    mod : IRModule or PrimFunc
        Plain loops; it is left as it is.
    block : str
        The multiply-add.
    rows : int
        Pixels of a box: the rows of a tile.
    depth : int
        Of a tile. If it divides the channels, the sum over windows and channels is one axis.
    tiles : int
        Of a box: those of a cluster, one after another.

    Returns
    -------
    mod : IRModule or PrimFunc
        The same object where the block is no product of windows.

    Raises
    ------
    ScheduleError
        `mod` is no module, there is no block of that name, or no box has so many pixels.
    """
    check_rewrite("box_pixels", mod, block)
    rows = as_int("box_pixels", "rows", rows, 1, MOST_ROWS) or 1
    depth = as_int("box_pixels", "depth", depth, 1) or 1
    tiles = as_int("box_pixels", "tiles", tiles, 1, rows) or 1
    functions = {None: mod} if isinstance(mod, tirx.PrimFunc) else dict(mod.functions.items())
    for gv, func in functions.items():
        if not isinstance(func, tirx.PrimFunc) or (found := _find(func, block)) is None:
            continue
        new = _in_boxes(*found, rows, depth, tiles)
        if gv is None:
            return new
        result = with_functions(mod, {gv: new})
        origins.note(result, mod)
        return result
    return mod


def in_boxes(
    sch: s_tir.Schedule, block: Any, given: MatmulConfig
) -> tuple[s_tir.Schedule, MatmulConfig] | None:
    """Return a schedule of a product of windows in boxes, and its tile; None for other products."""
    name = label(sch, block).removeprefix("block ")
    function = sch.func_working_on
    if not name or function is None:
        return None
    target = function.name_hint
    found = _find(sch.mod[target], name)
    if found is None:
        return None
    config = given if given.tile is not None else _with_tile(*found, name, given)
    assert config.tile is not None
    rows = config.tile[1] if config.transposed else config.tile[0]
    depth = config.tile[2]
    if not isinstance(rows, int) or not isinstance(depth, int):
        return sch, config  # refused as sampled
    down, across = config.cluster or (1, 1)
    tiles = across if config.transposed else down
    new = _in_boxes(*found, rows * tiles, depth, tiles)
    fresh = s_tir.Schedule(with_functions(sch.mod, {sch.mod.get_global_var(target): new}))
    fresh.work_on(target)
    return fresh, config


def _find(func: tirx.PrimFunc, block: str) -> tuple[tirx.PrimFunc, Windows] | None:
    """Return a function with the operands' casts inlined, and its product of windows."""
    if not isinstance(func.body, ir.SBlockRealize) or not _has_sums(func):
        return None
    sch = with_prologue(func, block)
    if sch is None:
        return None  # `hs.matmul` says why
    new = split_groups(sch, block)
    found = find_windows(new, block)
    return None if found is None else (new, found)


def _has_sums(func: tirx.PrimFunc) -> bool:
    """Tell whether an index is no variable: without one nothing is read by windows or groups."""
    return any(
        not isinstance(index, (ir.Var, tirx.IntImm))
        for load in ir.find_all(func.body, ir.TensorLoad)
        for index in load.indices
    )


def _with_tile(func: tirx.PrimFunc, found: Windows, name: str, given: MatmulConfig) -> MatmulConfig:
    """Choose a tile by the estimate of a product whose rows come in boxes."""
    sch = s_tir.Schedule(tvm.IRModule({"main": func}))
    wanted = _as_product(found, output_dtypes(sch, sch.get_sblock(name))[0])
    if given.is_orientation_open:
        given = replace(given, form=UNTRANSPOSED)
    best, *_ = rank_both(wanted, given, chip_of_target(), 1)
    rows, columns, depth = best.tile
    least = max(min(wanted.channels, depth), instruction_k(wanted.dtype))
    step = min(x for x in (*NARROW, depth) if x >= least)
    return with_tile(given, replace(best, tile=(rows, columns, step)))


def _as_product(found: Windows, out_dtype: str) -> ProductShape:
    """Describe a product of windows for the estimate; symbolic extents are taken to be large."""
    node, loads = found.node, product_loads("", found.node)
    other = next(x for x in loads if not x.source.same_as(found.load.source))
    extents = [ir.static_int(x.dom.extent) for x in node.iter_vars]
    axes = sort_axes(node, loads)
    columns = [i for i in (*axes.rows, *axes.columns) if i not in found.rows]
    n, k = (math.prod(known(extents[i]) for i in group) for group in (columns, axes.depth))
    images = tuple(x if isinstance(x, int) else known(x, SYMBOLIC_BATCH) for x in found.extents)
    inner = contiguous_axis(node, other)
    major = "k" if inner in axes.depth else "mn"
    dtype = ir.dtype_of(found.load.source)
    batch = math.prod(known(extents[i], SYMBOLIC_BATCH) for i in axes.batch)
    shape = as_product(math.prod(images), n, k, dtype, ("k", major), out_dtype, batch)
    channels = known(ir.static_int(found.channels.dom.extent))
    return replace(shape, images=images, image_steps=found.steps, channels=channels)


def _in_boxes(
    func: tirx.PrimFunc, found: Windows, rows: int, depth: int, tiles: int
) -> tirx.PrimFunc:
    """Rewrite a function."""
    node = found.node
    box = choose_box(found.extents, found.steps, rows, tiles)
    if box is None:
        raise cannot_schedule(
            f"block {node.name_hint}",
            f"{rows} pixels of images of {' x '.join(map(str, found.extents))}",
            f"a number that a box of at most {maps.MAX_BOX} elements along an axis has",
            "choose another tile",
        )
    root = func.body.block
    names = ir.Names(str(x.name) for x in (*func.params, *root.alloc_buffers))
    cut = _cut(found, box)
    images, load_image = _load_images(found, cut, depth, names)
    product, total = _multiply(found, cut, images, names)
    stores, whole = _store(found, cut, total, names)
    new: list[Any] = []
    for stmt in ir.statements(root.body):
        blocks = ir.find_all(stmt, ir.SBlock)
        if any(x.same_as(node) for x in blocks):
            new += [load_image, product, *stores]
        elif found.pad is None or not any(
            x.source.same_as(found.pad) for y in blocks for x in y.writes
        ):
            new.append(stmt)
    buffers = [x for x in root.alloc_buffers if found.pad is None or not x.same_as(found.pad)]
    body = ir.with_block(
        root, body=ir.seq(*new), alloc_buffers=[*buffers, images.source, total, *whole]
    )
    return func.with_body(ir.SBlockRealize(func.body.iter_values, func.body.predicate, body))


@dataclass(frozen=True)
class _Cut:
    """Variables of a product in boxes, with their extents, and what the old ones are."""

    outer: list[IterVar]  # which box, for each axis of images
    pixel: IterVar  # in a box
    at: dict[Any, Any]  # old variable of an image -> its place
    box: tuple[int, ...]

    def spatial(self, found: Windows) -> list[IterVar]:
        """Return the variables of the output: boxes, then all but the last columns, then pixels."""
        others = [
            x
            for i, x in enumerate(found.node.iter_vars)
            if i not in found.rows and x.iter_type != IterVar.CommReduce
        ]
        return [*self.outer, *others[:-1], self.pixel, *others[-1:]]


def _cut(found: Windows, box: tuple[int, ...]) -> _Cut:
    """Cut the axes of images: a place is a box times its length, and a digit of the pixel."""
    olds = [found.node.iter_vars[i] for i in found.rows]
    dtype = ir.dtype_of(olds[0].var)
    pixel = _axis(ir.Var("v_pixel", dtype), math.prod(box))
    outer, at = [], {}
    inside = math.prod(box)
    for old, size, extent in zip(olds, box, found.extents, strict=True):
        count = -(-extent // size) if isinstance(extent, int) else extent
        outer.append(_axis(ir.Var(f"{old.var.name}_box", dtype), count))
        place = outer[-1].var * size
        if size > 1:
            is_first = inside == math.prod(box)
            inside //= size
            digit = pixel.var if inside == 1 else tirx.floordiv(pixel.var, inside)
            place = place + (digit if is_first else tirx.floormod(digit, size))
        at[old.var] = place
    return _Cut(outer, pixel, at, box)


def _axis(var: Any, extent: Any, kind: int = IterVar.DataPar) -> IterVar:
    zero = tirx.IntImm(ir.dtype_of(var), 0)
    return IterVar(tvm.ir.Range.from_min_extent(zero, ir.cast_like(extent, var)), var, kind)


def _load_images(found: Windows, cut: _Cut, depth: int, names: ir.Names) -> tuple[Any, ir.Stmt]:
    """Return an element of the images in boxes, and the block that fills these.

    Where tiles would reach from one element of a window to the next, the axes of the sum are kept
    apart by those of pixels.
    """
    node, indices = found.node, list(found.load.indices)
    moving = [x for x in node.iter_vars if ir.depends_on(indices, [x.var])]
    summed = [x for x in moving if x.iter_type == IterVar.CommReduce]
    summed.sort(key=lambda x: [ir.depends_on(i, [x.var]) for i in indices], reverse=True)
    others = [x for x in cut.spatial(found) if any(x.same_as(y) for y in moving)]
    whole = ir.is_const(ir.simplify(found.channels.dom.extent % depth), 0)
    pixels = [*cut.outer, *others, cut.pixel]
    axes = [*pixels, *summed] if whole else [*summed[:-1], *pixels, summed[-1]]
    source = ir.substitute(found.source, cut.at)
    condition = _inside(source, found, cut, axes)
    name = names.take(f"{source.source.name}_boxes")
    shape = tuple(x.dom.extent for x in axes)
    images = ir.new_buffer(name, shape, ir.dtype_of(source.source), "global")
    fill = tirx.const(0, ir.dtype_of(source.source))
    # a call also where all of it is inside of the tensor: `fuse_prologue` leaves it to the copy
    value = ir.call_op("prim.if_then_else", ir.dtype_of(source), condition, source, fill)
    return tirx.BufferLoad(images, [x.var for x in axes]), _nest(name, axes, images, value)


def _inside(source: Any, found: Windows, cut: _Cut, axes: list[IterVar]) -> Any:
    """Return where an element lies in memory."""
    analyzer = sym.Analyzer()
    for x in axes:
        analyzer.bind(x.var, x.dom)
    given = None if found.condition is None else ir.substitute(found.condition, cut.at)
    terms = [] if given is None else [ir.simplify(x, analyzer) for x in ir.conjuncts(given)]
    terms = [x for x in terms if not ir.is_const(x, 1)]
    with contextlib.ExitStack() as scopes:
        for x in terms:
            scopes.enter_context(analyzer.constraint_scope(x))
        for index, extent in zip(source.indices, source.source.shape, strict=True):
            bounds = (index >= ir.cast_like(0, index), index < ir.cast_like(extent, index))
            terms += [x for x in bounds if not analyzer.can_prove(x)]
    return ir.conjunction(terms)


def _multiply(found: Windows, cut: _Cut, images: Any, names: ir.Names) -> tuple[ir.Stmt, Any]:
    """Return the product of boxes, and its output."""
    node, store = found.node, found.node.body
    spatial = cut.spatial(found)
    summed = [x for x in node.iter_vars if x.iter_type == IterVar.CommReduce]
    total = ir.new_buffer(
        names.take(f"{store.buffer.name}_boxes"),
        tuple(x.dom.extent for x in spatial),
        ir.dtype_of(store.buffer),
        "global",
    )
    place = [x.var for x in spatial]
    old = tirx.BufferLoad(store.buffer, list(store.indices))
    value = replace_load(store.value, found.load, images)
    value = ir.substitute(replace_load(value, old, tirx.BufferLoad(total, place)), cut.at)
    start = ir.substitute(node.init.value, cut.at)
    axes = [*spatial, *summed]
    block = ir.with_block(
        node,
        iter_vars=axes,
        reads=ir.read_regions([value, start], without=total),
        writes=[ir.element_region(total, place)],
        body=ir.BufferStore(total, value, place),
        init=ir.BufferStore(total, start, place),
    )
    loops = [ir.Var(str(x.var.name).removeprefix("v_"), ir.dtype_of(x.var)) for x in axes]
    stmt: ir.Stmt = ir.SBlockRealize(loops, True, block)
    for loop, x in reversed(list(zip(loops, axes, strict=True))):
        stmt = ir.For(loop, x.dom.min, x.dom.extent, ir.ForKind.SERIAL, stmt)
    return stmt, total


def _store(
    found: Windows, cut: _Cut, total: Any, names: ir.Names
) -> tuple[list[ir.Stmt], list[Any]]:
    """Return the blocks that hand boxes on to the output, and the tensors between them."""
    node, store = found.node, found.node.body
    spatial = cut.spatial(found)
    value = tirx.BufferLoad(total, [x.var for x in spatial])
    name = names.take(f"{store.buffer.name}_store")
    lengths = dict(zip(found.rows, zip(cut.outer, cut.box, strict=True), strict=True))
    ragged = any(
        isinstance(extent, int) and extent % size
        for extent, size in zip(found.extents, cut.box, strict=True)
    )
    if not ragged:
        indices = [ir.substitute(x, cut.at) for x in store.indices]
        return [_nest(name, spatial, store.buffer, value, indices)], []
    olds = [(i, x) for i, x in enumerate(node.iter_vars) if x.iter_type != IterVar.CommReduce]
    shape = [
        lengths[i][0].dom.extent * lengths[i][1] if i in lengths else x.dom.extent for i, x in olds
    ]
    whole = ir.new_buffer(
        names.take(f"{store.buffer.name}_whole"),
        tuple(map(ir.simplify, shape)),
        ir.dtype_of(store.buffer),
        "global",
    )
    places = [cut.at.get(x.var, x.var) for _, x in olds]
    first = _nest(str(whole.name), spatial, whole, value, places)
    variables = [x for _, x in olds]
    value = tirx.BufferLoad(whole, [x.var for x in variables])
    return [first, _nest(name, variables, store.buffer, value, list(store.indices))], [whole]


def _nest(
    name: str, axes: list[IterVar], buffer: Any, value: Any, indices: list[Any] | None = None
) -> ir.Stmt:
    """Build plain loops that store a value, with variables of their own."""
    fresh = {x.var: ir.Var(str(x.var.name), ir.dtype_of(x.var)) for x in axes}
    store = ir.BufferStore(
        buffer,
        ir.substitute(value, fresh),
        [ir.substitute(x, fresh) for x in indices or [x.var for x in axes]],
    )
    return ir.block_nest(name, list(fresh.values()), [x.dom.extent for x in axes], store)
