"""The parts of compute capability 9.0, and how tiles are shared out on each."""

import pytest

from tvm_hopper.facts.devices import DEFAULT_NUM_SMS, NUM_SMS, Chip, balanced_blocks


def test_sms_of_the_parts():
    assert NUM_SMS == {
        "h100-sxm": 132,
        "h100-pcie": 114,
        "h200": 132,
        "h800": 132,
        "h20": 78,
        "gh200": 132,
    }
    assert NUM_SMS["h200"] == DEFAULT_NUM_SMS


@pytest.mark.parametrize(
    ("tiles", "num_sms", "blocks"),
    [
        (512, 132, 128),  # four turns, as on 132 blocks
        (512, 114, 103),  # five turns: 4 x 103 + 100
        (512, 78, 74),  # seven turns
        (140, 132, 70),  # two turns
        (132, 132, 132),
        (100, 132, 100),  # one block each
        (5, 1, 1),
    ],
)
def test_blocks_are_no_more_than_the_slowest_needs(tiles, num_sms, blocks):
    assert balanced_blocks(tiles, num_sms) == blocks


@pytest.mark.parametrize("num_sms", [1, 2, 7, 78, 114, 132])
def test_nobody_takes_more_turns_than_the_device_forces(num_sms):
    for tiles in range(1, 1000):
        blocks = balanced_blocks(tiles, num_sms)
        assert 1 <= blocks <= min(tiles, num_sms)
        assert -(-tiles // blocks) == -(-tiles // num_sms)


def test_clusters_that_run_at_once():
    """As cuOccupancyMaxActiveClusters says of an H200; a smaller chip has as many for each SM."""
    whole = Chip()
    sizes = [132, 66, 39, 30, 22, 17, 15, 15, 9, 7, 7, 7, 7, 7, 7, 7]
    assert [whole.clusters(size) for size in range(1, 17)] == sizes
    assert whole.clusters(0) == 132
    assert all(size * whole.clusters(size) <= 132 for size in range(1, 17))
    assert Chip(num_sms=78).clusters(4) == 17
    assert Chip(num_sms=4).clusters(8) == 1
