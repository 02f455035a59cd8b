"""Recognise matmuls, or say why a block is none that we support.

    for i, j, k: C[i, j] = C[i, j] + cast(A[i, k]) * cast(B[j, k])
  ->
    Matmul(m=Axis(...), n=Axis(...), k=Axis(...), lhs=MatmulOperand("A", major "k"), rhs=...)

Loops, operands and layouts come in any order, dimensions of extent one in front.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tvm_ffi
from tvm import s_tir
from tvm.tirx import IterVar

from tvm_hopper import ir
from tvm_hopper.analysis.contraction import CASTS_NEEDED, Contraction, find_contraction
from tvm_hopper.errors import cannot_schedule
from tvm_hopper.facts.dtypes import (
    DTYPES,
    HALF_DTYPES,
    OPERAND_DTYPES,
    OUTPUT_DTYPES,
    TF32,
    dtype_bytes,
    may_multiply,
    sum_dtype,
)
from tvm_hopper.facts.programming_model import BULK_ALIGNMENT
from tvm_hopper.facts.swizzle import span_elements

from .axes import tile_axes
from .promote import PROMOTED, check_promotable

CAST = (
    "cast what is of another type in a function in front (hs.pointwise), or leave the product to "
    "TVM: tvm_hopper.dlight.stock()"
)
OF_TENSOR_CORES = "a type that tensor cores multiply as it is"
FIRST = "compute it into a tensor first, in a block that is bound to threads"


@dataclass(frozen=True, eq=False)
class Axis:
    """One dimension of the product."""

    iter_var: Any  # of the block
    loop: int  # position among the block's loops, outermost first
    extent: Any  # of the loop: an int, or an expression when it is symbolic
    is_whole: bool = True  # whether the loop runs over all that the block declares


@dataclass(frozen=True)
class MatmulOperand:
    """One input of the product, as the block reads it from global memory."""

    buffer: Any
    dtype: str
    major: str  # "k" or "mn": which dimension is contiguous in memory
    kept: tuple[int, ...]  # the two dimensions that are not of extent one
    stored_bytes: float = 0  # of an element, where it is converted on its way (converted.py)
    in_one: tuple[int, int] = (1, 1)  # its rows and neighbours along k in one stored element
    run: int = 0  # its neighbours along k in 16 stored bytes; 0: they are of several rows

    @property
    def name(self) -> str:
        """Name of the tensor."""
        return str(self.buffer.name)


@dataclass(frozen=True)
class Matmul:
    """A block that computes one matmul."""

    name: str
    m: Axis
    n: Axis
    k: Axis
    lead: tuple[Axis, ...]  # of the output, outside of tiles: a batch, and dimensions of extent one
    deep: tuple[Axis, ...]  # of the sum, around k
    lhs: MatmulOperand  # the one that is indexed by m
    rhs: MatmulOperand
    output: Any
    output_kept: tuple[int, ...]
    acc_dtype: str
    node: Any  # the block
    starts_from_zero: bool = True
    ragged: tuple[bool, bool] = (False, False)  # rows and columns that were padded

    @property
    def batch(self) -> Any:
        """How many products of tiles there are: the extent of all other axes of the output."""
        return _times(x.extent for x in self.lead)

    @property
    def depth(self) -> Any:
        """Terms of a sum."""
        return _times(x.extent for x in (*self.deep, self.k))

    @property
    def stored_bytes(self) -> float:
        """Bytes of an element of the operand that is converted on its way; 0: none is."""
        return self.lhs.stored_bytes + self.rhs.stored_bytes

    @property
    def has_batch(self) -> bool:
        """Tell whether there are axes outside of tiles, of the output or of the sum."""
        return not all(ir.is_const(x.extent, 1) for x in (*self.lead, *self.deep))

    @property
    def transposed(self) -> Matmul:
        """The same product as C^T = B^T A^T: its rows are the output's columns."""
        return replace(
            self,
            m=self.n,
            n=self.m,
            lhs=self.rhs,
            rhs=self.lhs,
            output_kept=self.output_kept[::-1],
            ragged=self.ragged[::-1],
        )


