"""`hs.matmul` on parts and views of tensors, in place, from a bias, with several outputs.

The schedules are run serially, beside the program as it was written, bit for bit.
"""

from __future__ import annotations

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import s_tir, te, tirx
from tvm.script import tirx as T

from tests.schedule.programs import module, operands, product, tensor, written
from tvm_hopper import ir, schedule as hs
from tvm_hopper.errors import ScheduleError
from tvm_hopper.testing import workloads
from tvm_hopper.testing.forms import FORMS
from tvm_hopper.testing.serial import as_serial
from tvm_hopper.testing.tensors import make_arguments

SMALL = hs.MatmulConfig(tile=(64, 64, 64), stages=2, consumers=1)
WIDE = hs.MatmulConfig(tile=(64, 64, 32), stages=2, consumers=2)


def run(mod, **options):
    """Run "main" on the CPU; returns its arguments afterwards."""
    tensors = make_arguments(mod["main"], **options)
    executable = tvm.compile(as_serial(mod), target="llvm")
    executable["main"](*(tvm_ffi.from_dlpack(x.view) for x in tensors.values()))
    assert all(x.is_untouched_outside() for x in tensors.values())
    return {name: x.view for name, x in tensors.items()}


def check(mod, config=SMALL):
    """Compare a schedule with its program; no tensor but the arguments lies in global memory."""
    sch = s_tir.Schedule(mod)
    hs.matmul(sch, "C", config)
    buffers = [b for x in ir.find_all(sch.mod["main"], ir.SBlock) for b in x.alloc_buffers]
    assert {b.scope() for b in buffers} == {"local", "shared.dyn"}
    want, got = run(mod), run(sch.mod)
    for name, view in got.items():
        np.testing.assert_array_equal(view, want[name], name)
    return sch


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("shape", [(128, 128, 64), (100, 104, 72)], ids=["exact", "ragged"])
@pytest.mark.parametrize("form", FORMS)
def test_forms(form, shape):
    check(FORMS[form](*shape, "float16"))


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("form", [x for x in FORMS if x != "column_strides"])
def test_forms_of_a_single_row(form):
    """Any dimension of extent one may be the row; TMA cannot take one of strided columns."""
    check(FORMS[form](1, 136, 72, "float16"))


@pytest.mark.parametrize("form", ["slices", "packed_qkv", "in_place", "two_outputs"])
def test_forms_with_consumers_by_columns(form):
    check(FORMS[form](70, 136, 40, "float16"), WIDE)


def test_whole_tensors_get_no_view():
    sch = s_tir.Schedule(workloads.matmul(100, 104, 72))
    hs.matmul(sch, "C", SMALL)
    kinds = {str(inst.kind.name) for inst in sch.trace.insts}
    assert not kinds & {"ReIndexCacheRead", "ReIndexCacheWrite", "UnsafeHideBufferAccess"}


# -- the normal form


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("form", FORMS)
def test_the_normal_form_means_the_same(form):
    mod = FORMS[form](10, 12, 8, "float16")
    normal = hs.normalize(mod)
    assert hs.normalize(normal).same_as(normal)
    rewritten = form in ("in_place", "one_row", "matrix_vector")
    assert normal.same_as(mod) is not rewritten
    want, got = run(mod), run(normal)
    for name, view in got.items():
        np.testing.assert_array_equal(view, want[name], name)


