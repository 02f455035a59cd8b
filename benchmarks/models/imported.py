"""Models of PyTorch and ONNX as Relax: imported, built, and called on rotating sets of tensors."""

from __future__ import annotations

import copy
import io
import lzma
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import torch_models
from .cases import FLOAT16, FLOAT32, MIXED, ONNX, Case, find_maker

TARGET = "nvidia/nvidia-h200"
SET_BYTES = 130 << 20  # of all sets together: more than twice an L2 cache
MOST_SETS = 8
OPSET = 18  # of ONNX files


@dataclass
class Imported:
    """A model as PyTorch has it, and as Relax has it.

    Attributes
    ----------
    module, arguments
        The PyTorch module and its inputs on the CPU, in the type that users run it in.
    half : str
        The type of PyTorch's own run.
    mod : IRModule
        The Relax module; weights are arguments.
    weights : list of Tensor
        In the order of the arguments.
    notes : list of str
        Changes that the importer needed.
    """

    module: Any
    arguments: tuple[Any, ...]
    half: str
    mod: Any
    weights: list[Any]
    notes: list[str] = field(default_factory=list)


def import_case(case: Case, tiny: bool = False) -> Imported:
    """Make a case's model and import it."""
    import torch

    torch.manual_seed(0)
    with torch.no_grad():
        module, arguments = find_maker(torch_models, case)(**case.given, **_tiny(tiny))
        module = module.eval()
        if case.way == ONNX:
            return _from_onnx(case, module, arguments)
        return _imported(case.dtype, module, arguments)


def save_case(case: Case, folder: Path) -> Path:
    """Write a small form of a case's Relax module as compressed JSON; return the file."""
    import tvm

    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{case.name}.json.xz"
    path.write_bytes(lzma.compress(tvm.ir.save_json(import_case(case, tiny=True).mod).encode()))
    return path


def _imported(dtype: str, module: Any, arguments: tuple[Any, ...]) -> Imported:
    """Import a module in its type, or where TVM refuses that as those do who meet it: mixed."""
    ways = [(dtype, dtype)] if dtype != MIXED else []
    ways += [(MIXED, x) for x in dict.fromkeys((dtype, FLOAT16)) if x not in (MIXED, FLOAT32)]
    notes: list[str] = []
    for way, half in ways:
        try:
            if way == MIXED:
                made = in_half(*_exported(module, arguments), half)
                return Imported(module, arguments, half, *made, notes)
            own = _as_type(copy.deepcopy(module), way), _as_type(arguments, way)
            made = _exported(*own)
            return Imported(*own, way, *(made if way == FLOAT32 else in_half(*made, way)))
        except Exception as error:
            if (way, half) == ways[-1]:
                raise
            notes.append(f"TVM does not import it as {way} {half}: {one_line(error)}")
    raise ValueError(f"found type {dtype}; need float16, bfloat16, float32 or mixed")


def in_half(mod: Any, weights: list[Any], half: str) -> tuple[Any, list[Any]]:
    """Let products that an importer has in float32 have 16 bits, and weights that they read."""
    from tvm_hopper.relax import cast_weights, to_half

    mod = to_half(mod, half)
    return mod, cast_weights(mod, {"main": weights})["main"]


def _tiny(tiny: bool) -> dict[str, bool]:
    return {"tiny": True} if tiny else {}


def _exported(module: Any, arguments: tuple[Any, ...]) -> tuple[Any, list[Any]]:
    import torch
    from tvm.relax.frontend import detach_params
    from tvm.relax.frontend.torch import from_exported_program

    program = torch.export.export(module, arguments)
    mod = from_exported_program(program, keep_params_as_input=True)
    mod, params = detach_params(mod)
    return mod, list(params.get("main", []))


