"""Outputs that leave by TMA without being asked: of several waves of deep sums."""

from dataclasses import replace

import pytest

from tvm_hopper import schedule as hs
from tvm_hopper.schedule.products.config import ARCH
from tvm_hopper.schedule.products.staging import EpilogueTypes, leaves_by_tma
from tvm_hopper.testing.workloads import matmul

WAVES = hs.MatmulConfig(tile=(128, 256, 64), consumers=2, stages=4, persistent=-1)
HALVES = EpilogueTypes(("float16",))


def leaves(config, shape=(4096, 4096), epilogue=HALVES, k=4096, may_take_stages=True):
    return leaves_by_tma(config, shape, "float16", epilogue, k, may_take_stages, ARCH)


@pytest.mark.parametrize("tile", [(128, 256, 64), (192, 256, 64), (192, 192, 64)])
def test_where_three_slots_have_room_beside_half_a_tile(tile):
    assert leaves(replace(WAVES, tile=tile, consumers=tile[0] // 64))


@pytest.mark.parametrize(
    "changed",
    [
        {"config": replace(WAVES, persistent=0)},  # one wave: nothing runs behind the store
        {"config": replace(WAVES, store="tma")},
        {"config": replace(WAVES, store="threads")},
        {"config": replace(WAVES, form="transposed")},
        {"config": replace(WAVES, tile=(256, 192, 64), consumers=3)},  # by columns
        {"config": replace(WAVES, tile=(128, 160, 64))},  # no whole swizzles
        {"config": replace(WAVES, tile=(256, 192, 64))},
        {"config": replace(WAVES, tile=(128, 256, 128), stages=2)},
        {"epilogue": EpilogueTypes(("float32",))},
        {"shape": (4096, 4100)},
        {"k": 960},
        {"may_take_stages": False},
    ],
)
def test_where_they_do_not(changed):
    assert not leaves(**{"config": WAVES} | changed)


@pytest.mark.parametrize(
    ("configs", "count"),
    [
        ((64, 128, 256), 2),
        ({x: hs.MatmulConfig(tile=(64, x, 64)) for x in (64, 128, 192)}, 3),
    ],
)
def test_classes_that_the_model_cuts_up_are_lowered_first_and_last(monkeypatch, configs, count):
    from tvm import s_tir

    from tvm_hopper.schedule.products import apply

    looked = []
    monkeypatch.setattr(apply, "check_lowering", lambda *args: looked.append(args))
    sch = s_tir.Schedule(matmul("m", 512, 256, "NT", "float16", "float16"))
    hs.matmul(sch, "C", classes=configs)
    assert len(looked) == count