def test_the_normal_form_as_code():
    @T.prim_func(private=True, s_tir=True)
    def want(
        A: T.Buffer((8,), "float16"),
        B: T.Buffer((16, 8), "float16"),
        C: T.Buffer((16, 1), "float32"),
    ):
        C_sum = T.sblock_alloc_buffer((1, 16), "float32")
        A_row = T.sblock_alloc_buffer((1, 8), "float16")
        for ax0, ax1 in T.grid(1, 8):
            with T.sblock("A_row"):
                v_row, vk = T.axis.remap("SS", [ax0, ax1])
                T.reads(A[vk])
                T.writes(A_row[v_row, vk])
                A_row[v_row, vk] = A[vk]
        for m, j, k in T.grid(1, 16, 8):
            with T.sblock("C"):
                v_m, vj, vk = T.axis.remap("SSR", [m, j, k])
                T.reads(A_row[v_m, vk], B[vj, vk])
                T.writes(C_sum[v_m, vj])
                with T.init():
                    C_sum[v_m, vj] = T.float32(0)
                C_sum[v_m, vj] = C_sum[v_m, vj] + T.Cast("float32", A_row[v_m, vk]) * T.Cast(
                    "float32", B[vj, vk]
                )
        for ax0, ax1 in T.grid(1, 16):
            with T.sblock("C_store"):
                v_m, vj = T.axis.remap("SS", [ax0, ax1])
                T.reads(C[vj, 0], C_sum[v_m, vj])
                T.writes(C[vj, 0])
                C[vj, 0] = C[vj, 0] + C_sum[v_m, vj]

    @T.prim_func(private=True, s_tir=True)
    def before(
        A: T.Buffer((8,), "float16"),
        B: T.Buffer((16, 8), "float16"),
        C: T.Buffer((16, 1), "float32"),
    ):
        for j, k in T.grid(16, 8):
            with T.sblock("C"):
                vj, vk = T.axis.remap("SR", [j, k])
                C[vj, 0] = C[vj, 0] + T.Cast("float32", A[vk]) * T.Cast("float32", B[vj, vk])

    tvm.ir.assert_structural_equal(hs.normalize(before), want)


def test_other_blocks_keep_their_form():
    """A sum of rows, a product of three, a product by rows: none has the form of a matmul."""
    a = tensor(16, 8, name="A")
    k = te.reduce_axis((0, 8), "k")
    rows = te.compute((16,), lambda i: te.sum(a[i, k], k), name="rows")
    squares = te.compute((16,), lambda i: te.sum(a[i, k] * a[i, k], k), name="squares")
    mod = module(a, rows, squares)
    assert hs.normalize(mod).same_as(mod)
    func = mod["main"]
    assert hs.normalize(func).same_as(func)


def test_a_variable_without_a_loop_gets_one():
    mod = written(
        loops="for j, k in T.grid(64, 64):",
        axes='vi = T.axis.spatial(1, 0)\nvj, vk = T.axis.remap("SR", [j, k])',
        shapes=((1, 64), (64, 64), (1, 64)),
    )
    check(mod)


# -- parts


def test_a_part_of_the_output_leaves_the_rest_alone():
    sch = check(FORMS["slices"](100, 104, 72, "float16"))
    assert "C" in [str(p.name) for p in sch.mod["main"].params]


def test_more_rows_than_the_product_takes():
    a = tensor(130, 72, dtype="float16", name="A")
    b = tensor(104, 80, dtype="float16", name="B")
    c = product(a, b, shape=(100, 104, 72))
    check(module(a, b, c))


def test_an_offset_that_a_call_gives():
    mod = written(
        loops="for i, j, k in T.grid(100, 64, 64):",
        update='C[vi, vj] = C[vi, vj] + T.Cast("float32", A[vi + start, vk]) * '
        'T.Cast("float32", B[vj, vk])',
        shapes=((300, 64), (64, 64), (100, 64)),
        more=", start: T.int32",
    )
    sch = s_tir.Schedule(mod)
    hs.matmul(sch, "C", SMALL)
    views = {name: x.view for name, x in make_arguments(sch.mod["main"]).items()}
    executable = tvm.compile(as_serial(sch.mod), target="llvm")
    executable["main"](*map(tvm_ffi.from_dlpack, views.values()), 120)
    a, b = (views[x].astype("float32") for x in "AB")
    np.testing.assert_array_equal(views["C"], a[120:220] @ b.T)


@pytest.mark.parametrize(
    ("width", "start", "match"),
    [
        (
            136,
            4,
            r"tensor A: found columns from 4, 8 bytes; need a start at a multiple of 16 b",
        ),
        (100, 8, r"tensor A: found rows 200 bytes apart; need a multiple of 16 bytes; pad"),
    ],
    ids=["columns", "rows"],
)
def test_parts_that_no_tensor_map_can_describe(width, start, match):
    a = tensor(128, width, dtype="float16", name="A")
    b = tensor(64, 64, dtype="float16", name="B")
    c = product(a, b, shape=(64, 64, 64), left=lambda i, k: (i, k + start))
    sch = s_tir.Schedule(module(a, b, c))
    before = sch.mod
    with pytest.raises(ScheduleError, match=match):
        hs.matmul(sch, "C", SMALL)
    assert sch.mod.same_as(before)


