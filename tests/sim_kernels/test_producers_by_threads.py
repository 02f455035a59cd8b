"""A producer whose threads copy by cp.async and arrive, alone and beside TMA, in one ring."""

import functools

import numpy as np
import pytest
from tvm import tirx

from tests.sim_kernels import pointwise_kernels, step_product_kernels
from tests.sim_kernels.each_sync import emitted_by, make_tests, rules_broken
from tests.sim_kernels.mutate import change, with_argument
from tvm_hopper import pipeline, schedule as hs
from tvm_hopper.simulation import Program, load, verify
from tvm_hopper.testing import pointwise, step_products, workloads
from tvm_hopper.testing.pointwise import Tiling
from tvm_hopper.testing.step_products import ProductTiling

MIXED = {"a": "cp_async", "b": "tma"}
BOTH = {"a": "cp_async", "b": "cp_async"}
SLOW = pytest.mark.slow
TURNED = {"a": "tma", "b": "cp_async"}


# -- products


@pytest.mark.parametrize("stages", [2, pytest.param(3, marks=SLOW)])
@pytest.mark.parametrize(
    "by", [MIXED, pytest.param(BOTH, marks=SLOW), pytest.param(TURNED, marks=SLOW)]
)
def test_products_of_few_trips(by, stages):
    """One trip, one less than slots, as many, one more."""
    for trips in sorted({1, stages - 1, stages, stages + 1}):
        tiling = ProductTiling((64, 8, 16), stages=stages, **by)
        step_product_kernels.check((64, 8, 16 * trips), tiling)


@pytest.mark.slow
@pytest.mark.parametrize("stages", [1, 4])
@pytest.mark.parametrize("by", [MIXED, BOTH])
def test_products_of_more_trips(by, stages):
    for trips in (1, 2, 3, 4, 5, 7, 8, 9):
        tiling = ProductTiling((64, 8, 16), stages=stages, **by)
        step_product_kernels.check((64, 8, 16 * trips), tiling)


@pytest.mark.parametrize("by", [MIXED, pytest.param(BOTH, marks=pytest.mark.slow)])
def test_trips_that_are_counted_at_run_time(by):
    """None, one less than slots, one more, and a part of one; the sum of nothing is zero."""
    mod = workloads.matmul(64, 8, "k", "TN")
    program = load(step_products.schedule(mod, ProductTiling((64, 8, 16), **by)))
    for k in (0, 16, 48, 40):
        a, b = workloads.make_inputs(mod, k=k)
        verify(program, {"A": a, "B": b}, against=mod).require_clean()


@pytest.mark.parametrize(
    ("problem", "layout"),
    [((40, 24, 26), "NT"), pytest.param((66, 12, 20), "NN", marks=pytest.mark.slow)],
)
def test_ragged_products_whose_rows_tma_cannot_take(problem, layout):
    """Chunks of 4 and 8 bytes, cut by bounds in all three dimensions."""
    tiling = ProductTiling((64, 8, 16), a="auto", b="auto")
    step_product_kernels.check(problem, tiling, layout)


@pytest.mark.parametrize("by", [MIXED, pytest.param(BOTH, marks=pytest.mark.slow)])
def test_persistent_blocks_count_on(by):
    """Three trips over two slots: the second output tile begins in the middle."""
    step_product_kernels.check((128, 16, 48), ProductTiling((64, 8, 16), persistent=2, **by))


@pytest.mark.slow
@pytest.mark.parametrize("by", [MIXED, BOTH])
def test_two_consumers_and_a_group_in_flight(by):
    tiling = ProductTiling((128, 8, 16), consumers=2, stages=3, wgmma_pending=1, **by)
    step_product_kernels.check((130, 16, 80), tiling)


@pytest.mark.slow
@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
def test_swizzles(swizzle):
    step_product_kernels.check((64, 64, 128), ProductTiling((64, 64, 64), swizzle=swizzle, **BOTH))


def test_without_stages_a_product_has_a_producer_too():
    step_product_kernels.check((64, 8, 48), ProductTiling((64, 8, 16), stages=None, **MIXED))


@pytest.mark.parametrize("last", ["PlanRingBuffers", "LowerAsyncCopies"])
def test_before_there_is_a_producer_all_threads_copy_and_arrive(last, monkeypatch):
    """A prefix of the pass list is a right kernel: the barriers are those of the plan."""
    passes = pipeline.passes.hook_passes()
    names = [one.info.name.removeprefix("tvm_hopper.") for one in passes]
    kept = {*names[: names.index(last) + 1], "InsertSyncs", "LowerChannelsToMbarriers"}
    chosen = [one for one, name in zip(passes, names, strict=True) if name in kept]
    monkeypatch.setattr(pipeline.passes, "hook_passes", lambda: chosen)
    mod = workloads.matmul(64, 8, 48)
    program = load(step_products.schedule(mod, ProductTiling((64, 8, 16), **MIXED)))
    assert "cp_async_mbarrier_arrive" in emitted_by(program)
    verify(program, against=mod).require_clean()


# -- plain loops: a producer warp


