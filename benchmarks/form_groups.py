"""Products of experts for `benchmarks.forms`: groups of rows against `torch._grouped_mm`."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

from .form_population import FormProblem


def module(problem: FormProblem) -> Any:
    """Return the plain program: sums in float32, stored in bfloat16."""
    from tvm_hopper.testing.ragged import ragged

    shape = problem.m, problem.n, problem.k, problem.b
    return ragged(*shape, problem.dtype, out_dtype=problem.dtype, epilogue="cast")


def offsets(problem: FormProblem) -> list[int]:
    """Return where groups begin, and the end of the last one: of equal groups, or of any."""
    if problem.layout == "equal":
        return [problem.m * i // problem.b for i in range(problem.b + 1)]
    source = random.Random(problem.name)
    cuts = sorted(source.randint(0, problem.m) for _ in range(problem.b - 1))
    return [0, *cuts, problem.m]


class GroupTensors:
    """One set of tensors of a problem, normal values."""

    def __init__(self, problem: FormProblem) -> None:
        import torch

        self.problem = problem
        made: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16}
        self.a = torch.randn((problem.m, problem.k), **made)
        self.b = torch.randn((problem.b, problem.n, problem.k), **made)
        self.out = torch.empty((problem.m, problem.n), **made)
        self.places = torch.tensor(offsets(problem), dtype=torch.int32, device="cuda")
        self.ends = self.places[1:].clone()
        self.arguments = [self.a, self.b, self.places, self.out]

    @property
    def num_bytes(self) -> int:
        """Bytes of all tensors."""
        return int(sum(x.numel() * x.element_size() for x in self.arguments))


def opponents(_: FormProblem, sets: list[GroupTensors]) -> dict[str, Callable[[int], Any]]:
    """Return PyTorch's function for a problem by name."""
    import torch

    def call(i: int) -> Any:
        x = sets[i]
        right = x.b.transpose(-2, -1)
        return torch._grouped_mm(x.a, right, offs=x.ends, out_dtype=torch.bfloat16)

    return {"_grouped_mm": call}


def check(run: Any, tensors: GroupTensors) -> float:
    """Return the largest error of a result as a part of its bound, against float64."""
    import torch

    tensors.out.fill_(-77)
    run(*tensors.arguments)
    torch.cuda.synchronize()
    worst = 0.0
    places = offsets(tensors.problem)
    for e, (first, end) in enumerate(itertools.pairwise(places)):
        if first == end:
            continue
        a, right = tensors.a[first:end].double(), tensors.b[e].double().T
        want, terms = a @ right, a.abs() @ right.abs()
        bound = 2.0**-8 * want.abs() + terms * tensors.problem.k**0.5 * 2.0**-23
        error = (tensors.out[first:end].double() - want).abs()
        worst = max(worst, float((error / bound.clamp_min(1e-30)).max()))
    return worst
