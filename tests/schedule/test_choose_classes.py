"""Which size classes a product with symbolic rows gets when nobody names them."""

from __future__ import annotations

import pytest

from tvm_hopper import schedule as hs
from tvm_hopper.errors import ScheduleError
from tvm_hopper.schedule.products import classes
from tvm_hopper.schedule.products.classes import BOUNDS, LADDER, POINTS, TYPICAL, cut, estimate

SHAPES = [(4096, 4096), (6144, 4096), (28672, 4096), (512, 7168), (128, 64)]


@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_classes_are_few_and_lose_little_where_batches_are_padded_to(n, k):
    chosen = hs.choose_classes(n, k)
    assert list(chosen) == sorted(chosen)
    assert 1 <= len(chosen) <= classes.MOST_CLASSES
    assert list(chosen)[-1] == TYPICAL
    assert set(chosen) - {TYPICAL} <= set(BOUNDS)
    ladder = [hs.choose_config(m, n, k) for m in LADDER]
    for m in (1, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192):
        config = next(x for bound, x in chosen.items() if m <= bound)
        assert config.tile in {x.tile for x in ladder}
        best = min(estimate(m, n, k, x) for x in ladder)
        assert estimate(m, n, k, config) <= 1.15 * best, m


def test_what_depends_on_the_rows_at_hand_stays_open():
    chosen = hs.choose_classes(4096, 4096, given=hs.MatmulConfig(swizzle=64))
    for config in chosen.values():
        assert config.swizzle == 64
        assert config.tile is not None
        assert (config.stages, config.raster_group, config.persistent) == (None, None, None)
    fixed = hs.choose_classes(4096, 4096, given=hs.MatmulConfig(raster_group=2))
    assert {config.raster_group for config in fixed.values()} == {2}


def losses(*rows):
    """Return what configurations lose, as functions of the rows."""
    return [[row(m) for m in POINTS] for row in rows]


def test_one_configuration_that_is_always_best_is_one_class():
    assert cut(losses(lambda m: 0.0, lambda m: 0.2)) == ((TYPICAL, 0),)


def test_each_configuration_gets_the_rows_that_it_is_best_at():
    small = lambda m: 0.0 if m <= 64 else 1.0  # noqa: E731
    middle = lambda m: 0.0 if 64 < m <= 640 else 1.0  # noqa: E731
    large = lambda m: 0.0 if m > 640 else 1.0  # noqa: E731
    assert cut(losses(small, middle, large)) == ((64, 0), (640, 1), (TYPICAL, 2))


def test_a_class_that_gains_next_to_nothing_is_not_built():
    first = lambda m: 0.0 if m <= 256 else 0.001  # noqa: E731
    second = lambda m: 0.001 if m <= 256 else 0.0  # noqa: E731
    assert len(cut(losses(first, second))) == 1


def test_there_are_never_more_than_eight():
    rows = [lambda m, i=i: 0.0 if LADDER[i - 1] < m <= LADDER[i] else 1.0 for i in range(1, 15)]
    found = cut(losses(*rows))
    assert len(found) == classes.MOST_CLASSES
    assert [bound for bound, _ in found] == sorted(bound for bound, _ in found)


def test_a_large_loss_counts_more_than_several_small_ones():
    weigh = classes._weigh
    assert weigh(100, 1.2, 1.0) > 4 * weigh(100, 1.05, 1.0) > 0
    assert weigh(128, 1.05, 1.0) == pytest.approx(classes.ROUND * weigh(100, 1.05, 1.0))
    assert weigh(100, 1.0, 1.0) == 0


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ((0, 64), "found n=0; need 1 or more"),
        ((64, "64"), "found k='64'; need an int"),
        ((64, 64, "int8"), "found dtype='int8'; need one of"),
    ],
)
def test_refusals(arguments, match):
    with pytest.raises(ScheduleError, match=match):
        hs.choose_classes(*arguments)
