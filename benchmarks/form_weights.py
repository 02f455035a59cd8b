"""Weights of fewer bits for `benchmarks.forms`, against our own product of 16-bit weights.

The right answer is a product in float64 of the weight as the program decodes it, in float16.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from .form_population import FormProblem

PLAIN = ".plain.so"  # what is behind a library's path in that of its opponent
FIELDS: dict[str, dict[str, int]] = {  # of words, with scales of groups
    "w4a16 g32": {"bits": 4, "group": 32},
    "w4a16 g128": {"bits": 4, "group": 128},
    "w8a16 g32": {"bits": 8, "group": 32},
}
ROWS = {"16 rows or fewer": 16, "64 rows": 64, "256 rows": 256, "512 rows or more": 1 << 20}


def module(problem: FormProblem, plain: bool = False) -> Any:
    """Return the program: a decoder, and a product with sums in float32; `plain`: no decoder."""
    from tvm_hopper.testing.converted import converted_weight
    from tvm_hopper.testing.quantized import grouped_weight
    from tvm_hopper.testing.workloads import matmul

    sides = problem.m, problem.n, problem.k
    if plain:
        return matmul(*sides, dtype="float16", out_dtype="float16")
    if fields := FIELDS.get(f"{problem.form} {problem.layout}"):
        return grouped_weight(*sides, **fields)
    stored = problem.dtype
    if problem.layout == "tensor":
        return grouped_weight(*sides, group=problem.k, rows_of_group=problem.n, stored=stored)
    return converted_weight(*sides, stored=stored, values="S")


class WeightTensors:
    """One set of tensors of a problem: normal values, weights of any bits, small scales."""

    def __init__(self, problem: FormProblem) -> None:
        import torch

        from .forms import as_argument

        self.problem = problem
        x, w, s, out = ([int(i) for i in y.shape] for y in module(problem)["main"].params)
        if problem.dtype == "float8_e4m3fn":
            self.packed = torch.randn(w, device="cuda").to(torch.float8_e4m3fn)
        else:
            count = 4 if problem.dtype == "uint32" else 1
            raw = torch.randint(256, (w[0], w[1] * count), device="cuda", dtype=torch.uint8)
            self.packed = raw.view(getattr(torch, problem.dtype))
        made: dict[str, Any] = {"device": "cuda", "dtype": torch.float16}
        self.x = torch.randn(x, **made)
        self.scales = torch.rand(s, **made) / 64 + 1 / 128
        self.out = torch.empty(out, **made)
        self.arguments = [as_argument(y) for y in (self.x, self.packed, self.scales, self.out)]

    @functools.cached_property
    def decoded(self) -> Any:
        """The weight in float16."""
        import torch

        if self.problem.dtype != "uint32":
            scales = self.scales if self.scales.dim() > 1 else self.scales[:, None]
            return self.packed.half() * scales
        fields = FIELDS[f"{self.problem.form} {self.problem.layout}"]
        raw = self.packed.view(torch.uint8)
        if fields["bits"] == 4:
            raw = torch.stack((raw & 15, raw >> 4), -1).flatten(1)
        zero = 2 ** (fields["bits"] - 1) - 1
        return (raw.half() - zero) * self.scales.repeat_interleave(fields["group"], 1)

    @property
    def num_bytes(self) -> int:
        """Bytes of all tensors, packed."""
        every = (self.x, self.packed, self.scales, self.out)
        return int(sum(y.numel() * y.element_size() for y in every))


def opponents(
    path: str, _: FormProblem, sets: list[WeightTensors]
) -> dict[str, Callable[[int], Any]]:
    """Return our product of weights of 16 bits, by name."""
    import tvm
    import tvm_ffi

    run = tvm.runtime.load_module(path + PLAIN)["main"]
    for tensors in sets:
        _ = tensors.decoded

    def call(i: int) -> Any:
        with tvm_ffi.use_torch_stream():
            run(sets[i].x, sets[i].decoded, sets[i].out)

    return {"float16 weights": call}


def check(run: Any, tensors: WeightTensors) -> float:
    """Return the largest error of a result as a part of its bound, against float64."""
    import torch

    tensors.out.fill_(-77)
    run(*tensors.arguments)
    torch.cuda.synchronize()
    x, right = tensors.x.double(), tensors.decoded.double().T
    want, terms = x @ right, x.abs() @ right.abs()
    bound = 2.0**-10 * want.abs() + terms * tensors.problem.k**0.5 * 2.0**-23 + 2.0**-24
    return float(((tensors.out.double() - want).abs() / bound).max())


def rows_of(name: str) -> str:
    """Return which of `ROWS` a problem is of, by its name."""
    rows = int(name.split()[1].split("x")[0])
    return next(x for x, most in ROWS.items() if rows <= most)
