"""What explain says of rings, and of stages that were asked for."""

import pytest

from tests.transforms.pipeline.test_plan_ring_buffers import BEFORE, OUTSIDE, PLAIN_COPY
from tests.transforms.scripts import nest, notes_of, parse, run
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


MMA = nest(BEFORE, 'sblock("mma"')
FIRST = MMA.replace("b[0, 0:16, 0:32], ", "").replace("T.address_of(b[0, 0, 0]),", "0,")
SECOND = MMA.replace("a[0:2, 0:64, 0:64], ", "").replace("T.address_of(a[0, 0, 0]),", "0,")
WEIGHTS = """                        with T.sblock("weights", reads=[acc[0:4]], writes=[acc[0:4]]):
                            acc[0] = acc[0] * T.float32(2)
"""


@pytest.mark.parametrize(
    ("between", "tx_bytes"), [("", [18432]), (WEIGHTS, [16384, 2048])], ids=["gated", "later"]
)
def test_operands_of_a_later_product_have_a_ring_of_their_own(between, tx_bytes):
    """They are awaited behind what is computed first; those of gated products are with the rest."""
    edits = (
        (MMA, FIRST + between + SECOND),
        ("[0, 1, 2]", str([*range(4 + bool(between))])),
        ("[0, 0, 1]", "[0, 0, 1, 1, 1]" if between else "[0, 0, 1, 1]"),
    )
    notes = notes_of(run(parse(BEFORE, *edits), PlanRingBuffers()))
    assert [x.tx_bytes for x in notes if isinstance(x, RingNote)] == tx_bytes
