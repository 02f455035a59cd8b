"""Boxes cover all flagged elements, and little else."""

import math

import numpy as np
import pytest

from tvm_hopper.verification import compare as boxes


def covered(found, shape):
    flags = np.zeros(shape, bool)
    for box in found:
        flags[tuple(slice(a, b + 1) for a, b in box)] = True
    return flags


def test_tiles_far_apart_are_boxes_of_their_own():
    flags = np.zeros((1024, 1024), bool)
    flags[128:256, 64:128] = flags[896:1024, 0:64] = True
    assert boxes.cover(np.argwhere(flags)) == [((128, 255), (64, 127)), ((896, 1023), (0, 63))]


def test_neighbors_are_one_box():
    flags = np.zeros((256, 256), bool)
    flags[:128, :64] = flags[:128, 64:128] = True
    assert boxes.cover(np.argwhere(flags)) == [((0, 127), (0, 127))]


@pytest.mark.parametrize("seed", range(8))
def test_every_element_is_covered_and_boxes_are_dense(seed):
    rng = np.random.default_rng(seed)
    flags = np.zeros((300, 200), bool)
    for _ in range(rng.integers(1, 6)):
        i, j = rng.integers(0, 250), rng.integers(0, 150)
        flags[i : i + rng.integers(1, 90), j : j + rng.integers(1, 90)] = True
    flags &= rng.random(flags.shape) < rng.uniform(0.3, 1)
    found = boxes.cover(np.argwhere(flags))
    assert covered(found, flags.shape)[flags].all()
    volume = sum(math.prod(b - a + 1 for a, b in box) for box in found)
    assert volume <= boxes.DENSE * flags.sum() + boxes.SMALL * len(found)


def test_a_diagonal_is_cut_without_gaps():
    flags = np.eye(2048, dtype=bool)
    found = boxes.cover(np.argwhere(flags))
    assert covered(found, flags.shape)[flags].all()
    assert all(b - a < 64 for box in found for a, b in box)


def test_nothing_and_a_scalar():
    assert boxes.cover(np.zeros((0, 2), int)) == []
    assert boxes.cover(np.zeros((1, 0), int)) == [()]
    assert boxes.cover(np.zeros((0, 0), int)) == []
