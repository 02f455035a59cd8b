"""What the written model says of a built function; what fake devices report as its time.

Products of ours are asked of the estimate that chooses configurations (docs/choice.md), by what the
build says of the kernel: tile, ring, consumers. Everything else is taken to move its tensors once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import tvm

from tvm_hopper.facts.devices import CHIPS
from tvm_hopper.facts.dtypes import DTYPES, dtype_bytes
from tvm_hopper.reports.explanation import Kernel, explain
from tvm_hopper.schedule.products.candidates import as_candidates
from tvm_hopper.schedule.products.config import MatmulConfig
from tvm_hopper.schedule.products.estimate import ProductShape, estimate
from tvm_hopper.schedule.products.rates import MEASURED

from .artifact import TensorArgument

CHIP = CHIPS["h200"]
BYTES_A_SECOND = 4.0e12
LAUNCH_SECONDS = 3e-6


def predicted_seconds(host: tvm.IRModule | None, arguments: Sequence[TensorArgument]) -> float:
    """Return how long the model takes a call for: of its products, else of its bytes.

    Parameters
    ----------
    host : IRModule, optional
        The lowered host functions, with what was noted of our kernels; None where there are none.
    arguments : sequence of TensorArgument
        What it is called with.

    Returns
    -------
    seconds : float
    """
    kernels = explain(host).kernels if host is not None else ()
    found = [_product_seconds(kernel, arguments) for kernel in kernels]
    known = [seconds for seconds in found if seconds is not None]
    if known:
        return max(known)  # of size classes one runs
    num_bytes = sum(math.prod(x.shape) * _bytes(x.dtype) for x in arguments)
    return LAUNCH_SECONDS + num_bytes / BYTES_A_SECOND


def _product_seconds(kernel: Kernel, arguments: Sequence[TensorArgument]) -> float | None:
    shapes = {x.name: [e for e in x.shape if e > 1] for x in arguments}
    outputs = [shapes[x.name] for x in arguments if x.is_written]
    maps = [shapes.get(x.tensor) for x in kernel.tensor_maps]
    if kernel.product is None or not kernel.rings or not outputs or not maps or not maps[0]:
        return None
    dtype = next(x.dtype for x in arguments if x.name == kernel.tensor_maps[0].tensor)
    m, n = ([1, 1] + outputs[-1])[-2:]
    k = math.prod(maps[0]) // (m if math.prod(maps[0]) % m == 0 else n)
    rows, columns, depth = kernel.product.tile
    consumers = kernel.consumers or 1
    ring = max(kernel.rings, key=lambda x: x.stage_bytes)
    if ring.stage_bytes == (rows * consumers + columns) * depth * dtype_bytes(dtype):
        rows *= consumers
    else:
        columns *= consumers
    config = MatmulConfig(
        (rows, columns, depth),
        stages=ring.stages,
        consumers=consumers,
        wgmma_pending=kernel.wgmma_pending,
    )
    shape = ProductShape(m, n, max(k, 1), dtype)
    tiles = as_candidates([config], dtype, shape.k)
    return float(estimate(shape, tiles, CHIP, MEASURED)[0]) * 1e-6


def _bytes(dtype: str) -> int:
    return DTYPES[dtype].num_bytes if dtype in DTYPES else 4
