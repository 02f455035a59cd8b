"""A configuration that cannot work for a product is one clear error of `hs.matmul`."""

import pytest
import tvm
from tvm import s_tir, te

from tests.schedule.programs import operands, product, tensor
from tests.schedule.refuse import refuse
from tvm_hopper import schedule as hs
from tvm_hopper.errors import ScheduleError
from tvm_hopper.testing import workloads


@pytest.mark.parametrize(
    ("config", "match"),
    [
        (
            hs.MatmulConfig((128, 256, 64), stages=5),
            r"block C, tile 128x256x64: found 5 stages x \(A 16384 \+ B 32768 \+ barriers 16\) \+ "
            r"alignment 8 = 245848 B of shared memory; need at most 232448 B, which 4 stages of "
            r"this tile take",
        ),
        (
            hs.MatmulConfig((100, 100, 10)),
            r"tile 100x100x10: found tile_m 100; need a multiple of 64; also found tile_n 100; "
            r"need a multiple of 8; also found tile_k 10; need a multiple of 16 for float16",
        ),
        (
            hs.MatmulConfig((128, 128, 64), consumers=3),
            r"found 3 consumers for a 128x128 tile; need consumers in \{1, 2\}, or tile_m a "
            r"multiple of 192, or tile_n a multiple of 24",
        ),
        (
            hs.MatmulConfig((128, 256, 64), consumers=1, stages=2),
            r"found 256 accumulators a thread \(128x256 over 1 consumers\); need at most 229 of 2",
        ),
        (
            hs.MatmulConfig((128, 256, 64), 4, 2, store=hs.TmaStore(3)),
            r"found 3 parts of 256 columns of float32; need one of 1, 2, 4, 8, 16, 32, of "
            r"which a row is a multiple of 16 bytes and of 8 elements",
        ),
        (
            hs.MatmulConfig((128, 256, 64), 4, 2, persistent=1, store=hs.TmaStore(2)),
            r"found a ring of 4 stages and 65536 B of staging \(TmaStore\(parts=2.*\), 262208 B of "
            r"shared memory; need at most 232448 B, by more parts, fewer stages or a smaller tile",
        ),
        (
            hs.MatmulConfig((128, 256, 64), 3, 2, store=hs.TmaStore(4, 2)),
            r"found operand_slots=2 of an epilogue without a tensor to load; need one of the "
            r"output's shape, static, whose rows are multiples of 16 bytes",
        ),
        (
            hs.MatmulConfig((64, 256, 64), 3, 2, store=hs.TmaStore(2)),
            r"found 2 parts of 128 columns of float32; need one of 1, of .* 8 elements; "
            r"2 warp groups share the columns: parts of theirs are no run",
        ),
        (
            hs.MatmulConfig((192, 256, 64), 3, 2, persistent=1, store="tma"),
            r"3 stages and 196608 B of staging \(TmaStore\(parts=1.*; need at most 232448 B, by "
            r"fewer stages or a smaller tile",
        ),
    ],
    ids=[
        "shared-memory",
        "tile",
        "consumers",
        "registers",
        "parts",
        "staging",
        "operands",
        "groups",
        "room",
    ],
)
def test_configurations(config, match):
    refuse(workloads.matmul(256, 256, 256), match, config=config)


@pytest.mark.parametrize(
    ("layout", "config", "match"),
    [
        (
            "NT",
            hs.MatmulConfig((128, 128, 32), swizzle=128),
            r"found swizzle=128 with rows of 32 elements in A's tile; need multiples of 64 "
            r"elements, or a narrower swizzle; also found .* in B's tile",
        ),
        ("NN", hs.MatmulConfig((64, 48, 64), 2, 1, swizzle=64), r"rows of 48 elements in B's tile"),
        ("NN", hs.MatmulConfig((64, 64, 64), 2, 2, swizzle=128), r"rows of 32 elements in B's til"),
    ],
    ids=["depth", "columns", "columns-of-a-consumer"],
)
def test_swizzle_wider_than_a_row(layout, config, match):
    refuse(workloads.matmul(256, 256, 256, layout=layout), match, config=config)


