"""The pass list cut short anywhere: the kernel still computes the same.

Behind the cut run only the passes that realise what is open: InsertSyncs and LowerChannels.
"""

import functools

import pytest
import tvm_ffi
from tvm import s_tir

from tests.sim_kernels import (
    kernels,
    pointwise_kernels,
    step_product_kernels,
    tensor_core_kernels,
)
from tests.sim_kernels.kernels import check
from tests.sim_kernels.test_reductions import check as check_columns
from tvm_hopper import pipeline
from tvm_hopper import schedule as hs
from tvm_hopper.errors import VerifyError
from tvm_hopper.requests import keys
from tvm_hopper.schedule.products import apply
from tvm_hopper.testing import reductions
from tvm_hopper.testing.pointwise import Tiling
from tvm_hopper.testing.step_products import ProductTiling
from tvm_hopper.testing.tensor_cores import WarpTiling

PASSES = pipeline.passes.hook_passes()
NAMES = [one.info.name.removeprefix("tvm_hopper.") for one in PASSES]
REALISING = ["InsertSyncs", "LowerChannels"]


def of_every_call(module):
    """Let parts of sums meet in memory whoever calls: no kernel for calls without an allocator."""
    sch = s_tir.Schedule(module)
    (axis,) = (x for x in sch.get_loops("C_update_o") if keys.STREAM in sch.get(x).annotations)
    sch.unannotate(axis, keys.STREAM)
    sch.annotate(axis, keys.STREAM, keys.STREAM_ALWAYS)
    return sch.mod


MATMUL = functools.partial(check, tile=(64, 8, 16), stages=2, consumers=1)
MMA_SYNC = functools.partial(tensor_core_kernels.check, (32, 32, 32))
POINTWISE = functools.partial(pointwise_kernels.check, "exp_add", (12, 64))
KERNELS = {
    "plain": functools.partial(MATMUL, {"m": 64, "n": 8, "k": 32}),
    "ragged": functools.partial(MATMUL, {"m": 40, "n": 8, "k": 24}),
    "persistent": functools.partial(MATMUL, {"m": 64, "n": 16, "k": 32}, persistent=1),
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
        MATMUL, {"m": 64, "n": 8, "k": 32}, split_k=2, split_mode="workspace"
    ),
    "consumers in turn": functools.partial(
        MATMUL, {"m": 64, "n": 24, "k": 32}, persistent=1, schedule="pingpong", consumers=2
    ),
    "equal shares": functools.partial(
        MATMUL,
        {"m": 64, "n": 16, "k": 48},
        persistent=4,
        split_mode="stream",
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


def keep(monkeypatch, passes):
    """Let the lowering run these of our passes; the helpers ask for what only all of them do."""
    monkeypatch.setattr(pipeline.passes, "hook_passes", lambda: passes)
    monkeypatch.setattr(apply, "check_lowering", lambda *_: None)


def keep_named(monkeypatch, names):
    keep(monkeypatch, [one for one, name in zip(PASSES, NAMES, strict=True) if name in names])


class Watched:
    """A pass that writes its name down where it changes something; the last one ends the build."""

    def __init__(self, one, acting):
        self.one, self.acting, self.info = one, acting, one.info

    def __call__(self, mod):
        changed = self.one(mod)
        if not tvm_ffi.structural_equal(mod, changed):
            self.acting.append(NAMES[PASSES.index(self.one)])
        if self.one is PASSES[-1]:
            raise VerifyError("the end of our passes")
        return changed


def cuts_of(kernel, monkeypatch):
    """Return the passes behind which a kernel is another one than behind the pass before."""
    acting = ["nothing"]
    keep(monkeypatch, [Watched(one, acting) for one in PASSES])
    with pytest.raises(VerifyError, match="the end of our passes"):
        KERNELS[kernel]()
    return acting


def is_quick(kernel, last):
    """Tell whether tensor cores compute the product already, or it is the smallest one."""
    early = last == "nothing" or NAMES.index(last) < NAMES.index("LowerMma")
    return kernel == "plain" or kernel.startswith("pointwise") or not early


LONG = ("mma.sync, one role", "mma.sync, one role, cp.async", "staged")
SHARES = 5


@pytest.mark.parametrize(
    ("kernel", "share"),
    [
        pytest.param(
            kernel,
            (number + turn) % SHARES,
            marks=[pytest.mark.slow] if turn or kernel in LONG else [],
        )
        for number, kernel in enumerate(KERNELS)
        for turn in range(SHARES)
    ],
)
def test_right_after(kernel, share, monkeypatch, request):
    """A simulated run gives the right values, and `verify` finds every schedule clean.

    Each kernel takes a share of its cuts in every run, all of them in the slow ones.
    """
    cuts = cuts_of(kernel, monkeypatch)
    assert len(cuts) >= SHARES
    whole = request.node.get_closest_marker("slow")
    for last in cuts[share::SHARES]:
        if not whole and not is_quick(kernel, last):
            continue
        prefix = NAMES[: NAMES.index(last) + 1] if last in NAMES else []
        with monkeypatch.context() as patch:
            if "LowerMma" not in prefix:  # one thread copies, which takes the simulator long
                patch.setattr(kernels, "RUNS", kernels.RUNS[:1])
            keep_named(patch, {*prefix, *REALISING})
            KERNELS[kernel]()


def test_without_its_waits_the_kernel_is_no_kernel_yet(monkeypatch):
    keep_named(monkeypatch, {*NAMES[: NAMES.index("LowerChannels") + 1]} - {"InsertSyncs"})
    with pytest.raises((AssertionError, VerifyError), match="WGMMA_FENCE_MISSING"):
        KERNELS["plain"]()
