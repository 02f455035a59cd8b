"""Reduce a row's mean and squared deviations across threads together.

    own_S = sum of x                                           a thread's elements, in registers
    S = reduced across threads: own_S
    mean = S / 8192
    own_V = sum of (x - mean) * (x - mean)
    V = reduced across threads: own_V
  ->
    own_S = sum of x
    moments[0] = own_S / 16                                    the mean of a thread's 16 elements
    own_V = sum of (x - moments[0]) * (x - moments[0])
    moments[1] = own_V / 16
    (m, u) = reduced across threads: moments, by
        m = (m1 + m2) / 2
        u = (u1 + u2) / 2 + ((m1 - m2) / 2) ** 2
    S, V = m * 8192, u * 8192
    mean = S / 8192

The mean and the variance of two groups of as many elements are those of both together: nothing is
added up that cancels out. A cluster sends each row's values once then, and waits once.

Before: each thread has its elements in registers, and reductions across threads are calls.
After: no such pair is left in kernels that are bound by memory.
Not here: threads of one thread block, which a barrier keeps for less time than the rule takes; rows
that threads have unequal parts of, or whose warps are no power of two.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.requests.bodies import is_memory_bound
from tvm_hopper.transforms.common.explain_notes import RemarkNote
from tvm_hopper.transforms.kernel_pass import kernel_step

from .fuse_mean_and_variance_plan import Moments, plan_moments, same

ALLREDUCE = "tirx.tvm_thread_allreduce"
NOTE = RemarkNote(
    "mean and variance are reduced together across the thread blocks of each row, in one exchange"
)
_FLOAT = "float32"


def rewrite_moments(kernel: ir.For, plan: tuple[Moments, ...]) -> Any:
    """Let the first sum of each pair do what both do, and remove the second."""
    planned: dict[Any, Any] = {one.sum.realize: _merged(one) for one in plan}
    planned |= {one.squares.realize: ir.Evaluate(0) for one in plan}
    return ir.drop_empty(ir.replace_nodes(kernel, ir.SBlockRealize, planned))


def _merged(one: Moments) -> ir.SBlockRealize:
    moments = ir.new_buffer("moments", (2,), _FLOAT, "local")
    total = ir.new_buffer("moments_of_row", (2,), _FLOAT, "local")
    own = [tirx.BufferLoad(moments, [i]) for i in range(2)]
    both = [tirx.BufferLoad(total, [i]) for i in range(2)]

    def to_own(node: Any) -> Any:  # a load of the mean, or the quotient where nothing keeps it
        return own[0] if same(node, one.mean) else node

    def plain(block: ir.SBlock) -> ir.SBlock:
        return ir.with_block(block, reads=[], writes=[])

    squares = ir.replace(ir.replace(one.squares.nest, ir.SBlock, plain), type(one.mean), to_own)
    threads = list(one.sum.call.args[4:])
    condition = one.sum.call.args[2]
    call = tirx.call_intrin(
        "handle", ALLREDUCE, tirx.IntImm("uint32", 2), *own, condition, *both, *threads
    )
    across = tirx.AttrStmt(_rule(), "reduce_scope", tirx.IntImm("int32", 0), ir.Evaluate(call))
    stmts = [
        *one.sum.front,
        one.sum.nest,
        _keep(moments, 0, one.sum.update, one.of_thread),
        *one.squares.front,
        squares,
        _keep(moments, 1, one.squares.update, one.of_thread),
        ir.opaque_block("moments_across", across),
    ]
    for part, value in zip((one.sum, one.squares), both, strict=True):
        result = part.result
        scaled = value * tirx.const(one.of_row, _FLOAT)
        store = ir.BufferStore(result.buffer, scaled, list(result.indices))
        stmts.append(ir.opaque_block("write_back", store))
    buffers = [*one.sum.realize.block.alloc_buffers, *one.squares.realize.block.alloc_buffers]
    block = ir.with_block(
        one.sum.realize.block,
        body=ir.seq(*stmts),
        alloc_buffers=[*buffers, moments, total],
        reads=[],
        writes=[],
    )
    return ir.SBlockRealize([], True, block)


def _keep(moments: ir.Var, number: int, update: ir.BufferStore, count: int) -> ir.SBlockRealize:
    value = tirx.BufferLoad(update.buffer, list(update.indices)) * tirx.const(1 / count, _FLOAT)
    return ir.opaque_block("moment", ir.BufferStore(moments, value, [number]))


def _rule() -> Any:
    """Return how means and variances of two groups of as many elements are combined."""
    (mean, spread), (other_mean, other_spread) = (
        [ir.Var(f"{x}{i}", _FLOAT) for x in "mu"] for i in range(2)
    )
    half = tirx.const(0.5, _FLOAT)
    apart = (mean - other_mean) * half
    result = [(mean + other_mean) * half, (spread + other_spread) * half + apart * apart]
    zero = tirx.const(0.0, _FLOAT)
    return tirx.CommReducer([mean, spread], [other_mean, other_spread], result, [zero, zero])


fuse_mean_and_variance = kernel_step(
    plan_moments,
    rewrite_moments,
    when=is_memory_bound,
    notes=lambda _: [NOTE],
)
