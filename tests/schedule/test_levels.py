"""The whole kernel, the steps and the bare annotations say the same: equal modules."""

import pytest
import tvm
from tvm import s_tir

from tvm_hopper import schedule as hs
from tvm_hopper.errors import ScheduleError
from tvm_hopper.testing import workloads

TILE, STAGES, CONSUMERS, REGISTERS = (128, 256, 64), 4, 2, (40, 232)


def whole(sch):
    config = hs.MatmulConfig(
        TILE,
        STAGES,
        CONSUMERS,
        swizzle=128,
        registers=REGISTERS,
        raster=4,
        persistent=132,
    )
    hs.matmul(sch, "C", config)


def step_by_step(sch, early, any_rows):
    block = sch.get_sblock("C")
    hs.fuse_prologue(sch, block)
    hs.pad(sch, block, TILE)
    i, j, k = sch.get_loops(block)
    i0, i1, i2 = sch.split(i, [None, CONSUMERS, TILE[0] // CONSUMERS])
    j0, j1 = sch.split(j, [None, TILE[1]])
    k0, k1 = sch.split(k, [None, TILE[2]])
    sch.reorder(i0, j0, i1, k0, i2, j1, k1)
    sch.bind(i0, "blockIdx.y")
    sch.bind(j0, "blockIdx.x")
    sch.bind(i1, "threadIdx.y")
    hs.raster(sch, j0, group=4, persistent=132, early_launch=early)
    store = sch.cache_write(block, 0, "local")
    sch.reverse_compute_at(store, i1)
    for index in (0, 1):
        copy = sch.cache_read(block, index, "shared.dyn")
        sch.compute_at(copy, k0)
        # of any number of rows there may be few: A's, along k, are not brought beyond its end
        hs.async_copy(sch, copy, "tma", swizzle=128, spare_rows=any_rows and index == 0)
    hs.fuse_epilogue(sch, store)
    hs.wgmma(sch, block)
    hs.pipeline(sch, k0, stages=STAGES, roles=hs.Roles(CONSUMERS, REGISTERS))


def bare(sch, ragged, epilogue, early, any_rows):
    """Nothing of this package: primitives of TVM and annotations, as they stand in a trace."""
    block = sch.get_sblock("C")
    if ragged:
        sch.pad_einsum(block, list(TILE))
    i, j, k = sch.get_loops(block)
    i0, i1, i2 = sch.split(i, [None, 2, 64])
    j0, j1 = sch.split(j, [None, 256])
    k0, k1 = sch.split(k, [None, 64])
    sch.reorder(i0, j0, i1, k0, i2, j1, k1)
    sch.bind(i0, "blockIdx.y")
    sch.bind(j0, "blockIdx.x")
    sch.bind(i1, "threadIdx.y")
    sch.annotate(j0, "tvm_hopper.raster_group", 4)
    sch.annotate(j0, "tvm_hopper.persistent", 132)
    if early:
        sch.annotate(j0, "tvm_hopper.early_launch", 1)
    store = sch.cache_write(block, 0, "local")
    sch.reverse_compute_at(store, i1)
    for index, name in ((0, "A"), (1, "B")):
        copy = sch.cache_read(block, index, "shared.dyn")
        sch.compute_at(copy, k0)
        if ragged:
            sch.compute_inline(f"{name}_pad")
        sch.annotate(copy, "tvm_hopper.async_copy", "tma")
        sch.annotate(copy, "tvm_hopper.swizzle", 128)
        if any_rows and name == "A":
            sch.annotate(copy, "tvm_hopper.spare_rows", 1)
    if ragged:
        sch.reverse_compute_inline("C_pad")
    for name in epilogue:
        sch.reverse_compute_inline(name)
    sch.decompose_reduction(block, k0)
    tile = sch.blockize(i2)
    sch.annotate(tile, "tvm_hopper.wgmma", 1)
    sch.annotate(k0, "software_pipeline_stage", [0, 0, 3])
    sch.annotate(k0, "software_pipeline_order", [0, 1, 2])
    sch.annotate(k0, "software_pipeline_async_stages", [0])
    sch.annotate(k0, "tvm_hopper.consumers", 2)
    sch.annotate(k0, "tvm_hopper.registers", [40, 232])


@pytest.mark.parametrize("shape", [(512, 512, 256), (1000, 1000, 72), ("m", 1000, 72)], ids=str)
@pytest.mark.parametrize("epilogue", [(), ("bias_col", "relu")], ids="-".join)
def test_three_levels_give_equal_modules(shape, epilogue):
    m, n, k = shape
    out = {"out_dtype": "float16"} if epilogue else {}
    mod = workloads.matmul(m, n, k, layout="NN", epilogue=epilogue, **out)
    behind = ["bias_col_sum", "relu", "D"] if epilogue else []
    schedules = [s_tir.Schedule(mod) for _ in range(3)]
    whole(schedules[0])
    early = not epilogue  # whose bias threads would load
    any_rows, ragged = m == "m", shape != (512, 512, 256)
    step_by_step(schedules[1], early, any_rows)
    bare(schedules[2], ragged, behind, early, any_rows)
    for other in schedules[1:]:
        tvm.ir.assert_structural_equal(other.mod, schedules[0].mod)


def test_a_shape_that_divides_needs_no_pad():
    sch = s_tir.Schedule(workloads.matmul(512, 512, 256))
    before = sch.mod
    hs.pad(sch, "C", TILE)
    assert sch.mod.same_as(before)


def test_a_symbolic_multiple_of_the_tile_needs_no_pad():
    m = tvm.tirx.Var("m", "int64")
    mod = workloads.matmul(m * 128, 512, 256, index="int64")
    sch = s_tir.Schedule(mod)
    hs.pad(sch, "C", TILE)
    assert sch.mod.same_as(mod)
    hs.matmul(sch, "C", hs.MatmulConfig(TILE, STAGES))
    assert not [b for b in sch.trace.insts if b.kind.name == "PadEinsum"]


def test_consumers_share_columns_when_rows_do_not_divide():
    sch = s_tir.Schedule(workloads.matmul(512, 512, 256))
    hs.matmul(sch, "C", hs.MatmulConfig((64, 128, 64), stages=2, consumers=2))
    store = sch.get(sch.get_loops("C_local")[2])
    assert str(store.thread_binding.thread_tag) == "threadIdx.y"
    assert [int(sch.get(x).extent) for x in sch.get_loops("C_local")] == [8, 4, 2, 64, 64]


def test_a_kernel_begins_early_or_not():
    sch = s_tir.Schedule(workloads.matmul(512, 512, 256))
    loop = sch.get_loops("C")[0]
    with pytest.raises(ScheduleError, match="early_launch=1; need True, False or None"):
        hs.raster(sch, loop, early_launch=1)


def test_raster_group_stands_on_the_loop_of_column_tiles():
    sch = s_tir.Schedule(workloads.matmul(512, 512, 256))
    hs.matmul(sch, "C", hs.MatmulConfig(TILE, STAGES, raster=8, wgmma_pending=1))
    loops = [sch.get(loop) for loop in sch.get_loops("C_update_o")]
    assert str(loops[1].thread_binding.thread_tag) == "blockIdx.x"
    assert int(loops[1].annotations["tvm_hopper.raster_group"]) == 8
    assert int(loops[3].annotations["tvm_hopper.wgmma_pending"]) == 1


def test_only_primitives_and_flat_annotations_stand_in_the_trace():
    sch = s_tir.Schedule(workloads.matmul("m", 1000, 72, batch=True, epilogue=("silu",)))
    hs.matmul(sch, "C")
    for inst in sch.trace.insts:
        if inst.kind.name != "Annotate":
            continue
        value = inst.inputs[1]
        values = value if isinstance(value, (list, tuple)) or hasattr(value, "__len__") else [value]
        assert len(values), inst
        assert all(isinstance(v, (int, float, bool, str, tvm.tirx.IntImm)) for v in values), inst


def test_tiles_are_two_dimensional_whatever_stands_in_front():
    sch = s_tir.Schedule(workloads.matmul("m", 1000, 72, batch=True, index="int64"))
    hs.matmul(sch, "C", hs.MatmulConfig(TILE, STAGES))
    ranks = {
        str(b.name): len(b.shape)
        for b in sch.get_sref(sch.get_sblock("root")).stmt.alloc_buffers
        if b.scope() != "global"
    }
    assert set(ranks.values()) == {2}
    assert len(ranks) == 3
