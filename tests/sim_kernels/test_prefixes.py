"""The pass list cut at each stage boundary: the kernel still computes the same.

Behind the cut run only the passes that realise what is open. `make test` runs every third
boundary or every fifth. Products that threads compute, in front of the stage that makes
instructions, take the simulator long.
"""

import functools

import numpy as np
import pytest
from tvm import s_tir

from tests.sim_kernels import (
    kernels,
    pointwise_kernels,
    step_product_kernels,
    tensor_core_kernels,
    test_memory_bound,
)
from tests.sim_kernels.kernels import check
from tests.sim_kernels.test_reductions import check as check_columns
from tvm_hopper import pipeline, schedule as hs
from tvm_hopper.errors import VerifyError
from tvm_hopper.requests import keys
from tvm_hopper.schedule.products import apply, several
from tvm_hopper.simulation import load, simulate, verify
from tvm_hopper.testing import reductions, workloads
from tvm_hopper.testing.converted import converted_weight
from tvm_hopper.testing.gates import products_of_one_operand
from tvm_hopper.testing.pointwise import Tiling
from tvm_hopper.testing.step_products import ProductTiling
from tvm_hopper.testing.tensor_cores import WarpTiling
from tvm_hopper.transforms.stages import REALISING, STAGES

BOUNDARIES = [stage for stage in STAGES if stage.place == "hook"]
NAMES = [stage.name for stage in BOUNDARIES]


def of_every_call(module):
    """Let parts of sums meet in memory whoever calls: no kernel for calls without an allocator."""
    sch = s_tir.Schedule(module)
    (axis,) = (x for x in sch.get_loops("C_update_o") if keys.STREAM in sch.get(x).annotations)
    sch.unannotate(axis, keys.STREAM)
    sch.annotate(axis, keys.STREAM, keys.STREAM_ALWAYS)
    return sch.mod


def check_converted():
    """Check a weight of 8 bits that is converted on its way, with padded rows of the other side."""
    sch = s_tir.Schedule(converted_weight(5, 64, 32))
    hs.matmul(sch, "C", hs.MatmulConfig(tile=(64, 8, 16), stages=2))
    x, w, s = inputs = workloads.make_inputs(sch.mod, seed=1)
    got = simulate(load(sch.mod), dict(zip("XWS", inputs, strict=True)), "on_wait", 0)
    assert not got.findings
    want = x.astype("float64") @ (w.astype("float64") * s.astype("float64")[:, None]).T
    np.testing.assert_array_equal(got.outputs["D"], want.astype("float16"))


def check_several():
    """Check two products of one operand, with padded rows and a padded sum."""
    mod = products_of_one_operand(40, 8, 24, value=lambda gate, up: gate * up)
    sch = s_tir.Schedule(mod)
    hs.matmul(sch, ("C0", "C1"), hs.MatmulConfig(tile=(64, 8, 16), stages=2))
    inputs = workloads.make_inputs(mod, seed=1)
    values = dict(zip(("A", "W0", "W1"), inputs, strict=True))
    kernel = load(sch.mod)
    a, *weights = (x.astype("float64") for x in inputs)
    want = np.prod([a @ w.T for w in weights], axis=0)
    got = simulate(kernel, values, "on_wait", 0)
    assert not got.findings
    np.testing.assert_array_equal(got.outputs["D"], want.astype("float16"))
    verify(kernel, values, kernels.RUNS, max_ctas=2).require_clean()


