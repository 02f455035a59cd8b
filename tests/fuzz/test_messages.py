"""What makes a message unclear, one example a reason; and messages that are clear."""

import pytest

from tests.fuzz.messages import LONGEST, is_clear, signature, why_unclear
from tvm_hopper.errors import HopperError, cannot_schedule

CLEAR = (
    "block C, tensor A: found K = 100 float16 elements, rows 200 bytes apart; need a multiple of "
    "16 bytes; pad K to 104",
    "block C: found T.Cast('float32', A[i, k]) in [0, 8); need a tensor",
    "MatmulConfig: found swizzle=None; need one of 0, 32",
    "blocks: found ('2',) and (3,); need indices inside the grid; make a schedule: Schedule()",
    "loop k_0: found loops ['ax0<128', 'ax1<8'] over it; need one loop over 128 rows",
)
UNCLEAR = {
    "no place": "found 3; need 4",
    "no place, found and need": "block C: wrong tile",
    "characters": "block C: found " + "x" * LONGEST + "; need less",
    "SBlock#0": "block D: found what TVM cannot inline (it reads s_tir.SBlock#0); need one",
    "Check failed": "block D: found a refusal (Check failed: (node.defined()) is false); need more",
    "cut: 's,": "block D: found what TVM says (whose indices are distinct variables,); need one",
    "cut: ': ": "block D: found what TVM says (is true: ); need one",
    "found nothing": "copy of A: found strides []; need a compact tensor",
    "untrue": "block C: found a batch of 100 (vi); need none",
}


@pytest.mark.parametrize("text", CLEAR)
def test_clear(text):
    assert why_unclear(text) == ""


@pytest.mark.parametrize("why", UNCLEAR)
def test_unclear(why):
    found = why_unclear(UNCLEAR[why], [r"a batch of \w+ \(vi\)"])
    assert all(word in found for word in why.split(": ")), found


def test_only_errors_in_the_form_are_clear():
    good = cannot_schedule("block C", "a batch", "none")
    assert is_clear(good)
    assert is_clear(ValueError("inputs: found [Z]; need names among [A, B]"))
    assert not is_clear(HopperError("no"))
    assert not is_clear(TypeError("'int' object is not iterable"))
    assert not is_clear(RuntimeError("block C: found a batch; need none"))


def test_messages_of_one_cause_look_alike():
    assert signature("block C_12: found 100; need 8") == signature("block C_3: found 7; need 16")
    assert signature("block C: found 1") != signature("block C: found no 1")
