"""TVM's own annotations and loop kinds in a function of ours: read, or refused by name."""

from __future__ import annotations

import pytest
import tvm
from tvm import s_tir, te, tirx

import tvm_hopper
from tests.transforms.scripts import parse
from tvm_hopper import LoweringError, ir, schedule as hs
from tvm_hopper.cuda_build import records
from tvm_hopper.requests import keys
from tvm_hopper.testing import workloads

from . import _programs

H200 = "nvidia/nvidia-h200"
CONFIG = hs.MatmulConfig(tile=(64, 64, 64), stages=3, consumers=1)


def gemm() -> s_tir.Schedule:
    sch = s_tir.Schedule(workloads.matmul(128, 64, 256, out_dtype="float32"))
    hs.matmul(sch, "C", CONFIG)
    return sch


def k_loop(sch: s_tir.Schedule):
    return sch.get_loops("C_update_o")[-1]


def annotated(key: str, value: object, loop=k_loop) -> s_tir.Schedule:
    sch = gemm()
    if key in sch.get(loop(sch)).annotations:
        sch.unannotate(loop(sch), key)
    sch.annotate(loop(sch), key, value)
    return sch


NO_LISTS = [3, "0,0,2", [0, 0, 1.5], ["0", "0", "2"], [0.9, 0.9, 2.9], [True, False, True]]
NO_LISTS += [{"a": 1}, "", 2.0]


@pytest.mark.parametrize("key", keys.PIPELINE_KEYS)
@pytest.mark.parametrize("value", NO_LISTS, ids=repr)
def test_a_pipeline_list_of_something_else_is_refused(key, value) -> None:
    with pytest.raises(LoweringError, match=f"main, loop k_0: found {key} = .*; need a list of in"):
        tvm.compile(annotated(key, value).mod, target=H200)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_a_pipeline_list_of_immediates_is_read(dtype) -> None:
    value = [tirx.IntImm(dtype, x) for x in (0, 0, 1)]
    built = tvm.compile(annotated(keys.STAGE, value).mod, target=H200)
    assert tvm_hopper.explain(built).kernels[0].stages == 2


@pytest.mark.parametrize("name", ["sofware_pipeline_stage", "software_pipeline_stages"])
def test_a_misspelt_pipeline_key_is_refused(name) -> None:
    need = f"loop k_0: found unknown key {name}; need one of .*did you mean software_pipeline_stage"
    with pytest.raises(LoweringError, match=need):
        tvm.compile(annotated(name, [0, 0, 2]).mod, target=H200)


def copy_loop(sch: s_tir.Schedule):
    return sch.get_loops("A_shared.dyn")[-1]


def bound_loop(sch: s_tir.Schedule):
    return sch.get_loops("C_update_o")[1]


@pytest.mark.parametrize(
    ("key", "value", "loop", "found"),
    [
        (keys.STAGE, [0], copy_loop, "loop ax1 of block A_shared.dyn: found software_pipeline_sta"),
        (keys.ORDER, [0], copy_loop, "found software_pipeline_order on a loop that is not around"),
        (keys.STAGE, [0], bound_loop, "found software_pipeline_stage on a loop that is not around"),
        ("pragma_auto_unroll_max_step", 16, k_loop, "loop k_0: found pragma_auto_unroll_max_step"),
        ("pragma_unroll_explicit", 1, copy_loop, "loop ax1 of .*: found pragma_unroll_explicit in"),
    ],
)
def test_a_loop_annotation_that_would_be_lost_is_refused(key, value, loop, found) -> None:
    with pytest.raises(LoweringError, match=found):
        tvm.compile(annotated(key, value, loop).mod, target=H200)


def test_pipeline_keys_on_a_loop_around_the_kernel_are_refused() -> None:
    sch = gemm()
    outer = sch.add_unit_loop(sch.get_loops("C_update_o")[0])
    sch.annotate(outer, keys.STAGE, [0])
    with pytest.raises(
        LoweringError, match="found software_pipeline_stage on a loop that is not a"
    ):
        tvm.compile(sch.mod, target=H200)


