"""Build an imported graph, and call it: memory from PyTorch, on PyTorch's stream.

    y = R.builtin.alloc_tensor(R.shape([2, s0]), "float16", ...)      a result
  ->
    y = R.call_packed("tvm_hopper.torch.empty", R.shape([2, s0]), "float16", 0)

Results are PyTorch's memory. So is everything else in a CUDA graph; otherwise the planned memory of
intermediate tensors is TVM's, which knows no streams: a call on another stream waits for the last.
"""

from __future__ import annotations

import threading
import weakref
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
        is_cuda = device.type == "cuda"
        self.index = (device.index or 0) if is_cuda else None
        self.machine = relax.VirtualMachine(
            executable, tvm.cuda(self.index) if is_cuda else tvm.cpu()
        )
        self.main = self.machine["main"]
        self.places = [x.place for x in imported.arguments]
        self.special = [
            (i, x) for i, x in enumerate(imported.arguments) if x.order is not None or x.must_copy
        ]
        self.lock = threading.Lock()  # TVM's machine has one stack

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
        front = [tvm_ffi.Shape(tuple(sizes.values()))] if sizes else []
        with self.lock:
            order_streams(self.index)
            _CALLS.device, _CALLS.made = self.device, {}
            results = [_own(x, _CALLS.made) for x in self.main(*front, *tensors)]
        return [
            eval(x, {**NUMBER_FUNCTIONS, **sizes}) if isinstance(x, str)
            else None if x is None
            else results[x]
            for x in self.imported.outputs
        ]  # fmt: skip


def _empty(shape: Any, dtype: Any) -> torch.Tensor:
    """Allocate a tensor of the call that this thread makes."""
    kind = getattr(torch, str(dtype))
    made = torch.empty(tuple(map(int, shape)), dtype=kind, device=_CALLS.device)
    _CALLS.made[made.data_ptr()] = weakref.ref(made)  # what is not read any more is freed
    return made


def _own(result: Any, made: dict[int, Any]) -> torch.Tensor:
    """Return PyTorch's tensor of a result; anything else, such as a constant, is copied."""
    result = result if isinstance(result, torch.Tensor) else torch.from_dlpack(result)
    own = made.get(result.data_ptr(), lambda: None)()
    if own is None or own.numel() != result.numel() or own.dtype != result.dtype:
        return result.clone()
    return own.view(result.shape)


tvm_ffi.register_global_func(EMPTY, _empty, override=True)

_LAST: dict[int, tuple[int, Any]] = {}  # for each device the stream of the last call


def order_streams(index: int | None) -> None:
    """Let a stream wait for the one of the call before, whose memory its kernels use again.

    - `index`: of the device; None: a processor.
    """
    if index is None:
        return
    stream = torch._C._cuda_getCurrentRawStream(index)
    last = _LAST.get(index)
    if (last is not None and last[0] == stream) or torch.cuda.is_current_stream_capturing():
        return
    current = torch.cuda.current_stream(index)
    if last is not None:
        current.wait_stream(last[1])
    _LAST[index] = (stream, current)
