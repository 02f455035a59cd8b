"""Kernels as custom operators of PyTorch.

    rms = tvm_hopper.torch.op(scheduled_norm, "mine::rms")
    y = rms(x, weight)                  # allocates y; in torch.compile and torch.export, too

The operator checks nothing by itself: the kernel's host code knows types, shapes, strides, start
addresses and devices, and names the tensor that is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm_hopper.errors import cannot_configure, cannot_schedule, require_packages

from .signatures import WORD, Parameter, Signature, signature_of

WHERE = "torch.op"
NAMESPACE = "tvm_hopper"
ANY_DEVICE = "CompositeExplicitAutograd"  # a tensor on another device is host code's error
_LIBRARIES: dict[str, Any] = {}  # an operator lives as long as its library

Gradients = Callable[[tuple[Any, ...], tuple[Any, ...], tuple[Any, ...]], Any]


def op(
    source: Any,
    name: str,
    *,
    function: str | None = None,
    target: Any = None,
    outputs: Sequence[str] | None = None,
    signature: Signature | None = None,
    backward: Gradients | None = None,
) -> Any:
    """Make an operator of PyTorch from a kernel.

    Parameters
    ----------
    source : Schedule, IRModule, PrimFunc, executable or loaded module
        A scheduled function is compiled at once. A module that this process did not build needs
        `signature`.
    name : str
        "namespace::name"; without a namespace it is in "tvm_hopper".
    function : str, optional
        Function of the module; None: the only one, or "main".
    target : Target, str or dict, optional
        What a scheduled function is compiled for. None: the target in scope, or the GPU.
    outputs : sequence of str, optional
        Names of the results. None: what the function writes before it reads it; of an executable,
        the last tensor.
    signature : Signature, optional
        Used instead of what `source` says.
    backward : callable, optional
        `backward(gradients, inputs, results)` returns the gradient of each input, or None for it;
        each argument is a tuple.

    Returns
    -------
    operator : torch._ops.OpOverload
        Takes all parameters but the results, in order: contiguous tensors, and numbers. Returns
        one tensor, or a tuple.

    Raises
    ------
    HopperError
        There is no PyTorch, or a compiler's error.
    OptionError
        The name is illegal or taken.
    ScheduleError
        It is not known what the kernel takes, or how large its results are.
    """
    require_packages(WHERE, "torch")
    import torch

    space, short = _split(name)
    if hasattr(getattr(torch.ops, space), short):
        raise cannot_configure(WHERE, f"name={name!r}, which is an operator", "a new name")
    known = signature or signature_of(source, function, outputs)
    code = _Code(known)
    run, fake = code.compiled(_finder(source, function, target)), code.compiled(None)
    library = torch.library.Library(space, "FRAGMENT")
    library.define(f"{short}{code.schema}")
    library.impl(short, run, ANY_DEVICE)
    torch.library.register_fake(f"{space}::{short}", fake, lib=library)
    if backward is not None:
        _register_backward(f"{space}::{short}", backward, library)
    _LIBRARIES[f"{space}::{short}"] = library
    return getattr(getattr(torch.ops, space), short).default


def _split(name: Any) -> tuple[str, str]:
    parts = name.split("::") if isinstance(name, str) else []
    parts = [NAMESPACE, *parts] if len(parts) == 1 else parts
    if len(parts) != 2 or not all(x.isidentifier() for x in parts):
        raise cannot_configure(WHERE, f"name={name!r}", 'a name such as "mine::gemm"')
    return parts[0], parts[1]


def _finder(source: Any, function: str | None, target: Any) -> Callable[[], Any]:
    """Return what finds the compiled function: at the first call, which may be on another machine.

    A module that is built is passed on without an import of TVM's compiler.
    """
    if {"IRModule", "PrimFunc", "Schedule"} & {x.__name__ for x in type(source).__mro__}:
        import tvm

        wanted = target or tvm.target.Target.current(allow_none=True) or device_target()
        source = tvm.compile(getattr(source, "mod", source), target=wanted)
    return lambda: source[function or "main"]


def device_target(device: Any = None) -> Any:
    """Return the target of a GPU, with the number of its SMs; of an H200 where there is none."""
    import torch
    from tvm.target import Target

    from tvm_hopper.requests.tags import HOPPER_TAGS, NUM_SMS, NUM_SMS_ATTR

    name, more = "h200", {}
    if torch.cuda.is_available():
        found = torch.cuda.get_device_properties(device)
        name = next((x for x in NUM_SMS if x in found.name.lower().split()), name)
        more = {NUM_SMS_ATTR: found.multi_processor_count}
    return Target({**HOPPER_TAGS[f"nvidia/nvidia-{name}"], **more})


class _Code:
    """The operator's Python: written for its signature, since each call pays for every step."""

    def __init__(self, signature: Signature) -> None:
        import torch

        self.signature = signature
        self.names = {x.name: f"p{i}" for i, x in enumerate(signature.parameters)}
        self.places = signature.places()
        self.types = {x.dtype: getattr(torch, x.dtype, None) for x in signature.parameters}
        first = next((x for x in signature.given if x.shape is not None), None)
        if first is None:
            raise cannot_schedule(WHERE, "no tensor among the inputs", "one, whose device is used")
        self.first = first
        self.results = [x for x in signature.parameters if x.name in signature.outputs]
        for x in self.results:
            if self.types[x.dtype] is None:
                where = f"{WHERE}, result {x.name}"
                raise cannot_schedule(where, f"type {x.dtype}", "a type that PyTorch has")

    @property
    def schema(self) -> str:
        """The operator's arguments and results, as PyTorch writes them."""
        args = ", ".join(self._argument(x) for x in self.signature.given)
        results = ", ".join("Tensor" for _ in self.results)
        return f"({args}) -> {results if len(self.results) == 1 else f'({results})'}"

    def _argument(self, x: Parameter) -> str:
        if x.shape is not None:
            return f"{'Tensor(a!)' if x.name in self.signature.updated else 'Tensor'} {x.name}"
        kinds = {"float": "float", "bool": "bool"}
        return f"{next((v for k, v in kinds.items() if k in x.dtype), 'SymInt')} {x.name}"

    def compiled(self, find: Callable[[], Any] | None) -> Callable[..., Any]:
        """Return the function that allocates results and calls the kernel; None: no call."""
        lines = [f"def run({', '.join(self.names[x.name] for x in self.signature.given)}):"]
        for symbol, (name, axis) in self.places.items():
            at = self.names[name] if axis is None else f"{self.names[name]}.size({axis})"
            lines.append(f"    s_{symbol} = {at}")
        for x in self.results:
            extents = "".join(f"{self._extent(e)}, " for e in x.shape or ())
            make = f"{self.names[self.first.name]}.new_empty(({extents})"
            lines.append(f"    {self.names[x.name]} = {make}, dtype=types[{x.dtype!r}])")
        if find is not None:
            lines.append(f"    kernel({', '.join(self.names.values())})")
        lines.append(f"    return {', '.join(self.names[x.name] for x in self.results)}")
        scope: dict[str, Any] = {"types": self.types}

        def load(*args: Any) -> None:
            scope["kernel"] = find() if find is not None else None
            scope["kernel"](*args)

        scope["kernel"] = load
        exec("\n".join(lines), scope)
        made: Callable[..., Any] = scope["run"]
        return made

    def _extent(self, extent: int | str) -> str:
        known = self.places
        return WORD.sub(lambda x: f"s_{x[0]}" if x[0] in known else x[0], str(extent))


def _register_backward(name: str, backward: Gradients, library: Any) -> None:
    import torch

    def setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        results = output if isinstance(output, tuple) else (output,)
        tensors = [x for x in (*inputs, *results) if isinstance(x, torch.Tensor)]
        ctx.save_for_backward(*tensors)
        ctx.numbers = [None if isinstance(x, torch.Tensor) else x for x in inputs]

    def gradients(ctx: Any, *given: Any) -> Any:
        saved = iter(ctx.saved_tensors)
        inputs = tuple(next(saved) if x is None else x for x in ctx.numbers)
        found = backward(given, inputs, tuple(saved))
        found = found if isinstance(found, (tuple, list)) else (found,)
        if len(found) != len(inputs):
            raise cannot_schedule(
                f"{name}, backward", f"{len(found)} gradients", f"{len(inputs)}, one for each input"
            )
        return tuple(found)

    torch.library.register_autograd(name, gradients, setup_context=setup, lib=library)
