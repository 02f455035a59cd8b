"""Long rows that share more than they have: when a persistent kernel keeps it in registers."""

from __future__ import annotations

import pytest
import tvm
from tvm import s_tir

from tvm_hopper.schedule.row_reduction.apply import chosen_rows
from tvm_hopper.schedule.row_reduction.moments import are_moments
from tvm_hopper.schedule.row_reduction.number import inline_rows
from tvm_hopper.testing import memory_bound


@pytest.mark.parametrize(
    ("program", "shape"),
    [
        (memory_bound.layer_norm(4096, 131072), (15, 8, 512)),
        (memory_bound.layer_norm(2048, 262144, "float16"), (7, 16, 256)),
        (memory_bound.layer_norm(4096, 65536, "float32"), (15, 8, 512)),
        (memory_bound.layer_norm(8192, 65536), None),  # short enough for rows beside one another
        (memory_bound.rms_norm(4096, 131072), None),  # shares no more than it has
        (memory_bound.layer_norm(64, 131072), None),  # few turns
        (memory_bound.layer_norm("n", 131072), None),
        (memory_bound.layer_norm(4096, 131072 + 8), None),  # no equal parts
    ],
)
def test_long_rows_that_share_more_than_they_have_are_persistent(program, shape):
    chosen = chosen_rows(s_tir.Schedule(program))
    found = (chosen.persistent, chosen.cluster, chosen.threads)
    assert (found if chosen.persistent else None) == shape
    if shape is not None:
        with tvm.target.Target("nvidia/nvidia-a100"):
            assert chosen_rows(s_tir.Schedule(program)).persistent is None


@pytest.mark.parametrize(
    ("program", "moments"),
    [
        (memory_bound.layer_norm(64, 32768, "float32"), True),
        (memory_bound.layer_norm(64, 4096, "float16"), True),
        (memory_bound.rms_norm(64, 32768, "float32"), False),
        (memory_bound.softmax(64, 32768, "float32"), False),
    ],
)
def test_a_mean_and_the_squares_around_it_are_known(program, moments):
    assert are_moments(inline_rows(s_tir.Schedule(program))) == moments


def test_long_rows_in_registers_of_a_small_cluster():
    """Of float32 one exchange for mean and squares leaves them as fast as RMSNorm's."""
    chosen = chosen_rows(s_tir.Schedule(memory_bound.layer_norm(8192, 32768, "float32")))
    assert (chosen.threads, chosen.cluster, chosen.stage) == (256, 4, False)
    ragged = chosen_rows(s_tir.Schedule(memory_bound.layer_norm(8192, 32764, "float32")))
    assert ragged.stage  # unequal parts are two exchanges
