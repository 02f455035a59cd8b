"""The backend "tvm_hopper" of `torch.compile`.

    fast = torch.compile(model, backend="tvm_hopper")                    # inference
    fast = torch.compile(model, backend="tvm_hopper", options={"cuda_graphs": True})
    print(tvm_hopper.torch.report())

A captured graph becomes a Relax module and is built by the pipeline "tvm_hopper". Symbolic sizes
stay symbolic, so that products have size classes. A graph that cannot be built runs as PyTorch
runs it, a warning says why, and `report` keeps the reason.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from tvm_hopper.errors import HopperError, cannot_configure, require_packages, warn

from .graph_report import GraphRecord, keep

WHERE = "torch.compile backend tvm_hopper"


@dataclass(frozen=True)
class BackendOptions:
    """Options of the backend.

    Parameters
    ----------
    cuda_graphs : bool
        Capture a CUDA graph for each set of sizes and replay it. Inputs and results are copied.
    target : Target, str or dict, optional
        What graphs are built for. None: sm_90a on a GPU of that kind; else nothing is built.
    strict : bool
        A graph that cannot be built is an error.
    model : mapping, optional
        Options of the Relax pipeline, see `tvm_hopper.relax.ModelOptions`.
    """

    cuda_graphs: bool = False
    target: Any = None
    strict: bool = False
    model: Mapping[str, Any] | None = None


class _NotBuilt(Exception):
    """A graph runs as PyTorch runs it; the text says why."""


def backend(
    graph: Any,
    inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """Compile a graph that `torch.compile` captured.

    Parameters
    ----------
    graph, inputs : torch.fx.GraphModule, sequence of Tensor or SymInt
        The graph, of PyTorch's functions; its inputs, weights among them.
    options : mapping, optional
        Those of `BackendOptions`.
    mode : str, optional
        "reduce-overhead" means `cuda_graphs`.

    Returns
    -------
    call : callable
        Takes the graph's inputs and returns its results.

    Raises
    ------
    OptionError
        An option or a mode is unknown.
    HopperError
        There is no PyTorch; or with the option `strict`: the graph cannot be built.
    """
    require_packages(WHERE, "torch")
    given = _options(options, mode)
    record = GraphRecord(sum(x.op.startswith("call") for x in graph.graph.nodes))
    begin = time.monotonic()
    try:
        call = _compiled(graph, inputs, given, *_target(given, inputs), record)
        record.seconds = time.monotonic() - begin
    except _NotBuilt as why:
        record.reason = str(why)
        if given.strict:
            raise HopperError(f"{WHERE}: {record.reason}") from why
        warn(f"{WHERE}: PyTorch runs a graph of {record.operators} operators: {record.reason}", 2)
        call = graph.forward
    keep(record)
    return call


def _options(given: Mapping[str, Any] | None, mode: str | None) -> BackendOptions:
    known = [x.name for x in fields(BackendOptions)]
    unknown = [x for x in given or {} if x not in known]
    if unknown:
        raise cannot_configure(WHERE, f"option {', '.join(unknown)}", f"one of {', '.join(known)}")
    if mode not in (None, "default", "reduce-overhead"):
        raise cannot_configure(WHERE, f"mode={mode!r}", '"default" or "reduce-overhead"')
    more = {"cuda_graphs": True} if mode == "reduce-overhead" else {}
    return BackendOptions(**{**more, **(given or {})})


def _target(options: BackendOptions, inputs: Sequence[Any]) -> tuple[Any, Any]:
    """Return the device of a graph and what to build it for."""
    import torch

    from .operators import device_target

    tensors = [x for x in inputs if isinstance(x, torch.Tensor)]
    if torch.is_grad_enabled() and any(x.requires_grad for x in tensors):
        raise _NotBuilt("found inputs that need gradients; need inference; use torch.no_grad()")
    device, *others = sorted({x.device for x in tensors}, key=str) or [None]
    if device is None or others:
        found = ", ".join(map(str, (device, *others)))
        raise _NotBuilt(f"found inputs on {found}; need tensors of one device")
    if options.target is not None:
        return device, options.target
    major_minor = torch.cuda.get_device_capability(device) if device.type == "cuda" else None
    if major_minor != (9, 0):
        found = f"{device} of compute capability {major_minor}" if major_minor else str(device)
        raise _NotBuilt(f"found tensors on {found}; need a GPU of compute capability 9.0")
    return device, device_target(device)


def _compiled(
    graph: Any, inputs: Sequence[Any], options: BackendOptions, device: Any, target: Any,
    record: GraphRecord,
) -> Callable[..., Any]:  # fmt: skip
    """Return the call of a graph, whose operators PyTorch decomposes first."""
    from torch._decomp import core_aten_decompositions
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.aot_autograd import make_boxed_func
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def build(lowered: Any, _inputs: Sequence[Any]) -> Any:
        return make_boxed_func(_built(lowered, device, options, target, record))

    compiler = aot_autograd(
        fw_compiler=build, inference_compiler=build, decompositions=core_aten_decompositions()
    )
    with sdpa_kernel(SDPBackend.MATH):  # in operators, which JoinAttention joins again
        made: Callable[..., Any] = compiler(graph, inputs)
    return made


def _built(
    graph: Any, device: Any, options: BackendOptions, target: Any, record: GraphRecord
) -> Callable[..., Any]:
    """Build a graph; where the importer lacks operators, the parts around them."""
    from .graph_import import missing_operators, split_graph

    missing = missing_operators(graph)
    if not missing:
        return _build_whole(graph, device, options, target, record)
    left = f"operators that TVM's importer lacks: {', '.join(missing)}"
    if options.strict:
        raise _NotBuilt(left)
    whole = split_graph(graph, missing)
    for part in list(whole.children()):
        try:
            call = _build_whole(part, device, options, target, record)
        except _NotBuilt as why:
            left += f"; {why}"
        else:
            part.forward = _as_part(part, call)
    if not record.executables:
        raise _NotBuilt(left)
    record.left = left
    warn(f"{WHERE}: PyTorch runs some of {record.operators} operators: {left}", 2)
    made: Callable[..., Any] = whole.forward
    return made


def _as_part(part: Any, call: Callable[..., Any]) -> Callable[..., Any]:
    """Return what a part's forward does: one tensor where its graph returns no tuple."""
    (result,) = part.graph.output_node().args
    return call if isinstance(result, (list, tuple)) else lambda *given: call(*given)[0]


