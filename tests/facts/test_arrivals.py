"""Counts of a full/empty ring, with the numbers worked out by hand."""

import pytest

from tvm_hopper.facts import arrivals


def test_full_has_one_arrival_per_producer_thread():
    assert arrivals.full_arrive_count() == 1


def test_empty_has_one_arrival_per_consumer_warp_group_not_per_thread():
    assert arrivals.empty_arrive_count(2) == 2
    assert arrivals.empty_arrive_count(2, peers=2) == 4


def test_refuses_counts_that_a_barrier_cannot_hold():
    with pytest.raises(ValueError, match="found 0 consumer warp groups; need 1 to 1048575"):
        arrivals.empty_arrive_count(0)
