"""What there is to tune: each function once, symbolic rows by classes, the rest named."""

import pytest
import tvm
from tvm import te
from tvm.target import Target

from tvm_hopper import schedule as hs
from tvm_hopper.errors import TuningError
from tvm_hopper.meta_schedule import tasks
from tvm_hopper.meta_schedule.checking import EQUAL, Simulated
from tvm_hopper.meta_schedule.database import Trial
from tvm_hopper.meta_schedule.finals import as_record
from tvm_hopper.meta_schedule.problems import key_of
from tvm_hopper.meta_schedule.scheduling import canonical, schedule_with
from tvm_hopper.meta_schedule.tasks import (
    as_target,
    bind_rows,
    find_tasks,
    look_for_tasks,
    symbols_of as symbols,
)
from tvm_hopper.testing import memory_bound, workloads
from tvm_hopper.testing.contractions import contraction

TARGET = "nvidia/nvidia-h200"
PRODUCT = workloads.matmul(64, 64, 64)["main"]


def module(**functions):
    return tvm.IRModule({k: f.with_attr("global_symbol", k) for k, f in functions.items()})


def test_each_function_once_with_its_weight():
    mod = module(a=PRODUCT, b=memory_bound.copy(64, 64)["main"], c=PRODUCT)
    found = find_tasks(mod, TARGET)
    assert [(x.name, x.weight, len(x.modules)) for x in found] == [("a", 2, 2), ("b", 1, 1)]


def test_a_function_alone_is_a_module():
    assert [x.name for x in find_tasks(PRODUCT, TARGET)] == ["main"]


def test_sums_of_16_bits_are_tuned_as_the_rules_make_them():
    x = te.placeholder((64, 256), "float16", "X")
    k = te.reduce_axis((0, 256), "k")
    func = te.create_prim_func([x, te.compute((64,), lambda i: te.sum(x[i, k], axis=k), "Y")])
    (task,) = find_tasks(func, TARGET)
    config = hs.RowReductionConfig(threads=64)
    assert Simulated(60)(task.problem, config).verdict == EQUAL
    assert task.problem.key == key_of(canonical(func), Target(TARGET))  # what is looked up
    trial = Trial(config, "", "", 1e-6, "", 1.0)
    assert as_record(task.problem, trial) is None  # a trace begins at wide sums


def scan(n):
    """Return a program over any number of elements that is none of ours: of three dimensions."""
    x = te.placeholder((n, 4, 4), "float32", name="X")
    k, j = te.reduce_axis((0, 4), name="k"), te.reduce_axis((0, 4), name="j")
    y = te.compute((4,), lambda i: te.sum(x[k, i, j], axis=[k, j]), name="Y")
    z = te.compute((n, 4, 4), lambda a, b, c: x[a, b, c] / y[c], name="Z")
    return te.create_prim_func([x, z])


def test_what_is_left_is_named_with_the_reason():
    scheduled = schedule_with(PRODUCT, hs.MatmulConfig())
    mod = module(
        ours=scheduled.mod["main"],
        marked=PRODUCT.with_attr("tirx.is_scheduled", True),
        product=workloads.matmul("m", 64, 64, dtype="float32", cast="none")["main"],
        rows=scan(te.var("n", "int64")),
        depth=workloads.matmul(64, 64, "k")["main"],
        both=workloads.matmul("m", "n", 64)["main"],
        float32=workloads.matmul(64, 64, 64, dtype="float32", cast="none")["main"],
    )
    assert look_for_tasks(mod, Target(TARGET)).tasks == []
    assert look_for_tasks(mod, Target(TARGET)).left == {
        "ours": "scheduled already",
        "marked": "scheduled already",
        "product": "a product that cannot be scheduled",
        "rows": "symbolic extents of what is no product and no kernel over rows",
        "depth": "a symbolic extent that is not the rows",
        "both": "2 symbolic extents; one of them is tuned",
        "float32": "a product that cannot be scheduled: block C, tensor A: found float32; "
        'need a type that tensor cores multiply as it is; give operands="tf32" to count 10 bits '
        "of each mantissa; or cast what is of another type in a function in front "
        "(hs.pointwise), or leave the product to TVM: tvm_hopper.dlight.stock()",
    }


