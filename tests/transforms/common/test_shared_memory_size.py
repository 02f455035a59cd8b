"""One sum for shared memory: offsets by hand, and how many slots of a ring fit."""

import pytest

from tvm_hopper.facts.arch import ARCHS, SM_80, SM_90A
from tvm_hopper.transforms.common.shared_memory_size import (
    SharedArray,
    SharedMemory,
    most_slots,
    ring_memory,
)


def test_places_by_hand():
    arrays = (
        SharedArray("full", 24),
        SharedArray("bytes", 100, 64),
        SharedArray("tile", 2048, 1024),
        SharedArray("word", 4, 4),  # starts at a multiple of 16, as every array
    )
    memory = SharedMemory(arrays)
    assert memory.order == (2, 1, 0, 3)
    assert memory.offsets == (2160, 2048, 0, 2192)
    assert (memory.num_bytes, memory.padding) == (2196, 20)


def test_a_ring_by_hand():
    memory = ring_memory([SharedArray("A", 16384, 1024), SharedArray("B", 32768, 1024)], 3)
    assert memory.offsets == (0, 49152, 147456, 147488)
    assert (memory.num_bytes, memory.padding) == (147512, 8)  # the second barriers start at 16


def test_nothing_takes_nothing():
    assert SharedMemory(()).num_bytes == 0


@pytest.mark.parametrize("arch", ARCHS.values(), ids=ARCHS)
@pytest.mark.parametrize("num_bytes", [16, 100, 1008, 1024, 7000, 232416, 232424, 232432, 300000])
@pytest.mark.parametrize("other", [0, 256, 768, 40000])
def test_as_many_slots_as_fit(num_bytes, other, arch):
    slots = [SharedArray("A", num_bytes, 1024), SharedArray("B", other, 256)]
    count = most_slots(slots, arch)
    assert ring_memory(slots, count).num_bytes <= arch.smem_per_block or count == 0
    assert ring_memory(slots, count + 1).num_bytes > arch.smem_per_block


def test_a_ring_that_fits_one_chip_and_not_the_other():
    slots = [SharedArray("A", 16384, 1024), SharedArray("B", 32768, 1024)]
    memory = ring_memory(slots, 4)  # 4 x 49152 + barriers = 196672, of 232448 and of 166912
    assert memory.num_bytes == 196672
    assert (memory.fits_on(SM_90A), memory.fits_on(SM_80)) == (True, False)
    assert (most_slots(slots, SM_90A), most_slots(slots, SM_80)) == (4, 3)


def test_arrays_that_may_overlap_start_where_the_first_one_does():
    arrays = (
        SharedArray("staging", 3000, 128),
        SharedArray("ring", 4096, 1024),
        SharedArray("full", 24),
        SharedArray("other", 500, 128),
    )
    memory = SharedMemory(arrays, frozenset([frozenset((0, 1)), frozenset((2, 1))]))
    assert memory.order == (1, 0, 3, 2)
    # staging in the ring's bytes; other behind both; full may meet the ring, but not the others
    assert memory.offsets == (0, 0, 4608, 4096)
    assert memory.num_bytes == 4632
    assert memory.overlap(0, 1)
    assert not memory.overlap(1, 2)
    assert not memory.overlap(1, 3)
