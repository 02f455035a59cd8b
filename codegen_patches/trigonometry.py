"""Sine, cosine and tangent without local memory, instead of CUDA's functions.

    sinf(x)    printed by TVM; CUDA's text has an array in local memory, for large arguments
    sinf(x)    with the text below before the kernels: registers and a table of constants

x = n pi / 2 + r with |r| <= pi / 4. Up to 105615 n is rounded and three parts of pi / 2 are taken
off by multiply-adds (Cody and Waite). Beyond it x is an integer times a power of two, of whose
product with 2 / pi the bits from 2^1 to 2^-62 count (Payne and Hanek): those of 2 / pi that make
them are two words of a table, and of float64 three. No float16 is beyond 65504.

Errors in units in the last place: 1.6 for sine and cosine of float32, 2.4 of float64, 3.5 for
tangent.
Zeros keep their sign, infinities become NaN. Behind a product CUDA's functions spill registers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_FIRST_KERNEL = re.compile(r'^extern "C" __global__', re.MULTILINE)
_CALL = re.compile(r"\b(h?)(sin|cos|tan)(f?)\(")
_HEAD = "__forceinline__ __device__"
TWO_OVER_PI = (
    *(0x0, 0xA2F9836E4E441529, 0xFC2757D1F534DDC0, 0xDB6295993C439041, 0xFE5163ABDEBBC561),
    *(0xB7246E3A424DD2E0, 0x06492EEA09D1921C, 0xFE1DEB1CB129A73E, 0xE88235F52EBB4484),
    *(0xE99C7026B45F7E41, 0x3991D639835339F4, 0x9C845F8BBDF9283B, 0x1FF897FFDE05980F),
    *(0xEF2F118B5A0A6D1F, 0x6D367ECF27CB09B7, 0x4F463F669E5FEA2D, 0x7527BAC7EBE5F17B),
    *(0x3D0739F78A5292EA, 0x6BFB5FB11F8D5D08, 0x56033046FC7B6BAB),
)
"""The bits of 2 / pi, those from 2^63 to 2^0 first."""


@dataclass(frozen=True)
class Real:
    """The arithmetic of a floating-point type.

    - `c_type`, `suffix`: the type, and what its constants and functions end with.
    - `rounder`: a number that rounds what is added to it to an integer.
    - `half_pi`: parts whose sum is pi / 2, none of which is negative: of x = -0 they leave -0.
    - `sine`, `cosine`: the constants of r^3, r^5, ... and of r^4, r^6, ..., by Remez' algorithm.
    - `low_word`: the function for the low word of a number's bits.
    - `far`: the text that reduces large arguments.
    """

    c_type: str
    suffix: str
    rounder: str
    half_pi: tuple[str, str, str]
    sine: tuple[str, ...]
    cosine: tuple[str, ...]
    low_word: str
    largest: str
    far: str

    @property
    def text(self) -> str:
        """The functions of one number."""
        t, f, fma = self.c_type, self.suffix, f"fma{self.suffix}"

        def horner(constants: tuple[str, ...]) -> str:
            *lower, value = (f"{x}{f}" for x in constants)
            for constant in reversed(lower):
                value = f"{fma}({value}, s, {constant})"
            return value

        first, second, third = self.half_pi
        return f"""\
template <bool any = true>
{_HEAD} int tvm_hopper_quarter({t} x, {t}& r) {{
  {t} t = {fma}(x, 0x1.45f306dc9c883p-1{f}, {self.rounder}{f}), n = t - {self.rounder}{f};
  r = {fma}(-n, {third}{f}, {fma}(-n, {second}{f}, {fma}(-n, {first}{f}, x)));
  int quarter = {self.low_word}(t);
  if (any && fabs{f}(x) > 105615.0{f} && fabs{f}(x) <= {self.largest}{f}) {{
{self.far}    quarter = int((p + (1ULL << 61)) >> 62);
    if (x < 0) {{ quarter = -quarter; r = -r; }}
  }}
  return quarter;
}}
{_HEAD} {t} tvm_hopper_sine({t} r) {{
  {t} s = r * r;
  return {fma}({horner(self.sine)}, {fma}(s, r, 0.0{f}), r);  // + 0: a product of -0 loses it
}}
{_HEAD} {t} tvm_hopper_cosine({t} r) {{
  {t} s = r * r;
  return {fma}({horner(("-0.5", *self.cosine))}, s, 1.0{f});
}}
template <bool any = true>
{_HEAD} {t} tvm_hopper_turned(int quarters, {t} x) {{
  {t} r;
  int quarter = tvm_hopper_quarter<any>(x, r) + quarters;
  {t} y = quarter & 1 ? tvm_hopper_cosine(r) : tvm_hopper_sine(r);
  return quarter & 2 ? -y : y;
}}
{_HEAD} {t} tvm_hopper_tangent({t} x) {{
  {t} r;
  bool is_turned = tvm_hopper_quarter(x, r) & 1;
  {t} sine = tvm_hopper_sine(r), cosine = tvm_hopper_cosine(r);
  return (is_turned ? -cosine : sine) / (is_turned ? sine : cosine);
}}
"""


TABLE = f"""\
__constant__ unsigned long long tvm_hopper_two_over_pi[] = {{
  {", ".join(f"{x:#x}" for x in TWO_OVER_PI)}}};
{_HEAD} unsigned long long tvm_hopper_two_over_pi_from(int bit) {{
  const unsigned long long* word = tvm_hopper_two_over_pi + (bit >> 6);
  return word[0] << (bit & 63) | word[1] >> 1 >> (~bit & 63);
}}
"""
FLOAT = Real(
    "float",
    "f",
    "0x1.8p23",
    ("0x1.921fb4p+0", "0x1.4442dp-24", "0x1.846988p-48"),
    ("-0x1.555546p-3", "0x1.11073ap-7", "-0x1.99435ep-13"),
    ("0x1.55554ap-5", "-0x1.6c0c2cp-10", "0x1.99e9d8p-16"),
    "__float_as_int",
    "0x1.fffffep127",
    """\
    unsigned bits = __float_as_uint(fabsf(x)), m = bits << 8 | 1U << 31;
    int bit = int(bits >> 23) - 96;
    unsigned long long low = tvm_hopper_two_over_pi_from(bit + 64) >> 32;
    unsigned long long p = m * tvm_hopper_two_over_pi_from(bit) + (m * low >> 32);
    r = float(double((long long)(p << 2)) * 0x1.921fb54442d18p-64);
