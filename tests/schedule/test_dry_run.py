"""What `hs.matmul` accepts, the build accepts: the kernel is lowered once, for a look."""

import numpy as np
import pytest
import tvm
from tvm import s_tir, te
from tvm.ir.transform import PassContext

import tvm_hopper
from tests.schedule.programs import module, operands, product, tensor, written
from tests.schedule.test_steps import two_products
from tvm_hopper import schedule as hs
from tvm_hopper.errors import LoweringError, ScheduleError
from tvm_hopper.schedule import dry_run
from tvm_hopper.testing import workloads

TARGET = "nvidia/nvidia-h200"
SMALL = hs.MatmulConfig((64, 64, 64), stages=2, consumers=1)


def scheduled(mod, config=SMALL, block="C"):
    sch = s_tir.Schedule(mod)
    hs.matmul(sch, block, config)
    return sch


@pytest.fixture
def refusing(monkeypatch):
    """Let the lowering refuse every kernel."""

    def lower(*_args, **_options):
        raise LoweringError("block X: found one thing; need another")

    monkeypatch.setattr("tvm_hopper.pipeline.lower", lower)


def test_a_refusal_of_the_lowering_is_one_of_the_schedule(refusing):
    sch = s_tir.Schedule(workloads.matmul(128, 128, 128))
    before = sch.mod
    with pytest.raises(ScheduleError, match=r"^block X: found one thing; need another$"):
        hs.matmul(sch, "C")
    assert sch.mod.same_as(before)
    assert not sch.trace.insts


def test_it_can_be_left_to_the_build(refusing):
    with dry_run.left_to_the_build():
        assert scheduled(workloads.matmul(128, 128, 128)).trace.insts
    with pytest.raises(ScheduleError, match="block X"):
        scheduled(workloads.matmul(128, 128, 128))


def test_a_failure_of_tvm_is_told_in_words(monkeypatch):
    def lower(*_args, **_options):
        raise tvm.error.InternalError("Check failed: (false) is false")

    monkeypatch.setattr("tvm_hopper.pipeline.lower", lower)
    sch = s_tir.Schedule(workloads.matmul(128, 128, 128))
    match = r"^block C_update_o: found what TVM cannot lower; need a kernel that TVM's own passes t"
    with pytest.raises(ScheduleError, match=match):
        hs.matmul(sch, "C")


def test_a_sampled_configuration_is_not_tried(refusing):
    for part in ("tile", "stages"):
        sch = s_tir.Schedule(workloads.matmul(128, 128, 128))
        if part == "tile":
            tile = (sch.sample_categorical([64, 128], [0.5, 0.5]), 64, 64)
            config = hs.MatmulConfig(tile, stages=2, consumers=1)
        else:
            last = sch.sample_categorical([1, 2], [0.5, 0.5])
            config = hs.MatmulConfig((64, 64, 64), consumers=1, stages=last + 1)
        hs.matmul(sch, "C", config)


DIAGONAL = """
for i, j in T.grid(64, 64):
    with T.sblock("D"):
        vi, vj = T.axis.remap("SS", [i, j])
        D[vi] = C[vi, vj]
"""


def test_what_the_lowering_refuses_is_refused_at_once():
    mod = written(
        shapes=((64, 64), (64, 64), None),
        after=DIAGONAL,
        more=', D: T.Buffer((64,), "float32")',
    )
    sch = s_tir.Schedule(mod)
    with pytest.raises(ScheduleError, match=r"block (D|C_local): found "):
        hs.matmul(sch, "C", SMALL)


def test_options_of_a_build_play_no_part():
    mod = workloads.matmul(128, 36, 128, epilogue=("relu",))
    with PassContext(config={"tvm_hopper.strict": True}):
        sch = scheduled(mod, hs.MatmulConfig((64, 40, 64), stages=2, consumers=1))
    assert "tvm_hopper.wgmma" in sch.mod.script()


def test_a_target_of_the_function_plays_no_part():
    func = workloads.matmul(128, 128, 128)["main"].with_attr("target", tvm.target.Target("llvm"))
    scheduled(tvm.IRModule({"main": func}))


