"""CheckLaunches: extents that symbols decide are checked before a launch, and none is empty."""

import numpy as np
import pytest
import tvm
from tvm import s_tir, te
from tvm.s_tir import dlight as dl
from tvm.target import Target

from tests.transforms.scripts import check, parse, run
from tvm_hopper import ir, pipeline, schedule as hs
from tvm_hopper.dlight.collection import GuardedRule
from tvm_hopper.simulation import load, simulate
from tvm_hopper.testing import memory_bound, relax_forms, workloads
from tvm_hopper.transforms.launch.check_launches import CheckLaunches

H200 = "nvidia/nvidia-h200"
PASS = "tvm_hopper.CheckLaunches"


def product(*more, rows="m", **fields):
    sch = s_tir.Schedule(workloads.matmul(rows, 8, 16, "NT", "float16", "float16"))
    hs.matmul(sch, "C", hs.MatmulConfig((64, 8, 16), persistent=0, **fields), *more)
    return sch.mod


def messages(mod):
    found = ir.find_all(mod["main"].body, tvm.tirx.AssertStmt)
    texts = [str(x.message_parts[0]).strip('"') for x in found]
    return [x for x in texts if "need at most" in x]


def test_rows_of_tiles_are_checked_once():
    after = pipeline.lower(product(), H200, until=PASS)
    assert messages(after) == [
        "main_kernel: found (m + 63) // 64 thread blocks along blockIdx.y; need at most 65535; "
        "call it with smaller tensors, or let thread blocks share the work (tvm_hopper.persistent)"
    ]
    check(CheckLaunches()(after)["main"], after["main"])


def test_what_is_bounded_is_not_checked():
    """A static number, the rows of a size class, and 32 bits along x."""
    row = s_tir.Schedule(memory_bound.softmax("n", 64))
    hs.row_reduction(row)
    classes = s_tir.Schedule(workloads.matmul("m", 8, 16, "NT", "float16", "float16"))
    hs.matmul(classes, "C", classes=(8,))
    for mod in (product(rows=640), row.mod, classes.mod):
        assert not messages(pipeline.lower(mod, H200, until=PASS))


def test_the_call_is_refused_before_the_launch():
    program, rows = load(product()), 65536 * 64
    b = np.zeros((8, 16), "float16")
    with pytest.raises(ValueError, match=r"found \(m \+ 63\) // 64 thread blocks along blockIdx.y"):
        simulate(program, {"A": np.zeros((rows, 16), "float16"), "B": b}, blocks=[(0, 0, 0)])
    few = simulate(program, {"A": np.zeros((64, 16), "float16"), "B": b})
    assert few.verdict == "clean"


def test_threads_of_a_symbol():
    sch = s_tir.Schedule(memory_bound.copy(4, "n", "float32"))
    for loop, tag in zip(sch.get_loops("Y"), ("blockIdx.x", "threadIdx.x"), strict=True):
        sch.bind(loop, tag)
    sch.annotate(sch.get_loops("Y")[0], "tvm_hopper.memory_bound", "pointwise")
    (found,) = messages(pipeline.lower(sch.mod, H200, until=PASS))
    assert found.startswith("main_kernel: found n threads in a block; need at most 1024; call it")


def test_a_rule_of_tvm_s_that_launches_too_much_is_passed_over():
    op, half = tvm.relax.op, "float16"
    shapes = ((70000, 8, 16), half), ((70000, 16, 8), half)
    mod = relax_forms.legalize(op.matmul, *shapes)
    (func,) = [f for f in mod.functions.values() if isinstance(f, tvm.tirx.PrimFunc)]
    rule = GuardedRule(dl.gpu.Matmul(), "dl.gpu.Matmul")
    assert rule.apply(func, Target(H200), False) is None
    (decision,) = rule.decisions
    assert decision.reason == "found blockIdx.y of 70000; need at most 65535"


