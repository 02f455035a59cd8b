"""The box that a store fills, however its loops and threads are arranged.

    for i in range(4):
        for v in vectorized(8): tile[f // 64, f % 64] = A[m + f // 64, k + f % 64]
                                                    f = (i * 32 + threadIdx.x) * 8 + v
  ->
    for a, b in grid(16, 64): tile[a, b] = A[m + a, k + b]

Each element is stored once, which TVM's iteration maps prove; their inverse says which iteration
stores it, and with that the other indices become those of the element.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import sym

from tvm_hopper import ir


@dataclass(frozen=True)
class Box:
    """Loops over the elements of a buffer that a nest stores.

    - `loop_vars`: one for each dimension of the buffer, from 0.
    - `extents`: of the loops; 1 where the nest stays at one place.
    - `base`: where the box begins, an index for each dimension.
    """

    loop_vars: tuple[ir.Var, ...]
    extents: tuple[int, ...]
    base: tuple[Any, ...]
    iterations: dict[ir.Var, Any]

    def analyzer(self) -> Any:
        """Return an analyzer that knows the loops' ranges."""
        analyzer = sym.Analyzer()
        for var, extent in zip(self.loop_vars, self.extents, strict=True):
            analyzer.bind(var, tvm.ir.Range(0, extent))
        return analyzer

    def at_element(self, expr: Any) -> Any:
        """Rewrite an expression of the nest's variables as one of the element's."""
        analyzer = self.analyzer()
        domain = {
            var: tvm.ir.Range(0, extent)
            for var, extent in zip(self.loop_vars, self.extents, strict=True)
        }
        inverted = ir.substitute(expr, self.iterations)
        if not ir.dtype_of(inverted).startswith("int"):
            return analyzer.simplify(inverted)
        with contextlib.suppress(tvm.error.InternalError, ValueError):  # else: as it is
            (inverted,) = sym.iter_map_simplify([inverted], domain, True, "surjective", False)
        return analyzer.simplify(inverted)


def find_box(
    indices: Sequence[Any], loops: Sequence[ir.For], names: Sequence[str], predicate: Any = True
) -> Box | None:
    """Return the box that iterations of some loops fill, each element once; None if not proven.

    - `indices` (sequence of expression): of the store, one for each dimension.
    - `loops`: loops and thread axes of the nest, from 0; any other variable is a constant.
    - `names`: for the variables of the box, one for each dimension.
    - `predicate` (expression): under which an iteration stores.
    """
    extents = [ir.static_int(loop.extent) for loop in loops]
    if None in extents or not all(ir.is_const(loop.min, 0) for loop in loops):
        return None
    domain = {x.loop_var: tvm.ir.Range(0, n) for x, n in zip(loops, extents, strict=True) if n != 1}
    still = {x.loop_var: 0 for x in loops if x.loop_var not in domain}
    base, relative = _split(indices, domain, still)
    condition = ir.substitute(predicate, still)
    tried = (True, _of_nest(condition, loops), condition)
    pattern = next(
        (x for some in tried if (x := _detect(relative, domain, some)) is not None), None
    )
    if pattern is None:
        return None
    loop_vars = tuple(ir.Var(name, "int32") for name in names)
    sizes, sums, outputs = [], [], []
    for index, total, var in zip(relative, pattern, loop_vars, strict=True):
        size = 1 if ir.is_const(index, 0) else _size_of(total)
        if size is None:
            return None
        sizes.append(size)
        if not ir.is_const(index, 0):
            sums.append(total)
            outputs.append(var)
    inverse = sym.inverse_affine_iter_map(sums, outputs) if sums else {}
    iterations = {var: ir.cast_like(value, var) for var, value in inverse.items()}
    if len(iterations) != len(domain):
        return None
    return Box(loop_vars, tuple(sizes), base, {**iterations, **still})


def _split(
    indices: Sequence[Any], domain: dict[Any, Any], still: dict[Any, int]
) -> tuple[tuple[Any, ...], list[Any]]:
    """Return where a nest begins in each dimension, and how far from there an iteration is."""
    indices = [ir.simplify(ir.substitute(index, still)) for index in indices]
    zero = dict.fromkeys(domain, 0)
    base = tuple(ir.simplify(ir.substitute(index, zero)) for index in indices)
    analyzer = sym.Analyzer()
    for var, extent in domain.items():
        analyzer.bind(var, extent)
    relative = [
        analyzer.simplify(index - start) for index, start in zip(indices, base, strict=True)
    ]
    return base, relative


def _size_of(total: Any) -> int | None:
    """Return how many values an index takes that counts one by one; None if it does not."""
    parts = list(total.args)
    if len(parts) != 1 or not ir.is_const(parts[0].scale, 1):
        return None
    return int(parts[0].extent)


def _of_nest(condition: Any, loops: Sequence[ir.For]) -> Any:
    """Return the terms of a condition that are about the nest's loops and nothing else.

    A tensor's end cuts tiles by where they lie, on which the box does not depend.
    """
    variables = [x.loop_var for x in loops]

    def is_of_nest(term: Any) -> bool:
        return not ir.has_any(term, ir.Var, lambda x: not any(x.same_as(y) for y in variables))

    return ir.conjunction(filter(is_of_nest, ir.conjuncts(condition)))


def _detect(indices: list[Any], domain: dict[ir.Var, Any], condition: Any) -> Any:
    """Return an iteration map that takes each element once, None without one."""
    moving = [index for index in indices if not ir.is_const(index, 0)]
    try:
        iter_map = sym.detect_iter_map(moving, domain, condition, "bijective")
    except (tvm.error.InternalError, ValueError):  # some maps make it divide by 0 or overflow
        return None
    if len(iter_map.indices) != len(moving):
        return None
    sums = iter(iter_map.indices)
    return [None if ir.is_const(index, 0) else next(sums) for index in indices]
