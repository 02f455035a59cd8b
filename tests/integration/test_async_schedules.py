"""Schedules for Ampere, untouched: one option, and they copy asynchronously on both chips."""

from __future__ import annotations

import warnings

import pytest
import tvm
from tvm import s_tir
from tvm.ir.transform import PassContext

import tvm_hopper
from tests.integration import _programs
from tvm_hopper import verify
from tvm_hopper.requests import keys
from tvm_hopper.testing.ampere_schedules import A100, columns, padded, vectors

H200 = "nvidia/nvidia-h200"
TARGETS = pytest.mark.parametrize("target", [H200, A100], ids=["sm_90a", "sm_80"])
RUNS = (("eager", 0), ("on_wait", 0), ("random", 1))
AUTO = {keys.ASYNC_COPY: keys.AUTO}


def built(mod, target):
    """Build under the option; return the CUDA text of the kernel and what `explain` says."""
    with PassContext(config=AUTO):
        ex = tvm.compile(mod, target=target)
    return ex.mod.imports[0].inspect_source().split("main_kernel(")[-1], ex


def check(mod, target) -> None:
    with PassContext(config=AUTO):
        report = verify(mod, target=target, against=mod, runs=RUNS)
    assert report.verdict == "clean", str(report)
    assert "values compared" in str(report)


@TARGETS
@pytest.mark.parametrize("func", [columns, padded], ids=["columns", "padded"])
def test_elements_of_threads_go_by_cp_async(func, target):
    text, ex = built(func, target)
    assert "cp_async_ca" in text
    said = str(tvm_hopper.explain(ex))
    assert "by cp_async\n" in said
    assert "        not tma: " in said or target is A100
    check(tvm.IRModule({"main": func}), target)


@TARGETS
@pytest.mark.parametrize("stages", [2, 4])
def test_vectors_of_threads_are_a_tile(target, stages):
    mod = vectors(stages=stages)
    text, ex = built(mod, target)
    want = "cp_async_cg" if target is A100 else "cp_async_bulk_tensor_g2s"
    assert want in text
    if target is A100:
        assert "groups of cp.async" in str(tvm_hopper.explain(ex))
    check(mod, target)


@TARGETS
@pytest.mark.parametrize("shape", [(61, 128), (8, 200)])
def test_ragged_tiles(target, shape):
    check(vectors(*shape), target)


@TARGETS
def test_without_the_option_the_text_is_tvms_own(target):
    def text() -> str:
        return tvm.compile(vectors(), target=target).mod.imports[0].inspect_source()

    stock = text()
    with PassContext(config={"tirx.add_lower_pass": []}):  # gate or not
        assert text() == stock
    assert "cp_async_bulk" not in stock


def test_stages_without_a_copy_stay_tvms_own():
    func = _programs.pipelined_matmul(False).mod["main"]
    plain = tvm.compile(func, target=A100).mod.imports[0].inspect_source()
    with PassContext(config=AUTO):
        assert tvm.compile(func, target=A100).mod.imports[0].inspect_source() == plain


def aligned() -> tvm.IRModule:
    sch = s_tir.Schedule(vectors())
    sch.storage_align("A_shared", 0, axis=-2, factor=32, offset=8)
    return sch.mod


def test_what_is_not_ours_to_give_stays_tvms_own_and_is_said():
    mod = aligned()
    stock = tvm.compile(mod, target=A100).mod.imports[0].inspect_source()
    with (
        PassContext(config=AUTO),
        pytest.warns(UserWarning, match="leaves a function to TVM: main, block A_shared: found"),
    ):
        assert tvm.compile(mod, target=A100).mod.imports[0].inspect_source() == stock
    with (
        PassContext(config={**AUTO, keys.STRICT: True}),
        pytest.raises(tvm_hopper.LoweringError, match="found buffer_dim_align"),
    ):
        tvm.compile(mod, target=A100)


def test_nothing_is_said_otherwise():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        built(vectors(), H200)
