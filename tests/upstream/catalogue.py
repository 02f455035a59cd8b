"""TVM's schedules, by the tests that they are from, and the plain program that each one computes.

Not here: three tests of apache/tvm's two files without a kernel that runs. One is skipped there
(`test_vectorize_cp_async_in_if_then_else`), and two are about a pass and a printer
(`test_multiplication_nodes_are_inlined`, `test_cp_async_raw_dtype_round_trips`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from . import copies, nests, pipelines, products
from .pipelines import notes

PIPELINES = "inject_software_pipeline"
COPIES = "inject_ptx_async_copy"


@dataclass(frozen=True)
class Schedule:
    """One schedule.

    Parameters
    ----------
    name : str
        In the table, and of its tests.
    file, test : str
        Where it stands in apache/tvm's `tests/python/s_tir/transform/test_s_tir_transform_<>.py`.
    program : callable
        Builds it.
    plain : callable, optional
        Builds the program that it computes; None: the schedule, read as serial loops.
    inputs : dict
        Shapes of float32 arguments, where the program leaves them open.
    error : str
        A part of TVM's message, where it refuses the schedule, with or without us.
    """

    name: str
    file: str
    test: str
    program: Callable[[], Any]
    plain: Callable[[], Any] | None = None
    inputs: dict[str, tuple[int, ...]] = field(default_factory=dict)
    error: str = ""

    def arrays(self) -> dict[str, np.ndarray]:
        """Return numbers for the arguments in `inputs`."""
        rng = np.random.default_rng(0)
        return {
            name: rng.standard_normal(shape).astype("float32")
            for name, shape in self.inputs.items()
        }


TWO = notes([0, 1], [0, 1])
THREE = notes([0, 1, 2], [0, 1, 2])
FOUR = notes([0, 1, 2, 3], [0, 1, 2, 3])
BY_STAGE = notes([0, 0, 3], [0, 2, 1], [0])
BY_REGISTERS = notes([0, 0, 0, 1, 1], [0, 2, 3, 1, 4])

SCHEDULES = (
    Schedule("one trip", PIPELINES, "trivial_pipeline", lambda: pipelines.two_steps(TWO, trips=1)),
    Schedule("two stages", PIPELINES, "simple_compute", lambda: pipelines.two_steps(TWO)),
    Schedule(
        "another annotation beside",
        PIPELINES,
        "simple_compute_with_other_annotation",
        lambda: pipelines.two_steps({**TWO, "pragma_loop_partition_hint": True}),
    ),
    Schedule(
        "symbolic extent",
        PIPELINES,
        "dynamic_compute",
        lambda: pipelines.two_steps_of_any_length(TWO),
        inputs={"A": (16, 11)},
    ),
    Schedule(
        "three stages", PIPELINES, "three_stage_compute", lambda: pipelines.three_steps(THREE)
    ),
    Schedule(
        "interleaved",
        PIPELINES,
        "dag_interleaving",
        lambda: pipelines.diamond(notes([0, 0, 0, 0, 1], [0, 2, 1, 3, 4])),
    ),
    Schedule(
        "nested",
        PIPELINES,
        "nest_pipeline_simple",
        lambda: nests.in_shared(notes([0, 1, 1, 1], [0, 1, 2, 3]), TWO),
    ),
    Schedule(
        "nested, inner ahead",
        PIPELINES,
        "nest_pipeline_prefetch_inner",
        lambda: nests.in_shared(notes([0, 0, 1, 1], [0, 2, 1, 3]), TWO),
    ),
    Schedule(
        "nested, by registers",
        PIPELINES,
        "nest_pipeline_interleaving",
        lambda: nests.by_registers(BY_REGISTERS, TWO),
    ),
    Schedule(
        "nested, two buffers",
        PIPELINES,
        "nest_pipeline_double_buffer",
        lambda: nests.by_registers(BY_REGISTERS, TWO, two_buffers=True),
    ),
    Schedule(
        "order against data",
        PIPELINES,
        "error_reorder",
        lambda: pipelines.three_steps(notes([0, 1, 1], [0, 2, 1])),
        error="cannot be reordered",
    ),
    Schedule(
        "one place twice",
        PIPELINES,
        "error_conflicting_order",
        lambda: pipelines.three_steps(notes([0, 1, 1], [0, 1, 1])),
        error="cannot have the same order",
    ),
    Schedule(
        "stages without order",
        PIPELINES,
        "error_missing_annotation",
        lambda: pipelines.two_steps({"software_pipeline_stage": [0, 1]}),
        error="Order of the software pipeline is not defined",
    ),
    Schedule(
        "async computation",
        PIPELINES,
        "simple_compute_async (1 stage)",
        lambda: pipelines.two_steps(notes([0, 1], [0, 1], [0])),
    ),
    Schedule(
        "async computation, 3 ahead",
        PIPELINES,
        "simple_compute_async (3 stages)",
        lambda: pipelines.two_steps(notes([0, 3], [0, 1], [0])),
    ),
    Schedule(
        "async producers interleaved",
        PIPELINES,
        "async_producer_interleaving",
        lambda: pipelines.sums(BY_STAGE),
    ),
    Schedule(
        "two async stages",
        PIPELINES,
        "three_stage_compute_two_stage_async",
        lambda: pipelines.three_steps(notes([0, 1, 2], [0, 1, 2], [0, 1])),
    ),
    Schedule(
        "mma.sync",
        PIPELINES,
        "async_pipelined_mma_gemm_simple",
        lambda: products.product(notes([0, 0, 3], [0, 1, 2], [0])),
        products.plain,
    ),
    Schedule(
        "mma.sync, nested",
        PIPELINES,
        "async_nested_pipeline_mma_gemm_ideal_annotation",
        lambda: products.product(
            notes([0, 0, 2, 3, 3], [0, 1, 3, 2, 4], [0]), notes([0, 0, 1], [0, 1, 2])
        ),
        products.plain,
    ),
    Schedule(
        "fewer trips than stages",
        PIPELINES,
        "less_loop_than_num_stage",
        lambda: pipelines.without_threads(FOUR),
    ),
    Schedule(
        "fewer trips, symbolic",
        PIPELINES,
        "less_loop_than_num_stage_dynamic",
        lambda: pipelines.without_threads(FOUR, trips=None),
        inputs={"A": (2,)},
    ),
    *(
        Schedule(
            f"rows of {dtype} by {width}",
            COPIES,
            "inject_async_copy",
            lambda dtype=dtype, width=width: copies.rows(dtype, width),
            lambda dtype=dtype: copies.plain_rows(dtype),
        )
        for dtype, width in (("float16", 8), ("float16", 4), ("float32", 4), ("float32", 1))
    ),
    Schedule(
        "two tiles of rows",
        COPIES,
        "inject_async_copy_shared_dyn",
        copies.two_rows,
        copies.plain_sum,
    ),
    Schedule(
        "padded by if_then_else",
        COPIES,
        "cp_async_in_if_then_else",
        lambda: pipelines.sums(BY_STAGE, pad=True),
    ),
)
BY_NAME = {schedule.name: schedule for schedule in SCHEDULES}
