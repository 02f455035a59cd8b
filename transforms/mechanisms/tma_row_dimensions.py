"""Split the rows of a tile over several dimensions of a tensor map, and over boxes.

    for r in range(256): tile[r, ...] = W[r % 16 // 8, r // 16, r % 8, ...]
  ->
    for a, b, c in grid(16, 2, 8): tile[a * 16 + b * 8 + c, ...] = W[b, a, c, ...]

A tile of a product is two-dimensional, so that its rows are one loop wherever they come from.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from math import gcd, prod
from typing import Any

from tvm import ir as tvm_ir, sym, tirx

from tvm_hopper import ir
from tvm_hopper.analysis.access import AffineAccess
from tvm_hopper.analysis.bounds import as_less_than
from tvm_hopper.analysis.divisors import divides
from tvm_hopper.errors import cannot_lower
from tvm_hopper.facts import tensor_map as maps
from tvm_hopper.transforms.common.transfer import Transfer


def in_digits(copy: Transfer) -> Transfer:
    """Return a copy whose loops each follow one dimension, where digits of a loop's variable do."""
    for loop in copy.loops[1:-1]:
        lengths = _lengths(copy.tensor.indices, loop)
        if not lengths:
            continue
        found = _split(copy, loop, lengths)
        made = [x for x in found.loops if not any(x.same_as(y) for y in copy.loops)]
        if all(len(found.tensor.axes([x])) == 1 for x in made):  # else errors name what was written
            return in_digits(found)
    return copy


def _lengths(indices: tuple[Any, ...], loop: ir.For) -> list[int]:
    """Return the extents of the loops that a variable's digits make, the outermost first."""
    extent = ir.static_int(loop.extent)
    var = loop.loop_var
    found: set[int] = set()
    for kind in (tirx.FloorDiv, tirx.FloorMod):
        for x in ir.find_all(list(indices), kind, lambda x: ir.depends_on(x.a, [var])):
            found.add(ir.static_int(x.b) or 0)
    cuts = [1, *sorted(found - {1}), extent or 0]
    if not found or 0 in cuts or any(b % a or a >= b for a, b in pairwise(cuts)):
        return []
    return [b // a for a, b in pairwise(cuts)][::-1]


def _steps(lengths: list[int]) -> list[int]:
    """Return how much each digit counts."""
    return [prod(lengths[i + 1 :]) for i in range(len(lengths))]


def _split(copy: Transfer, loop: ir.For, lengths: list[int]) -> Transfer:
    """Count a loop by several."""
    name, dtype = loop.loop_var.name, ir.dtype_of(loop.loop_var)
    inner = [ir.Var(f"{name}_{i}", dtype) for i in range(len(lengths))]
    analyzer = sym.Analyzer()
    value: Any = tirx.IntImm(dtype, 0)
    for var, length in zip(inner, lengths, strict=True):
        analyzer.bind(var, tvm_ir.Range(0, length))
        value = value * length + var
    made = [
        ir.For(var, tirx.IntImm(dtype, 0), tirx.IntImm(dtype, length), ir.ForKind.SERIAL, loop.body)
        for var, length in zip(inner, lengths, strict=True)
    ]
    loops = tuple(y for x in copy.loops for y in (made if x.same_as(loop) else [x]))
    at = {loop.loop_var: value}

    def widened(cast: tirx.Cast, mutator: Any) -> Any:
        """Add digits up in the type of the index: a loop may count in a narrower one."""
        if not loop.loop_var.same_as(cast.value):
            return mutator.default_mutate(cast)
        digits = zip(inner, _steps(lengths), strict=True)
        return sum(
            (tirx.Cast(ir.dtype_of(cast), x) * step for x, step in digits),
            tirx.IntImm(ir.dtype_of(cast), 0),
        )

    def access(old: AffineAccess) -> AffineAccess:
        wide = [ir.mutate(x, [(tirx.Cast, widened)]) for x in old.indices]
        indices = tuple(ir.simplify(ir.substitute(x, at), analyzer) for x in wide)
        return AffineAccess(old.buffer, indices, loops)

    condition = copy.condition
    if condition is not None:
        step = prod(lengths[1:])
        terms = [_in_steps(x, loop.loop_var, inner[0], step) for x in ir.conjuncts(condition)]
        wide = ir.mutate(ir.conjunction(terms), [(tirx.Cast, widened)])
        condition = ir.substitute(wide, at)
    return replace(copy, src=access(copy.src), dst=access(copy.dst), condition=condition)


def _in_steps(term: Any, var: ir.Var, digit: ir.Var, step: int) -> Any:
    """Bound the first digit alone where a term bounds a whole number of its steps."""
    ordered = as_less_than(term) if ir.depends_on(term, [var]) else None
    if ordered is None:
        return term
    index, end = ordered
    start = ir.simplify(index - ir.cast_like(var, index))
    if ir.depends_on(start, [var]) or not (divides(step, start) and divides(step, end)):
        return term
    first = ir.simplify(tirx.floordiv(start, step)) + ir.cast_like(digit, start)
    return first < ir.cast_like(ir.simplify(tirx.floordiv(end, step)), first)


def row_boxes(
    copy: Transfer, extents: list[int], steps: list[int], blocks: int, most: int, apart_all: bool
) -> list[int]:
    """Cut the outermost dimension of the rows into boxes, each where a swizzle begins again.

    Where blocks of a cluster may share the load: into as many for each block, if that is possible.

    - `extents`: of the loops over rows; `steps`: of the tensor, from one row to the next.
    - `blocks`: of the cluster; `most`: rows of a box.
    - `apart_all`: whether another box lies after the last one of these rows.
    """
    if not extents:
        return []
    num_rows, *inside = extents
    longest, step = max(zip(inside, steps[1:], strict=False), key=prod, default=(1, 1))
    if longest * step > maps.MAX_BOX:
        raise cannot_lower(
            copy.where,
            f"a tile with {longest} in the middle of its dimensions"
            + (f", at each {step} of the tensor's" if step > 1 else ""),
            f"at most {maps.MAX_BOX} there, what a box holds"
            + (", what is stepped over included" if step > 1 else ""),
            "choose another tile",
        )
    step = steps[0] if steps else 1
    row_bytes = prod(inside) * int(copy.tile.buffer.shape[2]) * copy.tile.element_bytes
    apart = int(copy.tile.buffer.ty.data_alignment)
    longest = min(num_rows, maps.MAX_BOX // step, most)
    whole = [n for n in range(longest, 0, -1) if num_rows % n == 0]
    panels = int(copy.loops[0].extent)
    whole.sort(key=lambda n: panels * (num_rows // n) % blocks != 0)  # else each loads for itself
    for n in whole:
        if (n == num_rows and not apart_all) or n * row_bytes % apart == 0:
            return [n, *inside]
    raise cannot_lower(
        copy.where,
        f"a tile of {num_rows} rows, {row_bytes} bytes each"
        + (f", at each {step} of the tensor's" if step > 1 else ""),
        f"rows that fall into equal boxes of at most {maps.MAX_BOX // step}, each at a multiple "
        f"of {apart} bytes",
        f"choose a multiple of {apart // gcd(apart, row_bytes)} rows",
    )
