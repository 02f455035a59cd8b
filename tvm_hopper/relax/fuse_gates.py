"""Fuse what takes several columns of a product into it: gates, rotary embedding.

    g = R.call_tir(linear, (x, w), R.Tensor((rows, 2 * N)))                      w: (2 * N, K)
    y = R.call_tir(split_silu_multiply, (g,), R.Tensor((rows, N)))
  ->
    v = R.reshape(w, (2, N // 8, 8, K))
    y = R.call_tir(fused_linear_split_silu_multiply, (x, v), R.Tensor((rows, N)))

Columns of the product are distributed again: groups of eight columns of gate and up alternate, so
that one thread holds both operands of an element of y. The weight is another view.

Needs: fused functions in rows (FlattenBatch).
Leaves: functions that `hs.matmul` takes; others stay two.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.target import Target
from tvm.tirx import IndexMap

from tvm_hopper import dlight, ir
from tvm_hopper.analysis.column_reads import COLUMNS
from tvm_hopper.dlight.product import products
from tvm_hopper.schedule.products.outputs import with_plain_indices
from tvm_hopper.schedule.reasons import TVM_ERRORS

from .call_groups import (
    CallGraph,
    CallGroup,
    fuse_group,
    is_plain_call,
    is_view,
    reduces,
    rewrite_groups,
)
from .flat_functions import has_product
from .options import ModelOptions

GATES = 2


@tvm.transform.module_pass(opt_level=0, name="tvm_hopper.FuseGates")
class FuseGates:
    """The pass; see the module."""

    def __init__(self, options: ModelOptions) -> None:
        self.options = options

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Fuse pairs of calls, where `hs.matmul` takes the function of both."""
        target = Target.current(allow_none=False)
        made: dict[Any, Any] = {}

        def accepts(group: CallGroup) -> bool:
            one, *others = (mod[x.value.args[0]] for x in group.calls if not is_view(x))
            is_gate = has_product(one) and len(others) == 1 and not reduces(others[0])
            if not is_gate or has_product(others[0]) or len(group.outputs) > 1:
                return False
            if group.key not in made:
                made[group.key] = gated_function(mod, group, target, self.options)
            return made[group.key] is not None

        def grow(graph: CallGraph) -> None:
            graph.grow(lambda x: is_plain_call(mod, x), accepts, takes_views=True)

        return rewrite_groups(mod, grow, made)


def gated_function(
    mod: tvm.IRModule, group: CallGroup, target: Target, options: ModelOptions
) -> tirx.PrimFunc | None:
    """Return one function of two, None where it is not one that `hs.matmul` takes."""
    rule = dlight.Matmul(
        options.accumulate, classes=options.classes, batch_invariant=options.batch_invariant
    )
    try:
        fused = _plain(_without_unread(fuse_group(mod, group)))
        for func in (interleaved(fused), fused):
            if func is not None and rule.apply(func, target, False) is not None:
                return func
    except TVM_ERRORS:  # what TVM cannot fuse or inline stays two functions
        return None
    return None


def interleaved(func: tirx.PrimFunc) -> tirx.PrimFunc | None:
    """Deal out the columns of a product in eights, where what follows it takes two halves.

    - `func`: a product of (rows, K) and (2 * N, K), and elementwise blocks after it, to (rows, N).
    - returns: the function, with a weight of (2, N // 8, 8, K); None: it is no such function.
    """
    sch = s_tir.Schedule(func.with_attr("global_symbol", "main"))
    name, *others = products(sch)
    if others:
        return None
    block = sch.get_sblock(name)
    while readers := [x for x in sch.get_consumers(block) if sch.get_consumers(x)]:
        sch.compute_inline(readers[0])
    width = _width_of_half(sch, block)
    if width is None:
        return None
    node = sch.get(block)
    axes = [x.var for x in node.iter_vars]
    place = next(i for i, x in enumerate(axes) if node.body.indices[-1].same_as(x))
    weight = next(
        (i for i, x in enumerate(node.reads) if x.region[0].min.same_as(axes[place])), None
    )
    if weight is None or len(node.reads[weight].region) != GATES:
        return None

    def dealt(column: Any) -> Any:
        inside = column % width
        group = COLUMNS * GATES
        return inside // COLUMNS * group + column // width * COLUMNS + inside % COLUMNS

    dtype = ir.dtype_of(axes[place])
    order = IndexMap.from_func(
        lambda *i: [dealt(x) if j == place else x for j, x in enumerate(i)],
        ndim=len(axes),
        index_dtype=dtype,
    )
    out = IndexMap.from_func(lambda i, j: [i, dealt(j)], ndim=2, index_dtype=dtype)
    view = IndexMap.from_func(
        lambda j, k: [j // width, j % width // COLUMNS, j % COLUMNS, k], ndim=2, index_dtype=dtype
    )
    sch.transform_layout(block, ("read", weight), view)
    sch.transform_block_layout(block, order)
    sch.transform_layout(block, ("write", 0), out)
    new = _plain(sch.mod["main"])
    symbol = (func.attrs or {}).get("global_symbol")
    return (
        new.without_attr("global_symbol")
        if symbol is None
        else new.with_attr("global_symbol", symbol)
    )


def _width_of_half(sch: s_tir.Schedule, block: Any) -> int | None:
    """Return the columns that what is after a product stores, half of the product's own."""
    node, consumers = sch.get(block), sch.get_consumers(block)
    if len(consumers) != 1 or len(node.writes[0].source.shape) != GATES:
        return None
    columns = ir.static_int(node.writes[0].source.shape[-1])
    width = ir.static_int(sch.get(consumers[0]).writes[0].source.shape[-1])
    if columns is None or width is None or columns != GATES * width or width % COLUMNS:
        return None
    return width


def _without_unread(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Leave out what computes tensors that nothing reads, as the other part of a split."""
    root = func.body.block
    parts = ir.statements(root.body)

    def is_needed(part: Any) -> bool:
        others = [x for x in parts if not x.same_as(part)]
        written = [x.source for block in ir.find_all(part, ir.SBlock) for x in block.writes]
        own = [x for x in written if any(x.same_as(y) for y in root.alloc_buffers)]
        return len(own) < len(written) or any(ir.uses(x, y) for x in others for y in own)

    while len(kept := [x for x in parts if is_needed(x)]) < len(parts):
        parts = kept
    buffers = [x for x in root.alloc_buffers if any(ir.uses(y, x) for y in parts)]
    new = ir.with_block(root, body=ir.seq(*parts), alloc_buffers=buffers)
    return func.with_body(ir.SBlockRealize(func.body.iter_values, func.body.predicate, new))


def _plain(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Simplify indices by what the blocks' variables run over: of j below N, j % N is j."""

    def leaf(block: ir.SBlock, mutate: Any) -> ir.SBlock:
        block = mutate.default_mutate(block)
        return with_plain_indices(block) if block.iter_vars else block

    return func.with_body(ir.mutate(func.body, [(ir.SBlock, leaf)]))
