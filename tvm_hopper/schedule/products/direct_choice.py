"""Choose how warps load their operands directly, and estimate what they take.

    time = start + bytes / memory                       bytes: of the weights, and of A and C
         + steps x latency + bytes of A / cache         where lanes decode weights

On request alone for operands of 16 bits: tiles were as fast or faster, measured. Weights that are
decoded are loaded in few steps, as many bytes of them in flight as registers hold.
Constants are fitted to times of an H200 (docs/choice.md).
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass

from tvm_hopper.facts.devices import Chip
from tvm_hopper.facts.programming_model import MAX_THREADS, THREADS_PER_WARP

from .direct_shape import MOST_DEPTH, DirectShape, padded_rows, steps_of
from .product_shape import ProductShape
from .thread_rates import ThreadRates, estimate_threads

RATES = ThreadRates(start_us=2.5, memory_bytes=4.6e6)
# Warps, columns and depth, the fastest first.
SHAPES_ALONG_K = ((8, 32, 128), (8, 32, 64), (4, 32, 64), (4, 16, 64))
SHAPES_ALONG_ROWS = ((16, 64, 64), (8, 64, 64), (8, 64, 32), (4, 64, 32), (2, 64, 32))


MOST_DECODED = 8  # rows up to which lanes decode weights by default: 16 were as fast in tiles
REGISTERS = 65536  # of an SM
ADDRESS_REGISTERS = 12  # of a thread, next to operands and sums
MOST_OPERANDS = 100  # registers of a thread: the compiler issues loads of more of them late
MOST_LATE = 0.15  # of the registers of a thread, that it may have too few of
MOST_WARPS, LEAST_DEPTH, MOST_STEP_BYTES = 16, 256, 288  # of a row; no others were timed
TOLERANCE = 0.08  # of the estimate: of shapes within it the one with the deepest steps is taken


@dataclass(frozen=True)
class DecodedRates:
    """Constants of decoded weights, fitted to 108 times, 15% off in the mean; bytes a microsecond.

    - `start_us`: launch, and the last sums' way.
    - `latency_us`: from the loads of a step to the first product.
    - `element_us`: of an element that a warp decodes.
    - `memory_bytes`: of the device's memory; `sm_bytes`: that an SM loads at most.
    - `cache_bytes`: of A, which each warp loads from the caches again.
    - `late`: by how much a step takes longer for each share of a thread's registers that lacks.
    - `ragged`: by how much a step takes longer whose loads may be beyond the end of the sum.
    """

    start_us: float = 3.0
    latency_us: float = 0.44
    element_us: float = 9e-5
    memory_bytes: float = 4.92e6
    sm_bytes: float = 8e4
    cache_bytes: float = 1.1e5
    late: float = 2.4
    ragged: float = 1.2


DECODED = DecodedRates()


@functools.lru_cache(maxsize=64)
def choose_decoded(product: ProductShape, run: int, chip: Chip) -> tuple[DirectShape, float] | None:
    """Choose how the work is distributed where lanes decode B, and estimate the time.

    - `run`: neighbours along k in 16 stored bytes.
    - returns: shape and microseconds; None: no shape fits.
    """
    found = []
    chunk = 4 * run
    fewest = -(-min(LEAST_DEPTH, product.k) // chunk)
    most = max(fewest, int(min(MOST_DEPTH, MOST_STEP_BYTES / product.converted_bytes)) // chunk)
    for columns, chunks, warps in itertools.product(
        (32, 16), range(fewest, most + 1), range(1, MOST_WARPS + 1)
    ):
        if warps * chunks * chunk > -(-product.k // chunk) * chunk:
            continue
        shape = DirectShape(warps, columns, chunks * chunk)
        if not shape.shortfall(padded_rows(product.m), product.converted_bytes):
            time = _estimate_decoded(product, shape, chip)
            found += [] if time is None else [(shape, time)]
    if not found:
        return None
    least = min(time for _, time in found) * (1 + TOLERANCE)
    return min((x for x in found if x[1] <= least), key=lambda x: (-x[0].depth, x[1]))


def _estimate_decoded(product: ProductShape, shape: DirectShape, chip: Chip) -> float | None:
    """Estimate the time of a shape; None where registers do not hold what is in flight."""
    rows, size, rates = padded_rows(product.m), product.converted_bytes, DECODED
    wanted, threads = shape.registers(rows, size), shape.warps * THREADS_PER_WARP
    late = max(0.0, (wanted + ADDRESS_REGISTERS) * threads / REGISTERS - 1)
    is_ragged = product.k % (shape.warps * shape.depth) != 0  # then all loads are issued first
    if late > (0 if is_ragged else MOST_LATE):
        return None
    held = min(wanted, MOST_OPERANDS) + ADDRESS_REGISTERS
    resident = max(1, min(REGISTERS // (held * threads), 2 * MAX_THREADS // threads))
    blocks = -(-product.n // shape.columns)
    rounds = max(1.0, blocks / (chip.num_sms * resident))
    steps = -(-product.k // (shape.warps * shape.depth))
    step = rates.latency_us + shape.columns * shape.depth * rates.element_us
    moved = product.n * product.k * size + product.m * product.k * 2
    moved += product.m * product.n * product.output_bytes
    rate = min(rates.memory_bytes * chip.memory_rate, rates.sm_bytes * min(blocks, chip.num_sms))
    cached = max(1.0, blocks / chip.num_sms) * product.k * product.m * 2 / rates.cache_bytes
    step *= rates.ragged if is_ragged else 1 + rates.late * late
    in_steps = steps * rounds * step
    return rates.start_us + moved / rate + in_steps + cached


def estimate_direct(product: ProductShape, chip: Chip) -> float:
    """Estimate how long it takes, in microseconds."""
    return estimate_threads(product, RATES, chip)


def choose_direct_shape(rows: int, along_k: bool) -> DirectShape:
    """Choose how the work is distributed: as many warps and columns as a thread block has room for.

    Few shapes were timed. Each warp has 128 bytes or more of a row in flight at once.
    """
    padded = padded_rows(rows)
    columns, depth = steps_of(along_k)
    shapes = [DirectShape(*x) for x in (SHAPES_ALONG_K if along_k else SHAPES_ALONG_ROWS)]
    return next((x for x in shapes if not x.shortfall(padded)), DirectShape(1, columns, depth))
