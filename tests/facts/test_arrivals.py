"""Counts of a full/empty ring, with the numbers worked out by hand."""

import pytest

from tvm_hopper.facts import arrivals


def test_full_has_one_arrival_per_producer_thread():
    assert arrivals.full_arrive_count() == 1


def test_empty_has_one_arrival_per_consumer_warp_group_not_per_thread():
    assert arrivals.empty_arrive_count(2) == 2
    assert arrivals.empty_arrive_count(2, peers=2) == 4


def test_a_stage_of_128x256x64_halves_is_48_kib():
    # A: 128 rows x 64 x 2 B = 16384; B: 256 x 64 x 2 B = 32768
    assert arrivals.tx_bytes((64, 128), "float16") == 16384
    got = arrivals.stage_tx_bytes([((64, 128), "float16"), ((64, 256), "float16")])
    assert got == 49152


def test_parities_of_a_ring_of_three():
    # Slots 0 1 2 0 1 2 0; the consumer's phases 0 0 0 1 1 1 2, the producer is one ahead.
    k = range(7)
    assert [arrivals.slot(i, 3) for i in k] == [0, 1, 2, 0, 1, 2, 0]
    assert [arrivals.consumer_parity(i, 3) for i in k] == [0, 0, 0, 1, 1, 1, 0]
    assert [arrivals.producer_parity(i, 3) for i in k] == [1, 1, 1, 0, 0, 0, 1]


def test_refuses_counts_that_a_barrier_cannot_hold():
    with pytest.raises(ValueError, match="found 0 consumer warp groups; need 1 to 1048575"):
        arrivals.empty_arrive_count(0)
    with pytest.raises(ValueError, match="bytes of a stage: found 2097152; need 1 to 1048575"):
        arrivals.stage_tx_bytes([((256, 256, 16), "float16")])
