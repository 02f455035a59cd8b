"""A helper that refuses has changed nothing, and a second request is never dropped in silence."""

import numpy as np
import pytest
import tvm
from tvm import s_tir, te
from tvm.script import tirx as T

import tvm_hopper
from tests.schedule.programs import module, operands, product, written
from tvm_hopper import schedule as hs
from tvm_hopper.errors import ScheduleError
from tvm_hopper.schedule import trial
from tvm_hopper.testing import tensor_cores, workloads
from tvm_hopper.testing.tensor_cores import WarpTiling

TILE = (64, 64, 64)


def kernel(pad=True, order="usual", split_k=False, shape=(128, 128, 256), upto="pipeline"):
    """Schedule a matmul by the steps, up to one of them; return the schedule, blocks and loops."""
    sch = s_tir.Schedule(workloads.matmul(*shape))
    block = sch.get_sblock("C")
    if pad:
        hs.pad(sch, block, TILE)
    i, j, k = sch.get_loops(block)
    i0, i1, i2 = sch.split(i, [None, 1, 64])
    j0, j1 = sch.split(j, [None, 64])
    k0, k1 = sch.split(k, [None, 64])
    orders = {
        "usual": (i0, j0, i1, k0, i2, j1, k1),
        "swapped": (i0, j0, i1, k0, j1, i2, k1),
        "k outside": (i0, j0, k0, i1, i2, j1, k1),
    }
    sch.reorder(*orders[order])
    if split_k:
        _, k0 = sch.split(k0, [None, 2])
    sch.bind(i0, "blockIdx.y")
    sch.bind(j0, "blockIdx.x")
    sch.bind(i1, "threadIdx.y")
    store = sch.cache_write(block, 0, "local")
    sch.reverse_compute_at(store, i1)
    copies = [sch.cache_read(block, index, "shared.dyn") for index in (0, 1)]
    for copy in copies:
        sch.compute_at(copy, k0)
    names = {"i0": i0, "j0": j0, "i2": i2, "j1": j1, "k0": k0, "block": block, "store": store}
    names |= {"A": copies[0], "B": copies[1]}
    if upto == "copies":
        return sch, names
    hs.raster(sch, j0, 4, 8)
    for copy in copies:
        hs.async_copy(sch, copy, swizzle=128)
    hs.fuse_epilogue(sch, store)
    if upto == "wgmma":
        return sch, names
    names["product"] = hs.wgmma(sch, block)
    hs.pipeline(sch, k0, 3, hs.Roles(1, (56, 256)), wgmma_pending=1)
    return sch, names


def refuse(sch, match, step, *args, **kwargs):
    mod, length = sch.mod, len(sch.trace.insts)
    text = mod.script()
    with pytest.raises(ScheduleError, match=match) as error:
        step(sch, *args, **kwargs)
    assert "Error message" not in str(error.value)
    assert "#0" not in str(error.value)
    assert len(str(error.value)) < 500
    assert sch.mod.same_as(mod)
    assert sch.mod.script() == text
    assert len(sch.trace.insts) == length


# -- what TVM would have refused half way


@pytest.mark.parametrize(
    ("options", "match"),
    [
        (
            {"split_k": True},
            r"block C: found 2 loops over k \(k_0_0, k_0_1\) around the tile; need one loop over k",
        ),
        (
            {"order": "k outside"},
            r"block C: found loop i0_1 between the loop over k \(k_0\) and the tile; need one loop "
            r"over k, and directly in it .*; reorder k_0 after it",
        ),
        (
            {"pad": False, "shape": (100, 128, 256)},
            r"block C: found the predicate .* < 100, since the tile does not divide the shape; "
            r"need whole tiles; pad the matmul first: hs.pad",
        ),
    ],
    ids=["split-k", "k-outside", "no-pad"],
)
def test_wgmma_of_loops_that_are_no_tile(options, match):
    sch, names = kernel(upto="wgmma", **options)
    refuse(sch, match, hs.wgmma, names["block"])


def test_wgmma_of_loops_over_rows_alone():
    sch = s_tir.Schedule(workloads.matmul(1024, 128, 256))
    i, j, k = sch.get_loops("C")
    i0, i1, i2 = sch.split(i, [None, 64, 8])
    k0, k1 = sch.split(k, [None, 64])
    sch.reorder(i0, j, k0, i1, i2, k1)
    for index in (0, 1):
        sch.compute_at(sch.cache_read("C", index, "shared.dyn"), k0)
    match = r"block C: found i0_1, i0_2, k_1 as the three innermost loops; need a loop over rows, o"
    refuse(sch, match, hs.wgmma, "C")


def test_wgmma_beside_a_copy_in_the_tile():
    sch, names = kernel(upto="copies")
    sch.compute_at(names["B"], names["i2"])
    match = r"block C: found B_shared.dyn next to it, inside of loop i0_2; need the multiply-add al"
    refuse(sch, match, hs.wgmma, names["block"])


