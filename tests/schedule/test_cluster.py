"""Products whose thread blocks load for one another, as they are asked for."""

import pytest
from tvm import s_tir

from tvm_hopper import schedule as hs
from tvm_hopper.errors import ScheduleError
from tvm_hopper.testing import workloads


def test_the_steps_make_the_same_schedule():
    """What `cluster` stands for, written out."""
    mod = workloads.matmul(512, 128, 128, out_dtype="float16")
    whole, sch = s_tir.Schedule(mod), s_tir.Schedule(mod)
    hs.matmul(whole, "C", hs.MatmulConfig((128, 64, 64), 2, 2, cluster=(2, 1), raster=2))
    block = sch.get_sblock("C")
    i, j, k = sch.get_loops(block)
    i0, i1 = sch.split(i, [None, 128])
    j0, j1 = sch.split(j, [None, 64])
    i0, i_block = sch.split(i0, [None, 2])
    j0, j_block = sch.split(j0, [None, 1])
    k0, k1 = sch.split(k, [None, 64])
    part, i1 = sch.split(i1, [2, None])
    sch.reorder(i0, j0, i_block, j_block, part, k0, i1, j1, k1)
    sch.bind(i0, "blockIdx.y")
    sch.bind(j0, "blockIdx.x")
    hs.share_loads(sch, sch.fuse(i_block, j_block))
    sch.bind(part, "threadIdx.y")
    hs.raster(sch, j0, group=2, early_launch=True)
    store = sch.cache_write(block, 0, "local")
    sch.reverse_compute_at(store, part)
    for index in (0, 1):
        copy = sch.cache_read(block, index, "shared.dyn")
        sch.compute_at(copy, k0)
        hs.async_copy(sch, copy, mechanism="tma")
    hs.fuse_epilogue(sch, store)
    hs.wgmma(sch, block)
    hs.pipeline(sch, k0, stages=2, roles=hs.Roles(consumers=2))
    assert _lowered(sch) == _lowered(whole)


def _lowered(sch):
    from tvm_hopper import lower

    return lower(sch, target="nvidia/nvidia-h200").script()


def test_loops_that_are_no_cluster():
    sch = s_tir.Schedule(workloads.matmul(64, 64, 64))
    i, *_ = sch.get_loops("C")
    with pytest.raises(ScheduleError, match="and 64 iterations; need a serial loop of 2 to 8"):
        hs.share_loads(sch, i)
    outer, inner = sch.split(i, [None, 2])
    with pytest.raises(ScheduleError, match=r"no loop around it that is bound to blockIdx\.x"):
        hs.share_loads(sch, inner)
    sch.bind(outer, "blockIdx.x")
    sch.bind(inner, "blockIdx.y")
    with pytest.raises(ScheduleError, match="found a loop of kind thread_binding"):
        hs.share_loads(sch, inner)


@pytest.mark.parametrize(
    ("config", "match"),
    [
        (
            {"cluster": (2, 1), "split_k": hs.SplitK(2, "serial")},
            r"cluster=\(2, 1\) with split_k=SplitK\(parts=2, mode='serial'\); need one of the two",
        ),
        (
            {"cluster": (4, 4)},
            r"cluster=\(4, 4\); need rows and columns of tiles, from 1, that are at",
        ),
        ({"cluster": (0, 2)}, r"cluster=\(0, 2\); need rows and columns of tiles"),
        ({"cluster": 2}, r"cluster=2; need rows and columns of tiles, e\.g\. \(2, 1\)"),
        (
            {"cluster": (2, 1), "split_k": 5},
            r"cluster=\(2, 1\) with split_k=5; need at most 8 blocks",
        ),
    ],
)
def test_clusters_that_cannot_be(config, match):
    with pytest.raises(ScheduleError, match=match):
        hs.MatmulConfig(**config)


def test_sampled_sizes_are_no_cluster():
    sch = s_tir.Schedule(workloads.matmul(256, 256, 256))
    tile_n = sch.sample_categorical([64, 128], [0.5, 0.5])
    config = hs.MatmulConfig((64, tile_n, 64), stages=2, consumers=1, cluster=(2, 1))
    with pytest.raises(ScheduleError, match=r"found cluster=\(2, 1\) with a sampled tile"):
        hs.matmul(sch, "C", config)


def test_blocks_of_one_tile_alone_are_no_cluster():
    sch = s_tir.Schedule(workloads.matmul(256, 256, 256))
    hs.matmul(sch, "C", hs.MatmulConfig((64, 64, 64), 2, 1, cluster=(1, 1)))
    assert "share_loads" not in sch.mod.script()
