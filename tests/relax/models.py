"""Small models of several kinds, and runs of them on this machine's processor."""

from __future__ import annotations

import functools

import numpy as np
import tvm
from tvm import relax
from tvm.target import Target

from tvm_hopper.relax.lowering import legalize_passes
from tvm_hopper.relax.options import ModelOptions
from tvm_hopper.testing.llama import SMALL, llama

H200 = "nvidia/nvidia-h200"
CLASSES = (16, 64)  # few, so that tests build quickly


def legalized(mod: tvm.IRModule) -> tvm.IRModule:
    """Return what our pipeline has before it flattens."""
    passes = [
        relax.transform.FuseTransposeMatmul(),
        relax.get_pipeline("zero"),
        relax.transform.RewriteDataflowReshape(),
    ]
    with Target(H200):
        return tvm.transform.Sequential(passes)(mod)


@functools.cache
def scheduled_llama(dtype: str, attention: str = "plain") -> tvm.IRModule:
    """Return a small Llama as our passes leave it."""
    options = ModelOptions(classes=CLASSES)
    with Target(H200):
        return tvm.transform.Sequential(legalize_passes(options))(llama(SMALL, dtype, attention))


def on_processor(mod: tvm.IRModule, name: str, arguments: list) -> list[np.ndarray]:
    """Run a function of a Relax module by llvm, as it is."""
    ex = relax.build(mod, target="llvm", relax_pipeline="default_build")
    machine = relax.VirtualMachine(ex, tvm.cpu())
    given = [_to_tvm(x) for x in arguments]
    return _to_numpy(machine[name](*given))


def _to_tvm(value):
    if isinstance(value, np.ndarray):
        return tvm.runtime.tensor(value)
    if isinstance(value, (list, tuple)):
        return tvm.runtime.convert([_to_tvm(x) for x in value])
    return tvm.runtime.ShapeTuple([value]) if isinstance(value, int) else value


def _to_numpy(value) -> list[np.ndarray]:
    if hasattr(value, "numpy"):
        return [value.numpy()]
    return [x for part in value for x in _to_numpy(part)]


def inputs_of(mod: tvm.IRModule, name: str, sizes: dict[str, int], seed: int = 0) -> list:
    """Draw the arguments of a function: normal numbers, small weights, sizes for scalars."""
    rng = np.random.default_rng(seed)

    def draw(ty):
        if isinstance(ty, relax.TupleType):
            return [draw(x) for x in ty.fields]
        if isinstance(ty, relax.ShapeType):
            return sizes["total"]
        shape = [sizes[str(x)] if isinstance(x, tvm.tirx.Var) else int(x) for x in ty.shape.values]
        scale = 1.0 if len(shape) != 2 else shape[-1] ** -0.5
        return (scale * rng.standard_normal(shape)).astype(str(ty.dtype))

    return [draw(x.ty) for x in mod[name].params]
