"""Two bytes to two floats: every word, by the instructions of the text and by the simulator."""

import re

import numpy as np
import pytest

from tvm_hopper.codegen_patches import byte_pairs
from tvm_hopper.facts.dtypes import DTYPES
from tvm_hopper.sim.translate.device_math import math

WORDS = np.arange(1 << 16, dtype=np.uint32)
PAIRS = [(x, y) for x in byte_pairs.SOURCES for y in ("float16", "bfloat16")]
FLOAT_PAIRS = [(x, y) for x in byte_pairs.FLOATS for y in ("float16", "bfloat16")]


def expected(source, dtype):
    """Return the two elements of each word, as bits."""
    narrow = WORDS.astype("<u2").view(np.uint8).reshape(-1, 2).view(DTYPES[source].numpy)
    return narrow.astype(DTYPES[dtype].numpy).view(np.uint16)


def halves(word):
    return np.stack([word & 0xFFFF, word >> 16], axis=1).astype(np.uint16)


def permute(low, high, selector):
    """Return `prmt.b32` (PTX ISA 9.1, 9.7.9.7): nibble i says which byte becomes byte i."""
    both = [(low >> 8 * i) & 0xFF for i in range(4)] + [(high >> 8 * i) & 0xFF for i in range(4)]
    chosen = [both[selector >> 4 * i & 0xF] << 8 * i for i in range(4)]
    return np.bitwise_or.reduce(np.broadcast_arrays(*chosen))


@pytest.mark.parametrize("half", [0, 1])
@pytest.mark.parametrize(("source", "dtype"), PAIRS)
def test_the_instructions_convert_every_word(source, dtype, half):
    text = byte_pairs._TEXTS[source, dtype]
    flipped = WORDS << np.uint32(16 * half)
    flipped ^= np.uint32(0x80808080 if "0x80808080u" in byte_pairs._FLIP[source] else 0)
    constants = re.findall(r'%1, (0x\w+), %2;".*"r"\((0x\w+)u \+ half \* (\w+)u\)', text)
    wide = [
        permute(flipped, np.uint32(int(word, 16)), int(chosen, 16) + half * int(step, 0))
        for word, chosen, step in constants
    ]
    if dtype == "float16":
        (offset,) = re.findall(r"c = (0x\w{8})u", text)
        (word,) = wide
        got = halves(word).view(np.float16) - np.uint16(int(offset, 16) & 0xFFFF).view(np.float16)
        assert np.array_equal(got.view(np.uint16), expected(source, dtype))
        return
    (offset,) = set(re.findall(r"- \((\d+)\.0f", text))
    low, high = ((x.view(np.float32) - np.float32(offset)).view(np.uint32) for x in wide)
    (selector,) = (int(x, 16) for x in re.findall(r"%1, %2, (0x\w+);", text))
    got, want = halves(permute(low, high, selector)), expected(source, dtype)
    assert np.array_equal(got, want)


@pytest.mark.parametrize("half", [0, 1])
@pytest.mark.parametrize(("source", "dtype"), [*PAIRS, *FLOAT_PAIRS])
def test_the_simulator_converts_every_word(source, dtype, half):
    words = WORDS << np.uint32(16 * half), np.uint32(half)
    name = f"tvm_hopper_widen_bytes_{source}_{dtype}"
    got = math(name, np.dtype("uint32"), *words, np.uint32(0))
    got, want = (x.view(DTYPES[dtype].numpy) for x in (halves(got), expected(source, dtype)))
    assert np.array_equal(got, want, equal_nan=True)
    if source in byte_pairs.SOURCES and dtype == "float16":
        less = math(name, np.dtype("uint32"), *words, np.uint32(byte_pairs.MOST_ZERO))
        assert np.array_equal(halves(less).view("float16"), want - np.float16(byte_pairs.MOST_ZERO))
