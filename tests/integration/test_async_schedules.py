"""Schedules for Ampere, untouched: one option, and they copy asynchronously on Hopper and Ampere.

The forms are those of pipelines that TVM's own tests of `software_pipeline_async_stages` have.
"""

from __future__ import annotations

import warnings

import pytest
import tvm
from tvm import s_tir, te
from tvm.ir.transform import PassContext
from tvm.script import tirx as T

import tvm_hopper
from tests.integration import _programs
from tvm_hopper import verify
from tvm_hopper.requests import keys

H200 = "nvidia/nvidia-h200"
A100 = {
    "kind": "cuda",
    "arch": "sm_80",
    "host": "llvm",
    "max_num_threads": 1024,
    "max_threads_per_block": 1024,
    "max_shared_memory_per_block": 49152,
    "thread_warp_size": 32,
}
TARGETS = pytest.mark.parametrize("target", [H200, A100], ids=["sm_90a", "sm_80"])
RUNS = (("eager", 0), ("on_wait", 0), ("random", 1))
AUTO = {keys.ASYNC_COPY: keys.AUTO}

INTERLEAVED = {
    "software_pipeline_stage": [0, 0, 3],
    "software_pipeline_order": [0, 2, 1],
    "software_pipeline_async_stages": [0],
}


@T.prim_func(s_tir=True)
def columns(
    A: T.Buffer((16, 16), "float32"),
    B: T.Buffer((16, 16), "float32"),
    C: T.Buffer((16, 16), "float32"),
):
    """Compute a sum: two producers in one stage, an element for each thread."""
    T.func_attr({"global_symbol": "main"})
    for tx in T.thread_binding(16, thread="threadIdx.x"):
        for i in T.serial(16, annotations=INTERLEAVED):
            with T.sblock("compute"):
                a = T.sblock_alloc_buffer((16, 1), scope="shared")
                b = T.sblock_alloc_buffer((16, 1), scope="shared")
                with T.sblock("a"):
                    a[tx, 0] = A[tx, i]
                with T.sblock("b"):
                    b[tx, 0] = B[tx, i]
                with T.sblock("sum"):
                    C[tx, i] = a[tx, 0] + b[tx, 0]


@T.prim_func(s_tir=True)
def padded(A: T.Buffer((16, 14), "float32"), C: T.Buffer((16, 16), "float32")):
    """Copy under a condition on both sides, which fills with zeros."""
    T.func_attr({"global_symbol": "main"})
    for tx in T.thread_binding(16, thread="threadIdx.x"):
        for i in T.serial(
            16,
            annotations={
                "software_pipeline_stage": [0, 3],
                "software_pipeline_order": [0, 1],
                "software_pipeline_async_stages": [0],
            },
        ):
            with T.sblock("compute"):
                a = T.sblock_alloc_buffer((16, 1), scope="shared")
                with T.sblock("a"):
                    a[tx, 0] = T.if_then_else(i >= 1 and i < 15, A[tx, i - 1], T.float32(0))
                with T.sblock("store"):
                    C[tx, i] = a[tx, 0]


def vectors(rows: int = 64, columns: int = 128, stages: int = 4) -> tvm.IRModule:
    """Schedule C = 2 A for Ampere: a tile by vectors of 16 bytes a thread, in an async stage."""
    a = te.placeholder((rows, columns), "float16", name="A")
    c = te.compute((rows, columns), lambda i, j: a[i, j] * te.const(2, "float16"), name="C")
    sch = s_tir.Schedule(te.create_prim_func([a, c]))
    tile = sch.cache_read("C", 0, "shared")
    i, j = sch.get_loops("C")
    k0, i = sch.split(i, [None, 8])
    block, j = sch.split(j, [None, 64])
    sch.reorder(block, k0, i, j)
    sch.bind(block, "blockIdx.x")
    sch.compute_at(tile, k0)
    for each, vector in ((sch.get_loops(tile)[-2:], 8), ([i, j], 4)):
        _, thread, elements = sch.split(sch.fuse(*each), [None, 32, vector])
        sch.bind(thread, "threadIdx.x")
        sch.vectorize(elements)
    sch.annotate(k0, "software_pipeline_stage", [0, stages - 1])
    sch.annotate(k0, "software_pipeline_order", [0, 1])
    sch.annotate(k0, "software_pipeline_async_stages", [0])
    return sch.mod


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
    assert "by cp_async; not tma" in str(tvm_hopper.explain(ex)) or target is A100
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