MATMUL = functools.partial(check, tile=(64, 8, 16), stages=2, consumers=1)
MMA_SYNC = functools.partial(tensor_core_kernels.check, (32, 32, 32))
POINTWISE = functools.partial(pointwise_kernels.check, "exp_add", (12, 64))
KERNELS = {
    "plain": functools.partial(MATMUL, {"m": 64, "n": 8, "k": 32}),
    "ragged": functools.partial(MATMUL, {"m": 40, "n": 8, "k": 24}),
    "persistent": functools.partial(MATMUL, {"m": 64, "n": 16, "k": 32}, persistent=1),
    "several products": check_several,
    "converted operand": check_converted,
    "staged": functools.partial(
        check,
        {"m": 128, "n": 8, "k": 16, "out_dtype": "float16"},
        tile=(128, 8, 16),
        stages=1,
        consumers=2,
        store="tma",
    ),
    "parts": functools.partial(
        check,
        {"m": 64, "n": 8, "k": 32},
        tile=(64, 8, 16),
        stages=1,
        consumers=1,
        split_k=2,
    ),
    "blocks that load for one another": functools.partial(
        MATMUL, {"m": 128, "n": 16, "k": 32}, tile=(64, 16, 16), cluster=(2, 1)
    ),
    "parts by two kernels": functools.partial(
        MATMUL, {"m": 64, "n": 8, "k": 32}, split_k=hs.SplitK(2, "workspace")
    ),
    "consumers in turn": functools.partial(
        MATMUL, {"m": 64, "n": 24, "k": 32}, persistent=1, schedule="pingpong", consumers=2
    ),
    "equal shares": functools.partial(
        MATMUL,
        {"m": 64, "n": 16, "k": 48},
        persistent=4,
        split_k="stream",
        change=of_every_call,
    ),
    "columns that blocks share": lambda: check_columns(
        reductions.columns(12, 256), reductions.Split(3, mechanism="tma")
    ),
    "pointwise, one role": functools.partial(
        POINTWISE, Tiling(tile=(4, 64), threads=64, steps=3, stages=2)
    ),
    "pointwise, producer": functools.partial(
        POINTWISE,
        Tiling(tile=(4, 64), threads=128, vector=2, steps=3, stages=2, roles=hs.Roles(1)),
    ),
    "pointwise, producer by cp.async": functools.partial(
        POINTWISE,
        Tiling((4, 64), 3, 128, 2, stages=2, roles=hs.Roles(1), load="cp_async"),
    ),
    "A by cp.async, B by TMA": functools.partial(
        step_product_kernels.check, (64, 8, 24), ProductTiling((64, 8, 16))
    ),
    "mma.sync, one role": functools.partial(MMA_SYNC, WarpTiling(tile=(32, 32, 16))),
    "mma.sync, one role, cp.async": functools.partial(
        MMA_SYNC, WarpTiling(tile=(32, 32, 16), stages=3, load="cp_async")
    ),
    "mma.sync, producer": functools.partial(
        MMA_SYNC, WarpTiling(tile=(32, 32, 16), roles=hs.Roles(1))
    ),
}


def rows(name, count, columns, dtype="bfloat16", **config):
    """Return a check of a memory-bound kernel: values against float64, and no finding."""
    given = hs.RowReductionConfig(**config) if config else None
    return lambda: test_memory_bound.run(name, count, columns, dtype, given)


ROWS = {
    "rows, staged": rows("rms_norm", 3, 512, threads=32, rows=2, stage=True),
    "rows, staged for several passes": rows("softmax", 3, 1024, threads=32, stage=True, chunks=1),
    "rows of a cluster": rows("layer_norm", 3, 528, threads=32, rows=1, cluster=2),
    "rows, online": rows("softmax", 3, 1032, threads=32, rows=1, chunks=2, hint=True),
    "rows, persistent": rows("layer_norm", 4, 1024, "float32", threads=32, rows=1, persistent=2),
    "rows of persistent clusters": rows(
        *("rms_norm", 6, 1024, "float16"),
        **{"threads": 64, "persistent": 1, "cluster": 2, "ahead": 1, "reload": True, "stage": True},
    ),
    "elements": rows("gelu_mul", 3, 265),
}
CASES = KERNELS | ROWS


def keep(monkeypatch, made):
    """Let the lowering run some of our passes; the helpers ask for what only all of them do."""
    monkeypatch.setattr(pipeline.passes, "hook_passes", lambda: [make() for make in made])
    for module in (apply, several):
        monkeypatch.setattr(module, "check_lowering", lambda *_: None)


def cut(count):
    """Return the makers of passes of so many stages, and of those that realise what is open."""
    wanted = {make for stage in BOUNDARIES[:count] for make in stage.passes} | {*REALISING}
    return [make for stage in BOUNDARIES for make in stage.passes if make in wanted]


LONG = ("mma.sync, one role", "mma.sync, one role, cp.async", "staged")
INSTRUCTIONS = NAMES.index("instructions") + 1


def is_long(kernel, count):
    """Leave every third boundary of products, with instructions; every fifth of rows, in front."""
    turn = count + list(CASES).index(kernel)
    if kernel in ROWS:
        return turn % 5 != 0 or count > INSTRUCTIONS
    return turn % 3 != 0 or count < INSTRUCTIONS or kernel in LONG


@pytest.mark.parametrize(
    ("kernel", "count"),
    [
        pytest.param(
            kernel,
            count,
            marks=[pytest.mark.slow] if is_long(kernel, count) else [],
            id=f"{kernel}-{NAMES[count - 1] if count else 'nothing'}",
        )
        for kernel in CASES
        for count in range(len(NAMES) + 1)
    ],
)
def test_right_behind(kernel, count, monkeypatch):
    """A simulated run gives the right values; of a product `verify` finds every schedule clean."""
    if count < INSTRUCTIONS:  # one thread copies, which takes the simulator long
        monkeypatch.setattr(kernels, "RUNS", kernels.RUNS[:1])
    keep(monkeypatch, cut(count))
    CASES[kernel]()


def test_without_its_waits_the_kernel_is_no_kernel_yet(monkeypatch):
    made = cut(NAMES.index("barriers") + 1)
    keep(monkeypatch, [make for make in made if make().info.name != "tvm_hopper.InsertSyncs"])
    with pytest.raises((AssertionError, VerifyError), match="WGMMA_FENCE_MISSING"):
        KERNELS["plain"]()
