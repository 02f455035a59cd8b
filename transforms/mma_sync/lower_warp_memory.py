"""Give each lane of a warp its own registers for its part of a buffer of scope "warp".

    attr threadIdx.x = t, 160:
        fragment = alloc((512,), "float16", "warp")
        ... fragment[i * 256 + t % 32 * 8] ... t // 32 ...
  ->
    attr threadIdx.y = w, 5:
        attr threadIdx.x = lane, 32:
            fragment = alloc((512,), "float16", "warp")
            ... fragment[i * 256 + (w * 32 + lane) % 32 * 8] ... (w * 32 + lane) // 32 ...

TVM takes all of threadIdx.x for the warp of such a buffer. The hardware numbers the threads of a
block along x first, so that no thread changes its number. Then each lane has its own part:

    ldmatrix(..., &fragment, i * 256 + lane * 8, ...)
    C[...] = fragment[i * 256 + lane * 8 + x]
  ->
    fragment = alloc((16,), "float16", "local")
    ldmatrix(..., &fragment, i * 8, ...)
    C[...] = fragment[i * 8 + x]

Such a buffer is rows of 32 x n elements, n for each lane. TVM's own pass does not know the calls
that fill a fragment and leaves the whole of it to each lane, in local memory
(apache-tvm 0.27.0.post1).

Before: our kernels run on threadIdx.x alone (FuseThreadAxes), buffers are flat.  After: where every
lane touches its own elements alone, no buffer is left in scope "warp". Not here: elements of other
lanes, for which TVM's pass emits shuffles; the simpler indices (TVM's StmtSimplify).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm import ir as tvm_ir, sym, tirx

from tvm_hopper import ir
from tvm_hopper.analysis.effects import POINTERS
from tvm_hopper.facts.programming_model import THREADS_PER_WARP
from tvm_hopper.transforms.kernel_pass import function_pass, planned_step


def plan_warps(func: tirx.PrimFunc) -> tuple[Any, ...]:
    """Return the thread axes of our kernels that hold buffers of a warp and are longer than one."""
    return tuple(
        axis
        for kernel in filter(ir.is_ours, ir.outermost_thread_extents(func.body))
        for axis in ir.find_all(kernel, tirx.AttrStmt, _is_thread_axis)
        if _num_warps(axis) > 1
        and ir.find_all(axis, tirx.AllocBuffer, lambda x: x.buffer.scope() == "warp")
    )


def _num_warps(axis: Any) -> int:
    """Return how many whole warps an axis has, 0 where it is no number of them."""
    threads = ir.static_int(axis.value)
    return 0 if threads is None or threads % THREADS_PER_WARP else threads // THREADS_PER_WARP


def _is_thread_axis(attr: tirx.AttrStmt) -> bool:
    return attr.attr_key == "thread_extent" and str(attr.node.thread_tag) == "threadIdx.x"


def rewrite_warps(func: tirx.PrimFunc, plan: tuple[Any, ...]) -> tirx.PrimFunc:
    """Replace each axis by two."""
    return func.with_body(
        ir.replace_nodes(func.body, tirx.AttrStmt, {axis: _split(axis) for axis in plan})
    )


def _split(axis: Any) -> ir.Stmt:
    thread = axis.node.var
    dtype = ir.dtype_of(thread)
    lane = _axis("x", dtype, THREADS_PER_WARP)
    warp = _axis("y", dtype, _num_warps(axis))
    body = ir.substitute(axis.body, {thread: warp.var * THREADS_PER_WARP + lane.var})
    for one in (lane, warp):
        body = tirx.AttrStmt(one, "thread_extent", one.dom.extent, body)
    return body


def _axis(name: str, dtype: str, extent: int) -> tirx.IterVar:
    zero, extent = tirx.IntImm(dtype, 0), tirx.IntImm(dtype, extent)
    dom = tvm_ir.Range.from_min_extent(zero, extent)
    var = ir.Var(f"threadIdx_{name}", dtype)
    return tirx.IterVar(dom, var, tirx.IterVar.ThreadIndex, f"threadIdx.{name}")


@dataclass(frozen=True)
class LanePlan:
    """A buffer of a warp, and how many elements of a row a lane has."""

    allocation: Any
    num_own: int
    analyzer: Any  # knows the ranges of lanes and loops

    @property
    def buffer(self) -> ir.Var:
        """The buffer."""
        return self.allocation.buffer

    def own(self, index: Any) -> Any:
        """Return where an element of the buffer lies in its lane's registers."""
        row = index // (THREADS_PER_WARP * self.num_own)
        return self.analyzer.simplify(row * self.num_own + index % self.num_own)


def plan_lanes(func: tirx.PrimFunc) -> tuple[LanePlan, ...]:
    """Return the buffers of warps, in our kernels, of which lanes touch their own part alone."""
    plans = []
    for kernel in filter(ir.is_ours, ir.outermost_thread_extents(func.body)):
        allocations = ir.find_all(kernel, tirx.AllocBuffer, lambda x: x.buffer.scope() == "warp")
        if not allocations:
            continue
        analyzer, lane = _ranges(kernel)
        for allocation in allocations:
            plan = None if lane is None else _plan_buffer(kernel, allocation, analyzer, lane)
            if plan is not None:
                plans.append(plan)
    return tuple(plans)


