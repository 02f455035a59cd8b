"""Load two adjacent elements of a shared tile as one vector. Part of LowerWgmma.

    acc[0] = acc[0] + float32(r[row, column]);  acc[1] = acc[1] + float32(r[row, column + 1])
  ->
    pair[0:2] = r[row, column : column + 2]
    acc[0] = acc[0] + float32(pair[0]);  acc[1] = acc[1] + float32(pair[1])

A thread holds two neighbours of every eight columns. A tile's rows may lie in several panels: that
both are in one follows from where the first of them is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm import ir as tvm_ir, sym, tirx

from tvm_hopper import ir


@dataclass(frozen=True)
class SharedPair:
    """Registers for two neighbours from `first` on, and the statement that loads them."""

    registers: ir.Var
    load: ir.Stmt
    first: Any = 0

    def in_value(self, value: Any, which: int) -> Any:
        """Return a value of one of the two with its element of the shared tile in a register."""

        def read(node: ir.TensorLoad, mutator: Any) -> Any:
            if ir.is_shared(node.source):
                return tirx.BufferLoad(self.registers, [which])
            return mutator.default_mutate(node)

        return ir.mutate(value, [(ir.TensorLoad, read)])


def load_pair(
    value: Any, at: Callable[[Any, Any], dict[Any, Any]], first: Any
) -> SharedPair | None:
    """Plan the load of what two values read of a shared tile; None if it is no aligned pair.

    - `value`: of an element, as the program has it.
    - `at`: returns what the program's variables are at a row and a column.
    - `first`: the value of the first of the two.
    """
    (loads, firsts) = (_shared(x) for x in (value, first))
    if len(loads) != 1:
        return None
    (load,), (place,) = loads, firsts
    start, other, e = (ir.Var(x, "int32") for x in ("start", "other", "e"))
    analyzer = sym.Analyzer()
    analyzer.bind(e, tvm_ir.Range(0, 2))
    values = at(other, start * 2 + e)
    *rows, column = (ir.simplify(ir.substitute(x, values), analyzer) for x in load.indices)
    step = ir.simplify(ir.substitute(column, {e: 1}) - ir.substitute(column, {e: 0}))
    known = sym.Analyzer().modular_set(ir.substitute(column, {e: 0}))
    is_even = int(known.coeff) % 2 == 0 and int(known.base) % 2 == 0
    if not ir.is_const(step, 1) or (rows and ir.depends_on(rows, [e])) or not is_even:
        return None
    registers = ir.new_buffer(f"{load.source.name}_pair", (2,), ir.dtype_of(load), "local")
    *rows, column = place.indices
    both = ir.BufferStore(registers, tirx.BufferLoad(load.source, [*rows, column + e]), [e])
    return SharedPair(registers, ir.For(e, 0, 2, ir.ForKind.VECTORIZED, both))


def _shared(value: Any) -> list[ir.TensorLoad]:
    """Return the different elements of shared tiles that a value reads."""
    loads = ir.find_all(value, ir.TensorLoad, lambda x: ir.is_shared(x.source))
    return list({tuple(map(str, (x.source, *x.indices))): x for x in loads}.values())