@pytest.mark.parametrize("shape", [(64, 128, 64), (128, 64, 128)])
def test_other_products_may_be_scheduled_later(shape):
    sch = s_tir.Schedule(two_products(*shape))
    hs.matmul(sch, "H", SMALL)
    func = dry_run.extract_kernel(sch, sch.get_sblock("H_update_o"))
    assert [str(p.name) for p in func.params] == ["X", "W1", "W2", "Y", "G16"]
    hs.matmul(sch, "Y", SMALL)
    tvm_hopper.lower(sch.mod, TARGET)


def beside_a_host_block():
    a, b = operands(128, 128, 128)
    x = tensor(8, name="X")
    y = te.compute((8,), lambda i: x[i] + te.const(1, "float32"), name="Y")
    c = product(a, b, shape=(128, 128, 128))
    return scheduled(module(a, b, x, y, c))


def test_a_host_block_may_be_scheduled_later():
    sch = beside_a_host_block()
    with pytest.raises(LoweringError, match=r"block Y: found a store into Y outside of every ker"):
        tvm_hopper.lower(sch.mod, TARGET)
    sch.bind(sch.get_loops("Y")[0], "threadIdx.x")
    tvm_hopper.lower(sch.mod, TARGET)


def test_a_block_that_scheduling_left_beside_the_kernel():
    sch = beside_a_host_block()
    kernel = sch.get_sblock("C_update_o")
    before = dry_run.block_names(sch)
    dry_run.check_nothing_left(sch, kernel, before)
    match = (
        r"block Y: found Y\[v_i\] computed from X\[v_i\], left next to the kernel of C_update_o; "
        r"need pads and copies that can be a part of the kernel; choose a tile that divides"
    )
    with pytest.raises(ScheduleError, match=match):
        dry_run.check_nothing_left(sch, kernel, before - {"Y"})


def and_row_squares(of_product):
    a, b = operands(64, 64, 64)
    x = tensor(64, 64, name="X")
    c, t = product(a, b), te.reduce_axis((0, 64), "t")
    summed = c if of_product else x
    s = te.compute((64,), lambda i: te.sum(summed[i, t] * summed[i, t], t), name="S")
    return s_tir.Schedule(module(a, b, x, c, s))


@pytest.mark.parametrize("of_product", [True, False])
def test_a_reduction_beside_the_product_is_a_kernel_first(of_product):
    sch = and_row_squares(of_product)
    match = (
        "block S: found a reduction that is no part of the kernel of C_update_o; .* "
        "bind its loops to threads first, or keep it in a separate function"
    )
    with pytest.raises(ScheduleError, match=match):
        hs.matmul(sch, "C")
    sch.bind(sch.get_loops("S")[0], "threadIdx.x")
    hs.matmul(sch, "C")
    tvm_hopper.lower(sch.mod, TARGET)


def test_the_kernel_alone_is_the_whole_function_of_one_kernel():
    sch = scheduled(workloads.matmul("m", 1000, 72, epilogue=("bias_col",)))
    func = dry_run.extract_kernel(sch, sch.get_sblock("C_update_o"))
    tvm.ir.assert_structural_equal(func, sch.mod["main"])


def test_a_product_inside_of_another_block_is_left_to_the_build():
    sch = scheduled(workloads.matmul(128, 128, 128))
    assert dry_run.extract_kernel(sch, sch.get_sblock("C_update")) is None
    dry_run.check_lowering(sch, sch.get_sblock("C_update"))


@pytest.mark.parametrize("offset", [8, 24, 40])
@pytest.mark.parametrize("consumers", [1, 2])
def test_columns_left_out_in_front(offset, consumers):
    """D[i, j] = C[i, j + 8]: bounds from below that each warp group's columns are compared with."""
    a, b = operands(64, 128, 64)
    c = product(a, b, shape=(64, 128, 64))
    d = te.compute((64, 128 - offset), lambda i, j: c[i, j + offset], name="D")
    mod = module(a, b, d)
    sch = scheduled(mod, hs.MatmulConfig((64, 64, 64), stages=1, consumers=consumers))
    inputs = workloads.make_inputs(mod)
    lib = tvm.compile(sch.mod, target=TARGET)
    result = tvm_hopper.simulate(lib, dict(zip("AB", inputs, strict=True)))
    assert result.verdict == "clean"
    want = workloads.reference(inputs)[:, offset:]
    np.testing.assert_array_equal(result.outputs["D"], want)
