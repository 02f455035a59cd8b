"""`normalize`: rewrite products that TVM's primitives cannot tile.

    C[i, j] += A[i, k] * B[j, k]                         no initial value: C's old one is kept
  ->
    C_sum[i, j] += A[i, k] * B[j, k]                     from zero
    C[i, j] = C[i, j] + C_sum[i, j]

    C[0, j] += A[k] * B[j, k]                            a dimension of extent one, simplified away
  ->
    A_row[u, k] = A[k]                                   u = 0
    C_sum[u, j] += A_row[u, k] * B[j, k]
    C[0, j] = C_sum[u, j]

    C[i, j] += X[i, k] * X[j, k]                         one tensor as both operands
  ->
    X_copy[i, k] = X[i, k]                               inlined where the operand is loaded
    C[i, j] += X[i, k] * X_copy[j, k]

TVM binds no loop around a reduction without an initial value, no primitive adds a dimension to a
block, and a tensor is staged for all reads of a block at once.  `hs.matmul` does this by itself, on
a schedule that begins again from the rewritten module: a trace of it replays there, on
`hs.normalize(mod)`, and not on the module as it was.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.tirx import IterVar

from tvm_hopper import ir
from tvm_hopper.errors import HopperError, cannot_schedule
from tvm_hopper.schedule import origins
from tvm_hopper.schedule.arguments import label
from tvm_hopper.schedule.trial import as_one_step

from .axes import sort_axes
from .fuse import fuse_prologue
from .recognize import check_plain_loops, product_loads
from .replace_load import replace_load
from .views import find_access


@dataclass(frozen=True)
class NormalForm:
    """One product to rewrite: its loop nest, and which axes of C[batch, m, n] it lacks.

    `axes` are the positions of the block's own variables for a batch, m and n, None for a missing
    one; `rows` the loads of the operands that need the missing axis, with the axis; `unbound` the
    positions of variables that no loop moves.
    """

    nest: Any
    realize: Any
    axes: tuple[int | None, ...]
    rows: tuple[tuple[Any, int], ...]
    unbound: tuple[int, ...]
    keeps_old_value: bool


def normalize(mod: tvm.IRModule | tirx.PrimFunc, block: str | None = None) -> Any:
    """Rewrite products that TVM cannot tile: no initial value, unit dimensions, X X^T.

    Casts of their operands are fused, as `fuse_prologue` does.

    Parameters
    ----------
    mod : IRModule or PrimFunc
        Plain loops; it is left as it is.
    block : str, optional
        The one block to rewrite; None: every such product.

    Returns
    -------
    mod : IRModule or PrimFunc
        The same object when there is nothing to rewrite.  An old value is added once, after the
        sum, as a library does with beta = 1.

    Raises
    ------
    ScheduleError
        `mod` is no module, or there is no block of that name.
    """
    check_rewrite("normalize", mod, block)
    if isinstance(mod, tirx.PrimFunc):
        return _normalize_function(mod, block)
    changed = {
        gv: new
        for gv, func in mod.functions.items()
        if isinstance(func, tirx.PrimFunc)
        and not (new := _normalize_function(func, block)).same_as(func)
    }
    if not changed:
        return mod
    result = with_functions(mod, changed)
    origins.note(result, mod)
    return result


def check_rewrite(where: str, mod: Any, block: Any) -> None:
    """Refuse what is no module of plain loops, and the name of a block that it has not."""
    if not isinstance(mod, (tvm.IRModule, tirx.PrimFunc)):
        raise cannot_schedule(where, f"{type(mod).__name__}", "an IRModule or a PrimFunc")
    if block is None:
        return
    roots = [mod] if isinstance(mod, tirx.PrimFunc) else list(mod.functions.values())
    bodies = [func.body for func in roots if isinstance(func, tirx.PrimFunc)]
    names = [x.name_hint for body in bodies for x in ir.find_all(body, ir.SBlock)]
    names = [name for name in names if name != "root"]
    if block not in names:
        raise cannot_schedule(where, f"block={block!r}", f"one of {names}, or None")


def normalized(sch: s_tir.Schedule, block: Any) -> s_tir.Schedule | None:
    """Return a schedule of the rewritten module, None when a block needs no rewriting.

    What is no block of the schedule needs none: `hs.matmul` will say so.
    """
    name = label(sch, block).removeprefix("block ")
    function = sch.func_working_on
    if not name or function is None:
        return None
    target = function.name_hint
    func = sch.mod[target]
    new = _normalize_function(func, name)
    if new.same_as(func):
        return None
    fresh = s_tir.Schedule(with_functions(sch.mod, {sch.mod.get_global_var(target): new}))
    fresh.work_on(target)
    return fresh


def with_functions(mod: tvm.IRModule, changed: dict[Any, tirx.PrimFunc]) -> tvm.IRModule:
    """Copy a module with some functions replaced."""
    result = tvm.IRModule(mod.functions, attrs=mod.attrs, global_infos=mod.global_infos)
    for gv, func in changed.items():
        result.update_func(gv, func)
    return result


def _normalize_function(func: tirx.PrimFunc, block: str | None) -> tirx.PrimFunc:
    if not isinstance(func.body, ir.SBlockRealize):
        return func
    for name in [n for nest in _nests(func.body) if (n := _candidate(nest, block))]:
        func = _normalize_block(func, name)
    return func


def _candidate(nest: Any, block: str | None) -> str:
    """Return the name of a block that may need the normal form, or an empty string."""
    realize = ir.loop_nest(nest)[1]
    if not isinstance(realize, ir.SBlockRealize):
        return ""
    name = str(realize.block.name_hint)
    summed = any(x.iter_type == IterVar.CommReduce for x in realize.block.iter_vars)
    return name if summed and block in (None, name) else ""


def _normalize_block(func: tirx.PrimFunc, name: str) -> tirx.PrimFunc:
    """Rewrite one block, the casts of its operands inlined, or return the function as it is."""
    sch = s_tir.Schedule(tvm.IRModule({"main": func}))
    try:
        with as_one_step():
            fuse_prologue(sch, name)
    except HopperError:
        return func
    inlined = _part_operands(_without_units_in_operands(sch.mod["main"], name), name)
    func = func if inlined.same_as(sch.mod["main"]) else inlined
    root = inlined.body
    forms = [form for nest in _nests(root) if (form := plan_normal_form(nest, name))]
    if not forms:
        return func
    buffers: list[Any] = []
    names = ir.Names(str(x.name) for x in (*inlined.params, *root.block.alloc_buffers))
    planned = {form.nest: _rewrite(form, buffers, names) for form in forms}
    body = ir.replace_nodes(root.block.body, ir.Stmt, planned)
    new_root = ir.with_block(
        root.block, body=body, alloc_buffers=[*root.block.alloc_buffers, *buffers]
    )
    return func.with_body(ir.SBlockRealize(root.iter_values, root.predicate, new_root))


def _part_operands(func: tirx.PrimFunc, name: str) -> tirx.PrimFunc:
    """Let the second operand be a copy, where a product reads one whole tensor as both."""
    root = func.body
    for nest in _nests(root):
        node = getattr(ir.loop_nest(nest)[1], "block", None)
        if node is None or str(node.name_hint) != name or not isinstance(node.body, ir.BufferStore):
            continue
        try:
            first, second = product_loads("", node)
        except HopperError:
            continue
        tensor = first.source
        alike = tvm_ffi.structural_equal(first.indices, second.indices)
        if alike or not tensor.same_as(second.source):
            continue
        names = ir.Names(str(x.name) for x in (*func.params, *root.block.alloc_buffers))
        copy = ir.new_buffer(
            names.take(f"{tensor.name}_copy"), tuple(tensor.shape), ir.dtype_of(tensor), "global"
        )
        axes = [ir.Var(f"v{i}", ir.dtype_of(x)) for i, x in enumerate(tensor.shape)]
        value = tirx.BufferLoad(tensor, axes)
        made = ir.block_nest(
            str(copy.name), axes, list(tensor.shape), ir.BufferStore(copy, value, axes)
        )
        read = tirx.BufferLoad(copy, list(second.indices))
        new = ir.BufferStore(
            node.body.buffer, replace_load(node.body.value, second, read), node.body.indices
        )
        init = [] if node.init is None else [node.init.value]
        reads = ir.read_regions([new.value, *init], without=new.buffer if init else None)
        planned = {node: ir.with_block(node, body=new, reads=reads)}
        nests = {nest: ir.seq(made, ir.replace_nodes(nest, ir.SBlock, planned))}
        new_root = ir.with_block(
            root.block,
            body=ir.replace_nodes(root.block.body, ir.For, nests),
            alloc_buffers=[*root.block.alloc_buffers, copy],
        )
        return func.with_body(ir.SBlockRealize(root.iter_values, root.predicate, new_root))
    return func


def _without_units_in_operands(func: tirx.PrimFunc, name: str) -> tirx.PrimFunc:
    """Leave variables of extent one out of operands: in sums, X[y + r] is X[y].

    A batch of one is the row of an operand that has no other: B[b, j, k] of A[b, k] is B[0, j, k].
    """
    node = ir.find_all(func.body, ir.SBlock, lambda x: str(x.name_hint) == name)[0]
    axes = [x.var for x in node.iter_vars if x.iter_type == IterVar.DataPar]
    others = [x.var for x in node.iter_vars if not ir.is_const(x.dom.extent, 1)]
    if len(others) == len(node.iter_vars) or not isinstance(node.body, ir.BufferStore):
        return func
    try:
        loads = product_loads("", node)
    except HopperError:
        return func
    moved = [{v for v in axes if ir.depends_on(list(x.indices), [v])} for x in loads]
    value = node.body.value
    for load, own, theirs in zip(loads, moved, reversed(moved), strict=True):
        wide = [*others, *theirs] if theirs < own else others
        at = [_without_units(node, x) if ir.depends_on(x, wide) else x for x in load.indices]
        if not all(x.same_as(y) for x, y in zip(at, load.indices, strict=True)):
            value = replace_load(value, load, tirx.BufferLoad(load.source, at))
    if value.same_as(node.body.value):
        return func
    body = ir.BufferStore(node.body.buffer, value, node.body.indices)
    init = [] if node.init is None else [node.init.value]
    reads = ir.read_regions([value, *init], without=body.buffer if init else None)
    new = ir.with_block(node, body=body, reads=reads)
    return func.with_body(ir.replace_nodes(func.body, ir.SBlock, {node: new}))


def _without_units(node: Any, index: Any) -> Any:
    units = [x.var for x in node.iter_vars if ir.is_const(x.dom.extent, 1)]
    if not ir.depends_on(index, units):
        return index
    zeros = {x: tirx.IntImm(ir.dtype_of(x), 0) for x in units}
    return ir.simplify(ir.substitute(index, zeros))


def _nests(root: Any) -> list[Any]:
    return [part for part in ir.statements(root.block.body) if isinstance(part, ir.For)]


def plan_normal_form(nest: Any, block: str) -> NormalForm | None:
    """Decide whether a loop nest is a product to rewrite; None for whatever else is there."""
    loops, realize = ir.loop_nest(nest)
    if not isinstance(realize, ir.SBlockRealize):
        return None
    node = realize.block
    if str(node.name_hint) != block:
        return None
    reductions = [x for x in node.iter_vars if x.iter_type == IterVar.CommReduce]
    if not reductions or not isinstance(node.body, ir.BufferStore):
        return None
    try:
        bindings = check_plain_loops("", loops, node)
        loads = product_loads("", node)
    except HopperError:
        return None
    output = find_access(node, node.body.buffer, node.body.indices)
    accesses = [find_access(node, load.source, load.indices) for load in loads]
    if output is None or any(access is None for access in accesses):
        return None
    every = [v for _, v in sorted(output.moving.items())]
    batch = sort_axes(node, loads).batch
    lead = [v for v in every if v in batch]
    wide = _without_unit_axes(node, [v for v in every if v not in batch], loads)
    product = [*lead, *wide, *(i for i, x in enumerate(node.iter_vars) if x in reductions)]
    unbound = tuple(i for i in product if bindings[node.iter_vars[i].var] < 0)
    has_unit = any(ir.is_const(node.iter_vars[v].dom.extent, 1) for v in wide)
    in_place = every[-2:] == wide or not has_unit  # views sort out what else has extent one
    axes, rows = _missing_axes(wide, loads, accesses)
    if len(rows) == 2 and (lead or wide):
        return None  # element by element, which no tile can share
    if not rows and node.init is not None and not unbound and in_place:
        return None
    if any(node.iter_vars[v].iter_type != IterVar.DataPar for v in wide):
        return None
    added = tuple((load, len(lead) + axis) for load, axis in rows)
    return NormalForm(nest, realize, (*lead, *axes), added, unbound, node.init is None)


def _without_unit_axes(node: Any, wide: list[int], loads: Any) -> list[int]:
    """Leave out dimensions of extent one until each operand has one, those of none alone first.

    A single row may be any of them: it is the one that goes through one operand and not the other.
    """
    variables = [x.var for x in node.iter_vars]
    units = {v for v in wide if ir.is_const(node.iter_vars[v].dom.extent, 1)}
    moved = [{v for v in wide if ir.depends_on(list(x.indices), [variables[v]])} for x in loads]
    sides = sum(bool(x - y) for x, y in (moved, moved[::-1]))
    apart = sorted(units, key=lambda v: (any(v in x and x <= units for x in moved), v))
    spare = apart[: max(0, len(wide) - sides)]
    return [v for v in wide if v not in spare]


def _missing_axes(
    wide: list[int], loads: Any, accesses: list[Any]
) -> tuple[tuple[int | None, ...], tuple[tuple[Any, int], ...]]:
    """Return the axes of the output, and the loads that need one of extent one, with its place."""
    moving = [set(access.moving.values()) for access in accesses]
    alone = [[v for v in wide if v in moving[i] - moving[1 - i]] for i in (0, 1)]
    if all(alone):
        return tuple(wide), ()
    if not any(alone):
        return (*wide, None, None), ((loads[0], len(wide)), (loads[1], len(wide) + 1))
    return (None, *wide), ((loads[alone.index([])], 0),)


def _rewrite(form: NormalForm, buffers: list[Any], names: ir.Names) -> ir.Stmt:
    node, store = form.realize.block, form.realize.block.body
    dtype = ir.dtype_of(node.iter_vars[0].var)
    one = tirx.IntImm(dtype, 1)
    made: dict[int, Any] = {}  # axis -> its new iteration variable
    loops: dict[int, Any] = {}
    for axis, position in enumerate(form.axes):
        if position is None:
            var = ir.Var("v_" + _name(form, axis), dtype)
            made[axis] = IterVar(tvm.ir.Range(0, one), var, IterVar.DataPar)
            loops[axis] = ir.Var(_name(form, axis), dtype)
    variables = [
        made[axis].var if position is None else node.iter_vars[position].var
        for axis, position in enumerate(form.axes)
    ]
    extents = [
        one if position is None else node.iter_vars[position].dom.extent for position in form.axes
    ]
    output = store.buffer
    total = ir.new_buffer(
        names.take(f"{output.name}_sum"), tuple(extents), ir.dtype_of(output), "global"
    )
    buffers.append(total)
    first: list[Any] = []
    body = ir.BufferStore(total, _with_sum(store, total, variables), variables)
    for load, axis in form.rows:
        row, stmt = _row_view(node, load, names, one)
        buffers.append(row)
        first.append(stmt)
        indices = [made[axis].var, *_moving_variables(node, load)]
        body = ir.BufferStore(
            total, replace_load(body.value, load, tirx.BufferLoad(row, indices)), variables
        )
    start = tirx.const(0, ir.dtype_of(output)) if form.keeps_old_value else node.init.value
    init = ir.BufferStore(total, start, variables)
    block = ir.with_block(
        node,
        iter_vars=[*made.values(), *node.iter_vars],
        reads=ir.read_regions([body.value, start], without=total),
        writes=[ir.element_region(total, variables)],
        body=body,
        init=init,
    )
    bound = list(form.realize.iter_values)
    for position in form.unbound:
        bound[position] = ir.Var(str(node.iter_vars[position].var.name) + "_0", dtype)
        loops[-1 - position] = bound[position]
    values = [*(loops[axis] for axis in made), *bound]
    inner: ir.Stmt = ir.SBlockRealize(values, form.realize.predicate, block)
    nest, _ = ir.loop_nest(form.nest)
    for loop in reversed(nest):
        inner = ir.with_body(loop, inner)
    for var in reversed(list(loops.values())):
        inner = ir.For(var, tirx.IntImm(dtype, 0), one, ir.ForKind.SERIAL, inner)
    return ir.seq(first, inner, _store_sum(form, total, names))


def _name(form: NormalForm, axis: int) -> str:
    """Name an axis that is missing."""
    return "mn"[form.axes[:axis].count(None)]


def _with_sum(store: Any, total: Any, variables: list[Any]) -> Any:
    """Let the update add to the new buffer."""
    return ir.mutate(
        store.value,
        [
            (
                ir.TensorLoad,
                lambda x, m: (
                    tirx.BufferLoad(total, variables)
                    if x.source.same_as(store.buffer)
                    else m.default_mutate(x)
                ),
            )
        ],
    )


def _moving_variables(node: Any, load: Any) -> list[Any]:
    access = find_access(node, load.source, load.indices)
    assert access is not None
    return [node.iter_vars[v].var for _, v in sorted(access.moving.items())]


def _row_view(node: Any, load: Any, names: ir.Names, one: Any) -> tuple[Any, ir.Stmt]:
    """Build the operand with one row: its own dimensions after one of extent one."""
    used = _moving_variables(node, load)
    domains = {x.var: x.dom for x in node.iter_vars}
    name = names.take(f"{load.source.name}_row")
    shape = (one, *(domains[v].extent for v in used))
    row = ir.new_buffer(name, shape, ir.dtype_of(load.source), "global")
    dtype = ir.dtype_of(one)
    axes = [ir.Var("v_row", dtype), *(ir.Var(v.name, dtype) for v in used)]
    value = ir.substitute(load, dict(zip(used, axes[1:], strict=True)))
    return row, ir.block_nest(name, axes, list(shape), ir.BufferStore(row, value, axes))


def _store_sum(form: NormalForm, total: Any, names: ir.Names) -> ir.Stmt:
    """Build the block that hands the sum to the output, added to its old value if that is kept.

    It runs over the sum's dimensions of extent one too, which bound it where the sum is padded.
    """
    node, store = form.realize.block, form.realize.block.body
    dtype = ir.dtype_of(node.iter_vars[0].var)
    axes: list[Any] = []
    extents: list[Any] = []
    at: dict[Any, Any] = {}
    place: list[Any] = []
    for axis, position in enumerate(form.axes):
        if position is None:
            var, extent = ir.Var("v_" + _name(form, axis), dtype), tirx.IntImm(dtype, 1)
        else:
            old = node.iter_vars[position]
            var, extent = ir.Var(old.var.name, dtype), old.dom.extent
            at[old.var] = var
        axes.append(var)
        extents.append(extent)
        place.append(var)
    for used in _moving_variables(node, tirx.BufferLoad(store.buffer, store.indices)):
        if used not in at:  # of extent one
            at[used] = tirx.IntImm(dtype, 0)
    value: Any = tirx.BufferLoad(total, place)
    indices = [ir.substitute(x, at) for x in store.indices]
    if form.keeps_old_value:
        value = tirx.BufferLoad(store.buffer, indices) + value
    name = names.take(f"{node.name_hint}_store")
    return ir.block_nest(name, axes, extents, ir.BufferStore(store.buffer, value, indices))
