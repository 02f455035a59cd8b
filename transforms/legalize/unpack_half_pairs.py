"""Unpack and pack 16-bit elements in pairs, from the registers that hold two of them.

    y = cast(float32, X[3])
    X[0] = cast(bfloat16, f(X[0]));  X[1] = cast(bfloat16, f(X[1]))
  ->
    words = decl_buffer((n / 2,), "uint32", data=X.data)
    y = reinterpret(float32, upper_half(words[1]))
    a = f(X[0]);  b = f(X[1]);  X[0] = cast(bfloat16, a);  X[1] = cast(bfloat16, b)

A bfloat16 is the upper half of a float32. The compiler moves the upper one of two to the lower half
first and then shifts it back: two instructions, of which an SM issues 64 a cycle and not 128. Where
the first of a pair is stored before the second is read, it takes the pair apart and packs again.

Where the last thread block has elements left over, TVM writes a loop's condition in front of every
element, and two halves are no neighbours. So statements that fill registers go behind one first:

    if bx * 2 + tx // 512 < n: X[0] = f(X[0])
    if bx * 2 + tx // 512 < n: X[1] = f(X[1])
  ->
    if bx * 2 + tx // 512 < n:
        X[0] = f(X[0])
        X[1] = f(X[1])

Before: loops are unrolled, registers have numbers.  After: the same values.
Left alone: what no number says the half of, and vectors; conditions that read memory, or whose
statements do more than fill registers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import tvm_ffi
from tvm import sym, tirx

from tvm_hopper import ir
from tvm_hopper.codegen_patches import halves
from tvm_hopper.transforms.kernel_pass import function_pass, planned_step

WIDENED = "bfloat16"  # the type that is a half of float32
HALVES = ("bfloat16", "float16")
PURE = ("shift_left", "shift_right", "bitwise_and", "bitwise_or", "bitwise_xor", "likely")


def plan_joins(func: tirx.PrimFunc) -> dict[ir.SeqStmt, tuple[tuple[ir.Stmt, ...], ...]]:
    """Return the blocks of statements that have such neighbours, cut into runs of them."""
    found = {}
    for block in ir.find_all(func.body, ir.SeqStmt):
        runs: list[list[ir.Stmt]] = []
        for part in ir.statements(block):
            if runs and _is_next(runs[-1][-1], part):
                runs[-1].append(part)
            else:
                runs.append([part])
        if any(len(x) > 1 for x in runs):
            found[block] = tuple(tuple(x) for x in runs)
    return found


def _is_next(first: ir.Stmt, second: ir.Stmt) -> bool:
    if not (_fills_registers(first) and _fills_registers(second)):
        return False
    return bool(tvm_ffi.structural_equal(first.condition, second.condition))


def _fills_registers(part: ir.Stmt) -> bool:
    """Tell a condition, of variables alone, on nothing but names and stores to registers."""
    if not isinstance(part, ir.IfThenElse) or part.else_case is not None:
        return False
    calls = ir.find_all(part.condition, ir.Call)
    names = [str(getattr(x.op, "name", "")).removeprefix("tirx.") for x in calls]
    if ir.find_all(part.condition, ir.TensorLoad) or any(x not in PURE for x in names):
        return False
    return all(
        isinstance(x, tirx.Bind)
        or (isinstance(x, ir.BufferStore) and str(x.buffer.scope()) == "local")
        for x in ir.statements(part.then_case)
    )


def rewrite_joins(
    func: tirx.PrimFunc, plan: dict[ir.SeqStmt, tuple[tuple[ir.Stmt, ...], ...]]
) -> tirx.PrimFunc:
    """Put the statements of each run behind one condition."""

    def block(node: ir.SeqStmt, mutator: Any) -> Any:
        runs = plan.get(node)
        if runs is None:
            return mutator.default_mutate(node)
        parts = []
        for run in runs:
            inner = [mutator.mutate(x) for x in run]
            one = inner[0]
            if len(inner) > 1:
                one = ir.IfThenElse(one.condition, ir.seq(*(x.then_case for x in inner)), None)
            parts.append(one)
        return ir.seq(*parts)

    return func.with_body(ir.mutate(func.body, [(ir.SeqStmt, block)]))


@dataclass(frozen=True)
class HalvesPlan:
    """Registers of which upper halves are widened, and stores of two halves of one register."""

    names: dict[ir.Var, ir.Var]  # of a buffer: the one that was allocated
    arrays: tuple[ir.Var, ...]
    stores: tuple[tuple[ir.BufferStore, ir.BufferStore], ...]

    def __bool__(self) -> bool:
        return bool(self.arrays or self.stores)


def plan_pairs(func: tirx.PrimFunc) -> HalvesPlan:
    """Find what a function's threads widen and store by halves of registers."""
    names = names_of_pairs(func.body)
    known = numbers_in(func.body)
    casts = ir.find_all(func.body, tirx.Cast, lambda x: _upper(x, names, known) is not None)
    stores = []
    for block in ir.find_all(func.body, tirx.SeqStmt):
        parts = ir.statements(block)
        stores += [(a, b) for a, b in pairwise(parts) if _is_pair(a, b, names)]
    return HalvesPlan(names, tuple(ir.once([names[x.value.source] for x in casts])), tuple(stores))


