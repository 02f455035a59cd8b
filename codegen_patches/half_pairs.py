"""TIR operators on words that hold two 16-bit floats, and from small integers to these, exactly.

    float16    0x6400 | u is 1024 + u of u < 1024; and 0x6400 | u << 4 is 1024 + 16 u
    bfloat16   0x4300 | u is 128 + u of u < 128

A zero point z is subtracted along: -(1024 + z) is 0xe400 + z as bits. CUDA's own conversion takes
one integer, at a quarter of the rate of arithmetic (CUDA C++ Programming Guide, throughput of
native arithmetic instructions). The method is that of Kim et al., "Who Says Elephants Can't Run",
2022, and of Marlin (Frantar et al., 2024).
"""

from __future__ import annotations

from typing import Any

from tvm_hopper import ir

from .operators import make_known

PREFIX = "tvm_hopper_"
ARITHMETIC = ("add", "sub", "mul")
MOST_SMALL = {"float16": 255, "bfloat16": 127}  # integers of `small`
MOST_ZERO = 31
_PTX = {"float16": "f16x2", "bfloat16": "bf16x2"}
_WORD = ("unsigned int", "uint32")
# The second nibble of a byte is 16 u in the upper half: float16 has bits for it.
_NIBBLES = {
    "float16": """\
    unsigned int y, one = 0x2c003c00u, c = 0xd400e400u + zero * 0x100001u;
    asm("prmt.b32 %0, %1, 0x64646464, %2;" : "=r"(y) : "r"(word), "r"(byte * 0x101u + 0x4040u));
    y &= 0xfff0ff0fu;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(y) : "r"(y), "r"(one), "r"(c));
    return y;""",
    "bfloat16": """\
    unsigned int y, c = 0xc300c300u + zero * 0x10001u;
    asm("prmt.b32 %0, %1, 0, %2;" : "=r"(y) : "r"(word), "r"(byte * 0x101u + 0x4040u));
    y = (y & 0xfu) | ((y >> 4) & 0xf0000u) | 0x43004300u;
    asm("add.rn.bf16x2 %0, %1, %2;" : "=r"(y) : "r"(y), "r"(c));
    return y;""",
}
# A pair of two nibbles that are 16 bits apart; `shift` is the place of the lower nibble.
_APART = {
    "float16": """\
    unsigned int x = word >> (shift & 8u), y, magic = 0x64006400u, one = 0x2c002c00u, c;
    if (shift & 4u) {
      c = 0xd400d400u + zero * 0x100010u;
      asm("lop3.b32 %0, %1, 0x00f000f0, %2, 0xea;" : "=r"(y) : "r"(x), "r"(magic));
      asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(y) : "r"(y), "r"(one), "r"(c));
    } else {
      c = 0xe400e400u + zero * 0x10001u;
      asm("lop3.b32 %0, %1, 0x000f000f, %2, 0xea;" : "=r"(y) : "r"(x), "r"(magic));
      asm("add.rn.f16x2 %0, %1, %2;" : "=r"(y) : "r"(y), "r"(c));
    }
    return y;""",
    "bfloat16": """\
    unsigned int y, magic = 0x43004300u, c = 0xc300c300u + zero * 0x10001u;
    asm("lop3.b32 %0, %1, 0x000f000f, %2, 0xea;" : "=r"(y) : "r"(word >> shift), "r"(magic));
    asm("add.rn.bf16x2 %0, %1, %2;" : "=r"(y) : "r"(y), "r"(c));
    return y;""",
}
_SMALL = """\
    unsigned int y = low | (high << 16) | {magic}u, c = {minus}u + zero * 0x10001u;
    asm("add.rn.{ptx} %0, %1, %2;" : "=r"(y) : "r"(y), "r"(c));
    return y;"""
_MAGIC = {"float16": ("0x64006400", "0xe400e400"), "bfloat16": ("0x43004300", "0xc300c300")}


def compute(op: str, dtype: str, x: Any, y: Any) -> Any:
    """Build an operation of `ARITHMETIC` on two words, each half rounded once."""
    name = f"{PREFIX}{op}_{_PTX[dtype]}"
    text = f'    unsigned int z;\n    asm("{op}.rn.{_PTX[dtype]} %0, %1, %2;" '
    text += ': "=r"(z) : "r"(x), "r"(y));\n    return z;'
    make_known(name, "(unsigned int x, unsigned int y)", text, returns=_WORD)
    return ir.call_op(f"tirx.{name}", "uint32", x, y)


def both(half: Any) -> Any:
    """Build a word with the same half twice, from its bits as a uint16."""
    name = f"{PREFIX}both_halves"
    text = "    unsigned int x = half;\n    return x | (x << 16);"
    make_known(name, "(unsigned short half)", text, returns=_WORD)
    return ir.call_op(f"tirx.{name}", "uint32", half)


def nibbles(dtype: str, word: Any, byte: Any, zero: Any) -> Any:
    """Build the two nibbles of a byte of a word, the lower one first, minus `zero` each."""
    name = f"{PREFIX}nibbles_{dtype}"
    signature = "(unsigned int word, unsigned int byte, unsigned int zero)"
    make_known(name, signature, _NIBBLES[dtype], returns=_WORD)
    return ir.call_op(f"tirx.{name}", "uint32", word, byte, zero)


def nibbles_apart(dtype: str, word: Any, shift: Any, zero: Any) -> Any:
    """Build the nibbles of a word at `shift`, one of 0, 4, 8, 12, and 16 behind, minus `zero`."""
    name = f"{PREFIX}nibbles_apart_{dtype}"
    signature = "(unsigned int word, unsigned int shift, unsigned int zero)"
    make_known(name, signature, _APART[dtype], returns=_WORD)
    return ir.call_op(f"tirx.{name}", "uint32", word, shift, zero)


def small(dtype: str, low: Any, high: Any, zero: Any) -> Any:
    """Build two integers from 0 to `MOST_SMALL[dtype]`, minus `zero` each."""
    name = f"{PREFIX}small_{dtype}"
    magic, minus = _MAGIC[dtype]
    text = _SMALL.format(magic=magic, minus=minus, ptx=_PTX[dtype])
    signature = "(unsigned int low, unsigned int high, unsigned int zero)"
    make_known(name, signature, text, returns=_WORD)
    return ir.call_op(f"tirx.{name}", "uint32", low, high, zero)
