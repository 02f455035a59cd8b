"""Copies in asynchronous scopes: they ask for us, in loops of their own, and wait for nobody."""

from __future__ import annotations

import pytest
import tvm
from tvm.ir.transform import PassContext
from tvm.script import tirx as T

import tvm_hopper
from tests.transforms.scripts import check
from tests.upstream import copies, pipelines
from tvm_hopper import verify
from tvm_hopper.requests import async_scopes, keys

H200 = "nvidia/nvidia-h200"
AUTO = {keys.ASYNC_COPY: keys.AUTO}
COPY = {keys.ASYNC_COPY: "auto"}


@T.prim_func(private=True, s_tir=True)
def before(
    A: T.Buffer((32, 8), "float16"),
    B: T.Buffer((32, 8), "float16"),
    C: T.Buffer((32, 8), "float16"),
):
    tx = T.launch_thread("threadIdx.x", 32)
    with T.sblock("work"):
        T.reads()
        T.writes()
        a = T.sblock_alloc_buffer((32, 8), "float16", scope="shared")
        b = T.sblock_alloc_buffer((32, 8), "float16", scope="shared")
        with T.attr("default", "async_scope", 1):
            for i in T.vectorized(8):
                a[tx, i] = A[tx, i]
                b[tx, i] = B[tx, i]
        T.evaluate(T.ptx.cp.async_.commit_group())
        T.evaluate(T.ptx.cp.async_.wait_group(0))
        C[tx, 0] = a[tx, 0] + b[tx, 0]


@T.prim_func(private=True, s_tir=True)
def after(
    A: T.Buffer((32, 8), "float16"),
    B: T.Buffer((32, 8), "float16"),
    C: T.Buffer((32, 8), "float16"),
):
    for tx in T.thread_binding(32, thread="threadIdx.x"):
        with T.sblock("work"):
            T.reads()
            T.writes()
            a = T.sblock_alloc_buffer((32, 8), "float16", scope="shared")
            b = T.sblock_alloc_buffer((32, 8), "float16", scope="shared")
            for i in T.vectorized(8):
                with T.sblock("a"):
                    T.reads(A[tx, i])
                    T.writes(a[tx, i])
                    T.sblock_attr({"tvm_hopper.async_copy": "auto", "tvm_hopper.by_option": 1})
                    a[tx, i] = A[tx, i]
            for i in T.vectorized(8):
                with T.sblock("b"):
                    T.reads(B[tx, i])
                    T.writes(b[tx, i])
                    T.sblock_attr({"tvm_hopper.async_copy": "auto", "tvm_hopper.by_option": 1})
                    b[tx, i] = B[tx, i]
            C[tx, 0] = a[tx, 0] + b[tx, 0]


def test_copies_get_loops_of_their_own_and_threads_become_loops():
    check(async_scopes.ask_for_copies(before, "auto"), after)


def test_again_nothing_is_asynchronous():
    asking = async_scopes.ask_for_copies(before, "auto")
    assert not async_scopes.is_asynchronous(asking)
    assert async_scopes.ask_for_copies(asking, "auto") is None


def by_hand():
    """Issue a copy of its author's own beside those of the scope, in the same group."""

    @T.prim_func(private=True, s_tir=True)
    def func(A: T.Buffer((32, 8), "float16"), C: T.Buffer((32, 8), "float16")):
        tx = T.launch_thread("threadIdx.x", 32)
        with T.sblock("work"):
            T.reads()
            T.writes()
            a = T.sblock_alloc_buffer((32, 8), "float16", scope="shared")
            b = T.sblock_alloc_buffer((32, 8), "float16", scope="shared")
            T.s_tir.cp_async_raw("float16", b.data, tx * 8, A.data, tx * 8, 16)
            with T.attr("default", "async_scope", 1):
                for i in T.vectorized(8):
                    a[tx, i] = A[tx, i]
            T.evaluate(T.ptx.cp.async_.commit_group())
            T.evaluate(T.ptx.cp.async_.wait_group(0))
            C[tx, 0] = a[tx, 0] + b[tx, 0]

    return func


