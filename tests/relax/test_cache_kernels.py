"""Kernels of TVM's paged cache: replaced in our pipeline, and where caches are made."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax
from tvm.relax.frontend.nn.llm import kv_cache
from tvm.s_tir import dlight as dl

from tests.relax import models
from tests.schedule.attention.caches import Cache, ragged_arguments, reference
from tvm_hopper.relax import cache_kernels, disable, enable, report
from tvm_hopper.relax.cache_kernels import ROUNDS, serve_cache_kernels
from tvm_hopper.relax.options import ModelOptions
from tvm_hopper.relax.records import OURS
from tvm_hopper.simulation import simulate
from tvm_hopper.testing.llama import SMALL, llama

TARGET = tvm.target.Target(models.H200, host="llvm")
WINDOW = "batch_prefill_paged_kv_sliding_window"
SERVED = {
    WINDOW,
    "batch_prefill_ragged_kv",
    "batch_prefill_paged_kv",
    "batch_decode_paged_kv",
    "batch_decode_paged_kv_sliding_window",
}
# What MLC-LLM runs between its frontend and the virtual machine, of TVM's own passes.
MLC_PASSES = (
    relax.transform.LegalizeOps,
    relax.transform.AnnotateTIROpPattern,
    relax.transform.FoldConstant,
    relax.transform.FuseOps,
    relax.transform.FuseTIR,
    relax.transform.DeadCodeElimination,
    lambda: dl.ApplyDefaultSchedule(
        dl.gpu.Matmul(), dl.gpu.GEMV(), dl.gpu.Reduction(), dl.gpu.GeneralReduction(),
        dl.gpu.Fallback(),
    ),
    relax.transform.RewriteDataflowReshape,
    relax.transform.ToNonDataflow,
    relax.transform.RemovePurityChecking,
    relax.transform.CallTIRRewrite,
    relax.transform.StaticPlanBlockMemory,
    relax.transform.LowerAllocTensor,
    relax.transform.KillAfterLastUse,
    relax.transform.LowerRuntimeBuiltin,
    relax.transform.ComputePrimValue,
    relax.transform.VMShapeLower,
    relax.transform.AttachGlobalSymbol,
)  # fmt: skip
# The loader resolves what functions call at once; TVM's loader wants a driver.
LOAD = """
import ctypes, os, sys, tvm
library = ctypes.CDLL(sys.argv[1], mode=os.RTLD_NOW)
names = ["batch_prefill_ragged_kv", "batch_decode_paged_kv", "batch_decode_paged_kv_of_tvm"]
print([hasattr(library, f"__tvm_ffi_{x}") for x in names])
"""


@pytest.fixture
def enabled():
    enable()
    yield
    disable()


@pytest.fixture(scope="module")
def cache():
    """Return the module of a small model with its cache."""
    return llama(SMALL, attention="paged")


def served(mod, **options):
    with TARGET:
        return serve_cache_kernels(mod, ModelOptions(**options))


def names_of(mod):
    return {str(x.name_hint) for x in mod.functions}


def test_kernels_are_replaced_by_their_parameters(cache):
    done = served(cache)
    assert set(done.fallbacks) == SERVED
    assert set(done.fallbacks.values()) == {f"{x}_of_tvm" for x in SERVED}
    assert not done.refused
    assert names_of(done.mod) == names_of(cache) | set(done.fallbacks.values())
    for name, fallback in done.fallbacks.items():
        assert done.mod[name].attrs["global_symbol"] == name
        theirs = cache[name].with_attr("global_symbol", fallback)
        assert tvm_ffi.structural_equal(done.mod[fallback], theirs)


def test_replacing_again_finds_nothing(cache):
    once = served(cache)
    again = served(once.mod)
    assert not again.fallbacks
    assert again.mod.same_as(once.mod)


def test_names_that_are_taken(cache):
    name = "batch_decode_paged_kv"
    mod = tvm.IRModule(dict(cache.functions_items()))
    mod[f"{name}_of_tvm"] = cache["fused_rope"]
    assert served(mod).fallbacks[name] == f"{name}_of_tvm_1"


def test_weights_that_may_not_be_rounded(cache):
    done = served(cache, accumulate=None)
    assert done.mod.same_as(cache)
    assert set(done.refused.values()) == {ROUNDS}


def test_the_bits_of_a_sequence_do_not_depend_on_the_others(cache):
    one = served(cache, batch_invariant=True).mod["batch_decode_paged_kv"].script()
    assert "merge_values" not in one
    assert "merge_values" in served(cache).mod["batch_decode_paged_kv"].script()


def test_a_replaced_kernel_computes(cache):
    """It is found among the functions of a module, and its fallback is not called."""
    case = Cache(keys=(20, 33), queries=(20, 3), heads=4, kv_heads=2)
    given, parts = ragged_arguments(case)
    mod = served(cache).mod
    done = simulate(mod, given, target=TARGET, entry="batch_prefill_ragged_kv")
    assert done.findings == ()
    want, lse = reference(case, parts)
    np.testing.assert_allclose(done.outputs["output"].astype("float64"), want, atol=2e-3)
    np.testing.assert_allclose(done.outputs["lse"], lse, atol=1e-4)


def test_a_model_of_the_pipeline(cache):
    said = report(cache, models.H200, classes=())
    text = " ".join(str(said).split())
    assert said.section("decode").served["flops"] == 1
    assert "PagedAttention" in text
    decode = said["batch_decode_paged_kv"]
    assert (decode.computed_by, decode.rule) == (OURS, cache_kernels.RULE)
    assert decode.note == "calls batch_decode_paged_kv_of_tvm where rotary_mode is not 0"
    assert said[WINDOW].computed_by == OURS


# -- other pipelines


def test_makers_are_wrapped_while_it_is_enabled(enabled):
    makers = [getattr(kv_cache, x) for x in cache_kernels.MAKERS]
    enable()
    assert [x.maker_of for x in makers] == [
        getattr(kv_cache, x).maker_of for x in cache_kernels.MAKERS
    ]
    disable()
    assert [x.maker_of for x in makers] == [getattr(kv_cache, x) for x in cache_kernels.MAKERS]


def test_a_cache_for_another_target_keeps_its_kernels(enabled):
    mod = llama(SMALL, attention="paged", target="nvidia/nvidia-a100")
    assert not any("of_tvm" in x for x in names_of(mod))


def test_a_cache_of_float32_keeps_its_kernels(enabled):
    mod = llama(SMALL, "float32", attention="paged")
    assert not any("of_tvm" in x for x in names_of(mod))


@pytest.mark.slow
def test_a_module_of_another_pipeline(enabled, tmp_path):
    """With the functions' names and the passes of MLC-LLM, exported, loaded by another process."""
    mod = llama(SMALL, attention="paged")
    assert names_of(mod) > {f"{x}_of_tvm" for x in SERVED}
    with TARGET:
        mod = tvm.transform.Sequential([make() for make in MLC_PASSES])(mod)
    assert "merge_values" in mod["batch_decode_paged_kv"].script()
    ex = relax.build(mod, target=TARGET, relax_pipeline=tvm.transform.Sequential([]))
    path = tmp_path / "model.so"
    ex.export_library(str(path))
    done = subprocess.run(
        [sys.executable, "-c", LOAD, str(path)], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[True, True, True]"
