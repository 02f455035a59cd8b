"""Store a fragment of `mma.sync` two elements at a time.

    mma_store_legacy(16, 16, &C[ax0 * 2048 + ax1 * 16], fragment, ax0 * 512 + ax1 * 256, 128)
  ->
    pair = alloc((2,), "local")
    pair[0] = fragment[ax0, ax1, t % 32, 0]
    pair[1] = fragment[ax0, ax1, t % 32, 1]
    for e in vectorized(2): C[ax0 * 16 + t % 32 // 4, ax1 * 16 + t % 4 * 2 + e] = pair[e]
    ...                                                                    three more

A lane has two elements of C side by side. TVM prints the call as a loop over elements. The CUDA
compiler does not know the alignment, so it does not join them: half of the time of a product of 128
x 128 x 192 went into its stores of 4 bytes (8.4 instead of 5.5 us, H200).

Before: each call is where it stays, nobody requests its pointers any more.  After: no call is left
whose pairs begin at even elements of a tensor with known rows.
Not here: the check that the tensor is aligned (AssertAlignment).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tvm import sym, tirx

from tvm_hopper import ir
from tvm_hopper.facts.programming_model import THREADS_PER_WARP
from tvm_hopper.transforms.kernel_pass import kernel_pass

STORE = "tirx.mma_store_legacy"
SIDE = 16  # rows and columns that the call stores
PAIRS = SIDE * SIDE // THREADS_PER_WARP // 2  # of a lane


@dataclass(frozen=True)
class PairStorePlan:
    """A call, and of each pair of a lane its first element in the tensor and in the fragment."""

    call: ir.Call
    tensor: ir.Var
    fragment: ir.Var
    places: tuple[tuple[list[Any], list[Any]], ...]


def plan_stores(kernel: ir.For) -> tuple[PairStorePlan, ...]:
    """Return the calls of a kernel that can store pairs."""
    thread = ir.threads_of(kernel).var
    calls = ir.find_all(kernel, ir.Call, lambda x: getattr(x.op, "name", "") == STORE)
    if thread is None or not calls:
        return ()
    analyzer = sym.Analyzer()
    for loop in ir.find_all(kernel, ir.For):
        analyzer.bind(loop.loop_var, ir.range_of(loop))
    found = [_plan_call(call, thread % THREADS_PER_WARP, analyzer) for call in calls]
    return tuple(plan for plan in found if plan is not None)


def _plan_call(call: ir.Call, lane: Any, analyzer: sym.Analyzer) -> PairStorePlan | None:
    rows, columns, pointer, data, offset, stride = call.args
    if not (ir.is_const(rows, SIDE) and ir.is_const(columns, SIDE)):
        return None
    fragment, tensor = ir.pointer_of(data), None
    if getattr(pointer.op, "name", "") == ir.ACCESS_PTR:
        tensor = ir.pointer_of(pointer.args[1])
    if tensor is None or fragment is None or not (_is_plain(tensor) and _is_plain(fragment)):
        return None
    if str(tensor.scope()) not in ("", "global") or ir.dtype_of(tensor) != ir.dtype_of(fragment):
        return None
    places = []
    for n in range(PAIRS):
        row, column = lane // 4 + n % 2 * 8, n // 2 * 8 + lane % 4 * 2
        at = pointer.args[2] + row * stride + column
        own = offset + lane * (2 * PAIRS) + 2 * n
        if not analyzer.can_prove(at % 2 == ir.cast_like(0, at)):
            return None
        places.append((_indices(at, tensor, analyzer), _indices(own, fragment, analyzer)))
    return PairStorePlan(call, tensor, fragment, tuple(places))


def _is_plain(buffer: ir.Var) -> bool:
    """Tell a compact array whose rows have a known, even length."""
    known = [ir.static_int(x) for x in buffer.shape[1:]]
    compact = not buffer.ty.strides and ir.is_const(buffer.ty.elem_offset, 0)
    return compact and None not in known and all(not x % 2 for x in known[-1:] if x is not None)


def _indices(flat: Any, buffer: ir.Var, analyzer: sym.Analyzer) -> list[Any]:
    """Return the element of an array that lies so far after its start."""
    sizes = [int(x) for x in buffer.shape[1:]]
    found = []
    for dim in range(len(buffer.shape)):
        index = flat // math.prod(sizes[dim:])
        found.append(analyzer.simplify(index % sizes[dim - 1] if dim else index))
    return found


def rewrite_stores(kernel: ir.For, plans: tuple[PairStorePlan, ...]) -> ir.For:
    """Write out the pairs of each call."""
    planned = {plan.call: plan for plan in plans}

    def evaluate(node: ir.Evaluate, mutator: Any) -> ir.Stmt:
        plan = planned.get(node.value)
        return mutator.default_mutate(node) if plan is None else _store_pairs(plan)

    return ir.mutate(kernel, [(ir.Evaluate, evaluate)])


def _store_pairs(plan: PairStorePlan) -> ir.Stmt:
    pair = ir.new_buffer("pair", (2,), ir.dtype_of(plan.tensor), "local")
    parts: list[Any] = []
    for at, own in plan.places:
        for e in range(2):
            value = tirx.BufferLoad(plan.fragment, [*own[:-1], own[-1] + e])
            parts.append(ir.BufferStore(pair, value, [tirx.IntImm("int32", e)]))

        def store(e: Any, at: list[Any] = at) -> ir.Stmt:
            value = tirx.BufferLoad(pair, [e])
            return ir.BufferStore(plan.tensor, value, [*at[:-1], at[-1] + ir.cast_like(e, at[-1])])

        parts.append(ir.make_loop("e", 2, store, kind=ir.ForKind.VECTORIZED))
    return ir.opaque_block(
        "pairs",
        ir.seq(parts),
        reads=[ir.full_region(plan.fragment)],
        writes=[ir.full_region(plan.tensor)],
        alloc_buffers=[pair],
    )


PairFragmentStores = kernel_pass("PairFragmentStores", plan_stores, rewrite_stores)