def test_wgmma_of_another_statement():
    @T.prim_func(s_tir=True)
    def main(
        A: T.Buffer((64, 64), "float16"),
        B: T.Buffer((64, 64), "float16"),
        C: T.Buffer((64, 64), "float32"),
    ):
        for x, i, j, k in T.grid(4, 64, 64, 64):
            with T.sblock("C"):
                vx, vi, vj, vk = T.axis.remap("RSSR", [x, i, j, k])
                if vx == 0:
                    C[vi, vj] = C[vi, vj] + T.Cast("float32", A[vi, vk] * B[vj, vk])

    sch = s_tir.Schedule(main)
    for name in "AB":
        sch.cache_read("C", name, "shared.dyn")
    refuse(sch, r"block C: found IfThenElse; need one multiply-add", hs.wgmma, "C")


def test_what_no_check_foresees_is_one_error_too(monkeypatch):
    sch, names = kernel(upto="wgmma", pad=False, shape=(100, 128, 256))
    monkeypatch.setattr("tvm_hopper.schedule.products.tiles.find_tile", lambda *_: (64, 64, 64))
    match = r"block C: found what TVM cannot schedule \(.*\); need a tile of plain loops around the"
    refuse(sch, match, hs.wgmma, names["block"])


def test_pad_of_a_matmul_that_tvm_cannot_pad():
    sch = s_tir.Schedule(in_place())
    refuse(sch, r"block C: found what TVM cannot schedule", hs.pad, "C", (64, 48, 64))


OVERWRITES = """
for i, j in T.grid(64, 64):
    with T.sblock("D"):
        vi, vj = T.axis.remap("SS", [i, j])
        A[vi, vj] = T.Cast("float16", C[vi, vj])
"""


def in_place():
    return written(shapes=((64, 64), (64, 64), None), after=OVERWRITES)


def test_a_product_that_overwrites_its_operand():
    match = r"block C, tensor A: found block D, which writes it after the product; need a separate"
    refuse(s_tir.Schedule(in_place()), match, hs.matmul, "C")


def test_the_epilogue_of_another_block():
    mod = workloads.matmul(128, 128, 128, epilogue=("relu",))
    sch = s_tir.Schedule(mod)
    refuse(sch, r"found relu.* computed from C\[.*which TVM cannot inline", hs.fuse_epilogue, "C")


def test_half_a_prologue():
    """The first cast can be inlined, the second is an output: neither is."""
    a, b = operands(64, 64, 64)
    first = te.compute(a.shape, lambda *i: a(*i).astype("float32"), name="A_cast")
    second = te.compute(b.shape, lambda *i: b(*i).astype("float32"), name="B_cast")
    c = product(first, second, value=lambda x, y: x * y)
    sch = s_tir.Schedule(module(a, b, second, c))
    match = r"block B_cast: found B_cast\[.*\] computed from B\[.*\], which TVM cannot inline"
    refuse(sch, match, hs.fuse_prologue, "C")


def test_wgmma_takes_rows_and_columns_in_either_order():
    mod = workloads.matmul(128, 128, 256)
    inputs = workloads.make_inputs(mod)
    for order in ("usual", "swapped"):
        sch, _ = kernel(order=order)
        lib = tvm.compile(sch.mod, target="nvidia/nvidia-h200")
        result = tvm_hopper.simulate(lib, dict(zip("AB", inputs, strict=True)), blocks=[(0, 0, 0)])
        assert result.verdict == "clean"
        want = workloads.reference(inputs)[:64, :64]
        np.testing.assert_array_equal(result.outputs["C"][:64, :64], want)


# -- second requests


def test_equal_requests_change_nothing():
    sch, names = kernel()
    before, length = sch.mod, len(sch.trace.insts)
    hs.raster(sch, names["j0"], 4, 8)
    hs.raster(sch, names["j0"])
    hs.async_copy(sch, names["A"], swizzle=128)
    hs.async_copy(sch, names["A"])
    hs.pipeline(sch, names["k0"], 3, hs.Roles(1, (56, 256)), wgmma_pending=1)
    hs.pipeline(sch, names["k0"], stages=3)
    assert sch.mod.same_as(before)
    annotates = [x for x in sch.trace.insts[length:] if x.kind.name == "Annotate"]
    assert annotates == []
    hs.wgmma(sch, names["product"])
    again = hs.wgmma(sch, names["block"])
    assert sch.get(again).same_as(sch.get(names["product"]))
    assert sch.mod.same_as(before)


@pytest.mark.parametrize(
    ("name", "step", "options", "match"),
    [
        ("k0", hs.pipeline, {"stages": 4}, r"software_pipeline_stage = \[0, 0, 3\], next to softw"),
        ("k0", hs.pipeline, {"stages": 3, "roles": hs.Roles(2)}, r"consumers = 2, next to tvm_hop"),
        ("k0", hs.pipeline, {"stages": 3, "wgmma_pending": 0}, r"wgmma_pending = 0, next .* = 1"),
        (
            "k0",
            hs.pipeline,
            {"stages": 3, "roles": hs.Roles(1, (64, 256))},
            r"registers = \[64, 256\], next to tvm_hopper.registers = \[56, 256\]",
        ),
        ("j0", hs.raster, {"group": 2}, r"raster_group = 2, next to tvm_hopper.raster_group = 4"),
        ("j0", hs.raster, {"group": 1}, r"raster_group = 1, next to tvm_hopper.raster_group = 4"),
        ("j0", hs.raster, {"persistent": 0}, r"persistent = 0, next to tvm_hopper.persistent = 8"),
        ("A", hs.async_copy, {"swizzle": 64}, r"swizzle = 64, next to tvm_hopper.swizzle = 128"),
    ],
)
def test_contradicting_requests(name, step, options, match):
    sch, names = kernel()
    full = rf"found a second request, (tvm_hopper.)?{match}.*; need one of them; take the first one"
    refuse(sch, full, step, names[name], **options)