def test_foreign_annotations_stay_unheard() -> None:
    """Nothing in TVM acts on them, so nothing is lost; the outermost pragma is heard by TVM."""
    plain = tvm.compile(gemm().mod, target=H200).mod.imports[0].inspect_source()
    noted = annotated("mykey", 1)
    noted.annotate(noted.get_sblock("C_update_o"), "meta_schedule.note", "x")
    noted.annotate(noted.get_loops("C_update_o")[0], "pragma_auto_unroll_max_step", 16)
    assert "wgmma" in tvm.compile(noted.mod, target=H200).mod.imports[0].inspect_source()
    mine = annotated("mykey", 1)
    assert tvm.compile(mine.mod, target=H200).mod.imports[0].inspect_source() == plain


@pytest.mark.parametrize("kind", ["vectorize", "unroll", "parallel"])
@pytest.mark.parametrize("block", ["A_shared.dyn", "C_init", "C_local"])
def test_a_loop_kind_that_would_be_lost_is_refused(kind, block) -> None:
    sch = gemm()
    loop = sch.get_loops(block)[-1]
    getattr(sch, kind)(loop)
    need = f"of block {block}: found a loop of kind {kind}.*; leave Schedule.{kind} away"
    with pytest.raises(LoweringError, match=need):
        tvm.compile(sch.mod, target=H200)


PLAIN = """
@T.prim_func(s_tir=True)
def main(A: T.Buffer((64, 64), "float32"), C: T.Buffer((64, 64), "float32")):
    for t in T.thread_binding(64, thread="threadIdx.x"):
        tile = T.sblock_alloc_buffer((64, 64), scope="shared.dyn")
        for i, j in T.grid(64, 64):
            with T.sblock("copy"):
                vi, vj = T.axis.remap("SS", [i, j])
                T.sblock_attr({"tvm_hopper.async_copy": "tma"})
                tile[vi, vj] = A[vi, vj]
        for i, j in T.grid(16, 4):
            with T.sblock("use"):
                vi, vj = T.axis.spatial(64, t), T.axis.spatial(64, i * 4 + j)
                C[vi, vj] = tile[vi, vj]
"""


@pytest.mark.parametrize("kind", ["vectorize", "unroll"])
def test_a_plain_loop_stays_as_it_is_scheduled(kind) -> None:
    sch = s_tir.Schedule(parse(PLAIN))
    getattr(sch, kind)(sch.get_loops("use")[-1])
    found = tvm_hopper.lower_to_hook(sch.mod, H200)
    kinds = {int(x.kind) for x in ir.find_all(found["main"].body, ir.For)}
    wanted = {"vectorize": ir.ForKind.VECTORIZED, "unroll": ir.ForKind.UNROLLED}[kind]
    assert int(wanted) in kinds


@pytest.mark.parametrize(("block", "kind"), [("use", "parallel")])
def test_a_loop_beside_no_product_that_nothing_would_come_of_is_refused(block, kind) -> None:
    sch = s_tir.Schedule(parse(PLAIN))
    getattr(sch, kind)(sch.get_loops(block)[-1])
    with pytest.raises(LoweringError, match=f"of block {block}: found a loop of kind {kind}"):
        tvm_hopper.lower_to_hook(sch.mod, H200)


def test_an_unrolled_loop_inside_the_product_is_refused() -> None:
    sch = gemm()
    sch.unroll(sch.get_loops("C_update")[-1])
    with pytest.raises(
        LoweringError, match="of block C_update: found a loop of kind unrolled in a"
    ):
        tvm.compile(sch.mod, target=H200)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("double_buffer_scope", 0),
        ("permuted_layout", "g2s_A"),
        ("auto_copy", 1),  # TVM's own pass would crash on it
        ("tirx.manifest_shared_memory_local_stage", 1),
        (keys.STAGE, [0]),
    ],
)
def test_a_block_annotation_that_would_be_lost_is_refused(key, value) -> None:
    sch = gemm()
    sch.annotate(sch.get_sblock("A_shared.dyn"), key, value)
    with pytest.raises(LoweringError, match=f"main, block A_shared.dyn: found {key} in a kernel"):
        tvm.compile(sch.mod, target=H200)


