"""Schedules for Ampere, untouched: one option, and they copy asynchronously on both chips."""

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
from tvm_hopper.testing.ampere_schedules import A100, columns, padded, vectors

H200 = "nvidia/nvidia-h200"
TARGETS = pytest.mark.parametrize("target", [H200, A100], ids=["sm_90a", "sm_80"])
RUNS = (("eager", 0), ("on_wait", 0), ("random", 1))
AUTO = {keys.ASYNC_COPY: keys.AUTO}
TWO = {
    "software_pipeline_stage": [0, 3],
    "software_pipeline_order": [0, 1],
    "software_pipeline_async_stages": [0],
}


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


def cut_up(rows: int, columns: int, tile: int, threads: int) -> tvm.IRModule:
    """Double rows of float16: 16 bytes a thread, whatever that leaves of tiles and threads."""
    a = te.placeholder((rows, columns), "float16", name="A")
    c = te.compute((rows, columns), lambda i, j: a[i, j] + a[i, j], name="C")
    sch = s_tir.Schedule(te.create_prim_func([a, c]))
    i, j = sch.get_loops("C")
    k0, i = sch.split(i, [None, tile])
    block, j = sch.split(j, [None, 64])
    sch.reorder(block, k0, i, j)
    sch.bind(block, "blockIdx.x")
    copy = sch.cache_read("C", 0, "shared")
    sch.compute_at(copy, k0)
    _, thread, vector = sch.split(sch.fuse(*sch.get_loops(copy)[-2:]), [None, threads, 8])
    sch.vectorize(vector)
    for loop in (thread, sch.split(sch.fuse(i, j), [None, threads])[1]):
        sch.bind(loop, "threadIdx.x")
    for key, value in TWO.items():
        sch.annotate(k0, key, value)
    return sch.mod


@TARGETS
@pytest.mark.parametrize(
    ("program", "hopper", "ampere"),
    [
        ((32, 128, 4, 64), "bulk_tensor_g2s", "cp_async_cg"),  # two threads for each vector
        ((30, 120, 8, 64), "bulk_tensor_g2s", "cp_async_cg"),  # the last tiles are cut
        ((32, 116, 8, 64), "cp_async_ca", "cp_async_ca"),  # rows of 232 bytes, and vectors of 16
    ],
    ids=["more threads than vectors", "ragged", "ragged rows"],
)
def test_conditions_that_count_vectors(program, hopper, ampere, target):
    mod = cut_up(*program)
    text, _ = built(mod, target)
    assert (ampere if target is A100 else hopper) in text
    check(mod, target)


def test_without_the_option_the_text_is_tvms_own():
    """On an H200; tests/upstream says so of an A100."""

    def text() -> str:
        return tvm.compile(vectors(), target=H200).mod.imports[0].inspect_source()

    stock = text()
    with PassContext(config={"tirx.add_lower_pass": []}):  # gate or not
        assert text() == stock
    assert "cp_async_bulk" not in stock


def test_stages_without_a_copy_stay_tvms_own():
    func = _programs.pipelined_matmul(False).mod["main"]
    plain = tvm.compile(func, target=A100).mod.imports[0].inspect_source()
    with PassContext(config=AUTO):
        assert tvm.compile(func, target=A100).mod.imports[0].inspect_source() == plain


def test_strict_and_explain_agree_that_stores_alone_make_no_kernel():
    sch = s_tir.Schedule(vectors())
    copy = sch.get_sblock("A_shared")
    sch.set_scope(copy, 0, "local")  # what is left is the store
    with PassContext(config=AUTO), pytest.raises(tvm_hopper.HopperError, match="no kernel of ours"):
        tvm_hopper.explain(sch, H200)
    with (
        PassContext(config={**AUTO, keys.STRICT: True}),
        pytest.raises(tvm_hopper.LoweringError, match=r"found asynchronous stages without a copy"),
    ):
        tvm_hopper.lower(sch, H200)


def aligned() -> tvm.IRModule:
    sch = s_tir.Schedule(vectors())
    sch.storage_align("A_shared", 0, axis=-2, factor=32, offset=8)
    return sch.mod


