"""Round two numbers, and clamp them at zero, by one instruction.

    X[0] = cast(bfloat16, max(a, 0))
    X[1] = cast(bfloat16, max(b, 0))
  ->
    words = decl_buffer((n / 2,), "uint32", data=X.data)
    low = a
    words[0] = relu_pair_bfloat16(low, b)                   cvt.rn.relu.bf16x2.f32

Behind a product tensor cores wait for it, and maxima are half as many a cycle as sums. What is no
number stays so, where `fmaxf` makes zero of it.

Before: loops are unrolled, registers have numbers.  After: the same values, fewer instructions.
Left alone: single elements, and pairs with anything but names in between.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.tirx.transform import prim_func_pass

from tvm_hopper import ir
from tvm_hopper.codegen_patches import halves

from .unpack_pairs import names_of_pairs, words_of


@dataclass(frozen=True)
class ClampedPair:
    """Two stores that become one.

    Attributes
    ----------
    first, second : BufferStore
        Of the lower and the upper half of a register.
    array : Var
        The registers that both name.
    values : tuple of Expr
        What is clamped and rounded.
    """

    first: ir.BufferStore
    second: ir.BufferStore
    array: ir.Var
    values: tuple[Any, Any]

    @property
    def place(self) -> int:
        """Which register it is."""
        return int(self.first.indices[0]) // 2


def plan_clamps(func: tirx.PrimFunc) -> tuple[ClampedPair, ...]:
    """Find what a function's threads clamp and round by halves of registers."""
    names = names_of_pairs(func.body)
    found: list[ClampedPair] = []
    for block in ir.find_all(func.body, tirx.SeqStmt):
        first: Any = None
        for part in ir.statements(block):
            if isinstance(part, tirx.Bind):
                first = None if first is None or _sees(part.value, first, names) else first
                continue
            place = _place(part, names)
            is_next = first is not None and place == int(first.indices[0]) + 1
            is_next = is_next and part.buffer.same_as(first.buffer)
            if is_next and not _sees(part.value, first, names):
                values = _clamped(first), _clamped(part)
                found.append(ClampedPair(first, part, names[part.buffer], values))
            first = part if place is not None and place % 2 == 0 else None
    return tuple(found)


def _place(part: Any, names: dict[ir.Var, ir.Var]) -> int | None:
    """Return which element a statement stores a clamped and rounded value to."""
    if not isinstance(part, ir.BufferStore) or part.buffer not in names or len(part.indices) != 1:
        return None
    return None if _clamped(part) is None else ir.static_int(part.indices[0])


def _clamped(store: ir.BufferStore) -> Any | None:
    """Return what a store clamps at zero and rounds."""
    value = store.value
    if not isinstance(value, tirx.Cast) or not isinstance(value.value, tirx.Max):
        return None
    if ir.dtype_of(value.value) != "float32":
        return None
    a, b = value.value.a, value.value.b
    return a if ir.is_zero(b) else b if ir.is_zero(a) else None


def _sees(value: Any, first: ir.BufferStore, names: dict[ir.Var, ir.Var]) -> bool:
    """Tell whether a value may be one of what a store leaves, also by the name of a view."""
    loads = ir.find_all(value, ir.TensorLoad, lambda x: str(x.source.scope()) == "local")
    read = [x.source for x in loads]
    return any(
        ir.dtype_of(x) == "uint32" or (x in names and names[x].same_as(names[first.buffer]))
        for x in read
    )


def rewrite_clamps(func: tirx.PrimFunc, plan: tuple[ClampedPair, ...]) -> tirx.PrimFunc:
    """Name the first value of each pair, and store both."""
    words = {x: words_of(x) for x in ir.once([pair.array for pair in plan])}
    changed: dict[Any, Any] = {}
    for pair in plan:
        low, high = pair.values
        name = ir.Var("low", "float32")
        both = halves.relu_pair(ir.dtype_of(pair.array), name, high)
        changed[pair.first] = tirx.Bind(name, low)
        changed[pair.second] = ir.BufferStore(words[pair.array], both, [pair.place])

    def allocation(node: Any, mutator: Any) -> Any:
        node = mutator.default_mutate(node)
        if node.buffer not in words:
            return node
        return ir.seq(node, tirx.DeclBuffer(words[node.buffer], data=node.buffer.data))

    def store(node: ir.BufferStore, mutator: Any) -> Any:
        return changed.get(node, node)

    callbacks: list[tuple[type, Callable[[Any, Any], Any]]] = [
        (tirx.AllocBuffer, allocation),
        (ir.BufferStore, store),
    ]
    return func.with_body(ir.mutate(func.body, callbacks))


@prim_func_pass(opt_level=0, name="tvm_hopper.ClampPairs")
class ClampPairs:
    """See the module's docstring for the rewrite."""

    def transform_function(self, func, mod, ctx):
        """Round and clamp pairs of one function."""
        if not (plan := plan_clamps(func)):
            return func
        after = rewrite_clamps(func, plan)
        assert not plan_clamps(after), "ClampPairs left a pair behind"
        return after
