"""Estimated time of a built function, which fake devices report.

Products of ours are asked of the estimate that chooses configurations (docs/choice.md), by what the
build says of the kernel: tile, ring, consumers. Everything else is taken to move its tensors once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

import tvm

from tvm_hopper.facts.devices import CHIPS
from tvm_hopper.facts.dtypes import DTYPES, dtype_bytes
from tvm_hopper.facts.programming_model import WARP_GROUP_THREADS
from tvm_hopper.schedule.products.candidates import as_candidates
from tvm_hopper.schedule.products.config import MatmulConfig
from tvm_hopper.schedule.products.estimate import estimate
from tvm_hopper.schedule.products.product_shape import ProductShape
from tvm_hopper.schedule.products.rates import MEASURED
from tvm_hopper.transforms.common.explain_notes import (
    MmaNote,
    Note,
    RingNote,
    RolesNote,
    TensorMapNote,
    read_notes,
)

from .artifact import TensorArgument

CHIP = CHIPS["h200"]
BYTES_A_SECOND = 4.0e12
LAUNCH_SECONDS = 3e-6

_Kind = TypeVar("_Kind", bound=Note)


def predicted_seconds(host: tvm.IRModule | None, arguments: Sequence[TensorArgument]) -> float:
    """Return how long the model takes a call for: of its products, else of its bytes.

    - `host`: the lowered host functions, with what was noted of our kernels; None where there are
      none.
    """
    functions = host.functions.values() if host is not None else ()
    noted = [notes for func in functions if (notes := read_notes(func)) is not None]
    kernels = [kernel for notes in noted for kernel in notes.kernels.values()]
    estimates = [_product_seconds(kernel, arguments) for kernel in kernels]
    known = [seconds for seconds in estimates if seconds is not None]
    if known:
        return max(known)  # of size classes one runs
    num_bytes = sum(math.prod(x.shape) * _bytes(x.dtype) for x in arguments)
    return LAUNCH_SECONDS + num_bytes / BYTES_A_SECOND


def _product_seconds(kernel: Sequence[Note], arguments: Sequence[TensorArgument]) -> float | None:
    """Read tile, ring and consumers off the notes of a kernel, and ask the estimate."""
    product, roles = _first(kernel, MmaNote), _first(kernel, RolesNote)
    rings = [x for x in kernel if isinstance(x, RingNote)]
    loaded = [x.tensor for x in kernel if isinstance(x, TensorMapNote)]
    known = {x.name: x for x in arguments}
    outputs = [_extents(x) for x in arguments if x.is_written]
    if product is None or not rings or not outputs or not loaded or loaded[0] not in known:
        return None
    m, n = ([1, 1] + outputs[-1])[-2:]
    read = [known[x] for x in dict.fromkeys(loaded) if x in known and not known[x].is_written]
    m, n, k = _as_computed([math.prod(_extents(x)) for x in read], m, n)
    dtype = known[loaded[0]].dtype
    config = _config(product, roles, max(rings, key=lambda x: x.tx_bytes), dtype)
    shape = ProductShape(m, n, k, dtype)
    tiles = as_candidates([config], dtype, k)
    return float(estimate(shape, tiles, CHIP, MEASURED)[0]) * 1e-6


def _first(kernel: Sequence[Note], kind: type[_Kind]) -> _Kind | None:
    return next((x for x in kernel if isinstance(x, kind)), None)


def _config(product: MmaNote, roles: RolesNote | None, ring: RingNote, dtype: str) -> MatmulConfig:
    """Return the configuration that a kernel was made with; each consumer has a separate tile."""
    rows, columns, depth = product.tile
    consumers = max(1, roles.consumer_threads // WARP_GROUP_THREADS) if roles else 1
    if ring.tx_bytes == (rows * consumers + columns) * depth * dtype_bytes(dtype):
        rows *= consumers
    else:
        columns *= consumers
    return MatmulConfig(
        (rows, columns, depth),
        stages=ring.num_slots,
        consumers=consumers,
        wgmma_pending=roles.pending if roles else None,
    )


def _as_computed(counts: Sequence[int], m: int, n: int) -> tuple[int, int, int]:
    """Return rows, columns and depth, by the elements of the operands in the kernel's order.

    A kernel for few rows multiplies the other way round: it loads the weights first.
    """
    if len(counts) > 1:
        for rows, columns in ((m, n), (n, m)):
            if counts[0] // rows == counts[1] // columns and counts[0] % rows == 0:
                return rows, columns, max(1, counts[0] // rows)
    count = counts[0] if counts else 1
    return m, n, max(1, count // (m if count % m == 0 else n))


def _extents(argument: TensorArgument) -> list[int]:
    return [extent for extent in argument.shape if extent > 1]


def _bytes(dtype: str) -> int:
    return DTYPES[dtype].num_bytes if dtype in DTYPES else 4
