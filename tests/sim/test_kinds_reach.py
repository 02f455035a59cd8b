"""What threads and loops add to a block's number, against every number that they add."""

import itertools
import operator
import random

import numpy as np
import pytest

from tvm_hopper.sim.kinds.reach import MOST, UNBOUNDED, Reach

COMPARE = {
    "LT": operator.lt,
    "LE": operator.le,
    "GT": operator.gt,
    "GE": operator.ge,
    "EQ": operator.eq,
    "NE": operator.ne,
}


def drawn(rng):
    """Return a reach, and the numbers that it has to hold."""
    reach, numbers = Reach(0, 0), {0}
    for _ in range(rng.randint(1, 3)):
        extent, factor = rng.randint(1, 4), rng.choice([1, 1, -1, 3, 7, -20, 0])
        reach = reach.plus(Reach(0, extent - 1).times(factor))
        numbers = {a + b * factor for a, b in itertools.product(numbers, range(extent))}
    return reach, sorted(numbers)


@pytest.mark.parametrize("kind", COMPARE)
def test_ctas_of_one_side_agree_for_every_number(kind):
    rng = random.Random(kind)
    blocks = np.arange(-60, 60)
    for _ in range(60):
        reach, numbers = drawn(rng)
        side = reach.side(kind, blocks)
        truth = [tuple(COMPARE[kind](b + n, 0) for n in numbers) for b in blocks.tolist()]
        kinds: dict[int, set] = {}
        for key, holds in zip(side.tolist(), truth, strict=True):
            kinds.setdefault(key, set()).add(holds)
        assert all(len(found) == 1 for found in kinds.values())
        if reach.listed is not None:  # and no more kinds than there are
            assert len(kinds) == len(set(truth))


def test_few_numbers_are_listed_and_neighbours_are_not():
    assert Reach(0, 3).times(5).listed.tolist() == [0, 5, 10, 15]
    assert Reach(0, 3).times(4).plus(Reach(0, 3)).listed is None
    assert Reach(0, 2).times(4).plus(Reach(0, 1)).listed.tolist() == [0, 1, 4, 5, 8, 9]
    assert Reach(0, MOST).times(2).listed is None
    wide = Reach(0, 99).times(1000).plus(Reach(0, 99).times(3))
    assert (wide.low, wide.high, wide.listed) == (0, 99297, None)  # too many


def test_without_bounds_every_block_is_a_kind_of_its_own():
    block = np.arange(5)
    assert Reach(-UNBOUNDED, 3).side("LT", block) is block