def test_storage_align_is_refused() -> None:
    sch = gemm()
    sch.storage_align("A_shared.dyn", 0, -2, 32, 8)
    with pytest.raises(
        LoweringError, match=r"block A_shared\.dyn: found buffer_dim_align in a kern"
    ):
        tvm.compile(sch.mod, target=H200)


def test_a_kernel_beside_ours_keeps_its_loop_kinds() -> None:
    """In one function: our product, and a kernel behind it that TVM lowers."""
    half = [te.placeholder((64, 64), "float16", name=name) for name in "AB"]
    k = te.reduce_axis((0, 64), "k")
    f32 = "float32"
    c = te.compute(
        (64, 64), lambda i, j: te.sum(half[0][i, k].astype(f32) * half[1][j, k].astype(f32), k), "C"
    )
    d = te.compute((64, 64), lambda i, j: c[i, j] + c[i, 63 - j], "D")
    sch = s_tir.Schedule(te.create_prim_func([*half, d]))
    i, j = sch.get_loops("D")
    j0, j1 = sch.split(j, [None, 4])
    sch.bind(i, "blockIdx.x")
    sch.bind(j0, "threadIdx.x")
    sch.unroll(j1)
    sch.annotate(j1, "pragma_unroll_explicit", 1)
    hs.matmul(sch, "C", CONFIG)
    tvm.compile(sch.mod, target=H200)


def test_functions_of_other_people_are_not_looked_at() -> None:
    sch = _programs.add_one()
    (block,) = [sch.get_sblock("B")]
    outer, _ = sch.get_loops(block)
    sch.annotate(outer, "sofware_pipeline_stage", "zero")
    sch.annotate(outer, "hopper.pending", 1)
    sch.annotate(outer, "hopper_attention.x", 1)
    sch.annotate(block, "double_buffer_scope", 0)
    func = sch.mod["main"].with_attr(keys.FAST_MATH, True)
    text = tvm.compile(tvm.IRModule({"main": func}), target=H200).mod.imports[0].inspect_source()
    plain = tvm.compile(_programs.add_one().mod, target=H200).mod.imports[0].inspect_source()
    assert text == plain


def test_fast_math_reaches_the_text_and_the_compiler() -> None:
    sch = s_tir.Schedule(workloads.matmul(64, 64, 64, epilogue=("silu",)))
    hs.matmul(sch, "C", CONFIG)
    exact = tvm.compile(sch.mod, target=H200)
    with tvm.transform.PassContext(config={keys.FAST_MATH: True}):
        fast = tvm.compile(sch.mod, target=H200)
    texts = [built.mod.imports[0].inspect_source() for built in (exact, fast)]
    assert ["__expf(" in text for text in texts] == [False, True]
    assert ["tirx.enable_fast_math=True" in text for text in texts] == [False, True]
    flags = [records.compiled(built).math_flags for built in (exact, fast)]
    assert "--use_fast_math" not in flags[0]
    assert flags[1] == ("--use_fast_math",)


def test_fast_math_as_a_function_attribute_is_refused() -> None:
    func = gemm().mod["main"].with_attr(keys.FAST_MATH, True)
    with pytest.raises(
        LoweringError, match=r"attribute: found tirx\.enable_fast_math, which TVM r"
    ):
        tvm.compile(tvm.IRModule({"main": func}), target=H200)


def test_the_old_key_of_fast_math_names_tvms() -> None:
    func = gemm().mod["main"].with_attr("tvm_hopper.fast_math", True)
    need = r"found unknown key tvm_hopper\.fast_math; .*PassContext.*tirx\.enable_fast_math"
    with pytest.raises(LoweringError, match=need):
        tvm.compile(tvm.IRModule({"main": func}), target=H200)


