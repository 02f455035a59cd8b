"""Slower forms are told by `explain`, and refused under `strict`, by every road an option takes."""

import pytest
import tvm
from tvm import s_tir

import tvm_hopper
from tvm_hopper import schedule as hs
from tvm_hopper.errors import LoweringError
from tvm_hopper.testing import workloads

TARGET = "nvidia/nvidia-h200"


def scheduled(n, out_dtype="float16", **config):
    sch = s_tir.Schedule(workloads.matmul(64, n, 64, out_dtype=out_dtype))
    hs.matmul(sch, "C", hs.MatmulConfig((64, 64, 64), consumers=1, **config))
    return sch.mod


@pytest.mark.parametrize(
    ("n", "out_dtype", "width", "told"),
    [
        (64, "float16", 16, False),
        (1000, "bfloat16", 16, False),
        (1000, "float32", 8, False),
        (1002, "float16", 16, False),
        (1001, "float16", 16, False),
        (1001, "float32", 4, True),
    ],
)
def test_narrow_stores_are_told(n, out_dtype, width, told):
    (kernel,) = tvm_hopper.explain(scheduled(n, out_dtype, stages=2), TARGET).kernels
    (store,) = kernel.stores
    assert store.num_bytes == width
    assert bool(kernel.fallbacks) == told


def strictly_by_context(mod):
    with tvm.transform.PassContext(config={"tvm_hopper.strict": True}):
        return tvm_hopper.lower(mod, TARGET)


def strictly_by_attribute(mod):
    mod["main"] = mod["main"].with_attr("tvm_hopper.strict", True)
    return tvm_hopper.lower(mod, TARGET)


@pytest.mark.parametrize("lower", [strictly_by_context, strictly_by_attribute])
def test_strict_refuses_them(lower):
    with pytest.raises(
        LoweringError,
        match=r"store of \w+, tvm_hopper.strict: found 1 elements at a time, as rows of 1001 .*; "
        r"need rows of a multiple of [248] elements; pad the tensor's last dimension",
    ):
        lower(scheduled(1001, "float32", stages=2))
    lower(scheduled(1000, "float32", stages=2))


def test_a_ring_too_short_for_the_option_is_told_and_refused_strictly():
    config = {"tvm_hopper.wgmma_pending": 1}
    with tvm.transform.PassContext(config=config):
        (kernel,) = tvm_hopper.explain(scheduled(64, stages=1), TARGET).kernels
    assert kernel.wgmma_pending == 0
    assert kernel.fallbacks == (
        "loop k_0: 0 WGMMA groups in flight instead of 1; faster with at least 2 stages",
    )
    with (
        tvm.transform.PassContext(config={**config, "tvm_hopper.strict": True}),
        pytest.raises(
            LoweringError, match=r"0 WGMMA groups in flight instead of 1; need at least 2"
        ),
    ):
        tvm_hopper.lower(scheduled(64, stages=1), TARGET)