def _ranges(kernel: Any) -> tuple[Any, ir.Var | None]:
    """Return what is known about variables, and the variable of the lanes."""
    analyzer, lane = sym.Analyzer(), None
    for axis in ir.find_all(kernel, tirx.AttrStmt, lambda x: x.attr_key == "thread_extent"):
        analyzer.bind(axis.node.var, tvm_ir.Range.from_min_extent(0, axis.value))
        if str(axis.node.thread_tag) == "threadIdx.x" and ir.is_const(axis.value, THREADS_PER_WARP):
            lane = axis.node.var
    for loop in ir.find_all(kernel, ir.For):
        analyzer.bind(loop.loop_var, ir.range_of(loop))
    return analyzer, lane


def _plan_buffer(kernel: Any, allocation: Any, analyzer: Any, lane: ir.Var) -> LanePlan | None:
    buffer = allocation.buffer
    accesses = _find_indices(kernel, buffer)
    if accesses is None or len(buffer.shape) != 1:
        return None
    steps = {_step(index, lane, analyzer) for index, adds_lane in accesses if not adds_lane}
    num_own = steps.pop() if len(steps) == 1 else None
    size = ir.static_int(buffer.shape[0])
    if num_own is None or size is None or size % (THREADS_PER_WARP * num_own):
        return None
    for index, adds_lane in accesses:
        at = index // num_own % THREADS_PER_WARP
        zero = tirx.IntImm(ir.dtype_of(lane), 0)
        if not analyzer.can_prove(tirx.EQ(at, zero if adds_lane else lane)):
            return None
    return LanePlan(allocation, num_own, analyzer)


def _step(index: Any, lane: ir.Var, analyzer: Any) -> int | None:
    """Return by how many elements an index differs from lane to lane."""
    first, second = (ir.substitute(index, {lane: n}) for n in (0, 1))
    return ir.static_int(analyzer.simplify(second - first))


def _find_indices(kernel: Any, buffer: ir.Var) -> list[tuple[Any, bool]] | None:
    """Return the indices at which a buffer is touched, and whether the call adds the lane.

    None if something is handed its address of which nothing knows what it does.
    """
    loads = ir.find_all(kernel, ir.TensorLoad, lambda x: x.source.same_as(buffer))
    stores = ir.find_all(kernel, ir.BufferStore, lambda x: x.buffer.same_as(buffer))
    found = [(x.indices[0], False) for x in (*loads, *stores)]
    num_pointers = 0
    for call in ir.find_all(kernel, ir.Call):
        for position, pointer in POINTERS.get(getattr(call.op, "name", ""), {}).items():
            if pointer.offset is not None and buffer.same_as(ir.pointer_of(call.args[position])):
                found.append((call.args[pointer.offset], pointer.adds_lane))
                num_pointers += 1
    pointers = ir.find_all(kernel, ir.Call, lambda x: buffer.same_as(ir.pointer_of(x)))
    addresses = ir.find_all(kernel, ir.Call, lambda x: x.op.name == "tirx.address_of")
    if len(pointers) != num_pointers or any(ir.uses(x, buffer) for x in addresses):
        return None
    return found


def rewrite_lanes(func: tirx.PrimFunc, plans: tuple[LanePlan, ...]) -> tirx.PrimFunc:
    """Replace the buffers and every access."""
    planned = {plan.buffer: plan for plan in plans}
    registers = {plan.buffer: _registers(plan) for plan in plans}

    def allocation(node: Any, mutator: Any) -> Any:
        if node.buffer not in planned:
            return mutator.default_mutate(node)
        return tirx.AllocBuffer(registers[node.buffer])

    def load(node: ir.TensorLoad, mutator: Any) -> Any:
        node = mutator.default_mutate(node)
        if (plan := planned.get(node.source)) is None:
            return node
        return tirx.BufferLoad(registers[node.source], [plan.own(node.indices[0])])

    def store(node: ir.BufferStore, mutator: Any) -> Any:
        node = mutator.default_mutate(node)
        if (plan := planned.get(node.buffer)) is None:
            return node
        return ir.BufferStore(registers[node.buffer], node.value, [plan.own(node.indices[0])])

    def call(node: ir.Call, mutator: Any) -> Any:
        args = {}
        for position, pointer in POINTERS.get(getattr(node.op, "name", ""), {}).items():
            if pointer.offset is None:
                continue
            if (buffer := ir.pointer_of(node.args[position])) in planned:
                args[position] = registers[buffer].data
                args[pointer.offset] = planned[buffer].own(node.args[pointer.offset])
        if not args:
            return mutator.default_mutate(node)
        new = [args[n] if n in args else mutator.mutate(x) for n, x in enumerate(node.args)]
        return ir.Call(node.op, new, ret_ty=node.ty)

    callbacks: list[tuple[type, Callable[[Any, Any], Any]]] = [
        (tirx.AllocBuffer, allocation),
        (ir.TensorLoad, load),
        (ir.BufferStore, store),
        (ir.Call, call),
    ]
    return func.with_body(ir.mutate(func.body, callbacks))


def _registers(plan: LanePlan) -> ir.Var:
    buffer = plan.buffer
    count = int(buffer.shape[0]) // THREADS_PER_WARP
    return ir.new_buffer(buffer.name, (count,), ir.dtype_of(buffer), "local")


split_warps = planned_step(plan_warps, rewrite_warps)
own_parts = planned_step(plan_lanes, rewrite_lanes)
LowerWarpMemory = function_pass("LowerWarpMemory", split_warps, own_parts)