""",
)
DOUBLE = Real(
    "double",
    "",
    "0x1.8p52",
    ("0x1.921fb54442d18p+0", "0x1.1a62633145c06p-54", "0x1.c1cd129024e08p-107"),
    (
        *("-0x1.5555555555548p-3", "0x1.111111110f7c8p-7", "-0x1.a01a019bfcf76p-13"),
        *("0x1.71de3566ff643p-19", "-0x1.ae5e59edb5ae8p-26", "0x1.5d8fa2be8c61bp-33"),
    ),
    (
        *("0x1.555555555554bp-5", "-0x1.6c16c16c14f6fp-10", "0x1.a01a019c81170p-16"),
        *("-0x1.27e4f7e88175bp-22", "0x1.1ee9d635887cdp-29", "-0x1.8fa3d891d9203p-37"),
    ),
    "__double2loint",
    "0x1.fffffffffffffp1023",
    """\
    unsigned long long bits = __double_as_longlong(fabs(x)), m = bits << 11 | 1ULL << 63;
    int bit = int(bits >> 52) - 1024;
    unsigned long long word = tvm_hopper_two_over_pi_from(bit + 64);
    unsigned long long carry = __umul64hi(m, tvm_hopper_two_over_pi_from(bit + 128));
    unsigned long long q = m * word + carry;
    unsigned long long p = m * tvm_hopper_two_over_pi_from(bit) + __umul64hi(m, word) + (q < carry);
    long long high = p << 2 | q >> 62;
    double a = double(high), b = fma(double(q << 2), 0x1p-64, double(high - (long long)a));
    const double unit = 0x1.921fb54442d18p-64;
    r = a * unit;
    r += fma(a, unit, -r) + fma(a, 0x1.1a62633145c07p-118, b * unit);
""",
)
_HALVES = f"""\
{_HEAD} half tvm_hopper_turned(int quarters, half x) {{
  return __float2half_rn(tvm_hopper_turned<false>(quarters, __half2float(x)));
}}
"""
_BFLOATS = f"""\
{_HEAD} nv_bfloat16 tvm_hopper_turned(int quarters, nv_bfloat16 x) {{
  return __float2bfloat16_rn(tvm_hopper_turned(quarters, __bfloat162float(x)));
}}
"""
_MEANING = {"sin": "turned(0, ", "cos": "turned(1, ", "tan": "tangent("}


def add_trigonometry(text: str) -> str:
    """Define sine, cosine and tangent in a text, where its kernels use them."""
    first = _FIRST_KERNEL.search(text)
    start = first.start() if first else len(text)
    calls = sorted(set(_CALL.findall(text[start:])))
    if not calls:
        return text
    short = any(half for half, _, _ in calls)
    defined = [TABLE]
    if short or any(f for _, _, f in calls):
        defined.append(FLOAT.text)
    if any(not half and not f for half, _, f in calls):
        defined.append(DOUBLE.text)
    if short:
        defined += [x for x, header in ((_HALVES, "fp16"), (_BFLOATS, "bf16")) if header in text]
    macros = [
        f"#define {half}{name}{f}(...) tvm_hopper_{_MEANING[name]}__VA_ARGS__)\n"
        for half, name, f in calls
    ]
    return text[:start] + "".join(defined + macros) + text[start:]
