"""Consumers that begin apart: what SpecializeWarps makes of a lag, and what is refused."""

import pytest

from tests.transforms.scripts import check, parse, run
from tests.transforms.test_plan_pipeline import PLANNED
from tests.transforms.test_specialize_warps import ROLES, asking
from tvm_hopper import schedule as hs
from tvm_hopper.errors import ScheduleError
from tvm_hopper.transforms import SpecializeWarps

CONSUMER = 'T.Cast("uint32", (tx - 128) // 128'
LAGGING = (
    (
        "                        for i in range(4):\n                            acc[i]",
        "                        if (tx - 128) // 128 >= 1:\n"
        "                            T.ptx.bar.sync(\n"
        f"                                {CONSUMER} + 10), T.uint32(256)\n"
        "                            )\n"
        "                        for i in range(4):\n                            acc[i]",
    ),
    (
        "                            trip: T.let[T.int32] = k\n"
        '                            T.call_extern("int32", "tvm_hopper.await_filled", 0, trip)\n',
        "                            if (tx - 128) // 128 < 1 and k == 1:\n"
        "                                T.ptx.bar.arrive(\n"
        f"                                    {CONSUMER} + 11), T.uint32(256)\n"
        "                                )\n"
        "                            trip: T.let[T.int32] = k\n"
        '                            T.call_extern("int32", "tvm_hopper.await_filled", 0, trip)\n',
    ),
)


FEW = ("T.serial(\n                        8,", "T.serial(\n                        1,")


def test_the_first_consumer_lets_the_next_one_begin():
    got = run(parse(PLANNED, asking("consumer_lag", 1)), SpecializeWarps())
    check(got, parse(ROLES, *LAGGING))


def test_of_fewer_trips_than_slots_nobody_waits():
    got = run(parse(PLANNED, asking("consumer_lag", 1), FEW), SpecializeWarps())
    assert "bar." not in str(got)


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"lag": 1, "consumers": 1}, r"lag=1 with consumers=1; need 2 or 3 consumers that share"),
        ({"lag": 1, "schedule": "pingpong"}, r"lag=1 with schedule='pingpong'; need 2 or 3"),
        ({"lag": 3, "stages": 3}, r"lag=3 with 3 stages; need 4 stages or more: the first"),
        ({"lag": -1}, r"found lag=-1; need 0 or more"),
        ({"lag": "2"}, r"found lag='2'; need an int or None"),
    ],
)
def test_what_no_configuration_can_have(fields, match):
    with pytest.raises(ScheduleError, match=match):
        hs.MatmulConfig(**fields)


def test_one_consumer_lags_behind_nobody():
    with pytest.raises(ScheduleError, match="lag=2 with consumers=1; need 2 or 3"):
        hs.Roles(1, lag=2)