def names_of_pairs(body: ir.Stmt) -> dict[ir.Var, ir.Var]:
    """Return whose registers each buffer of 16 bits names: TVM gives a dead array another name."""
    owners = [x.buffer for x in ir.find_all(body, tirx.AllocBuffer) if _is_paired(x.buffer)]
    names = {x: x for x in owners}
    for view in ir.find_all(body, tirx.DeclBuffer):
        owner = ir.pointer_of(view.data)
        if owner in names and ir.dtype_of(view.buffer) == ir.dtype_of(owner):
            names[view.buffer] = owner
    return names


def numbers_in(body: ir.Stmt) -> sym.Analyzer:
    """Return what is known of names of numbers: places in registers are counted by them."""
    known = sym.Analyzer()
    for one in ir.find_all(body, tirx.Bind, lambda x: str(x.var.ty) == "int32"):
        known.bind(one.var, one.value, allow_override=True)
    return known


def _is_paired(buffer: ir.Var) -> bool:
    if str(buffer.scope()) != "local" or ir.dtype_of(buffer) not in HALVES:
        return False
    size = ir.static_int(buffer.shape[0])
    return len(buffer.shape) == 1 and size is not None and size % 2 == 0


def _upper(cast: tirx.Cast, names: dict[ir.Var, ir.Var], known: sym.Analyzer) -> Any | None:
    """Return the register of which a cast widens the upper half, None if it does not."""
    load = cast.value
    if not isinstance(load, ir.TensorLoad) or ir.dtype_of(cast) != "float32":
        return None
    if ir.dtype_of(load) != WIDENED or load.source not in names:
        return None
    place = load.indices[0]
    parity = known.modular_set(place)
    is_upper = int(parity.coeff) % 2 == 0 and int(parity.base) % 2 == 1
    return ir.simplify((place - 1) // 2) if is_upper else None


def _is_pair(first: Any, second: Any, names: dict[ir.Var, ir.Var]) -> bool:
    """Tell two stores of rounded values to a register's halves, the second of what it holds."""
    if not (isinstance(first, ir.BufferStore) and isinstance(second, ir.BufferStore)):
        return False
    array = names.get(first.buffer)
    if array is None or not second.buffer.same_as(first.buffer):
        return False
    low, high = (ir.static_int(x.indices[0]) for x in (first, second))
    if low is None or low % 2 or high != low + 1:
        return False
    if not all(_is_rounded(x.value) for x in (first, second)):
        return False
    loads = ir.find_all(second.value, ir.TensorLoad, lambda x: str(x.source.scope()) == "local")
    if any(ir.dtype_of(x.source) == "uint32" for x in loads):  # of what the first one stores, maybe
        return False
    read = [x for x in loads if x.source in names and names[x.source].same_as(array)]
    return bool(read) and all(ir.static_int(x.indices[0]) == high for x in read)


def _is_rounded(value: Any) -> bool:
    return isinstance(value, tirx.Cast) and ir.dtype_of(value.value) == "float32"


def rewrite_pairs(func: tirx.PrimFunc, plan: HalvesPlan) -> tirx.PrimFunc:
    """Widen upper halves by a mask, and compute both halves before one is stored."""
    words = {x: words_of(x) for x in plan.arrays}
    known = numbers_in(func.body)

    def allocation(node: Any, mutator: Any) -> Any:
        node = mutator.default_mutate(node)
        if node.buffer not in words:
            return node
        return ir.seq(node, tirx.DeclBuffer(words[node.buffer], data=node.buffer.data))

    def cast(node: tirx.Cast, mutator: Any) -> Any:
        place = _upper(node, plan.names, known)
        if place is None:
            return mutator.default_mutate(node)
        word = tirx.BufferLoad(words[plan.names[node.value.source]], [place])
        return tirx.reinterpret("float32", halves.upper(word))

    def block(node: tirx.SeqStmt, mutator: Any) -> Any:
        parts: list[Any] = []
        rest = list(ir.statements(node))
        while rest:
            pair = next((x for x in plan.stores if rest[0].same_as(x[0])), None)
            if pair is None:
                parts.append(mutator.mutate(rest.pop(0)))
            else:
                parts += _store(pair, [mutator.mutate(x.value).value for x in pair])
                rest = rest[2:]
        return ir.seq(*parts)

    callbacks: list[tuple[type, Callable[[Any, Any], Any]]] = [
        (tirx.AllocBuffer, allocation),
        (tirx.Cast, cast),
        (tirx.SeqStmt, block),
    ]
    return func.with_body(ir.mutate(func.body, callbacks))


def _store(pair: tuple[ir.BufferStore, ir.BufferStore], values: list[Any]) -> list[ir.Stmt]:
    """Compute two values, then round and store them."""
    halves = [tirx.Bind(ir.Var(f"half_{n}", x.ty), x) for n, x in enumerate(values)]
    stored = [
        ir.BufferStore(x.buffer, tirx.Cast(ir.dtype_of(x.buffer), half.var), x.indices)
        for x, half in zip(pair, halves, strict=True)
    ]
    return [*halves, *stored]


def words_of(array: ir.Var) -> ir.Var:
    """Return a view of registers of 16-bit halves as words."""
    name = f"{array.name}_pairs"
    return ir.new_buffer(name, (int(array.shape[0]) // 2,), "uint32", "local")


merge_guards = planned_step(plan_joins, rewrite_joins)
unpack_pairs = planned_step(plan_pairs, rewrite_pairs)
UnpackHalfPairs = function_pass("UnpackHalfPairs", merge_guards, unpack_pairs)
