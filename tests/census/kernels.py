"""The named kernels of the census: small, and between them most passes act."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import tvm
from tvm import s_tir

from tests.sim_kernels import kernels, pointwise_kernels, tensor_core_kernels, test_later_stages
from tvm_hopper import schedule as hs
from tvm_hopper.requests import keys
from tvm_hopper.testing import (
    ampere_forms,
    ampere_products,
    columns,
    copies,
    memory_bound,
    reductions as across_blocks,
)
from tvm_hopper.testing.ampere_schedules import A100
from tvm_hopper.testing.pointwise import Tiling
from tvm_hopper.testing.tensor_cores import WarpTiling


@dataclass(frozen=True)
class Subject:
    """A scheduled module, and how it is lowered."""

    make: Callable[[], tvm.IRModule]
    target: Any = "nvidia/nvidia-h200"
    options: dict[str, Any] = field(default_factory=dict)


def product(
    m: Any, n: int, k: int, tile: Any = (64, 64, 32), stages: int | None = 2, **config: Any
) -> Subject:
    """Schedule a product by its `MatmulConfig`; some of the keywords are of the program."""
    told = {x: config.pop(x) for x in ("layout", "out_dtype", "epilogue") if x in config}
    problem = {"m": m, "n": n, "k": k} | told
    return Subject(lambda: kernels.scheduled(problem, tile, stages=stages, **config)[1])


def rows(name: str, count: Any, columns: int, **config: Any) -> Subject:
    """Schedule a reduction of rows; without a configuration the model chooses it."""

    def make() -> tvm.IRModule:
        sch = s_tir.Schedule(getattr(memory_bound, name)(count, columns))
        hs.row_reduction(sch, config=hs.RowReductionConfig(**config) if config else None)
        return sch.mod

    return Subject(make)


def elements(name: str, count: Any, columns: Any, **config: Any) -> Subject:
    """Schedule an element-wise program."""

    def make() -> tvm.IRModule:
        sch = s_tir.Schedule(getattr(memory_bound, name)(count, columns))
        hs.pointwise(sch, config=hs.PointwiseConfig(**config))
        return sch.mod

    return Subject(make)


def _column_sum() -> tvm.IRModule:
    sch = s_tir.Schedule(columns.column_sum(512, 264))
    hs.column_reduction(sch, config=hs.ColumnReductionConfig(blocks=4))  # two kernels
    return sch.mod


def _ring(shape: tuple[int, int], tiling: Tiling) -> Subject:
    return Subject(lambda: pointwise_kernels.scheduled("exp_add", shape, tiling, "float32")[1].mod)


KERNELS = {
    "product": product(128, 128, 128, (128, 64, 64), consumers=2, raster=2),
    "product, any number of rows": product(
        "m", 120, 72, epilogue=("bias_col", "gelu"), out_dtype="float16"
    ),
    "product, stored by TMA": product(
        *(128, 64, 64, (128, 64, 32), 2), epilogue=("residual",), out_dtype="float16", store="tma"
    ),
    "split-K, cluster": product(64, 64, 256, split_k=2),
    "split-K, by caller": product(64, 64, 256, split_k=hs.SplitK(2, "caller")),
    "split-K, atomic": product(64, 64, 256, split_k=hs.SplitK(2, "atomic")),
    "stream-K": product(128, 128, 256, persistent=3, split_k="stream"),
    "pingpong": product(128, 192, 128, persistent=-1, schedule="pingpong", consumers=2),
    "multicast": product(128, 128, 128, cluster=(2, 1)),
    "dot products": product(
        *(2, 64, 256, None, None), form=hs.DotShape(32, 2, 1, 2), accumulate="float32"
    ),
    "direct product": product(8, 64, 256, None, None, form="direct", accumulate="float32"),
    "RMSNorm, staged": rows("rms_norm", "n", 1024, threads=64, rows=1, stage=True),
    "RMSNorm, as chosen": rows("rms_norm", "n", 4096),
    "RMSNorm, persistent": rows(
        "rms_norm", 9, 1024, threads=32, rows=1, persistent=2, stage=False, ahead=1
    ),
    "LayerNorm": rows("layer_norm", 5, 1000, threads=64, rows=2, preload=True),
    "LayerNorm, cluster": rows("layer_norm", 6, 1024, threads=64, cluster=2, hint=True),
    "LayerNorm, persistent cluster": rows(
        "layer_norm", 7, 1024, threads=32, persistent=2, cluster=2, ahead=2, stage=True
    ),
    "softmax, online": rows("softmax", 3, 4096, threads=32, rows=1, chunks=2, hint=True),
    "column sum": Subject(_column_sum),
    "GELU": elements("gelu_mul", 3, 1001),
    "copy of any size": elements("copy", "n", "m", together=2),
    "bulk copy": Subject(
        lambda: (
            copies.schedule(
                copies.copy(64, 256), copies.Route((4, 256), load="bulk", store="bulk")
            ).mod
        )
    ),
    "ring with a producer": _ring((20, 64), Tiling((4, 64), 5, 128, 2, 2, roles=hs.Roles(1))),
    "ring by cp.async": _ring((20, 64), Tiling((4, 64), 5, 64, 2, 3, load="cp_async")),
    "ring, later stages": Subject(lambda: test_later_stages.case(6, [0, 0, 1, 2, 3])),
    "sum across blocks": Subject(
        lambda: (
            across_blocks.schedule(
                across_blocks.columns(12, 256), across_blocks.Split(3, mechanism="tma")
            ).mod
        )
    ),
    "product by mma.sync": Subject(
        lambda: (
            tensor_core_kernels.scheduled(
                (64, 64, 64), WarpTiling((32, 32, 16), stages=3, load="cp_async")
            ).mod
        )
    ),
    "product by mma.sync, sm_80": Subject(
        lambda: ampere_products.schedule((128, 128, 96)), A100, {keys.ASYNC_COPY: keys.AUTO}
    ),
    "pipeline of TVM's, sm_80": Subject(
        lambda: ampere_forms.columns(2, 16, 7, pad=True), A100, {keys.ASYNC_COPY: keys.AUTO}
    ),
}
