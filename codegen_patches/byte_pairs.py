"""TIR operators that convert two 8-bit numbers of a word to two 16-bit floats, exactly.

    float16    prmt y, x, 0x6464.., 0x4140     0x6400 + u is 1024 + u in float16, of a byte u
               y - (1152, 1152)                an int8 is u - 128 after its sign bit is turned
    bfloat16   prmt y, x, 0x4b00.., 0x7540     the same in float32, where 2^23 + u is exact;
               prmt z, y0 - c, y1 - c, 0x7632  a small integer has no bits in the lower half

These are the lower two bytes; the upper ones have 0x202 more in the selector, 2 for bfloat16. A
zero point is subtracted along, which is exact.

A float8 has an instruction to float16, which holds each of them (PTX ISA 9.1, `cvt`). For integers
CUDA's own conversion takes one byte, at a lower rate than arithmetic (CUDA C++ Programming Guide,
throughput of native arithmetic instructions). The method is that of FasterTransformer's weight-only
kernels (Kim et al., "Who Says Elephants Can't Run", 2022) and of CUTLASS
(`cutlass/numeric_conversion.h`).
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

from tvm_hopper import ir

from .operators import make_known

NAME = "tvm_hopper_widen_bytes"
SOURCES = ("int8", "uint8")
FLOATS = {"float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2"}
MOST_ZERO = 255
_FLIP = {"int8": "    x ^= 0x80808080u;\n", "uint8": ""}  # the sign bit: v + 128
_FLOAT16 = """\
    unsigned int y, c = {offset}u + zero * 0x10001u;
    asm("prmt.b32 %0, %1, 0x64646464, %2;" : "=r"(y) : "r"(x), "r"(0x4140u + half * 0x202u));
    asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(y) : "r"(y), "r"(c));
    return y;"""
_BFLOAT16 = """\
    unsigned int low, high, y;
    asm("prmt.b32 %0, %1, 0x4b000000, %2;" : "=r"(low) : "r"(x), "r"(0x7540u + half * 2u));
    asm("prmt.b32 %0, %1, 0x4b000000, %2;" : "=r"(high) : "r"(x), "r"(0x7541u + half * 2u));
    low = __float_as_uint(__uint_as_float(low) - ({offset}.0f + (float)zero));
    high = __float_as_uint(__uint_as_float(high) - ({offset}.0f + (float)zero));
    asm("prmt.b32 %0, %1, %2, 0x7632;" : "=r"(y) : "r"(low), "r"(high));
    return y;"""
_FROM_FLOAT = (
    "    unsigned int y;\n    unsigned short both = word >> (half * 16u);\n"
    '    asm("cvt.rn.f16x2.{name}x2 %0, %1;" : "=r"(y) : "h"(both));\n'
)
_TO_BFLOAT16 = """\
    unsigned int low, high;
    asm("{.reg .b16 a, b; mov.b32 {a, b}, %2; cvt.f32.f16 %0, a; cvt.f32.f16 %1, b;}"
        : "=r"(low), "=r"(high) : "r"(y));
    asm("prmt.b32 %0, %1, %2, 0x7632;" : "=r"(y) : "r"(low), "r"(high));
"""
_TEXTS = {
    ("int8", "float16"): _FLOAT16.format(offset="0x64806480"),  # 1024 + 128
    ("uint8", "float16"): _FLOAT16.format(offset="0x64006400"),
    ("int8", "bfloat16"): _BFLOAT16.format(offset=2**23 + 128),
    ("uint8", "bfloat16"): _BFLOAT16.format(offset=2**23),
}
for _source, _name in FLOATS.items():
    _convert = _FROM_FLOAT.format(name=_name)
    _TEXTS[_source, "float16"] = f"{_convert}    return y;"
    _TEXTS[_source, "bfloat16"] = f"{_convert}{_TO_BFLOAT16}    return y;"


def widens(source: str, dtype: str) -> bool:
    """Tell whether there is an operator from one type to another."""
    return (source, dtype) in _TEXTS


def widen(source: str, dtype: str, word: Any, half: Any = 0, zero: Any = 0) -> Any:
    """Build two elements, as a uint32.

    - `source`, `dtype`: an 8-bit type and a 16-bit float type.
    - `word` (Expr): a uint32 that holds four elements, or a uint16 with two.
    - `half`: which two, 0 or 1.
    - `zero`: at most `MOST_ZERO`, which is subtracted from integers.
    """
    name = f"{NAME}_{source}_{dtype}"
    text = _TEXTS[source, dtype]
    if source in SOURCES:
        text = "    unsigned int x = word;\n" + _FLIP[source] + text
    signature = "(unsigned int word, unsigned int half, unsigned int zero)"
    make_known(name, signature, text, returns=("unsigned int", "uint32"))
    given = (tirx.const(x, "uint32") if isinstance(x, int) else x for x in (half, zero))
    return ir.call_op(f"tirx.{name}", "uint32", word, *given)