@TARGETS
def test_rows_are_not_padded_and_that_is_said(target):
    _, ex = built(aligned(), target)
    assert "copy A_shared: buffer_dim_align is ignored" in str(tvm_hopper.explain(ex))
    check(aligned(), target)
    with (
        PassContext(config={**AUTO, keys.STRICT: True}),
        pytest.raises(tvm_hopper.LoweringError, match="found buffer_dim_align"),
    ):
        tvm.compile(aligned(), target=target)


def in_two_buffers() -> tvm.IRModule:
    sch = s_tir.Schedule(vectors())
    sch.annotate(sch.get_sblock("A_shared"), "double_buffer_scope", 0)
    return sch.mod


def under_a_condition() -> tvm.IRModule:
    """Copy in every other iteration, whose trips nobody could count."""

    @T.prim_func(s_tir=True)
    def main(A: T.Buffer((16, 16), "float32"), C: T.Buffer((16, 16), "float32")):
        for tx in T.thread_binding(16, thread="threadIdx.x"):
            for i in T.serial(16, annotations=TWO):
                with T.sblock("compute"):
                    a = T.sblock_alloc_buffer((16, 1), scope="shared")
                    if i % 2 == 0:
                        with T.sblock("a"):
                            a[tx, 0] = A[tx, i]
                    with T.sblock("out"):
                        C[tx, i] = T.if_then_else(i % 2 == 0, a[tx, 0], T.float32(0))

    return tvm.IRModule({"main": main})


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        (in_two_buffers, "main, block A_shared: found double_buffer_scope"),
        (under_a_condition, "copy a: found the condition"),
    ],
)
def test_what_is_not_ours_to_give_stays_tvms_own_and_is_said(program, reason):
    mod = program()
    stock = tvm.compile(mod, target=A100).mod.imports[0].inspect_source()
    with (
        PassContext(config=AUTO),
        pytest.warns(UserWarning, match=f"leaves a function to TVM: {reason}"),
    ):
        assert tvm.compile(mod, target=A100).mod.imports[0].inspect_source() == stock
    with (
        PassContext(config={**AUTO, keys.STRICT: True}),
        pytest.raises(tvm_hopper.LoweringError, match=reason),
    ):
        tvm.compile(mod, target=A100)


def test_a_mechanism_by_name_has_to_make_the_copies():
    with (
        PassContext(config={keys.ASYNC_COPY: "cp_async"}),
        pytest.raises(tvm_hopper.LoweringError, match="copy a: found the condition"),
    ):
        tvm.compile(under_a_condition(), target=A100)


def test_one_function_of_a_module_stays_tvms_own_beside_ours():
    funcs = {"f": under_a_condition()["main"], "g": vectors()["main"]}
    mod = tvm.IRModule({n: f.with_attr("global_symbol", n) for n, f in funcs.items()})
    with PassContext(config=AUTO), pytest.warns(UserWarning, match="leaves a function to TVM"):
        text = "".join(x.inspect_source() for x in tvm.compile(mod, target=H200).mod.imports)
    f, g = (text.split(f" {name}_kernel(")[-1].split("\n}\n")[0] for name in "fg")
    assert "cp_async_bulk_tensor_g2s" in g
    assert "cp_async_bulk" not in f


def test_nothing_is_said_otherwise():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        built(vectors(), H200)


@pytest.mark.sampled(every=3)
@TARGETS
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_vectors_of_a_tile_with_longer_rows(target, dtype):
    """TVM gives a row 6 elements where 4 are copied: of what threads read it takes the hull."""
    a = te.placeholder((128, 33), dtype, name="A")
    c = te.compute((16, 128), lambda i, j: a[j, 2 * i] + a[j, 2 * i + 1], name="C")
    sch = s_tir.Schedule(te.create_prim_func([a, c]))
    i, j = sch.get_loops("C")
    k0, i = sch.split(i, [None, 2])
    block, j = sch.split(j, [None, 32])
    sch.reorder(block, k0, i, j)
    sch.bind(block, "blockIdx.x")
    copy = sch.cache_read("C", 0, "shared")
    sch.compute_at(copy, k0)
    _, thread, vector = sch.split(sch.fuse(*sch.get_loops(copy)[-2:]), [None, 48, 4])
    sch.vectorize(vector)
    for loop in (thread, sch.split(sch.fuse(i, j), [None, 48])[1]):
        sch.bind(loop, "threadIdx.x")
    for key, value in TWO.items():
        sch.annotate(k0, key, value)
    check(sch.mod, target)