@pytest.mark.parametrize(
    ("name", "value", "need"),
    [
        (keys.RASTER_GROUP, 2**40, "need a value of type int from 1 to 2147483647"),
        (keys.RASTER_GROUP, -1, "raster_group = -1; need a value of type int from 1"),
        (keys.RASTER_GROUP, 0, "raster_group = 0; need a value of type int from 1"),
        (keys.PERSISTENT, -2, "persistent = -2; need a value of type int from 1"),
        (keys.PERSISTENT, 2**31, "need a value of type int from 1 to 2147483647"),
        (keys.CONSUMERS, 2**40, "consumers = 1099511627776; need a value of type int from 1 to 7"),
        (keys.CONSUMERS, -1, "consumers = -1; need a value of type int from 1 to 7"),
        (keys.WGMMA_PENDING, -1, "wgmma_pending = -1; need one of 0, 1"),
        (keys.REGISTERS, [-8, 2**40], "need a list of 2 values of type int from 24 to 256"),
        (keys.REGISTERS, [40, -8], "need a list of 2 values of type int from 24 to 256"),
    ],
)
def test_an_integer_out_of_range_is_refused_by_name(name, value, need) -> None:
    on = bound_loop if keys.KEYS[name].axis else k_loop
    with pytest.raises(LoweringError, match=need):
        tvm.compile(annotated(name, value, on).mod, target=H200)


@pytest.mark.parametrize("value", [tirx.IntImm("int64", 2), tirx.IntImm("int32", 2)], ids=repr)
def test_an_attribute_given_as_an_immediate_is_read(value) -> None:
    func = gemm().mod["main"].with_attr(keys.RASTER_GROUP, value)
    assert tvm.compile(tvm.IRModule({"main": func}), target=H200)


@pytest.mark.parametrize(
    "value",
    [[tirx.IntImm("int64", 0), 0, 2], {"a": 1}, lambda x: x],
    ids=["list", "dict", "function"],
)
def test_an_attribute_of_another_form_is_refused(value) -> None:
    func = gemm().mod["main"].with_attr(keys.RASTER_GROUP, value)
    with pytest.raises(LoweringError, match=r"attribute: found tvm_hopper\.raster_group = .*type"):
        tvm.compile(tvm.IRModule({"main": func}), target=H200)


@pytest.mark.parametrize("name", ["tvm.hopper.wgmma_pending", "TVM_HOPPER.strict", "hopper.wgmma"])
def test_a_misspelt_key_alone_is_refused(name) -> None:
    sch = _programs.add_one()
    sch.annotate(sch.get_loops("B")[0], name, 1)
    with pytest.raises(LoweringError, match=f"found unknown key {name}; .*did you mean tvm_hopper"):
        tvm.compile(sch.mod, target=H200)


def on_a_block(key: str, value: object, block: str):
    sch = gemm()
    sch.annotate(sch.get_sblock(block), key, value)
    return sch.mod


@pytest.mark.parametrize("block", ["root", "A_shared.dyn", "C_update_o"])
def test_misspelt_pipeline_keys_and_pragmas_of_blocks_are_refused(block) -> None:
    with pytest.raises(LoweringError, match="found unknown key software_pipeline_stages; need one"):
        tvm.compile(on_a_block("software_pipeline_stages", 1, block), target=H200)
    with pytest.raises(LoweringError, match=f"main, block {block}: found pragma_unroll on a block"):
        tvm.compile(on_a_block("pragma_unroll", [0, 0, 1], block), target=H200)


def test_odd_pragmas_of_a_kernel_are_refused() -> None:
    built = annotated("pragma_auto_unroll_max_step", "tma", lambda sch: bound_loop_of_rows(sch))
    with pytest.raises(LoweringError, match="found pragma_auto_unroll_max_step = 'tma'; need an i"):
        tvm.compile(built.mod, target=H200)


def bound_loop_of_rows(sch: s_tir.Schedule):
    return sch.get_loops("C_update_o")[0]


@pytest.mark.parametrize("key", keys.PIPELINE_KEYS)
def test_pipeline_keys_of_the_root_are_refused(key) -> None:
    with pytest.raises(LoweringError, match=f"main, block root: found {key} in a kernel"):
        tvm.compile(on_a_block(key, [0, 0, 1], "root"), target=H200)


@pytest.mark.parametrize("key", [*keys.PIPELINE_KEYS, "software_pipeline_stages"])
def test_pipeline_keys_of_a_function_are_refused(key) -> None:
    func = gemm().mod["main"].with_attr(key, [0])
    with pytest.raises(LoweringError, match=f"main, attribute: found {key} on a function; need it"):
        tvm.compile(tvm.IRModule({"main": func}), target=H200)
