"""Memory that is taken when it is touched."""

from collections import defaultdict
from types import SimpleNamespace

import numpy as np
import pytest

from tvm_hopper.sim.machine.pages import SPARSE, no_bytes, sparse_copy
from tvm_hopper.sim.races.shadow import EARLIER, GENERIC, AccessLog, Shadow


@pytest.mark.parametrize("size", [0, 100, SPARSE, 3 * SPARSE + 5])
def test_a_copy_is_equal_and_its_own(size):
    data = np.zeros(size, np.uint8)
    data[: size // 3] = 7
    data[-1:] = 1
    copy = sparse_copy(data)
    assert np.array_equal(copy, data)
    copy[...] = 9
    assert size == 0 or data[-1] == 1


def test_untouched_pages_take_no_memory():
    resource = pytest.importorskip("resource")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    many = no_bytes(1 << 30)
    many[:: 1 << 26] = 1
    copy = sparse_copy(many[: 1 << 28])
    assert copy.sum() == 4
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10


def written(shadow, size):
    return np.flatnonzero(shadow.written(size)).tolist()


@pytest.mark.parametrize(
    ("flagged", "granule"), [(range(32, 64), 16), (range(8, 16), 8), ([3], 1), ([*range(20)], 4)]
)
def test_cells_become_as_small_as_what_was_written(flagged, granule):
    shadow = Shadow(AccessLog(), 100, False)
    flags = np.zeros(100, bool)
    flags[list(flagged)] = True
    shadow.mark_written(flags)
    assert shadow.granule == granule
    assert written(shadow, 100) == list(flagged)


def test_smaller_cells_keep_what_is_known():
    shadow = Shadow(AccessLog(), 64, False)
    shadow.writer[shadow.cells(slice(16, 48), 1)] = EARLIER
    shadow.fresh = False
    assert shadow.granule == 16
    assert shadow.cells(np.array([4, 40]), 4).tolist() == [1, 10]
    assert shadow.granule == 4
    assert written(shadow, 64) == list(range(16, 48))
    assert shadow.cells(np.array([0, 16]), 8).tolist() == [0, 1, 4, 5]
    assert shadow.cells(np.array([0, 8]), 8) == slice(0, 4)  # lanes next to one another
    assert shadow.cells(np.array([8, 0]), 8).tolist() == [2, 3, 0, 1]


@pytest.mark.parametrize("places", [slice(0, 32), np.array([0, 16]), np.array([16, 0])])
def test_a_strong_write_leaves_the_weak_one_before_it(places):
    """However its cells are named: another block's strong write still meets the weak one."""
    log = AccessLog()
    shadow = Shadow(log, 32, False)
    warp = SimpleNamespace(cta=0)
    weak, strong = (log.add(warp, 1, -1, GENERIC, True, 0, (), None, rmw) for rmw in (False, True))
    known = SimpleNamespace(events=0, epochs=defaultdict(lambda: 1))
    warp.index, warp.lane_order = 0, SimpleNamespace(met=1)
    for access in (weak, strong):
        shadow.write(access, shadow.cells(places, 16), known, pytest.fail)
    assert {log.sets[number] for number in shadow.readers.tolist()} == {(weak.number,)}
