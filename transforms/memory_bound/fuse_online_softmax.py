"""Online softmax: fuse a row's maximum and its sum of exponentials into one pass.

    greatest = -3.4e38
    for part in range(8):
        load X_local = X[row, part * 16384 ..]
        for c, v in unroll: greatest = max(greatest, X_local[c, v])
    M = reduced across threads: greatest
    total = 0
    for part in range(8):
        load X_local = X[row, part * 16384 ..]
        for c, v in unroll: total = total + exp(X_local[c, v] - M)
    S = reduced across threads: total
  ->
    greatest, total = -3.4e38, 0
    for part in range(8):
        load X_local = X[row, part * 16384 ..]
        before = greatest
        for c, v in unroll: greatest = max(greatest, X_local[c, v])
        total = total * exp(before - greatest)
        for c, v in unroll: total = total + exp(X_local[c, v] - greatest)
    M = reduced across threads: greatest
    total = total * exp(greatest - M)
    S = reduced across threads: total

Each thread sums relative to the greatest element that it has met. Where that changes, what it has
summed is multiplied once; so there is one more exponential for a part, not for an element. A row's
sum is NaN as before where it has NaN or +inf, and 0 where all is -inf: before and greatest are both
the least number then, of which the difference is 0.

Before: rows that no registers hold are loaded by each reduction, a part after another, and initial
values are before the loops.  After: no such pair of loops is left in kernels that are bound
by memory.
Not here: sums of other functions of a row and what was reduced of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import tvm_ffi
from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.requests.bodies import is_memory_bound
from tvm_hopper.transforms.common.explain_notes import RemarkNote
from tvm_hopper.transforms.kernel_pass import kernel_pass

from .row_reduction_loops import RowPass, find_row_pass

NOTE = RemarkNote(
    "online softmax: one pass over each row finds its maximum and sums its exponentials; "
    "each new maximum rescales the sum"
)


@dataclass(frozen=True)
class OnlineSum:
    """A pass that finds the greatest of a row, and the one after it, which sums exponentials."""

    most: RowPass
    sums: RowPass


def plan_online_sums(kernel: ir.For) -> tuple[OnlineSum, ...]:
    """Find sums of exponentials of what the pass before them finds the greatest of."""
    found = []
    for block in ir.find_all(kernel, ir.SBlock):
        passes = [find_row_pass(x) for x in ir.statements(block.body)]
        for one, other in pairwise(passes):
            if one is not None and other is not None and _belongs(one, other):
                found.append(OnlineSum(one, other))
    return tuple(found)


def _belongs(most: RowPass, sums: RowPass) -> bool:
    """Tell whether one pass sums the exponentials of what the other finds the greatest of."""
    if not ir.is_const(most.loop.extent - sums.loop.extent, 0):
        return False
    if len(most.part.alloc_buffers) != len(sums.part.alloc_buffers):
        return False
    *loads, last = ir.statements(most.part.body)
    *again, other = ir.statements(_of_first(most, sums))
    if len(loads) != len(again) or not all(map(_same, loads, again)):
        return False
    first, second = _nest(last), _nest(other)
    if len(first) != len(second) or not all(
        ir.is_const(x.extent - y.extent, 0) for x, y in zip(first, second, strict=True)
    ):
        return False
    loops = {y.loop_var: x.loop_var for x, y in zip(first, second, strict=True)}
    conditions = [ir.substitute(x, loops) for x in _conditions(other)]
    if not all(map(_same, _conditions(last), conditions)):
        return False
    element, argument = _compared(most), _summed(ir.substitute(_updates(other)[0], loops))
    return (
        element is not None
        and argument is not None
        and _is_result(argument.b, most.result)
        and _same(element, argument.a)
    )


def _of_first(most: RowPass, sums: RowPass) -> Any:
    """Return what the second pass does to a part, with the registers of the first."""
    registers = zip(sums.part.alloc_buffers, most.part.alloc_buffers, strict=True)
    return ir.substitute(
        sums.part.body, {sums.loop.loop_var: most.loop.loop_var, **dict(registers)}
    )


def _same(one: Any, other: Any) -> bool:
    return bool(tvm_ffi.structural_equal(one, other))


def _nest(stmt: Any) -> list[ir.For]:
    return ir.find_all(stmt, ir.For)


def _updates(stmt: Any) -> list[ir.BufferStore]:
    return ir.find_all(stmt, ir.BufferStore)


def _conditions(stmt: Any) -> list[Any]:
    return [x.predicate for x in ir.find_all(stmt, ir.SBlockRealize)]


def _compared(one: RowPass) -> Any:
    """Return the element that a pass finds the greatest of."""
    value = one.update.value
    if not isinstance(value, tirx.Max) or ir.dtype_of(value) != "float32":
        return None
    return value.b if _same(value.a, one.own) else None


def _summed(update: ir.BufferStore) -> Any:
    """Return the difference whose exponential is added."""
    value = update.value
    if not isinstance(value, tirx.Add) or not isinstance(value.b, ir.Call):
        return None
    own = tirx.BufferLoad(update.buffer, list(update.indices))
    argument = value.b.args[0] if value.b.op.name == "tirx.exp" else None
    return argument if isinstance(argument, tirx.Sub) and _same(value.a, own) else None


def _is_result(value: Any, result: ir.BufferStore) -> bool:
    return isinstance(value, ir.TensorLoad) and value.source.same_as(result.buffer)


def rewrite_online_sums(kernel: ir.For, plan: tuple[OnlineSum, ...]) -> Any:
    """Let the first pass do what the second does, and remove the second."""
    planned: dict[Any, Any] = {one.most.realize: _merged(one) for one in plan}
    planned |= {one.sums.realize: ir.Evaluate(0) for one in plan}
    return ir.drop_empty(ir.replace_nodes(kernel, ir.SBlockRealize, planned))


def _merged(one: OnlineSum) -> ir.SBlockRealize:
    most, sums = one.most, one.sums
    before = ir.new_buffer("before", (1,), "float32", "local")
    was = tirx.BufferLoad(before, [0])
    *loads, last = ir.statements(most.part.body)
    *_, add = ir.statements(_of_first(most, sums))
    add = _relative_to(add, most)
    body = ir.seq(
        *loads,
        ir.BufferStore(before, most.own, [0]),
        last,
        _times(sums, tirx.exp(was - most.own)),
        add,
    )
    part = ir.with_block(
        most.part, body=body, alloc_buffers=[*most.part.alloc_buffers, before], reads=[], writes=[]
    )
    loop = ir.with_body(most.loop, ir.SBlockRealize([], True, part))
    result = tirx.BufferLoad(most.result.buffer, list(most.result.indices))
    stmts = [*most.front, *sums.front, loop, *most.back]
    stmts += [_times(sums, tirx.exp(most.own - result)), *sums.back]
    block = most.realize.block
    buffers = [*block.alloc_buffers, *sums.realize.block.alloc_buffers]
    whole = ir.with_block(block, body=ir.seq(*stmts), alloc_buffers=buffers, reads=[], writes=[])
    return ir.SBlockRealize([], True, whole)


def _times(sums: RowPass, factor: Any) -> ir.SBlockRealize:
    """Multiply what a thread has summed."""
    store = ir.BufferStore(sums.update.buffer, sums.own * factor, list(sums.update.indices))
    return ir.opaque_block("rescale", store)


def _relative_to(add: Any, most: RowPass) -> Any:
    """Let exponentials be relative to the greatest element that the thread has met."""

    def load(node: ir.TensorLoad) -> Any:
        return most.own if _is_result(node, most.result) else node

    def plain(block: ir.SBlock) -> ir.SBlock:
        return ir.with_block(block, reads=[], writes=[])

    return ir.replace(ir.replace(add, ir.SBlock, plain), ir.TensorLoad, load)


FuseOnlineSoftmax = kernel_pass(
    "FuseOnlineSoftmax",
    plan_online_sums,
    rewrite_online_sums,
    when=is_memory_bound,
    notes=lambda _: [NOTE],
)
