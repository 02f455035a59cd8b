"""The pass over indices says of small random kernels what running every thread of them says."""

import random

import pytest

from tests.sim.coverage.draw import FAMILIES, wrong


def _agree(seed: int) -> set[str] | None:
    rng = random.Random(seed)
    kernel = rng.choice(FAMILIES)(rng)
    for _ in range(rng.choice([0, 1, 1, 2])):
        kernel = wrong(rng, kernel)
    if kernel.c_size < 1:
        return None
    try:
        expected = kernel.brute_force()
    except ZeroDivisionError:
        return None
    assert kernel.verdict() == expected, f"seed {seed}:\n{kernel.text()}"
    return expected


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("part", range(8))
def test_verdicts_are_those_of_running_every_thread(part: int) -> None:
    met: set[str] = set()
    for seed in range(part * 25, part * 25 + 25):
        met |= _agree(seed) or set()
    assert met >= {"OOB_ACCESS", "OUTPUT_COVERAGE"}  # the draw is no string of right kernels


@pytest.mark.slow
def test_verdicts_of_many_kernels_are_those_of_running_every_thread() -> None:
    met: set[str] = set()
    for seed in range(10000, 14000):
        met |= _agree(seed) or set()
    assert met == {"OOB_ACCESS", "OUTPUT_COVERAGE", "RACE_WRITE_WRITE", "MISALIGNED"}