def test_symbolic_rows_are_static_tasks(monkeypatch):
    monkeypatch.setattr(hs, "choose_classes", lambda *args, **given: (16, 256))
    mod = module(s=workloads.matmul("m", 64, 64)["main"], t=workloads.matmul(16, 64, 64)["main"])
    found = look_for_tasks(mod, Target(TARGET))
    assert [(x.name, x.weight) for x in found.tasks] == [("s [16 rows]", 2), ("s [256 rows]", 1)]
    (classes,) = found.classes
    assert [rows for rows, _ in classes.bounds] == [16, 256]
    assert [key for _, key in classes.bounds] == [x.problem.key for x in found.tasks]


@pytest.mark.parametrize("name", ["rms_norm", "silu_mul"])
def test_kernels_over_any_number_of_rows_are_tuned_at_one(name):
    func = getattr(memory_bound, name)("n", 256)["main"]
    found = look_for_tasks(module(s=func), Target(TARGET))
    (task,), (classes,) = found.tasks, found.classes
    assert task.name == f"s [{tasks.TUNED_ROWS} rows]"
    assert classes.bounds == ((tasks.TUNED_ROWS, task.problem.key),)
    assert symbols(func)
    assert not symbols(task.problem.mod["main"])


def test_one_that_is_not_recognised_with_its_rows_is_left(monkeypatch):
    monkeypatch.setattr(tasks, "KINDS", ())
    func = memory_bound.rms_norm("n", 256)["main"]
    left = look_for_tasks(module(s=func), Target(TARGET)).left
    assert left == {"s": "a kernel over rows that cannot be scheduled"}


@pytest.mark.parametrize("batch", [1, 12])
def test_bounds_are_those_of_the_package(batch):
    extents = {"b": batch, "m": "m", "n": 4096, "k": 64}
    product = contraction("bmk,bnk->bmn" if batch > 1 else "mk,nk->mn", extents)
    found = look_for_tasks(module(s=product["main"]), Target(TARGET))
    with Target(TARGET):
        bounds = hs.choose_classes(4096, 64, out_dtype="float32", batch=batch)
    assert tuple(rows for rows, _ in found.classes[0].bounds) == bounds
    assert {x.problem.batch for x in found.tasks} == {batch}


def test_classes_that_cannot_be_scheduled_are_left(monkeypatch):
    monkeypatch.setattr(hs, "choose_classes", lambda *args, **given: (16,))
    monkeypatch.setattr(tasks, "KINDS", ())
    found = look_for_tasks(module(s=workloads.matmul("m", 64, 64)["main"]), Target(TARGET))
    assert found.left == {"s": "a product that cannot be scheduled"}


def test_binding_leaves_nothing_symbolic():
    func = workloads.matmul("m", 64, 64)["main"]
    (m,) = symbols(func)
    assert symbols(bind_rows(func, m, 128)) == []


@pytest.mark.parametrize(
    "target", ["llvm", {"kind": "cuda", "arch": "sm_80"}, {"kind": "cuda", "arch": "sm_100a"}, None]
)
def test_targets_that_are_no_hopper_gpu(target):
    with pytest.raises(TuningError, match=r"target: found .*; need a Hopper GPU"):
        as_target(target)


def test_the_target_in_scope_is_taken():
    with Target(TARGET):
        assert as_target(None).attrs["arch"] == "sm_90a"


def test_a_product_that_is_left_says_why():
    left = look_for_tasks(workloads.matmul(3, 5, 7), as_target(TARGET)).left
    assert left["main"].startswith("a product that cannot be scheduled: ")
    assert "need a multiple of 16 bytes" in left["main"]


def test_what_is_no_module():
    with pytest.raises(TuningError, match="found int; need an IRModule"):
        find_tasks(3, TARGET)


def test_calls_of_a_relax_function_are_the_weight():
    from tvm import relax

    block = relax.BlockBuilder()
    kind = relax.TensorType((64, 64), "bfloat16")
    x = relax.Var("x", kind)
    with block.function("run", [x]):
        gv = block.add_func(memory_bound.copy(64, 64)["main"], "copy")
        made = x
        for _ in range(3):
            made = block.emit(relax.call_tir(gv, (made,), kind))
        block.emit_func_output(made)
    (task,) = find_tasks(block.get(), TARGET)
    assert (task.name, task.weight) == ("copy", 3)