def test_sampled_tiles_that_share_no_axis():
    sch = s_tir.Schedule(workloads.matmul(256, 256, 256))
    tile_m = sch.sample_categorical([64, 128], [0.5, 0.5])
    tile_n = sch.sample_categorical([48, 56], [0.5, 0.5])
    config = hs.MatmulConfig((tile_m, tile_n, 64), stages=2, consumers=2)
    before = sch.mod
    with pytest.raises(ScheduleError, match=r"tile 64/128x48/56x64: found candidates that 2 "):
        hs.matmul(sch, "C", config)
    assert sch.mod.same_as(before)


def test_config_refuses_a_negative_number_of_persistent_blocks():
    with pytest.raises(ScheduleError, match=r"persistent=-2; need -1 or more"):
        hs.MatmulConfig(persistent=-2)


def test_operands_that_find_no_room():
    mod = workloads.matmul(256, 256, 64, out_dtype="float16", epilogue=("residual",))
    refuse(
        mod,
        r"found a ring of 4 stages and 49152 B of staging \(TmaStore\(parts=4, operand_slots=3"
        r"\)\), 245\d+ B of shared memory; need at most 232448 B, by more parts",
        config=hs.MatmulConfig((128, 256, 64), 4, 2, persistent=1, store=hs.TmaStore(4, 3)),
    )


def test_operands_that_meet_no_element_of_their_own():
    a, b = operands(64, 64, 16)
    other = tensor(64, 64, dtype="float16", name="other")
    c = product(a, b, shape=(64, 64, 16))
    d = te.compute((64, 64), lambda i, j: c[i, j] + other[j, i].astype("float32"), name="D")
    func = te.create_prim_func([a, b, other, d]).with_attr("global_symbol", "main")
    config = hs.MatmulConfig((64, 64, 16), 2, 1, store=hs.TmaStore(operand_slots=1))
    match = "found operand_slots=1 of an epilogue that reads no tensor as a whole"
    refuse(tvm.IRModule({"main": func}), match, config=config)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: hs.TmaStore(operand_slots=-1), "TmaStore: found operand_slots=-1; need 0 or more"),
        (lambda: hs.TmaStore(0), "TmaStore: found parts=0; need 1 or more"),
        (lambda: hs.Raster(0), "Raster: found group=0; need 1 or more"),
        (lambda: hs.Raster(8, "peano"), "Raster: found curve='peano'; need one of 'hilbert' or N"),
        (lambda: hs.SplitK(0), "SplitK: found parts=0; need 1 or more"),
        (lambda: hs.SplitK(2, "free"), "SplitK: found mode='free'; need one of 'cluster', "),
        (
            lambda: hs.MatmulConfig(split_k=hs.SplitK(2, "atomic"), store="threads"),
            r"mode='atomic'\) with store='threads'; need TMA, which adds to memory",
        ),
    ],
)
def test_parts_of_a_field(make, match):
    with pytest.raises(ScheduleError, match=match):
        make()


@pytest.mark.parametrize(
    ("given", "same", "shown"),
    [
        ({"raster": hs.Raster(8)}, {"raster": 8}, "raster=8"),
        ({"raster": hs.Raster(curve="hilbert")}, {"raster": "hilbert"}, "raster='hilbert'"),
        ({"split_k": hs.SplitK(4)}, {"split_k": 4}, "split_k=4"),
        ({"split_k": hs.SplitK(mode="stream")}, {"split_k": "stream"}, "split_k='stream'"),
        ({"split_k": hs.SplitK()}, {}, ""),
        ({"store": hs.TmaStore()}, {"store": "tma"}, "store='tma'"),
        (
            {"split_k": hs.SplitK(4, "serial")},
            {"split_k": hs.SplitK(4, "serial")},
            "split_k=SplitK(parts=4, mode='serial')",
        ),
    ],
)
def test_a_field_of_one_part_is_that_part(given, same, shown):
    config = hs.MatmulConfig(**given)
    assert config == hs.MatmulConfig(**same)
    assert repr(config) == f"MatmulConfig({shown})"
    assert eval(repr(config), vars(hs)) == config
