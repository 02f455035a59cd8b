"""Numbers on which wrong constants, initial values, indices and elements left out show."""

import functools

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import s_tir, te, tirx

from tests.values.kernels import judge, with_nodes, wrong
from tvm_hopper import schedule as hs
from tvm_hopper.facts.dtypes import DTYPES
from tvm_hopper.reference.evaluate import Reference
from tvm_hopper.sim.launch.signature import Argument
from tvm_hopper.sim.tir import thread_extents
from tvm_hopper.simulation import Program, load, simulate
from tvm_hopper.testing import columns, losses, memory_bound, workloads
from tvm_hopper.verification.numbers import Numbers
from tvm_hopper.verification.special_numbers import places, special_numbers

USUAL = Numbers("normal")


def draws(mod, share=1.0, work=1.0, given=()):
    params = list(mod["main"].params)
    arrays = {str(p.name): np.zeros([int(x) for x in p.shape], "float32") for p in params}
    found = list(special_numbers(Reference(mod), arrays, arrays.keys() - given, USUAL, share, work))
    return found, arrays


def rows_of(mod, name="X", dtype="float32"):
    """Return what each draw fills an argument with."""
    found, arrays = draws(mod)
    filled = []
    for one in found:
        array = np.zeros(arrays[name].shape, DTYPES[dtype].numpy)
        one.fill(Argument(name, dtype, array.shape), array)
        filled.append(array.astype("float64"))
    return filled


@pytest.mark.parametrize("length", [1, 2, 3, 64, 100])
def test_every_place_of_a_row_has_its_turn(length):
    assert sorted(places(length)) == list(range(length))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float8_e4m3fn"])
def test_rows_of_every_kind(dtype):
    x = np.concatenate(rows_of(memory_bound.row_max(3, 40), dtype=dtype))
    assert not np.isnan(x).any()
    finite = np.where(np.isinf(x), 0, x)
    large = 100 if "float8" in dtype else 1e4
    assert (x < 0).all(axis=1).any()  # a maximum that begins at 0
    assert (x.max(axis=1) < -large).any()  # at -1e4
    assert (x == x[:, :1]).all(axis=1).any()  # no variance
    assert (np.abs(finite).max(axis=1) < 0.2).any()  # an epsilon counts
    assert (x.min() < -400) if "e4m3" in dtype else np.isneginf(x).any()
    assert (finite.max(axis=1) > 150).any()


@pytest.mark.parametrize(("rows", "length"), [(3, 40), (16, 64), (1, 24)])
def test_each_place_holds_the_strict_maximum_once(rows, length):
    tops = set()
    for x in rows_of(memory_bound.row_max(rows, length)):
        for row in x:
            first, second = np.sort(row)[-1:-3:-1]
            tops |= {int(row.argmax())} if first > second else set()
    assert tops == set(range(length))


def test_rows_may_be_columns():
    found = rows_of(columns.column_max(20, 64))
    assert {x.shape for x in found} == {(20, 64)}
    assert any((x < 0).all(axis=0).any() for x in found)
    tops = {(int(x[:, j].argmax()), j) for x in rows_of(columns.column_max(6, 8)) for j in range(8)}
    assert len(tops) == 6 * 8  # each row of a short program gets each place


def test_what_is_linear_needs_no_special_numbers():
    assert not draws(workloads.matmul(64, 64, 64))[0]
    assert draws(workloads.matmul(64, 64, 64, epilogue=("relu",), out_dtype="float32"))[0]


def test_long_runs_are_not_repeated():
    mod = memory_bound.row_max(3, 40)
    assert len(draws(mod)[0]) > 10
    assert len(draws(mod, work=1 << 19)[0]) == 1
    assert not draws(mod, work=1 << 21)[0]
    assert not draws(mod, given={"X"})[0]  # there is nothing to draw


# -- mutants --------------------------------------------------------------------------------------


@functools.cache
def row_kernel(name, rows, length):
    mod = getattr(memory_bound, name)(rows, length, "float32")
    sch = s_tir.Schedule(mod)
    hs.row_reduction(sch, config=hs.RowReductionConfig(threads=32, rows=1))
    return mod, load(sch.mod)


