"""What fake devices report of products: rows, columns and depth as the kernel has them."""

import pytest

from tvm_hopper.meta_schedule.measuring.predict import _as_computed


@pytest.mark.parametrize(
    ("counts", "found"),
    [
        ([4 * 512, 1024 * 512], (4, 1024, 512)),
        ([1024 * 512, 4 * 512], (1024, 4, 512)),
        ([4 * 512], (4, 1024, 512)),
        ([1024 * 511], (4, 1024, 1024 * 511 // 4)),
        ([], (4, 1024, 1)),
    ],
    ids=("as it is", "the other way round", "one known", "one known, of either", "none"),
)
def test_the_depth_follows_from_both_operands(counts, found):
    assert _as_computed(counts, 4, 1024) == found
