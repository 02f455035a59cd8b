"""moved_words: neighbours in registers move by some elements."""

from operator import lshift, or_, rshift

import numpy as np
import pytest
from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.transforms.common.word_shifts import moved_words

ONE = ir.Var("one", "uint64")
BINARY = {
    type(f(ONE, ONE)): g
    for f, g in ((tirx.shift_left, lshift), (tirx.shift_right, rshift), (tirx.bitwise_or, or_))
}


def compute(node, words):
    """Compute an expression over words, each a number."""
    if isinstance(node, ir.Var):
        return words[node]
    if isinstance(node, tirx.IntImm):
        return int(node.value)
    if isinstance(node, tirx.Cast):
        value = compute(node.value, words)
        return value & (2 ** int(ir.dtype_of(node).removeprefix("uint")) - 1)
    if isinstance(node, tirx.Select):
        taken = node.true_value if compute(node.condition, words) else node.false_value
        return compute(taken, words)
    if type(node) in BINARY:
        a, b = (compute(x, words) for x in (node.a, node.b))
        return BINARY[type(node)](a, b) & (2**64 - 1)
    assert isinstance(node, tirx.EQ)
    return int(ir.simplify(node.a)) == int(node.b)


@pytest.mark.parametrize(
    ("count", "dtype"),
    [(2, "uint16"), (8, "uint16"), (8, "uint8"), (4, "uint32"), (8, "uint32"), (16, "uint32")],
)
def test_elements_that_begin_before_the_second_half(count, dtype):
    size = np.dtype(dtype).itemsize
    numbers = np.arange(1, 4 * count // size + 1, dtype=dtype)
    names = [ir.Var(f"w{i}", "uint32") for i in range(count)]
    half = len(numbers) // 2
    for shift in range(half):
        out = []
        found = moved_words(names, tirx.IntImm("int32", shift * size), out, whole=size == 4)
        known = dict(zip(names, map(int, numbers.view("uint32")), strict=True))
        for bind in out:
            known[bind.var] = compute(bind.value, known)
        got = np.array([compute(x, known) for x in found], "uint32").view(dtype)
        assert got.tolist() == numbers[half - shift : 2 * half - shift].tolist()
