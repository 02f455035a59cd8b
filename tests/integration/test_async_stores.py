"""Copies out of shared memory beside asynchronous ones: hardware makes what threads scatter."""

from __future__ import annotations

import re

import pytest
import tvm
from tvm.ir.transform import PassContext
from tvm.script import tirx as T

import tvm_hopper
from tvm_hopper import ir, verify
from tvm_hopper.errors import cannot_lower
from tvm_hopper.requests import keys
from tvm_hopper.requests.async_stores import ask_for_stores
from tvm_hopper.testing import ampere_forms, copies
from tvm_hopper.testing.ampere_forms import Form
from tvm_hopper.testing.ampere_schedules import A100
from tvm_hopper.transforms.sync import insert_syncs

H200 = "nvidia/nvidia-h200"
RUNS = (("on_wait", 0), ("random", 1))


def built(mod, target=H200, mechanism=keys.AUTO, strict=True):
    with PassContext(config={keys.ASYNC_COPY: mechanism, keys.STRICT: strict}):
        return tvm.compile(mod, target=target)


def text_of(ex) -> str:
    source = ex.mod.imports[0].inspect_source()
    return source[source.rindex("main_kernel(") :]


def test_rows_that_threads_scatter_leave_by_tma():
    ex = built(ampere_forms.rows(2, "float32", 4))
    assert "cp_async_bulk_tensor_s2g" in text_of(ex)
    assert "copy B: by tma" in str(tvm_hopper.explain(ex))


def test_where_no_hardware_stores_they_are_dealt_out_anew():
    """Neighboring threads store neighboring elements, not each one its row."""
    mod = ampere_forms.rows(2, "float32", 4)
    ex = built(mod, A100, strict=False)  # where cp.async loads 4 bytes at a time
    assert "copy B: left to threads" in str(tvm_hopper.explain(ex))
    (store,) = re.findall(r"B_ptr\[(.*)\] = dyn_smem_float32_ptr\[(.*)\];", text_of(ex))
    assert not re.search(r"threadIdx\.x\) \* 128", store[0])
    with PassContext(config={keys.ASYNC_COPY: keys.AUTO}):
        plain = copies.copy(64, 128, dtype="float32")
        report = verify(mod, target=A100, against=plain, runs=RUNS)
    assert report.verdict == "clean", str(report)
    assert report.values.checked


def test_what_threads_store_side_by_side_stays_theirs():
    form = Form((8, 32), 2, 64, chunk=4, vector=2, store=2)
    ex = built(ampere_forms.scaled(32, 64, form))
    assert "s2g" not in text_of(ex)
    assert re.search(
        r"copy C_shared: left to threads\s+not by hardware: less than 32 bytes",
        str(tvm_hopper.explain(ex)),
    )


@pytest.mark.parametrize("mechanism", ["tma", "bulk", "cp_async", "none"])
def test_a_mechanism_by_name_is_for_what_the_schedule_has_asynchronous(mechanism):
    strict = mechanism != "cp_async"  # which loads 4 bytes at a time
    ex = built(ampere_forms.rows(2, "float32", 4), mechanism=mechanism, strict=strict)
    assert "s2g" not in text_of(ex)


@T.prim_func(s_tir=True)
def beside(A: T.Buffer((64, 64), "float32"), B: T.Buffer((64, 64), "float32")):
    T.func_attr({"global_symbol": "main"})
    for bx in T.thread_binding(2, thread="blockIdx.x"):
        for tx in T.thread_binding(32, thread="threadIdx.x"):
            with T.sblock("tile"):
                tile = T.sblock_alloc_buffer((32, 64), "float32", scope="shared")
                for i in range(64):
                    with T.sblock("load"):
                        T.sblock_attr({"tvm_hopper.async_copy": "auto"})
                        tile[tx, i] = A[bx * 32 + tx, i]
                for i in range(64):
                    if i < 32:
                        B[bx * 32 + tx, i] = tile[tx, i]
                    else:
                        B[bx * 32 + tx, i] = tile[tx, i] * T.float32(2)


def asking(func) -> list[str]:
    blocks = ir.find_blocks(func.body, keys.ASYNC_COPY)
    return [x.name_hint for x in blocks if ir.find_all(x.body, ir.BufferStore)]