def find_matmul(sch: s_tir.Schedule, block: Any, known: Matmul | None = None) -> Matmul:
    """Recognise the matmul that a block computes.

    - `sch`: where the block is; it is only read.
    - `block` (SBlockRV): a block of plain loops, with its casts already inlined (`fuse_prologue`).
    - `known`: what was found for it before, perhaps in a copy: right as long as no primitive
      changed it.
    - raises ScheduleError: the block is no matmul that WGMMA can compute; the message names block
      or tensor.
    """
    node = sch.get(block)
    if known is not None and known.node.same_as(node):
        return known
    name = str(node.name_hint)
    where = f"block {name}"
    loops = loops_around(sch, block)
    bindings = check_plain_loops(where, loops, node)
    check_product(sch, block)
    store = node.body
    _check_initial_value(where, node)
    contraction = require_contraction(where, node)

    m, n, k, lead, deep = _find_axes(where, node, loops, bindings, contraction)
    loads = contraction.products[0].loads
    sides = [_operand(where, load, m, n, k, (*lead, *deep)) for load in loads]
    by_axis = {side: operand for operand, side in sides}
    if set(by_axis) != {"m", "n"}:
        need = "one operand indexed by m and k, the other by n and k"
        raise cannot_schedule(where, "both operands indexed alike", need)
    lhs, rhs = by_axis["m"], by_axis["n"]
    if lhs.buffer.same_as(rhs.buffer):
        fix = "pass the tensor a second time, as an argument of its own"
        raise cannot_schedule(where, f"{lhs.name} as both operands", "two tensors", fix)
    if not may_multiply(lhs.dtype, rhs.dtype):
        found = f"{lhs.name} {lhs.dtype}, {rhs.name} {rhs.dtype}"
        need = "operands of one type, two of float8, or two of 8-bit integers"
        raise cannot_schedule(where, found, need, CAST)
    kept = (len(store.indices) - 2, len(store.indices) - 1)
    output, dtype = contraction.accumulator, contraction.accumulator_dtype
    zero = ir.is_zero(contraction.initial)
    return Matmul(name, m, n, k, lead, deep, lhs, rhs, output, kept, dtype, node, zero)


def _find_axes(
    where: str, node: Any, loops: list[Any], bindings: dict[Any, int], contraction: Contraction
) -> tuple[Axis, Axis, Axis, tuple[Axis, ...], tuple[Axis, ...]]:
    """Return rows, columns and depth of a product's tiles, and the axes outside of these."""
    store = node.body
    axes = {var.var: _axis(var, bindings[var.var], loops) for var in node.iter_vars}
    out = list(store.indices)
    if len(out) < 2 or any(v not in axes for v in out[-2:]) or out[-1].same_as(out[-2]):
        need = "C[m, n] with one loop for each, after a batch and dimensions of extent one"
        raise cannot_schedule(where, f"the output index {list(store.indices)}", need)
    m, n = (axes[v] for v in out[-2:])
    every = list(axes.values())
    lead = tuple(a for a in every if a not in (m, n) and not _is_reduction(a.iter_var))
    summed = [a for a in every if _is_reduction(a.iter_var)]
    depth = tile_axes(node, contraction.products[0].loads)[2]
    if not summed:
        raise cannot_schedule(where, "no reduction loop", "one, over k")
    k = summed[-1] if depth is None else every[depth]
    deep = tuple(a for a in summed if a is not k)
    for index, extent in zip(out[:-2], store.buffer.shape, strict=False):
        batch = axes.get(index)
        if not ir.is_const(extent, 1) and (batch is None or not _covers(batch, extent)):
            found = f"{store.buffer.name}, of which it writes a part"
            raise cannot_schedule(
                where, found, "an output whose dimensions are axes of the product"
            )
    for label, axis in (("M", m), ("N", n), ("K", k)):
        if axis.loop < 0:
            raise cannot_schedule(where, f"no loop over {label}", "one loop a dimension")
    return m, n, k, lead, deep


def _times(extents: Iterable[Any]) -> Any:
    """Multiply extents, without the ones."""
    return functools.reduce(operator.mul, (x for x in extents if not ir.is_const(x, 1)), 1)


def _covers(axis: Axis, extent: Any) -> bool:
    """Tell whether an axis runs over a whole dimension."""
    return ir.is_const(ir.simplify(extent - ir.cast_like(axis.extent, extent)), 0)


def _axis(var: IterVar, position: int, loops: list[Any]) -> Axis:
    """Describe a dimension by its loop: a block may declare more than its loop runs over."""
    if position < 0:
        return Axis(var, position, 1)
    extent = loops[position].extent
    whole = ir.is_const(ir.simplify(var.dom.extent - ir.cast_like(extent, var.dom.extent)), 0)
    return Axis(var, position, _known(extent), whole)


