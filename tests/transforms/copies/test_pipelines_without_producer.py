"""Producers where a chip has none: every thread loads and computes, which is told."""

import pytest
import tvm
from tvm.ir.transform import PassContext

import tvm_hopper
from tests.sim_kernels.test_extents_from_data import inputs, tiled
from tvm_hopper import ir, schedule as hs
from tvm_hopper.errors import LoweringError
from tvm_hopper.facts.arch import SM_80, SM_90A
from tvm_hopper.requests import keys
from tvm_hopper.simulation import verify
from tvm_hopper.transforms.copies.pipelines_without_producer import without_producers

A100 = "nvidia/nvidia-a100"
ROLES = hs.Roles(consumers=2)


def test_the_request_goes_where_the_chip_has_no_producer():
    func = tiled("auto", ROLES).mod["main"]
    (kernel,) = ir.kernels(func)
    assert without_producers(func, kernel, SM_90A)[0].same_as(kernel)
    got, (told,) = without_producers(func, kernel, SM_80)
    assert ir.find_all(kernel, ir.For, lambda x: keys.CONSUMERS in x.annotations)
    assert not ir.find_all(got, ir.For, lambda x: keys.CONSUMERS in x.annotations)
    assert ir.find_all(got, ir.For, lambda x: keys.STAGE in x.annotations)
    assert told.text.startswith(f"loop k, {keys.CONSUMERS}: every thread loads and computes")


def test_one_schedule_serves_both_chips():
    mod = tiled("auto", ROLES).mod
    told = tvm_hopper.explain(mod, target=A100)
    assert "fallback       loop k, tvm_hopper.consumers: every thread loads" in str(told)
    assert "fallbacks      none" in str(tvm_hopper.explain(mod, target="nvidia/nvidia-h200"))
    report = verify(mod, inputs(), [("eager", 0), ("random", 1)], target=A100, progress=False)
    assert report.verdict == "clean", report.table()


def test_a_strict_build_refuses():
    with (
        PassContext(config={keys.STRICT: True}),
        pytest.raises(LoweringError, match=r"tvm_hopper.strict: found every thread loads and comp"),
    ):
        tvm.compile(tiled("auto", ROLES).mod, target=A100)
