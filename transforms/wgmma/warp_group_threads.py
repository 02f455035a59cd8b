"""Map the threads of a kernel to warp groups, as LowerWgmma needs them.

for w in thread_binding(2, "threadIdx.y"):
... w ...
->
for t in thread_binding(256, "threadIdx.x"):
... t // 128 ...
"""

from __future__ import annotations

from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.facts.programming_model import WARP_GROUP_THREADS


def bind_warp_groups(body: ir.Stmt, warp_groups: int, thread: ir.Var) -> ir.Stmt:
    """Bind threadIdx.x to all threads of the warp groups, in place of threadIdx.y."""
    axes = ir.thread_axes(body)
    extent = warp_groups * WARP_GROUP_THREADS

    def bind(inner: ir.Stmt) -> ir.For:
        name = ir.Var(thread.name, "int32")  # TVM's form: an axis has a separate variable
        axis = tirx.IterVar(None, name, tirx.IterVar.ThreadIndex, "threadIdx.x")
        return ir.For(thread, 0, extent, ir.ForKind.THREAD_BINDING, inner, thread_binding=axis)

    if "threadIdx.y" in axes:
        old = axes["threadIdx.y"]
        group = thread // WARP_GROUP_THREADS
        new = bind(ir.substitute(old.body, {old.loop_var: group}))
        return ir.replace_nodes(body, ir.For, {old: new})
    innermost = next(loop for loop in axes.values() if len(ir.thread_axes(loop)) == 1)
    return ir.replace_nodes(
        body, ir.For, {innermost: ir.with_body(innermost, bind(innermost.body))}
    )
