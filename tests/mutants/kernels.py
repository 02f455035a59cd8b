"""The kernels that are mutated: final functions as our passes emit them, in small shapes.

Five trips over two slots where there is a ring, so that each slot is filled three times and every
parity is met twice; inputs are distinct random integers, so that sums are exact.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from tvm import s_tir

from tests.seeded.golden import g2_multicast
from tests.seeded.lowering import lower
from tests.sim_kernels import pointwise_kernels, tensor_core_kernels
from tests.sim_kernels.kernels import scheduled
from tvm_hopper import ir, schedule as hs
from tvm_hopper.simulation import Program, load
from tvm_hopper.testing import backward, columns, memory_bound, workloads
from tvm_hopper.testing.pointwise import Tiling
from tvm_hopper.testing.tensor_cores import ProductKind, WarpTiling


@dataclass(frozen=True)
class Subject:
    """A kernel, and the arguments of its runs; what is left out of them is an output.

    `launch` is the number of the kernel that is changed, of those that the program launches.
    """

    name: str
    program: Program
    inputs: dict[str, np.ndarray]
    launch: int = 0

    @property
    def kernel(self) -> str:
        """The name of the kernel that is changed."""
        return list(self.program.kernels)[self.launch]

    @property
    def device(self) -> Any:
        """The device function that is changed."""
        return self.program.kernels[self.kernel]


def _integers(shape: tuple[int, ...], dtype: Any, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(-9, 10, shape).astype(dtype)


def _product(
    problem: dict[str, Any], tile: tuple[int, int, int], **config: Any
) -> tuple[Program, dict[str, np.ndarray]]:
    mod, module = scheduled(problem, tile, **config)
    inputs = workloads.make_inputs(mod, seed=1)
    names = [p.name for p in mod["main"].params]
    values = {
        name: _integers(x.shape, x.dtype, seed)
        for seed, (name, x) in enumerate(zip(names, inputs, strict=False))
    }
    return load(module), values


def _matmul() -> Any:
    return _product({"m": 64, "n": 16, "k": 80}, (64, 16, 16), stages=2, consumers=1)


def _two_consumers() -> Any:
    problem = {"m": 64, "n": 16, "k": 80}
    return _product(problem, (64, 16, 16), stages=2, consumers=2, wgmma_pending=1)


def _ragged() -> Any:
    return _product({"m": 40, "n": 24, "k": 72}, (64, 16, 16), stages=2, consumers=1)


def _persistent() -> Any:
    problem = {"m": 128, "n": 32, "k": 48}
    return _product(problem, (64, 16, 16), stages=2, consumers=1, persistent=2)


def _epilogue() -> Any:
    problem = {"m": 64, "n": 32, "k": 48, "layout": "NN", "out_dtype": "float16"}
    return _product(
        problem | {"epilogue": ("bias_col", "relu")}, (64, 32, 16), stages=2, consumers=1
    )


def _pointwise() -> Any:
    tiling = Tiling(tile=(4, 64), threads=128, vector=2, steps=5, stages=2, roles=hs.Roles(1))
    _, sch = pointwise_kernels.scheduled("add_row_bias", (20, 64), tiling, "float32")
    values = {"A": _integers((20, 64), "float32", 1), "bias": _integers((20,), "float32", 2)}
    return load(sch.mod), values


def _pointwise_alone() -> Any:
    tiling = Tiling(tile=(4, 64), threads=64, vector=2, steps=5, stages=2)
    _, sch = pointwise_kernels.scheduled("exp_add", (20, 64), tiling, "float32")
    return load(sch.mod), {name: _integers((20, 64), "float32", i) for i, name in enumerate("AB")}


def _mma_sync() -> Any:
    tiling = WarpTiling(tile=(32, 32, 16), stages=2, roles=hs.Roles(1))
    program = load(tensor_core_kernels.scheduled((32, 32, 80), tiling).mod)
    values = tensor_core_kernels.make_inputs((32, 32, 80), ProductKind())
    return program, {n: _integers(x.shape, x.dtype, i) for i, (n, x) in enumerate(values.items())}


def _cluster() -> Any:
    """Return a kernel written by hand: no schedule of ours asks for clusters."""
    kernel = g2_multicast.build()
    lowered = lower(kernel.func)
    name = str(lowered.device.attrs["global_symbol"])
    return Program(lowered.host, {name: lowered.device}), dict(kernel.inputs)


MAKERS: dict[str, Callable[[], tuple[Program, dict[str, np.ndarray]]]] = {
    "matmul": _matmul,
    "two consumers": _two_consumers,
    "ragged": _ragged,
    "persistent": _persistent,
    "epilogue": _epilogue,
    "pointwise, producer": _pointwise,
    "pointwise, alone": _pointwise_alone,
    "mma.sync, producer": _mma_sync,
    "cluster": _cluster,
}


def _rows(name: str, shape: tuple[int, int], inputs: str) -> Any:
    """Return a reduction of rows: many CTAs, shuffles, initial values, an epsilon."""
    sch = s_tir.Schedule(getattr(memory_bound, name)(*shape, "float32"))
    hs.row_reduction(sch, config=hs.RowReductionConfig(rows=1, threads=64))
    shapes = [shape, *[shape[1:]] * (len(inputs) - 1)]
    eighths = np.arange(shape[1], dtype="float32") / 8 - shape[1] // 16
    draw = np.random.default_rng(0).permuted  # no two parts of a row have the same maximum
    values = {n: draw(np.resize(eighths, x), axis=-1) for n, x in zip(inputs, shapes, strict=True)}
    return load(sch.mod), values


MAKERS_OF_ROWS: dict[str, Callable[[], tuple[Program, dict[str, np.ndarray]]]] = {
    "softmax": lambda: _rows("softmax", (12, 256), "X"),
    "layer norm": lambda: _rows("layer_norm", (6, 256), "XWB"),
}


def _columns() -> Any:
    """Return sums of columns: blocks of rows first, then their sums."""
    sch = s_tir.Schedule(columns.column_sum(72, 64))
    hs.column_reduction(sch, config=hs.ColumnReductionConfig(threads=32, rows=2, blocks=3))
    return load(sch.mod), {"X": _integers((72, 64), ml_dtypes.bfloat16, 1)}


def _gradient() -> Any:
    """Return the gradient of a norm of rows, whose weight's part is summed over blocks."""
    mod = backward.rms_norm_backward(12, 256)
    sch = s_tir.Schedule(mod)
    hs.row_reduction(sch, config=hs.RowReductionConfig(64, 1, persistent=4))
    names = [(p.name, ir.dtype_of(p)) for p in mod["main"].params]
    drawn = backward.inputs("rms_norm_backward", 12, 256)
    kinds = {"bfloat16": ml_dtypes.bfloat16}
    return load(sch.mod), {
        name: np.asarray(x).astype(kinds.get(dtype, dtype))
        for (name, dtype), x in zip(names, drawn, strict=False)
    }