def _build_whole(
    graph: Any, device: Any, options: BackendOptions, target: Any, record: GraphRecord
) -> Callable[..., Any]:
    from tvm_hopper.relax.options import as_options

    from .graph_build import GraphCall, build_graph
    from .graph_import import import_graph
    from .replay import ReplayedGraph

    model = as_options(dict(options.model or {}))
    by_graph = options.cuda_graphs and device.type == "cuda"
    try:
        imported = import_graph(graph)
        executable = build_graph(imported, target, model, planned=not by_graph)
        call = GraphCall(imported, executable, device)
    except Exception as error:  # of any layer of TVM: the graph runs anyway
        text = " ".join(str(error).split())
        raise _NotBuilt(f"{type(error).__name__}: {text[-300:]}") from error
    record.executables.append(executable)
    return ReplayedGraph(call, _fixed_inputs(graph)) if by_graph else call


def _fixed_inputs(graph: Any) -> list[int]:
    """Return the places of weights among the inputs of a graph, while it is compiled."""
    from torch._guards import TracingContext

    context = TracingContext.try_get()
    metadata = None if context is None else context.fw_metadata
    places = getattr(metadata, "static_input_indices", None) or []
    inputs = [x for x in graph.graph.nodes if x.op == "placeholder"]
    whole = len(inputs) == len(getattr(metadata, "input_info", ()))  # a part has other inputs
    return list(places) if whole else []