def _from_onnx(case: Case, module: Any, arguments: tuple[Any, ...]) -> Imported:
    import onnx
    import torch
    from tvm.relax.frontend import detach_params
    from tvm.relax.frontend.onnx import from_onnx

    own = FLOAT32 if case.dtype == MIXED else case.dtype  # of the file
    module, arguments = _as_type(module, own), _as_type(arguments, own)
    file = io.BytesIO()
    torch.onnx.export(module, arguments, file, opset_version=OPSET, dynamo=False)
    file.seek(0)
    mod = from_onnx(onnx.load(file), keep_params_in_input=True)
    mod, params = detach_params(mod)
    weights = list(params.get("main", []))
    if case.dtype == MIXED:
        return Imported(module, arguments, FLOAT16, *in_half(mod, weights, FLOAT16))
    return Imported(module, arguments, case.dtype, mod, weights)


def _as_type(thing: Any, dtype: str) -> Any:
    """Return a module or tensors in a type of floats."""
    import torch

    kind = getattr(torch, dtype)
    if isinstance(thing, tuple):
        return tuple(x.to(kind) if x.is_floating_point() else x for x in thing)
    return thing.to(kind)


def one_line(error: Any, most: int = 240) -> str:
    """Return an error in one line, its beginning and its end where it is long."""
    text = " ".join(str(error).split())
    kind = type(error).__name__ if isinstance(error, BaseException) else ""
    text = text if len(text) <= most else f"{text[: most // 2]} ... {text[-most // 2 :]}"
    return f"{kind}: {text}" if kind else text


class OnGpu:
    """Sets of a model's tensors on the GPU, and calls of the contenders on them."""

    def __init__(self, one: Imported) -> None:
        import torch

        self.one = one
        moved = sum(x.numel() * x.element_size() for x in one.module.parameters())
        moved += sum(x.numel() * x.element_size() for x in one.arguments)
        self.num_sets = min(MOST_SETS, max(1, math.ceil(SET_BYTES / max(moved, 1))))
        self.inputs = [_to_gpu(one.arguments) for _ in range(self.num_sets)]
        weights = [torch.from_dlpack(x) for x in one.weights]
        self.weights = [_to_gpu(weights) for _ in range(self.num_sets)]

    def of_torch(self, compile_: Callable[[Any], Any] | None = None) -> Callable[[int], Any]:
        """Return calls of PyTorch's module in 16 bits, a copy a set."""
        model = _as_type(copy.deepcopy(self.one.module), self.one.half).cuda()
        models = [model, *(copy.deepcopy(model) for _ in range(self.num_sets - 1))]
        inputs = [_as_type(x, self.one.half) for x in self.inputs]
        if compile_ is not None:
            models = [compile_(x) for x in models]

        def call(i: int) -> Any:
            return models[i](*inputs[i])

        return call

    def of_tvm(self, executable: Any) -> Callable[[int], Any]:
        """Return calls of what Relax built."""
        import tvm
        import tvm_ffi
        from tvm import relax

        machine = relax.VirtualMachine(executable, tvm.cuda(0))
        main, given = machine["main"], []
        for inputs, weights in zip(self.inputs, self.weights, strict=True):
            made: Any = [tvm_ffi.from_dlpack(x) for x in weights]
            if machine.module.implements_function("transform_params"):
                made = machine["transform_params"](tuple(made))
            given.append([*map(tvm_ffi.from_dlpack, inputs), *made])

        def call(i: int) -> Any:
            with tvm_ffi.use_torch_stream():
                return main(*given[i])

        return call

    def reference(self) -> Any:
        """Return the result in float64."""
        model = copy.deepcopy(self.one.module).double().cuda()
        return model(*_as_type(self.inputs[0], "float64"))


def _to_gpu(tensors: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(x.detach().cuda().contiguous().clone() for x in tensors)


def first_tensor(result: Any) -> Any:
    """Return the first tensor of a result of either side, as PyTorch's."""
    import torch

    while not hasattr(result, "__dlpack__"):
        result = result[0]
    return result if isinstance(result, torch.Tensor) else torch.from_dlpack(result)