def test_a_loop_shorter_than_the_block_declares():
    def program(rows, depth):
        axes = ("vi = T.axis.spatial", "vj = T.axis.spatial", "vk = T.axis.reduce")
        return written(
            loops=f"for i, j, k in T.grid({rows}, 128, {depth}):",
            axes="\n".join(f"{x}(128, {i})" for x, i in zip(axes, "ijk", strict=True)),
            shapes=((128, 128),) * 3,
        )

    check(program(64, 64))  # tiles divide the loops
    for rows, depth, match in (
        (128, 80, r"80 iterations over vk, which the block declares as 128"),
        (100, 128, r"100 iterations over vi, which the block declares as 128"),
    ):
        sch = s_tir.Schedule(program(rows, depth))
        before = sch.mod
        with pytest.raises(ScheduleError, match=match):
            hs.matmul(sch, "C", SMALL)
        assert sch.mod.same_as(before)


def test_numpy_ints_in_configurations():
    config = hs.MatmulConfig(
        tile=tuple(np.array([64, 64, 64])), stages=np.int64(2), consumers=np.int32(1)
    )
    check(workloads.matmul(100, 104, 72), config)


def test_symbols_in_a_view():
    m = tirx.Var("m", "int64")
    a, b = operands(m + 8, 104, 72)
    c = product(a, b, shape=(m, 104, 72), left=lambda i, k: (i + 8, k))
    mod = module(a, b, c)
    sch = s_tir.Schedule(mod)
    hs.matmul(sch, "C", SMALL)
    for extent in (1, 63, 64, 65):
        want, got = (run(x, extents={"m": extent}) for x in (mod, sch.mod))
        np.testing.assert_array_equal(got["C"], want["C"])


@pytest.mark.parametrize(
    ("extent", "strides", "match"),
    [
        ("64", "[64]", r"tensor A: found 1 strides for 2 dimensions; need one stride a dimension"),
        ("T.int64(64)", "[72, 1]", r"found strides and extents of types int32, int64; need one"),
    ],
    ids=["rank", "type"],
)
def test_strides_that_no_call_can_bind(extent, strides, match):
    program = f"""
@T.prim_func(s_tir=True)
def main(a: T.handle, b: T.handle, c: T.handle):
    A = T.match_buffer(a, (128, {extent}), "float16", strides={strides})
    B = T.match_buffer(b, (128, 64), "float16")
    C = T.match_buffer(c, (128, 128), "float32")
    for i, j, k in T.grid(128, 128, 64):
        with T.sblock("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = T.float32(0)
            C[vi, vj] = C[vi, vj] + T.Cast("float32", A[vi, vk]) * T.Cast("float32", B[vj, vk])
"""
    sch = s_tir.Schedule(tvm.script.from_source(program))
    with pytest.raises(ScheduleError, match=match):
        hs.matmul(sch, "C", SMALL)


def test_rows_that_begin_again_in_the_middle():
    a, b = operands(40, 64, 64)
    c = product(a, b, shape=(40, 64, 64))
    d = te.compute((40, 64), lambda i, j: c[(i + 8) % 40, j], name="D")
    for tensors in ([a, b, d], [a, b, c, d]):
        sch = s_tir.Schedule(te.create_prim_func(tensors))
        with pytest.raises(ScheduleError, match=r"block D: found a read of C.*; need each element"):
            hs.matmul(sch, "C", SMALL)


def test_normalize_refuses_what_is_no_module_and_unknown_blocks():
    mod = workloads.matmul(64, 64, 64)
    with pytest.raises(
        ScheduleError, match=r"normalize: found int; need an IRModule or a PrimFunc"
    ):
        hs.normalize(3)
    with pytest.raises(ScheduleError, match=r"found block='nope'; need one of \['C'\], or None"):
        hs.normalize(mod, "nope")