def of_what_is_written():
    """Copy what the kernel writes later: when the copy is made makes a difference."""

    @T.prim_func(private=True, s_tir=True)
    def func(A: T.Buffer((32, 8), "float16"), C: T.Buffer((32, 8), "float16")):
        tx = T.launch_thread("threadIdx.x", 32)
        with T.sblock("work"):
            T.reads()
            T.writes()
            a = T.sblock_alloc_buffer((32, 8), "float16", scope="shared")
            with T.attr("default", "async_scope", 1):
                for i in T.vectorized(8):
                    a[tx, i] = A[tx, i]
            T.evaluate(T.ptx.cp.async_.commit_group())
            T.evaluate(T.ptx.cp.async_.wait_group(0))
            A[tx, 0] = a[tx, 1]
            C[tx, 0] = a[tx, 0]

    return func


def without_copies():
    @T.prim_func(private=True, s_tir=True)
    def func(A: T.Buffer((32, 8), "float16"), C: T.Buffer((32, 8), "float16")):
        tx = T.launch_thread("threadIdx.x", 32)
        with T.sblock("work"):
            T.reads()
            T.writes()
            a = T.sblock_alloc_buffer((32,), "float16", scope="shared")
            with T.attr("default", "async_scope", 1):
                a[tx] = A[tx, 0] * T.float16(2)
            C[tx, 0] = a[tx]

    return func


@pytest.mark.parametrize("program", [by_hand, of_what_is_written, without_copies])
def test_scopes_that_are_not_ours_to_order_stay(program):
    assert async_scopes.is_asynchronous(program())
    assert async_scopes.ask_for_copies(program(), "auto") is None


def test_a_scope_becomes_boxes_of_a_tensor_map():
    with PassContext(config=AUTO):
        ex = tvm.compile(copies.two_rows(), target=H200)
    text = ex.mod.imports[0].inspect_source().split("main_kernel(")[-1]
    assert text.count("cp_async_bulk_tensor_g2s") == 2
    assert "wait_group" not in text
    assert "copy b: by tma" in str(tvm_hopper.explain(ex))


def test_a_function_may_ask_for_its_scopes_by_attribute():
    func = copies.rows("float16", 8).with_attr(keys.ASYNC_COPY, "bulk")
    text = tvm.compile(func, target=H200).mod.imports[0].inspect_source()
    assert "cp_async_bulk_g2s" in text
    assert verify(func, target=H200, against=copies.plain_rows("float16")).verdict == "clean"


# -- stages without copies


def test_asynchronous_stages_without_a_copy_become_synchronous():
    three = ([0, 1, 2], [0, 1, 2])
    asked = pipelines.three_steps(pipelines.notes(*three, [0, 1]))
    assert async_scopes.ask_for_copies(asked, "auto") is None
    check(async_scopes.without_empty_stages(asked), pipelines.three_steps(pipelines.notes(*three)))


def test_two_of_them_are_built_that_tvm_refuses():
    func = pipelines.three_steps(pipelines.notes([0, 1, 2], [0, 1, 2], [0, 1]))
    with pytest.raises(tvm.error.InternalError, match="async queue must be 0"):
        tvm.compile(func, target=H200)
    with PassContext(config=AUTO):
        text = tvm.compile(func, target=H200).mod.imports[0].inspect_source()
    plain = pipelines.three_steps(pipelines.notes([0, 1, 2], [0, 1, 2]))
    assert text == tvm.compile(plain, target=H200).mod.imports[0].inspect_source()


def test_a_stage_with_a_copy_stays_asynchronous():
    func = pipelines.sums(pipelines.notes([0, 0, 3], [0, 2, 1], [0]))
    assert async_scopes.without_empty_stages(func).same_as(func)