HOST = """
def func(x: T.handle("float32"), n: T.int32):
    T.func_attr({"calling_conv": 1})
    count: T.let[T.int32] = T.call_packed("tvm_hopper.count_blocks", 40, 1)
    T.call_ffi_kernel("a", x, n, (n + 3) // 4, 128, launch_params=["blockIdx.x", "threadIdx.x"],
        ret_ty="int32")
    T.call_ffi_kernel("b", x, n, 7, n, 32, T.int64(64),
        launch_params=["blockIdx.x", "blockIdx.y", "threadIdx.x",
        "tirx.use_programtic_dependent_launch", "tirx.use_dyn_shared_memory"], ret_ty="int32")
    T.call_ffi_kernel("c", x, n, count, 128, launch_params=["blockIdx.x", "threadIdx.x"],
        ret_ty="int32")
    if n > 2:
        T.call_ffi_kernel("d", x, n, n - 2, launch_params=["blockIdx.x"], ret_ty="int32")
    if n > -9:
        T.call_ffi_kernel("e", x, n, n, launch_params=["blockIdx.x"], ret_ty="int32")
"""
TOO_MANY = (
    "b: found n thread blocks along blockIdx.y; need at most 65535; call it with smaller tensors, "
    "or let thread blocks share the work (tvm_hopper.persistent)"
)
GUARDED = f"""
def func(x: T.handle("float32"), n: T.int32):
    T.func_attr({{"calling_conv": 1}})
    count: T.let[T.int32] = T.call_packed("tvm_hopper.count_blocks", 40, 1)
    if (n + 3) // 4 > 0:
        T.call_ffi_kernel("a", x, n, (n + 3) // 4, 128,
            launch_params=["blockIdx.x", "threadIdx.x"], ret_ty="int32")
    assert n <= 65535, ("ValueError", ["{TOO_MANY}"])
    if n > 0:
        T.call_ffi_kernel("b", x, n, 7, n, 32, T.int64(64),
            launch_params=["blockIdx.x", "blockIdx.y", "threadIdx.x",
            "tirx.use_programtic_dependent_launch", "tirx.use_dyn_shared_memory"], ret_ty="int32")
    T.call_ffi_kernel("c", x, n, count, 128, launch_params=["blockIdx.x", "threadIdx.x"],
        ret_ty="int32")
    if n > 2:
        T.call_ffi_kernel("d", x, n, n - 2, launch_params=["blockIdx.x"], ret_ty="int32")
    if n > -9:
        if n > 0:
            T.call_ffi_kernel("e", x, n, n, launch_params=["blockIdx.x"], ret_ty="int32")
"""


def test_grids_that_may_be_empty_are_guarded():
    """Not those that are counted, of known size, or filled by a condition around them.

    No type of 32 bits has more than there may be along x, also where TVM cannot simplify it.
    """
    check(run(parse(HOST), CheckLaunches()), parse(GUARDED))


def test_functions_that_are_not_packed_stay():
    other = parse(HOST, ('"calling_conv": 1', '"calling_conv": 2'))
    assert run(other, CheckLaunches()).same_as(other)


@pytest.mark.parametrize("target", ["nvidia/nvidia-h200", "nvidia/nvidia-a100"])
def test_no_rows_where_threads_copy(target):
    """TVM's ThreadSync synchronises such a kernel, and refuses to under a condition."""
    a = te.placeholder((te.var("n"), 64), "float32", name="A")
    c = te.compute(a.shape, lambda i, j: a[i, j] * te.const(2, "float32"), name="C")
    sch = s_tir.Schedule(tvm.IRModule({"main": te.create_prim_func([a, c])}))
    tile = sch.cache_read("C", 0, "shared.dyn")
    i, j = sch.get_loops("C")
    block, step, row = sch.split(i, [None, 2, 8])
    sch.bind(block, "blockIdx.x")
    sch.compute_at(tile, step)
    hs.async_copy(sch, tile, "none")
    sch.bind(sch.split(sch.fuse(row, j), [None, 128])[1], "threadIdx.x")
    for rows in (0, 17):
        given = np.arange(rows * 64, dtype="float32").reshape(rows, 64)
        result = simulate(sch.mod, {"A": given}, target=target)
        assert result.verdict == "clean", result.findings
        np.testing.assert_array_equal(result.outputs["C"], given * 2)