def _split_k(mode: str) -> Any:
    problem = {"m": 64, "n": 16, "k": 80}
    config = {"stages": 2, "consumers": 1, "split_k": hs.SplitK(2, mode)}
    return _product(problem, (64, 16, 16), **config)


# Functions of several launches, of which one is changed.
MAKERS_OF_LAUNCHES: dict[str, tuple[Callable[[], Any], int]] = {
    "columns, first launch": (_columns, 0),
    "columns, last launch": (_columns, 1),
    "gradient, first launch": (_gradient, 0),
    "gradient, last launch": (_gradient, 1),
    "split-K, workspace, first launch": (lambda: _split_k("workspace"), 0),
    "split-K, workspace, last launch": (lambda: _split_k("workspace"), 1),
    "split-K, atomic, first launch": (lambda: _split_k("atomic"), 0),
    "split-K, atomic, last launch": (lambda: _split_k("atomic"), 1),
}


def _pingpong() -> Any:
    problem = {"m": 128, "n": 32, "k": 48}
    config = {"stages": 2, "consumers": 2, "persistent": 2, "schedule": "pingpong"}
    return _product(problem, (64, 16, 16), **config)


# Those who take turns: consumers, parts of a sum, thread blocks of a cluster.
MAKERS_OF_TURNS: dict[str, tuple[Callable[[], Any], int]] = {
    "pingpong": (_pingpong, 0),
    "split-K, serial": (lambda: _split_k("serial"), 1),
    "split-K, cluster": (lambda: _split_k("cluster"), 0),
}


@functools.cache
def subject(name: str) -> Subject:
    """Build one kernel."""
    several = MAKERS_OF_LAUNCHES | MAKERS_OF_TURNS
    make, launch = several.get(name, ((MAKERS | MAKERS_OF_ROWS).get(name), 0))
    assert make is not None, name
    program, inputs = make()
    return Subject(name, program, inputs, launch)
