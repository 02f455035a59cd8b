"""The two entries of the simulator: `run_kernel` for a device function, `run_host` for its host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm_hopper.sim.result import Result


@dataclass(frozen=True)
class TensorMapArg:
    """A tensor map as the host encoded it; `tensor` is the name of the argument it points into.

    `dims`, `box` and `element_strides` count elements, innermost first; `strides_bytes` has one
    entry less than `dims` (the innermost stride is the element).
    """

    tensor: str
    dtype: str
    dims: tuple[int, ...]
    strides_bytes: tuple[int, ...]
    box: tuple[int, ...]
    element_strides: tuple[int, ...] = ()
    interleave: int = 0
    swizzle: int = 0  # driver's code: 0 none, 1 32 B, 2 64 B, 3 128 B
    l2: int = 0
    oob: int = 0  # 0 zeros, 1 NaN
    byte_offset: int = 0


def run_kernel(
    device_func: Any,
    args: Mapping[str, Any] | Sequence[Any],
    grid: Sequence[int],
    block: Sequence[int],
    cluster: Sequence[int] = (1, 1, 1),
    dyn_smem_bytes: int = 0,
    policy: str = "eager",
    seed: int = 0,
    blocks: Sequence[tuple[int, ...]] | None = None,
    detect_races: bool = True,
) -> Result:
    """Run one device PrimFunc (as codegen prints it) on numpy data.

    Parameters
    ----------
    device_func : tvm.tirx.PrimFunc
        After SplitHostDevice and the finalisation of device functions.
    args : dict or sequence
        One entry per parameter, by name or in order: a numpy array for a data pointer (copied;
        `tensors={name: array}` is returned in `Result.outputs`), a number for a scalar, a
        `TensorMapArg` for a tensor map. With a dict, arrays that only tensor maps point into may
        stand under further names.
    grid, block, cluster : sequence of int
        x, y, z; the grid counts CTAs (not clusters).
    dyn_smem_bytes : int
        Dynamic shared memory of the launch.
    policy : str
        "eager", "on_wait", "lifo", "random" or "starve:<role>".
    blocks : list of (x, y, z) or None
        Which CTAs to run; whole clusters are added. None: all.
    """
    raise NotImplementedError("run_kernel: work in progress")


def run_host(host_func: Any, inputs: Mapping[str, Any]) -> list[Any]:
    """Run the host function up to its kernel launches; return them with tensor maps as encoded."""
    raise NotImplementedError("run_host: work in progress")
