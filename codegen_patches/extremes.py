"""TIR operators for max and min that propagate NaN, as numpy and PyTorch do.

    max(X[0], 0)    printed by TVM; fmaxf, or for types of 16 bits `a > b ? a : b`: NaN becomes 0
    max(X[0], 0)    with the text below before the kernels: max.NaN.f32, max.NaN.bf16, one
                    instruction, NaN stays

Upstream: TVM prints `tirx.Max` by the name alone (apache-tvm 0.27.0.post1), which means CUDA's
overloads and those of TVM's preamble. PTX ISA 9.1, 9.7.3.11-12 and 9.7.4.7-8: `.NaN` needs sm_80;
float64 has no such form.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from tvm import tirx

from tvm_hopper import ir

_FIRST_KERNEL = re.compile(r'^extern "C" __global__', re.MULTILINE)
_HALVES = {"float16": "half", "bfloat16": "nv_bfloat16"}
_NAMES = {"max": ">", "min": "<"}


def add_extremes(text: str, kernels: Iterable[tirx.PrimFunc]) -> str:
    """Define what `max` and `min` mean in a text, where its kernels use them for floats."""
    nodes = [x for k in kernels for kind in (tirx.Max, tirx.Min) for x in ir.find_all(k.body, kind)]
    dtypes = {ir.dtype_of(x).partition("x")[0] for x in nodes}
    if not any("float" in x for x in dtypes):
        return text
    first = _FIRST_KERNEL.search(text)
    assert first is not None, "found no kernel in the text of a module that has some"
    halves = [c_type for dtype, c_type in _HALVES.items() if dtype in dtypes]
    defined = "".join(_definition(name, halves) for name in _NAMES)
    return text[: first.start()] + defined + text[first.start() :]


def _definition(name: str, halves: list[str]) -> str:
    """Return the text that defines one of the functions."""
    head, ours = "__forceinline__ __device__", f"tvm_hopper_{name}"
    packed = "".join(
        f"{head} {x} {ours}({x} a, {x} b) {{ return __h{name}_nan(a, b); }}\n" for x in halves
    )
    return f"""\
// NaN stays NaN
template <typename A, typename B>
{head} auto {ours}(A a, B b) -> decltype({name}(a, b)) {{ return {name}(a, b); }}
{head} float {ours}(float a, float b) {{
  float c;
  asm("{name}.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
  return c;
}}
{head} double {ours}(double a, double b) {{ return a {_NAMES[name]} b || a != a ? a : b; }}
{packed}#define {name}(...) {ours}(__VA_ARGS__)
"""
