"""Products on the tensor cores as TVM's own tests schedule them for Ampere, of any size.

From apache/tvm, `tests/python/s_tir/transform/test_s_tir_transform_inject_software_pipeline.py`
(Apache-2.0), `test_async_pipelined_mma_gemm_simple` and
`test_async_nested_pipeline_mma_gemm_ideal_annotation`. The schedule is TVM's own function
(`tvm.testing.tir.mma_schedule`) with the factors of those tests, 128 x 128 x 32 a thread block,
but for the numbers of thread blocks and of steps along k.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm.testing.tir import mma_schedule

from tvm_hopper.requests.keys import ASYNC_STAGES, ORDER, STAGE

from . import tensor_cores
from .tensor_cores import SIDE, TVM_INTRINSICS, Intrinsics

TILE, DEPTH = 128, 2 * SIDE  # rows and columns of a thread block; elements along k of a step
# annotations of the loop over tiles, and of the one over steps of an instruction in it
Notes = tuple[dict[str, Any], dict[str, Any]]
SIMPLE: Notes = ({STAGE: [0, 0, 3], ORDER: [0, 1, 2], ASYNC_STAGES: [0]}, {})
IDEAL: Notes = (
    {STAGE: [0, 0, 2, 3, 3], ORDER: [0, 1, 3, 2, 4], ASYNC_STAGES: [0]},
    {STAGE: [0, 0, 1], ORDER: [0, 1, 2]},
)


def schedule(
    shape: tuple[int, int, int],
    notes: Notes = SIMPLE,
    intrinsics: Intrinsics | None = None,
    columns: int = 1,
) -> tvm.IRModule:
    """Schedule a product, its loop over tiles and that over steps pipelined.

    - `shape`: rows, columns and depth: multiples of 128, 128 and 32.
    - `notes`: annotations of the two loops: `SIMPLE` or `IDEAL`.
    - `intrinsics`: none: those of `tensor_cores`, which load and multiply by the same calls as
      TVM's.
    - `columns`: tiles of a row that neighbouring thread blocks (blockIdx.x) have.
    """
    m, n, k = shape
    names = intrinsics or tensor_cores.register(tensor_cores.ProductKind())
    sch = mma_schedule(
        tensor_cores.matmul(m, n, k)["main"],
        SIDE,
        "float16",
        False,
        [1, m // TILE, 1, 4, 2],
        [columns, n // TILE // columns, 4, 1, 2],
        [k // DEPTH, 2, 1],
        *[_fragments] * 3,
        names.load_a,
        names.load_b,
        names.multiply,
        names.fill,
        names.store,
        "shared.dyn",
    )
    block = sch.get_sblock("C_o_update")
    for loop, keys in zip(sch.get_loops(block)[3:5], notes, strict=True):
        for key, value in keys.items():
            sch.annotate(loop, key, value)
    return sch.mod


def of_tvm() -> Intrinsics:
    """Import TVM's intrinsics, which takes 25 seconds, and return their names."""
    import tvm.s_tir.tensor_intrin  # noqa: F401

    return TVM_INTRINSICS


def _fragments(i: Any, j: Any) -> tuple[Any, ...]:
    return (i // SIDE, j // SIDE, *tensor_cores.narrow_place(i % SIDE, j % SIDE))
