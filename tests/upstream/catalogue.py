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
import tvm

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
    computes : callable, optional
        The same in numpy, of the inputs in order; None where there is no kernel.
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
    computes: Callable[..., np.ndarray] | None = None
    plain: Callable[[], Any] | None = None
    inputs: dict[str, tuple[int, ...]] = field(default_factory=dict)
    error: str = ""

    def integers(self) -> list[np.ndarray]:
        """Return small integers for every argument but the last, which is the output."""
        func = self.program()
        func = func["main"] if isinstance(func, tvm.IRModule) else func
        rng = np.random.default_rng(0)
        found = []
        for x in func.params[:-1]:
            known = tvm.tirx.is_buffer_var(x)
            is_static = known and all(isinstance(n, tvm.tirx.IntImm) for n in x.shape)
            shape = [int(n) for n in x.shape] if is_static else self.inputs["A"]
            kind = str(x.ty.dtype) if known else "float32"
            found.append(rng.integers(-8, 8, shape).astype(kind))
        return found

    def arrays(self) -> dict[str, np.ndarray]:
        """Return numbers for the arguments in `inputs`."""
        rng = np.random.default_rng(0)
        return {
            name: rng.standard_normal(shape).astype("float32")
            for name, shape in self.inputs.items()
        }


def double_and_one(a: np.ndarray) -> np.ndarray:
    """Compute what two steps do; exact where `a` is."""
    return a * 2 + 1


def double_and_three(a: np.ndarray) -> np.ndarray:
    """Compute what three steps do."""
    return a * 2 + 3


def scaled(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Compute what a diamond does."""
    return a * 2 * (b + 2)


def padded_sum(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Add, between two columns of zeros."""
    return np.pad(a + b, ((0, 0), (1, 1)))


def multiplied(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Multiply, in float32."""
    return a.astype("float32") @ b.astype("float32")


TWO = notes([0, 1], [0, 1])
THREE = notes([0, 1, 2], [0, 1, 2])
FOUR = notes([0, 1, 2, 3], [0, 1, 2, 3])
BY_STAGE = notes([0, 0, 3], [0, 2, 1], [0])
BY_REGISTERS = notes([0, 0, 0, 1, 1], [0, 2, 3, 1, 4])

SCHEDULES = (
    Schedule(
        "one trip",
        PIPELINES,
        "trivial_pipeline",
        lambda: pipelines.two_steps(TWO, trips=1),
        double_and_one,
    ),
    Schedule(
        "two stages", PIPELINES, "simple_compute", lambda: pipelines.two_steps(TWO), double_and_one
    ),
    Schedule(
        "another annotation beside",
        PIPELINES,
        "simple_compute_with_other_annotation",
        lambda: pipelines.two_steps({**TWO, "pragma_loop_partition_hint": True}),
        double_and_one,
    ),
    Schedule(
        "symbolic extent",
        PIPELINES,
        "dynamic_compute",
        lambda: pipelines.two_steps_of_any_length(TWO),
        double_and_one,
        inputs={"A": (16, 11)},
    ),
    Schedule(
        "three stages",
        PIPELINES,
        "three_stage_compute",
        lambda: pipelines.three_steps(THREE),
        double_and_three,
    ),
    Schedule(
        "interleaved",
        PIPELINES,
        "dag_interleaving",
        lambda: pipelines.diamond(notes([0, 0, 0, 0, 1], [0, 2, 1, 3, 4])),
        scaled,
    ),
    Schedule(
        "nested",
        PIPELINES,
        "nest_pipeline_simple",
        lambda: nests.in_shared(notes([0, 1, 1, 1], [0, 1, 2, 3]), TWO),
        double_and_one,
    ),
    Schedule(
        "nested, inner ahead",
        PIPELINES,
        "nest_pipeline_prefetch_inner",
        lambda: nests.in_shared(notes([0, 0, 1, 1], [0, 2, 1, 3]), TWO),
        double_and_one,
    ),
    Schedule(
        "nested, by registers",
        PIPELINES,
        "nest_pipeline_interleaving",
        lambda: nests.by_registers(BY_REGISTERS, TWO),
        double_and_one,
    ),
    Schedule(
        "nested, two buffers",
        PIPELINES,
        "nest_pipeline_double_buffer",
        lambda: nests.by_registers(BY_REGISTERS, TWO, two_buffers=True),
        double_and_one,
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
        double_and_one,
    ),
    Schedule(
        "async computation, 3 ahead",
        PIPELINES,
        "simple_compute_async (3 stages)",
        lambda: pipelines.two_steps(notes([0, 3], [0, 1], [0])),
        double_and_one,
    ),
    Schedule(
        "async producers interleaved",
        PIPELINES,
        "async_producer_interleaving",
        lambda: pipelines.sums(BY_STAGE),
        np.add,
    ),
    Schedule(
        "two async stages",
        PIPELINES,
        "three_stage_compute_two_stage_async",
        lambda: pipelines.three_steps(notes([0, 1, 2], [0, 1, 2], [0, 1])),
        double_and_three,
    ),
    Schedule(
        "mma.sync",
        PIPELINES,
        "async_pipelined_mma_gemm_simple",
        lambda: products.product(notes([0, 0, 3], [0, 1, 2], [0])),
        multiplied,
        products.plain,
    ),
    Schedule(
        "mma.sync, nested",
        PIPELINES,
        "async_nested_pipeline_mma_gemm_ideal_annotation",
        lambda: products.product(
            notes([0, 0, 2, 3, 3], [0, 1, 3, 2, 4], [0]), notes([0, 0, 1], [0, 1, 2])
        ),
        multiplied,
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
            np.copy,
            lambda dtype=dtype: copies.plain_rows(dtype),
        )
        for dtype, width in (("float16", 8), ("float16", 4), ("float32", 4), ("float32", 1))
    ),
    Schedule(
        "two tiles of rows",
        COPIES,
        "inject_async_copy_shared_dyn",
        copies.two_rows,
        np.add,
        copies.plain_sum,
    ),
    Schedule(
        "padded by if_then_else",
        COPIES,
        "cp_async_in_if_then_else",
        lambda: pipelines.sums(BY_STAGE, pad=True),
        padded_sum,
    ),
)
BY_NAME = {schedule.name: schedule for schedule in SCHEDULES}