def _check_initial_value(where: str, node: Any) -> None:
    """Refuse an initial value that is no function of the output's element alone."""
    init = node.init
    summed = [var.var for var in node.iter_vars if _is_reduction(var)]
    same_element = isinstance(init, ir.BufferStore) and tvm_ffi.structural_equal(
        init.indices, node.body.indices
    )
    if not same_element or ir.depends_on(init.value, summed) or ir.uses(init.value, init.buffer):
        need = "one value for each element of the output, which the sum starts from"
        raise cannot_schedule(where, f"the initial value {init}", need)


def loops_around(sch: s_tir.Schedule, block: Any) -> list[Any]:
    """Return the loops around a block, outermost first, without leaving a mark in the trace."""
    loops, place = [], sch.get_sref(block).parent
    while place is not None and isinstance(place.stmt, ir.For):
        loops.append(place.stmt)
        place = place.parent
    return loops[::-1]


def check_product(sch: s_tir.Schedule, block: Any) -> None:
    """Refuse a block that is no reduction at all, before anything around it is looked at."""
    node = sch.get(block)
    where = f"block {node.name_hint}"
    if not isinstance(node.body, ir.BufferStore):
        raise cannot_schedule(where, type(node.body).__name__, "one multiply-add")
    if node.init is None:
        need = "the block of a product: a sum that has one"
        raise cannot_schedule(where, "no initial value", need)
    for axis in node.iter_vars:
        if ir.is_const(axis.dom.extent, 0):
            row, column = [None, None, *node.body.indices][-2:]
            label = "M" if axis.var.same_as(row) else "N" if axis.var.same_as(column) else "K"
            raise cannot_schedule(where, f"{label}=0", "a shape without empty dimensions")


def check_outputs(matmul: Matmul, dtypes: tuple[str, ...]) -> None:
    """Refuse an output of a type that the choice of a configuration does not know."""
    if dtypes[0] not in OUTPUT_DTYPES:
        need = f"one of {', '.join(OUTPUT_DTYPES)}"
        fix = "cast in a separate function"
        raise cannot_schedule(f"block {matmul.name}", f"an output of {dtypes[0]}", need, fix)


def check_plain_loops(where: str, loops: list[Any], node: Any) -> dict[Any, int]:
    """Refuse a block that is not alone under plain loops; map its iter vars to loop positions."""
    if not loops:
        raise cannot_schedule(where, "no loops", "one loop a dimension")
    for loop in loops:
        if loop.kind != ir.ForKind.SERIAL or loop.annotations:
            found = f"loop {loop.loop_var.name} that is scheduled already"
            raise cannot_schedule(where, found, "plain serial loops")
        if not ir.is_const(loop.min, 0):
            raise cannot_schedule(where, f"loop {loop.loop_var.name} from {loop.min}", "from 0")
    nest, realize = ir.loop_nest(loops[0])
    if len(nest) != len(loops) or not (
        isinstance(realize, ir.SBlockRealize) and realize.block.same_as(node)
    ):
        need = "loops around this block alone, perfectly nested"
        raise cannot_schedule(where, "other statements between its loops", need)
    if not ir.is_const(realize.predicate, 1):
        raise cannot_schedule(where, f"the predicate {realize.predicate}", "none")
    position = {loop.loop_var: i for i, loop in enumerate(loops)}
    bound: dict[Any, int] = {}
    for var, value in zip(node.iter_vars, realize.iter_values, strict=True):
        if value in position:
            bound[var.var] = position[value]
        elif ir.is_const(var.dom.extent, 1):
            bound[var.var] = -1
        else:
            need = "one loop for each of the block's dimensions"
            raise cannot_schedule(where, f"{var.var.name} bound to {value}", need)
    for loop, i in position.items():
        if i not in bound.values() and not ir.is_const(loops[i].extent, 1):
            raise cannot_schedule(where, f"loop {loop.name} that repeats it", "one product")
    return bound


def check_operands(matmul: Matmul, config: Any, views: Sequence[Any] = ()) -> None:
    """Refuse types that WGMMA lacks and tensors that a tensor map cannot describe.

    `views` are operands whose memory was looked at already, after them.

    Sources: PTX ISA 9.1, `wgmma.mma_async` (types); CUDA driver API, `cuTensorMapEncodeTiled`
    (strides of a multiple of 16 bytes, contiguous innermost dimension).
    """
    check_types(matmul, config)
    where = f"block {matmul.name}"
    sides = [
        (operand, outer)
        for operand, outer in ((matmul.lhs, "M"), (matmul.rhs, "N"))
        if not any(operand.buffer.same_as(x) for x in views)
    ]
    broken = [b for operand, outer in sides for b in _stride_violations(operand, outer)]
    if broken:
        (tensor, found, need, fix), *rest = broken
        more = [f"also tensor {t}: found {f}; need {n}; {x}" for t, f, n, x in rest]
        raise cannot_schedule(f"{where}, tensor {tensor}", found, need, "; ".join([fix, *more]))


