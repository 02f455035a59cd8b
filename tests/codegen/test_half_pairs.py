"""Integers to pairs of halves, and arithmetic on these: by the text, and by the simulator."""

import re

import numpy as np
import pytest

from tvm_hopper.codegen_patches import half_pairs
from tvm_hopper.facts.dtypes import DTYPES, HALF_DTYPES
from tvm_hopper.sim.translate.device_math import math

from .test_byte_pairs import halves, permute

BYTES = np.arange(256, dtype=np.uint32)
UINT32 = np.dtype("uint32")


def numbers(words, dtype):
    """Return the halves of words as numbers."""
    return halves(words).view(DTYPES[dtype].numpy).astype(np.float64)


def run(text, dtype, **given):
    """Run the statements of an operator's text: C on words, and three instructions."""
    values = {name: np.asarray(x, np.uint32) for name, x in given.items()}
    for line in re.sub(r"unsigned int ", "", text).split(";"):
        for part in re.findall(r"(\w+) &?= ([^,]+(?:,\s+\w+ = [^,]+)*)$", line.strip()):
            for name, expr in re.findall(r"(\w+) = ([^,]+)", f"{part[0]} = {part[1]}"):
                both = f"y & ({expr})" if "&=" in line else expr
                values[name] = eval(
                    re.sub(r"(0x[0-9a-f]+)u", r"np.uint32(\1)", both), {"np": np}, values
                )
        if "prmt" in line:
            other = int(re.findall(r"%1, (\w+), %2", line)[0], 16)
            selector = int(values["byte"] * 0x101 + 0x4040)
            values["y"] = permute(values["word"], np.uint32(other), selector)
        if "fma.rn" in line or "add.rn" in line:
            y, c = (numbers(np.atleast_1d(values[x]), dtype) for x in "yc")
            one = numbers(np.atleast_1d(values["one"]), dtype) if "fma" in line else 1
            return (y * one + c).astype(DTYPES[dtype].numpy).astype(np.float64)
    raise AssertionError(text)


@pytest.mark.parametrize("zero", [0, 7, half_pairs.MOST_ZERO])
@pytest.mark.parametrize("byte", [0, 3])
@pytest.mark.parametrize("dtype", HALF_DTYPES)
def test_nibbles_of_every_byte(dtype, byte, zero):
    words = BYTES << np.uint32(8 * byte) | (np.uint32(0xA5A5A5A5) & ~np.uint32(255 << 8 * byte))
    want = np.stack([BYTES & 15, BYTES >> 4], axis=1).astype(np.float64) - zero
    got = math(f"tvm_hopper_nibbles_{dtype}", UINT32, words, np.uint32(byte), np.uint32(zero))
    assert np.array_equal(numbers(got, dtype), want)
    text = half_pairs._NIBBLES[dtype]
    assert np.array_equal(run(text, dtype, word=words, byte=byte, zero=zero), want)


@pytest.mark.parametrize("zero", [0, half_pairs.MOST_ZERO])
@pytest.mark.parametrize("shift", [0, 4, 8, 12])
@pytest.mark.parametrize("dtype", HALF_DTYPES)
def test_nibbles_of_both_halves(dtype, shift, zero):
    low, high = BYTES & 15, BYTES >> 4
    others = np.uint32(0xA5A5A5A5 & ~(0xF000F << shift))
    words = low << np.uint32(shift) | high << np.uint32(shift + 16) | others
    want = np.stack([low, high], axis=1).astype(np.float64) - zero
    given = words, np.uint32(shift), np.uint32(zero)
    got = math(f"tvm_hopper_nibbles_apart_{dtype}", UINT32, *given)
    assert np.array_equal(numbers(got, dtype), want)
    text = half_pairs._APART[dtype]
    if dtype == "float16":
        words = words >> np.uint32(shift & 8)
        text = text[: text.index("if (")] + text.split("else")[shift & 4 == 0]
    else:
        words = words >> np.uint32(shift)
    constants = dict(re.findall(r"(magic|one|c) = (0x[0-9a-f]+)u(?: \+ zero \* 0x\w+u)?", text))
    (mask,) = re.findall(r"%1, (0x\w+), %2, 0xea", text)
    step = re.findall(r"zero \* (0x[0-9a-f]+)", text)
    y = words & np.uint32(int(mask, 16)) | np.uint32(int(constants["magic"], 16))
    c = np.array([int(constants["c"], 16) + zero * int(step[0], 16)], np.uint32)
    one = (
        numbers(np.array([int(constants["one"], 16)], np.uint32), dtype) if "fma.rn" in text else 1
    )
    assert np.array_equal(numbers(y, dtype) * one + numbers(c, dtype), want)


@pytest.mark.parametrize("dtype", HALF_DTYPES)
def test_small_integers(dtype):
    low = np.arange(half_pairs.MOST_SMALL[dtype] + 1, dtype=np.uint32)
    want = np.stack([low, low[::-1]], axis=1).astype(np.float64) - 9
    got = math(f"tvm_hopper_small_{dtype}", UINT32, low, low[::-1], np.uint32(9))
    assert np.array_equal(numbers(got, dtype), want)
    magic, minus = half_pairs._MAGIC[dtype]
    text = half_pairs._SMALL.format(magic=magic, minus=minus, ptx="f16x2")
    assert np.array_equal(run(text, dtype, low=low, high=low[::-1], zero=9), want)


@pytest.mark.parametrize("op", half_pairs.ARITHMETIC)
@pytest.mark.parametrize("dtype", HALF_DTYPES)
def test_arithmetic_rounds_each_half_once(dtype, op):
    rng = np.random.default_rng(0)
    x, y = (rng.integers(0, 1 << 32, 4096, np.uint32) for _ in range(2))
    name = f"tvm_hopper_{op}_{half_pairs._PTX[dtype]}"
    with np.errstate(all="ignore"):
        a, b = (halves(z).view(DTYPES[dtype].numpy) for z in (x, y))
        want = {"add": a + b, "sub": a - b, "mul": a * b}[op]
        got = halves(math(name, UINT32, x, y)).view(DTYPES[dtype].numpy)
    assert np.array_equal(got, want, equal_nan=True)