def test_a_second_accumulator():
    sch, names = kernel()
    hs.wgmma(sch, names["block"], accumulate="float32")
    assert str(sch.get(names["product"]).annotations["tvm_hopper.accumulate"]) == "float32"


def test_a_request_can_be_taken_back():
    sch, names = kernel()
    sch.unannotate(names["j0"], "tvm_hopper.raster_group")
    hs.raster(sch, names["j0"], 2)
    assert int(sch.get(names["j0"]).annotations["tvm_hopper.raster_group"]) == 2


def test_a_sampled_stage_beside_a_fixed_one():
    sch, names = kernel()
    sample = sch.sample_categorical([2, 2], [0.5, 0.5])  # equal now says nothing of later
    match = r"a second request, software_pipeline_stage = \[0, 0, .*\], next to"
    refuse(sch, match, hs.pipeline, names["k0"], stages=sample + 1)


# -- the trial itself


def test_a_step_is_called_by_the_names_of_its_arguments():
    sch, names = kernel(upto="wgmma")
    hs.wgmma(block=names["block"], sch=sch)
    with pytest.raises(TypeError, match="missing a required argument: 'loop'"):
        hs.pipeline(sch, stages=2)
    with pytest.raises(TypeError, match="unexpected keyword argument 'depth'"):
        hs.pipeline(sch, names["k0"], 3, depth=3)


def test_helpers_inside_of_one_step_are_not_tried_again(monkeypatch):
    calls = []
    original = s_tir.Schedule.copy
    monkeypatch.setattr(s_tir.Schedule, "copy", lambda self: calls.append(1) or original(self))
    hs.matmul(s_tir.Schedule(workloads.matmul(128, 128, 128)), "C", hs.MatmulConfig(TILE))
    assert len(calls) == 1


def test_what_a_trial_accepts_is_asked_of_the_copy():
    sch = s_tir.Schedule(workloads.matmul(128, 128, 128))
    seen = []

    def accept(copy, result):
        seen.append((copy is sch, result))
        raise ScheduleError("no")

    with pytest.raises(ScheduleError, match="no"):
        trial.rehearse(sch, lambda copy, _: copy.get_loops("C") and 7, accept)
    assert seen == [(False, 7)]
    assert not sch.trace.insts


# -- after `tensorize`, TVM cannot copy a schedule


def tensorized():
    """Return a schedule whose product is an intrinsic, and the loop to be pipelined."""
    tiling = WarpTiling(tile=(32, 32, 16), stages=None)
    sch = tensor_cores.schedule(tensor_cores.matmul(64, 64, 64), tiling)
    with pytest.raises(tvm.error.InternalError):  # if this passes, `trial` needs no twin any more
        sch.copy()
    return sch, sch.get_loops(sch.get_sblock("A_shared.dyn"))[3]


def test_a_tensorized_schedule_is_served():
    sch, loop = tensorized()
    hs.pipeline(sch, loop, stages=3, roles=hs.Roles(1))
    assert [int(x) for x in sch.get(loop).annotations["software_pipeline_stage"]] == [0, 0, 2]
    hs.pipeline(sch, loop, stages=3, roles=hs.Roles(1))  # the same again does nothing


def test_a_tensorized_schedule_stays_as_it_was_where_a_helper_refuses():
    sch, loop = tensorized()
    refuse(sch, r"loop k_0_0: found consumers=2 with .*threadIdx.x 32 x threadIdx.y 4", hs.pipeline,
           loop, stages=3, roles=hs.Roles(2))  # fmt: skip
    hs.pipeline(sch, loop, stages=3, roles=hs.Roles(1))
    refuse(sch, r"a second request, software_pipeline_stage = \[0, 0, 1\]", hs.pipeline, loop, 2)
    copy = sch.get_sblock("B_shared.dyn")
    refuse(sch, "a second request, tvm_hopper.swizzle = 64", _two_swizzles, copy)


def test_a_matmul_of_a_tensorized_schedule_is_one_clear_error():
    sch, _ = tensorized()
    before = sch.mod
    with pytest.raises(ScheduleError, match=r"found .*; need "):
        hs.matmul(sch, sch.get_sblock("A_shared.dyn"))
    tvm.ir.assert_structural_equal(sch.mod, before)


@trial.all_or_nothing("a copy")
def _two_swizzles(sch, copy):
    """Ask for one swizzle and then for another: what came first must go back."""
    hs.async_copy(sch, copy, "tma", swizzle=32)
    hs.async_copy(sch, copy, "tma", swizzle=64)