def check_types(matmul: Matmul, config: Any) -> None:
    """Refuse types, and orders of operands of a type, that WGMMA lacks."""
    where = f"block {matmul.name}"
    for operand in (matmul.lhs, matmul.rhs):
        if operand.dtype not in OPERAND_DTYPES:
            need = f"one of {', '.join(OPERAND_DTYPES)}"
            raise cannot_schedule(f"{where}, tensor {operand.name}", operand.dtype, need, CAST)
        if operand.dtype == "float32" and config.operands != TF32:
            need = OF_TENSOR_CORES
            fix = f'give operands="{TF32}" to count 10 bits of each mantissa; or {CAST}'
            raise cannot_schedule(f"{where}, tensor {operand.name}", operand.dtype, need, fix)
        if operand.major != "k" and not DTYPES[operand.dtype].mn_major:
            found = f"{operand.dtype} whose neighbours in memory are not neighbours along k"
            need = "rows along k: WGMMA reads operands of 8 and of 32 bits in no other order"
            side = "A as [m, k]" if operand is matmul.lhs else "B as [n, k]"
            fix = f"store {side} ({operand.name} transposed)"
            raise cannot_schedule(f"{where}, tensor {operand.name}", found, need, fix)
    _check_sum(where, matmul, config.accumulate)


def _check_sum(where: str, matmul: Matmul, accumulate: str | None) -> None:
    """Refuse a sum in a type that WGMMA does not have for the operands."""
    need = sum_dtype(matmul.lhs.dtype)
    if accumulate == PROMOTED:
        return check_promotable(where, matmul)
    if matmul.acc_dtype == need and accumulate in (None, need):
        return
    tensor, found = f"{where}, tensor {matmul.output.name}", f"a sum in {matmul.acc_dtype}"
    if matmul.acc_dtype == need:
        raise cannot_schedule(tensor, f"{found}, accumulate={accumulate!r}", "accumulate left out")
    if need != "float32" or matmul.acc_dtype not in HALF_DTYPES:
        needed = f"a sum in {need} of products of {matmul.lhs.dtype}"
        raise cannot_schedule(tensor, found, needed, CAST)
    if accumulate is None:
        fix = 'give accumulate="float32" to sum in float32 and round once at the end'
        raise cannot_schedule(tensor, found, "a sum in float32", fix)


def _stride_violations(operand: MatmulOperand, outer: str) -> list[tuple[str, str, str, str]]:
    """Return which of TMA's rules the tensor's known strides break: tensor, found, need, fix."""
    buffer, size = operand.buffer, dtype_bytes(operand.dtype)
    strides = [_known(s) for s in buffer.strides or ()]
    if str(buffer.scope()) != "global":
        found = f"scope {buffer.scope()}"
        return [(operand.name, found, "a tensor in global memory", "copy it there first")]
    if strides and strides[-1] != 1:
        found = f"stride {strides[-1]} in the last dimension"
        return [(operand.name, found, "a contiguous last dimension", "copy it first")]
    step = BULK_ALIGNMENT // size
    outside = [s for s, n in zip(strides, buffer.shape, strict=False) if not ir.is_const(n, 1)][:-1]
    row = strides[operand.kept[0]] if strides else _known(buffer.shape[-1])
    row = next((s for s in outside if isinstance(s, int) and s % step), row)
    offset = _known(buffer.ty.elem_offset)
    if isinstance(offset, int) and offset % step:
        found = f"an offset of {offset} elements, {offset * size} bytes"
        need = f"a multiple of {BULK_ALIGNMENT} bytes"
        return [(operand.name, found, need, "copy the part into a separate tensor")]
    if ir.is_const(ir.simplify(row % step), 0):
        return []
    dim = "row stride" if strides else "K" if operand.major == "k" else outer
    need = f"a multiple of {BULK_ALIGNMENT} bytes"
    if not isinstance(row, int):
        if strides:
            return []  # a separate variable: checked at each call
        found = f"{dim} = {row}, symbolic, so rows any multiple of {size} bytes apart"
        return [(operand.name, found, need, f"make {dim} static, or a multiple of {step}")]
    found = f"{dim} = {row} {operand.dtype} elements, rows {row * size} bytes apart"
    return [(operand.name, found, need, f"pad {dim} to {-(-row // step) * step}")]