def test_plain_copies_ask_and_what_computes_does_not():
    asked = ask_for_stores(beside)
    assert asking(beside) == ["load"]
    assert asking(asked) == ["load", "B"]
    (block,) = [x for x in ir.find_blocks(asked.body, keys.ASYNC_COPY) if x.name_hint == "B"]
    assert str(block.body).endswith("B[bx * 32 + tx, i] = tile[tx, i]")
    assert dict(block.annotations) == {keys.ASYNC_COPY: keys.AUTO, keys.BY_OPTION: 1}


def test_a_kernel_without_an_asynchronous_copy_stays_as_it_is():
    silent = ir.replace(beside, ir.SBlock, lambda x: ir.with_block(x, annotations={}))
    assert ask_for_stores(silent).same_as(silent)


@T.prim_func(s_tir=True)
def half(A: T.Buffer((64, 64), "float32"), B: T.Buffer((32, 64), "float32")):
    T.func_attr({"global_symbol": "main"})
    for bx in T.thread_binding(2, thread="blockIdx.x"):
        for tx in T.thread_binding(32, thread="threadIdx.x"):
            for k in T.serial(
                4,
                annotations={
                    "software_pipeline_stage": [0, 1],
                    "software_pipeline_order": [0, 1],
                    "software_pipeline_async_stages": [0],
                },
            ):
                with T.sblock("tile"):
                    tile = T.sblock_alloc_buffer((32, 16), "float32", scope="shared")
                    for i in range(16):
                        with T.sblock("load"):
                            tile[tx, i] = A[bx * 32 + tx, k * 16 + i]
                    with T.sblock("store"):
                        if tx < 16:
                            for i in range(16):
                                B[bx * 16 + tx, k * 16 + i] = tile[tx, i]


def test_a_store_of_a_part_of_a_tile_stays_with_the_threads_that_it_is_true_for():
    ex = built(half)
    assert "bulk_tensor_g2s" in text_of(ex)
    assert "s2g" not in text_of(ex)
    with PassContext(config={keys.ASYNC_COPY: keys.AUTO}):
        report = verify(half, target=H200, against=half, runs=RUNS)
    assert report.verdict == "clean", str(report)


def test_no_thread_does_for_all_what_stands_under_a_condition_beside_a_copy():
    def both(branch):
        copy = branch.then_case
        doubled = ir.replace(
            copy, ir.BufferStore, lambda x: ir.BufferStore(x.buffer, x.value * 2, x.indices)
        )
        return ir.IfThenElse(branch.condition, ir.seq([copy, ir.fresh_variables(doubled)]), None)

    ex = built(ir.replace(half, ir.IfThenElse, both))
    assert "not by hardware: it stands under a condition" in str(tvm_hopper.explain(ex))
    assert "s2g" not in text_of(ex)


@T.prim_func(s_tir=True)
def stencil(A: T.Buffer((92, 128), "float32"), B: T.Buffer((90, 126), "float32")):
    for i, j in T.grid(90, 126):
        with T.sblock("B"):
            r, c = T.axis.remap("SS", [i, j])
            B[r, c] = (A[r, c + 1] + A[r + 1, c] + A[r + 1, c + 2] + A[r + 2, c + 1]) * T.float32(
                0.25
            ) + A[r + 1, c + 1]


def test_a_condition_around_a_copy_alone_says_which_rows_it_copies():
    """32 threads load a row each, 30 of them store one: all of the second tile, in one run."""
    mod = ampere_forms.stencil_rows(3, tile=True)
    assert "copy B: by bulk" in str(tvm_hopper.explain(built(mod)))
    with PassContext(config={keys.ASYNC_COPY: keys.AUTO}):
        report = verify(mod, target=H200, against=stencil, runs=RUNS)
    assert report.verdict == "clean", str(report)


def test_where_a_later_pass_refuses_a_store_that_nobody_asked_for(monkeypatch):
    """The loads stay asynchronous, and nothing is left to TVM."""
    plain = insert_syncs.rewrite_syncs

    def refuse(kernel, processor):
        if any(x.annotations[keys.ASYNC_OP] == "tma_store" for x in _operations(kernel)):
            raise cannot_lower("block B", "a store", "none")
        return plain(kernel, processor)

    monkeypatch.setattr(insert_syncs, "rewrite_syncs", refuse)
    ex = built(ampere_forms.rows(2, "float32", 4))  # warnings are errors
    assert "bulk_tensor_g2s" in text_of(ex)
    assert "s2g" not in text_of(ex)


def _operations(kernel) -> list:
    return ir.find_blocks(kernel, keys.ASYNC_OP)
