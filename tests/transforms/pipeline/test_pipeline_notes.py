"""What explain says of rings, and of stages that were asked for."""

import pytest

from tests.transforms.pipeline.test_plan_ring_buffers import BEFORE, OUTSIDE, PLAIN_COPY
from tests.transforms.scripts import notes_of, parse, run
from tvm_hopper.transforms import PlanRingBuffers
from tvm_hopper.transforms.common.explain_notes import RemarkNote, RingNote


def test_facts_for_explain():
    """Of every ring, not of the deepest alone."""
    assert notes_of(run(parse(BEFORE, *OUTSIDE), PlanRingBuffers())) == (
        RingNote(channel=0, num_slots=1, tx_bytes=256),
        RingNote(channel=1, num_slots=2, tx_bytes=18432),
    )


@pytest.mark.parametrize(
    ("stages", "order", "remark"),
    [
        ("[0, 1, 1]", "[0, 1, 2]", None),
        (
            "[0, 1, 2]",
            "[0, 1, 2]",
            "stages [1, 2] compute in one iteration: all products are late",
        ),
        (
            "[0, 1, 1]",
            "[0, 2, 1]",
            "software_pipeline_order = [0, 2, 1] stays the program's order",
        ),
    ],
    ids=str,
)
def test_what_does_not_run_in_an_iteration_of_its_own_is_told(stages, order, remark):
    """Why stages are one, and that an order is the program's (delays: elsewhere)."""
    edits = (*PLAIN_COPY, ("[0, 1, 1]", stages), ("order=[0, 1, 2]", f"order={order}"))
    notes = notes_of(run(parse(BEFORE, *edits), PlanRingBuffers()))
    found = [note.text for note in notes if isinstance(note, RemarkNote)]
    assert found == ([f"loop k: {remark}"] if remark else [])