def require_contraction(where: str, node: Any) -> Contraction:
    """Take the one product of a block apart; refuse what a schedule cannot serve.

    - `where`: names the block in an error message.
    - `node` (SBlock): its body is one store.
    - returns: the sum of one product of two loads, after casts that change no value.
    - raises ScheduleError: the block adds anything else to its output.
    """
    store = node.body
    contraction = find_contraction(store, node.init)
    if contraction is None or len(contraction.products) != 1:
        need = f"{store.buffer.name}[...] + x[...] * y[...]"
        raise cannot_schedule(where, f"the value {store.value}", need)
    (product,) = contraction.products
    for factor in product.factors:
        if factor.load is None:
            found = f"{factor.expr} computed inside the product"
            need = f"operands that are tensors, at most cast to {contraction.accumulator_dtype}"
            raise cannot_schedule(where, found, need, FIRST)
    if found := product.changed_values(contraction.accumulator_dtype):
        raise cannot_schedule(where, found, CASTS_NEEDED, FIRST)
    return contraction


def product_loads(where: str, node: Any) -> tuple[Any, Any]:
    """Return the loads of a block's one product; see `require_contraction`."""
    return require_contraction(where, node).products[0].loads


def _operand(
    where: str, load: Any, m: Axis, n: Axis, k: Axis, others: tuple[Axis, ...]
) -> tuple[MatmulOperand, str]:
    """Describe one load; say whether it is the side of m or of n."""
    buffer = load.source
    sides, kept = [], []
    names = ((m, "m"), (n, "n"), (k, "k"))
    for position, index in enumerate(load.indices):
        side = next((s for a, s in names if index.same_as(a.iter_var.var)), None)
        if side is not None:
            sides.append(side)
            kept.append(position)
            continue
        is_unit = ir.is_const(buffer.shape[position], 1) and ir.is_const(index, 0)
        if not is_unit and not any(index.same_as(x.iter_var.var) for x in others):
            tensor = f"{where}, tensor {buffer.name}"
            need = "one loop a dimension, other dimensions of extent one"
            raise cannot_schedule(tensor, f"the index {index}", need)
    if sorted(sides) not in (["k", "m"], ["k", "n"]) or kept[-1] != len(load.indices) - 1:
        tensor = f"{where}, tensor {buffer.name}"
        need = "an operand indexed by k and one of m, n, the last dimension by either"
        fix = f"store {buffer.name} so that neighbours along k, or along its rows, are neighbours"
        raise cannot_schedule(tensor, f"the index {list(load.indices)}", need, fix)
    major = "k" if sides[-1] == "k" else "mn"
    side = "m" if "m" in sides else "n"
    return MatmulOperand(buffer, ir.dtype_of(buffer), major, tuple(kept)), side


def read_index(sch: s_tir.Schedule, block: Any, operand: MatmulOperand) -> int:
    """Return which of the block's reads is an operand."""
    reads = sch.get(block).reads
    return next(i for i, region in enumerate(reads) if region.source.same_as(operand.buffer))


def _is_reduction(var: IterVar) -> bool:
    return var.iter_type == IterVar.CommReduce


def _known(extent: Any) -> Any:
    static = ir.static_int(extent)
    return extent if static is None else static


def find_swizzle_violations(
    problem: Matmul, tile: tuple[int, int, int], axis: str, config: Any
) -> list[str]:
    """Return where a swizzle that was requested is wider than a row of a shared tile.

    A row runs along the tensor's last dimension; a tile that lies MN-major and that consumers share
    must have whole rows for each.
    """
    if config.swizzle is None:
        return []
    span = span_elements(config.swizzle, problem.lhs.dtype)
    broken = []
    for operand, outer, side in ((problem.lhs, tile[0], "m"), (problem.rhs, tile[1], "n")):
        parts = config.sharers if axis == side else 1
        row = tile[2] if operand.major == "k" else outer // parts
        if row % span:
            broken.append(
                f"found swizzle={config.swizzle} with rows of {row} elements in {operand.name}'s "
                f"tile; need multiples of {span} elements, or a narrower swizzle"
            )
    return broken
