"""Build an imported graph, and call it: memory from PyTorch, on PyTorch's stream.

    y = R.builtin.alloc_tensor(R.shape([2, s0]), "float16", ...)      a result
  ->
    y = R.call_packed("tvm_hopper.torch.empty", R.shape([2, s0]), "float16", 0)

Results are PyTorch's memory. So is everything else in a CUDA graph; otherwise the planned memory of
intermediate tensors is TVM's, which knows no streams: a call on another stream waits for the last.
"""

from __future__ import annotations

import threading
from typing import Any

import torch
import tvm
import tvm_ffi
from tvm import relax
from tvm.relax.backend.cpu_generic import pipeline as cpu
from tvm.relax.backend.cuda import pipeline as cuda
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.target import Target

from tvm_hopper.relax.lowering import dispatch_passes, legalize_passes
from tvm_hopper.relax.mutator_passes import rewrite_functions
from tvm_hopper.relax.options import ModelOptions
from tvm_hopper.requests.targets import is_ours

from .graph_import import NUMBER_FUNCTIONS, ImportedGraph

EMPTY = "tvm_hopper.torch.empty"
PLAN, LOWER = "StaticPlanBlockMemory", "LowerAllocTensor"
ALIGNMENT = 16  # bytes: vectors of loads, and tensor maps
_CALLS = threading.local()  # the call of this thread, which allocates


def build_graph(imported: ImportedGraph, target: Any, options: ModelOptions, planned: bool) -> Any:
    """Return the executable of a graph.

    - `planned`: intermediate tensors share memory by a plan; else PyTorch allocates each.
    """

    @tvm.transform.module_pass(opt_level=0, name="tvm_hopper.TorchGraph")
    def run(mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        here = Target.current()
        ours, stock = is_ours(here), cuda if here.kind.name == "cuda" else cpu
        passes = [
            *(dispatch_passes(here) if ours else stock.library_dispatch_passes(here)),
            *(legalize_passes(options) if ours else stock.legalize_passes(here)),
            *stock.dataflow_lower_passes(here),
        ]
        for one in stock.finalize_passes(here):
            if one.info.name == LOWER:
                passes.append(AllocateByTorch())
            if planned or one.info.name != PLAN:
                passes.append(one)
        return tvm.transform.Sequential(passes)(mod)

    return relax.build(imported.mod, target=target, relax_pipeline=run)


@tvm.transform.module_pass(opt_level=0, name="tvm_hopper.AllocateByTorch")
class AllocateByTorch:
    """See the module's docstring for the rewrite."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Rewrite a module."""
        return rewrite_functions(mod, _Allocations(mod))


@mutator
class _Allocations(PyExprMutator):  # type: ignore[misc]
    """Replaces each allocation that is in no plan."""

    changed = False

    def visit_call_(self, call: Any) -> Any:
        """Rewrite one call."""
        call = super().visit_call_(call)
        if getattr(call.op, "name", "") != "relax.builtin.alloc_tensor":
            return call
        self.changed = True
        shape, dtype = call.args[0], call.args[1]
        return relax.Call(relax.ExternFunc(EMPTY), [shape, dtype], None, [call.ty])


class GraphCall:
    """Calls the function of a built graph with PyTorch's tensors."""

    def __init__(self, imported: ImportedGraph, executable: Any, device: torch.device) -> None:
        self.imported, self.device = imported, device
        self.is_cuda = device.type == "cuda"
        self.index = (device.index or 0) if self.is_cuda else 0
        self.machine = relax.VirtualMachine(
            executable, tvm.cuda(self.index) if self.is_cuda else tvm.cpu()
        )
        self.main = self.machine["main"]
        self.special = [
            (i, x)
            for i, x in enumerate(imported.arguments)
            if x.order is not None or x.must_copy
        ]
        self.places = [x.place for x in imported.arguments]
        self.allocated: dict[int, torch.Tensor] = {}

    def __call__(self, *given: Any) -> list[Any]:
        """Return the results, in the order of the graph's.

        - `given` (tensors and numbers): the graph's inputs.
        """
        tensors = [given[i] for i in self.places]
        for i, x in self.special:
            moved = tensors[i] if x.order is None else tensors[i].permute(x.order)
            tensors[i] = moved.contiguous()
        for i, x in enumerate(tensors):
            if x.data_ptr() % ALIGNMENT:
                tensors[i] = x.clone()
        sizes = {name: int(given[i]) for name, i in self.imported.sizes.items()}
        front = [tvm_ffi.Shape(list(sizes.values()))] if sizes else []
        if self.is_cuda:
            _order_streams(self.index)
        previous = getattr(_CALLS, "now", None)
        _CALLS.now = self
        try:
            found = self.main(*front, *tensors)
            results = [self._own(x) for x in found]
        finally:
            _CALLS.now = previous
            self.allocated.clear()
        return [
            eval(x, {**NUMBER_FUNCTIONS, **sizes}) if isinstance(x, str)
            else None if x is None
            else results[x]
            for x in self.imported.outputs
        ]  # fmt: skip

    def empty(self, shape: Any, dtype: Any) -> torch.Tensor:
        """Allocate a tensor of this call."""
        kind = getattr(torch, str(dtype))
        made = torch.empty(tuple(map(int, shape)), dtype=kind, device=self.device)
        self.allocated[made.data_ptr()] = made
        return made

    def _own(self, result: Any) -> torch.Tensor:
        """Return PyTorch's tensor of a result; anything else, such as a constant, is copied."""
        result = result if isinstance(result, torch.Tensor) else torch.from_dlpack(result)
        made = self.allocated.get(result.data_ptr())
        if made is None or made.numel() != result.numel() or made.dtype != result.dtype:
            return result.clone()
        return made.view(result.shape)


def _empty(shape: Any, dtype: Any) -> Any:
    return _CALLS.now.empty(shape, dtype)


tvm_ffi.register_global_func(EMPTY, _empty, override=True)

_LAST: dict[int, tuple[int, Any]] = {}  # for each device the stream of the last call


def _order_streams(index: int) -> None:
    """Let a stream wait for the one of the call before, whose intermediate memory it reuses."""
    stream = torch._C._cuda_getCurrentRawStream(index)
    last = _LAST.get(index)
    if last is not None and last[0] == stream:
        return
    current = torch.cuda.current_stream(index)
    if not torch.cuda.is_current_stream_capturing():
        if last is not None:
            current.wait_stream(last[1])
        _LAST[index] = (stream, current)
