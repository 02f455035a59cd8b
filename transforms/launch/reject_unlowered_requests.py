"""Raise an error for each request that no pass has lowered.

    with sblock("C", annotations={"tvm_hopper.accumulate": "float32"}): ...   in no kernel
  ->
    LoweringError: block C, tvm_hopper.accumulate: found ...

    for i, j in grid(64, 64): S[i] = S[i] + X[i, j]                   in no kernel
  ->
    LoweringError: block S: found a load of X ...

Statements outside of every kernel run on the host, which cannot access device tensors; only the
encoding of a tensor map takes one's address there.

Before: every other pass at the hook has run.  After: no annotation of ours is left for stock passes
to drop, no tensor is touched outside of a kernel, and the loops around kernels are serial.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.analysis.host_code import place_of
from tvm_hopper.errors import cannot_lower
from tvm_hopper.requests.bodies import map_bodies
from tvm_hopper.requests.keys import KEYS
from tvm_hopper.transforms.kernel_pass import function_pass
from tvm_hopper.transforms.mechanisms.tma_emit import is_encode

KERNEL = "loops bound to blockIdx and threadIdx around it"
FIX = "schedule the block as a kernel, or inline it"


def check_leftovers(func: tirx.PrimFunc) -> None:
    """Raise for the first annotation of ours, use of a tensor, or loop that no pass acts on."""
    for block in ir.find_all(func.body, ir.SBlock):
        _check(f"block {block.name_hint}", block.annotations)
    for loop in ir.find_all(func.body, ir.For):
        _check(f"loop {loop.loop_var.name}", loop.annotations)
    _check_host_loops(func)
    host = map_bodies(func, lambda _: ir.seq())
    for node, what in _uses_of_tensors(host.body):
        raise cannot_lower(
            place_of(host.body, node), f"{what} outside of every kernel", KERNEL, FIX
        )


def _check_host_loops(func: tirx.PrimFunc) -> None:
    """Refuse kernels in host loops that stock passes would unroll, vectorize or run in threads."""
    kinds = {
        ir.ForKind.PARALLEL: "a parallel",
        ir.ForKind.UNROLLED: "an unrolled",
        ir.ForKind.VECTORIZED: "a vectorized",
    }
    for loop in ir.find_all(func.body, ir.For, lambda x: x.kind in kinds):
        if any(ir.uses_node(loop, kernel) for kernel in ir.kernels(func)):
            raise cannot_lower(
                f"loop {loop.loop_var.name}",
                f"{kinds[loop.kind]} loop around a kernel",
                "a serial loop, which launches the kernel several times, or one bound to blockIdx",
                "bind it to blockIdx.x or blockIdx.y",
            )


def _uses_of_tensors(host: ir.Stmt) -> list[tuple[Any, str]]:
    """Return what on the host would need a tensor's elements, or hands its address to a callee."""
    uses: list[tuple[Any, str]] = []
    host = ir.replace(host, ir.Evaluate, lambda x: ir.seq() if is_function_call(x.value) else x)
    for store in ir.find_all(host, ir.BufferStore):
        uses.append((store, f"a store into {store.buffer.name}"))
    bases = [x for call in ir.find_all(host, ir.Call, is_encode) for x in _base_elements(call)]
    for load in ir.find_all(host, ir.TensorLoad):
        if not any(load.same_as(x) for x in bases):
            uses.append((load, f"a load of {load.source.name}"))
    for call in ir.find_all(host, ir.Call, lambda x: not is_encode(x)):
        for arg in call.args:
            tensor = ir.pointer_of(arg)
            if tensor is None and isinstance(arg, ir.Var) and tirx.is_buffer_var(arg):
                tensor = None if call.op.name == "tirx.buffer_data" else arg
            if tensor is not None:
                uses.append((call, f"a call that takes {tensor.name}"))
    return uses


def is_function_call(value: Any) -> bool:
    """Tell calls of functions of the module, which take whole tensors as their callers do."""
    return isinstance(value, ir.Call) and str(value.op.name) == "tirx.tvm_call_cpacked"


def _base_elements(encode: ir.Call) -> list[Any]:
    """Return the elements whose address a tensor map starts from: nothing of them is read."""
    return ir.find_all(list(encode.args), ir.TensorLoad)


def _check(where: str, annotations: Any) -> None:
    for key in annotations:
        if str(key) in KEYS:
            raise cannot_lower(
                f"{where}, {key}",
                "an annotation outside of the kernel, or of the loop, that it is about",
                "it inside loops bound to blockIdx, with asynchronous copies in a pipelined loop",
                "bind the loops first, or remove the annotation",
            )


def _refuse_leftovers(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Check one function."""
    check_leftovers(func)
    return func


RejectUnloweredRequests = function_pass("RejectUnloweredRequests", _refuse_leftovers)