def with_constant(program, old, new):
    """Put one number in place of another in the kernel."""

    def apply(node):
        return tirx.FloatImm(str(node.ty.dtype), new) if abs(node.value / old - 1) < 1e-6 else node

    return with_nodes(program, tirx.FloatImm, apply)


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("row_max", np.finfo("float32").min, 0.0),
        ("row_max", np.finfo("float32").min, -1e4),
        ("rms_norm", 1e-5, 0.0),
        ("rms_norm", 1e-5, 1.001e-5),
        ("layer_norm", 1e-5, 0.0),
    ],
)
def test_a_wrong_constant(name, old, new):
    plain, program = row_kernel(name, 3, 128)
    assert not wrong(program, plain)
    assert wrong(with_constant(program, old, new), plain)


@pytest.mark.parametrize("thread", [0, 3, 31])
def test_a_maximum_that_leaves_out_an_element(thread):
    plain, program = row_kernel("row_max", 3, 128)
    left = []

    def skip(node):
        if left or not isinstance(node.value, tirx.Max) or "shfl" in str(node.value):
            return node
        left.append(node)
        (func,) = program.kernels.values()
        others = tirx.NE(thread_extents(func)["threadIdx.x"][0], tirx.IntImm("int32", thread))
        return tirx.IfThenElse(others, node, None)

    mutant = with_nodes(program, tirx.BufferStore, skip)
    assert left
    assert wrong(mutant, plain)


# -- indices --------------------------------------------------------------------------------------


@functools.cache
def taken(table=5):
    a = te.placeholder((table, 64), "float32", "A")
    i = te.placeholder((7,), "int64", "I")
    b = te.compute((7, 64), lambda r, c: a[i[r], c], "B")
    func = te.create_prim_func([a, i, b]).with_attr("global_symbol", "main")
    mod = tvm.IRModule({"main": func})
    sch = s_tir.Schedule(mod)
    hs.pointwise(sch)
    return mod, sch


def test_indices_are_drawn_over_the_legal_range():
    mod, sch = taken()
    clean = judge(sch, mod)
    assert clean.verdict == "clean", str(clean)

    def at_most_one(load):
        return tirx.min(load, tirx.IntImm("int64", 1)) if str(load.source.name) == "I" else load

    program = load(sch.mod)
    ((name, kernel),) = program.kernels.items()
    body = tvm_ffi.structural_map(kernel.body, (tvm.ir.TensorLoad, at_most_one), order="post")
    assert wrong(Program(program.host, {name: kernel.with_body(body)}), mod)
    assert judge(taken(1)[1], taken(1)[0]).verdict == "clean"  # 0 alone is legal


@pytest.mark.parametrize("index", [5, -1, 1 << 40])
def test_an_index_outside_names_where_it_comes_from(index):
    mod, sch = taken()
    given = {"I": np.array([0, 4, index, 0, 0, 0, 0])}
    found = [f.message for f in judge(sch, mod, inputs=given).findings if f.rule == "OOB_ACCESS"]
    assert any(text.endswith("; its index is read from I") for text in found), found
    assert any(text.startswith(f"index {index}, read from I, leads the plain") for text in found)


def test_an_index_that_waits_in_registers_names_where_it_comes_from():
    a = te.placeholder((5, 300), "float32", "A")
    i = te.placeholder((5, 3), "int64", "I")
    b = te.compute((5, 3), lambda r, c: a[r, i[r, c]], "B")
    sch = s_tir.Schedule(te.create_prim_func([a, i, b]))
    hs.pointwise(sch)
    assert "I_local[" in sch.mod.script()
    given = {"A": np.ones((5, 300), "float32"), "I": np.full((5, 3), -1)}
    texts = {f.message.partition("; ")[2] for f in simulate(sch, given).findings}
    assert texts == {"its index is read from I"}


@pytest.mark.parametrize(("label", "verdict"), [(99, "clean"), (-100, "clean"), (100, "error")])
def test_a_label_one_past_the_columns(label, verdict):
    """The kernel reads the next row there, inside of the same memory."""
    mod = losses.cross_entropy(4, 100, "float32", "int64")
    sch = s_tir.Schedule(mod)
    hs.row_reduction(sch)
    labels = np.array([label, 0, 99, -100])  # -100 is ignored
    report = judge(sch, mod, inputs={"labels": labels})
    assert report.verdict == verdict, str(report)
    if verdict == "error":
        text = "index 100, read from labels, leads the plain program outside of X, which has 100"
        assert text in report.findings[0].message