@pytest.mark.parametrize("stages", [1, 2, 3])
def test_pointwise_kernels(stages):
    """Rows and columns that end within a tile, and more trips than slots."""
    tiling = Tiling((4, 64), 4, 128, 2, stages, hs.Roles(1), load="cp_async")
    pointwise_kernels.check("exp_add", (13, 72), tiling)


@pytest.mark.parametrize("columns", [66, pytest.param(68, marks=pytest.mark.slow)])
def test_chunks_of_few_bytes(columns):
    """Of 4 and of 8 bytes: what an automatic choice takes for such rows."""
    tiling = Tiling((4, 64), 3, 128, 2, 2, hs.Roles(1), load="auto")
    pointwise_kernels.check("exp_add", (12, columns), tiling, "float16")


def test_what_consumers_compute_leaves_by_tma():
    tiling = Tiling((4, 64), 3, 128, 2, 2, hs.Roles(1), load="cp_async", store="tma")
    pointwise_kernels.check("exp_add", (12, 64), tiling)


# -- each sync is needed

SHAPE = (20, 64)
PRODUCT = (64, 8, 80)
POINTWISE, WGMMA = "pointwise", "A by cp.async, B by TMA"
WAIT, ARRIVE, FENCE = "mbarrier_wait", "mbarrier_arrive_nocount", "fence_proxy"
COPIED, EXPECT = "cp_async_mbarrier_arrive", "mbarrier_arrive_expect_tx"
REMOVED = {
    (POINTWISE, "mbarrier_init", 0): {"MBAR_USE_BEFORE_INIT"},
    (POINTWISE, "mbarrier_init", 1): {"MBAR_USE_BEFORE_INIT"},
    # No copy by another proxy arrives at these barriers.
    (POINTWISE, "fence_mbarrier_init", 0): set(),
    (POINTWISE, "tvm_storage_sync", 0): {"MBAR_INIT_UNPUBLISHED"},
    (POINTWISE, WAIT, 0): {"RACE_OVERWRITE_BUSY"},
    (POINTWISE, COPIED, 0): {"DEADLOCK"},
    (POINTWISE, WAIT, 1): {"RACE_READ_INFLIGHT"},
    (POINTWISE, "warp_sync", 0): {"RACE_OVERWRITE_BUSY"},
    (POINTWISE, ARRIVE, 0): {"DEADLOCK"},
    (WGMMA, "mbarrier_init", 0): {"MBAR_USE_BEFORE_INIT"},
    (WGMMA, "mbarrier_init", 1): {"MBAR_USE_BEFORE_INIT"},
    (WGMMA, "fence_mbarrier_init", 0): {"MBAR_INIT_FENCE"},
    (WGMMA, "tvm_storage_sync", 0): {"MBAR_INIT_UNPUBLISHED"},
    (WGMMA, "setmaxnreg", 0): set(),  # 256 threads have registers to spare
    (WGMMA, WAIT, 0): {"RACE_OVERWRITE_BUSY"},
    (WGMMA, EXPECT, 0): {"DEADLOCK"},
    (WGMMA, COPIED, 0): {"DEADLOCK"},
    # More registers are for the assembler alone.
    (WGMMA, "setmaxnreg", 1): set(),
    (WGMMA, WAIT, 1): {"RACE_READ_INFLIGHT"},
    (WGMMA, FENCE, 0): {"PROXY_FENCE_MISSING"},
    (WGMMA, "wgmma_fence", 0): {"WGMMA_FENCE_MISSING"},
    (WGMMA, "wgmma_commit_group", 0): {"RACE_OVERWRITE_BUSY", "WGMMA_REG_INFLIGHT"},
    (WGMMA, "wgmma_wait_group", 0): {"RACE_OVERWRITE_BUSY"},
    (WGMMA, ARRIVE, 0): {"DEADLOCK"},
}
DATA = {"cp_async_cg", "cp_async_bulk_tensor_g2s_cluster", "wgmma_f16_ss"}


@functools.cache
def right(kind: str) -> tuple[Program, dict]:
    """Return the kernel as our passes emit it, five trips over two slots, and values."""
    if kind == POINTWISE:
        tiling = Tiling((4, 64), 5, 128, 2, 2, hs.Roles(1), load="cp_async")
        rng = np.random.default_rng(1)
        values = {name: rng.integers(-3, 4, SHAPE).astype("float32") for name in "AB"}
        return load(pointwise.schedule(pointwise.exp_add(*SHAPE), tiling)), values
    mod = workloads.matmul(*PRODUCT)
    values = dict(zip("AB", workloads.make_inputs(mod), strict=True))
    return load(step_products.schedule(mod, ProductTiling((64, 8, 16), **MIXED))), values


test_the_kernels_are_clean, test_simulator_misses_it, test_every_sync_is_in_the_table = make_tests(
    right, REMOVED, DATA
)


@pytest.mark.parametrize("kind", [POINTWISE, WGMMA])
@pytest.mark.parametrize(
    ("by", "rules"),
    [(1, {"DEADLOCK"}), (-1, {"MBAR_ARRIVE_OVERFLOW", "RACE_READ_INFLIGHT"})],
)
def test_arrivals_are_exact(kind, by, rules):
    other = with_argument(1, lambda old: tirx.const(int(old) + by, "uint32"))
    program, values = right(kind)
    assert rules & rules_broken(change(program, "mbarrier_init", 0, other), values)
