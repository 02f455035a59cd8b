"""Run a golden kernel in the simulator and compare its numbers."""

from typing import Any

import numpy as np

from tvm_hopper.sim import Result, RunOptions, run_host, run_kernel

from .golden.common import Kernel
from .lowering import Lowered, lower

POISON = 0xFF


def tensors(kernel: Kernel) -> tuple[dict[str, np.ndarray], list[str]]:
    """Every tensor in the order of the parameters, and which of them hold nothing at entry."""
    arrays, outputs = {}, []
    for buffer in kernel.func.params:
        array = kernel.inputs.get(buffer.name)
        if array is None:
            shape = [int(extent) for extent in buffer.ty.shape]
            dtype = np.dtype(str(buffer.ty.dtype.dtype))
            array = np.full(int(np.prod(shape)) * dtype.itemsize, POISON, "uint8")
            array = array.view(dtype).reshape(shape)
            outputs.append(buffer.name)
        arrays[buffer.name] = array
    return arrays, outputs


def run(kernel: Kernel, lowered: Lowered | None = None, policy: str = "on_wait", seed: int = 0,
        **options: Any) -> Result:  # fmt: skip
    """Run all CTAs of the kernel once."""
    lowered = lower(kernel.func, kernel.arch) if lowered is None else lowered
    arrays, outputs = tensors(kernel)
    (launch,) = run_host(lowered.host, arrays)
    bound = launch.bind(lowered.device)
    args = {**arrays, **bound.pop("params")}
    how = RunOptions(policy, seed, outputs=outputs, **options)
    return run_kernel(lowered.device, args, **bound, options=how)


def wrong_outputs(kernel: Kernel, result: Result) -> list[str]:
    """Name the outputs that differ from the reference: at all, or by more than the tolerance."""
    return [
        name
        for name, expected in kernel.expected.items()
        if not np.allclose(
            result.outputs[name].astype("float64"),
            expected.astype(result.outputs[name].dtype).astype("float64"),
            rtol=kernel.tolerance,
            atol=0,
        )
    ]
