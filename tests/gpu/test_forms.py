"""Products of every type and with any axes on the chip, against float64."""

from __future__ import annotations

import random

import numpy as np
import pytest

from benchmarks import forms, random_forms
from benchmarks.form_population import FORMS, FormProblem, problems
from tests.schedule import test_contractions as contractions

pytestmark = pytest.mark.gpu

MOST = 1 << 33  # multiply-adds of a problem here


def small(form: str) -> list[FormProblem]:
    found = problems(form, 11, 60)
    return [x for x in found if x.b * x.m * x.n * x.k < MOST][:8]


@pytest.mark.parametrize("form", FORMS)
def test_drawn_problems_are_right(form: str, tmp_path) -> None:
    """Errors are within the bound; those of float8 also calibrate how its sums are cut."""
    import tvm

    for i, problem in enumerate(small(form)):
        path = str(tmp_path / f"{i}.so")  # of its own: a path that is loaded is not read again
        forms.build_library(problem, path)
        run = tvm.runtime.load_module(path)["main"]
        assert forms.check(run, forms.Tensors(problem)) < 1, problem.name


@pytest.mark.parametrize("seed", range(4))
def test_random_forms_are_right_to_the_bit(seed: int, tmp_path) -> None:
    """All types, axes, configurations and scales: zero, huge, infinite and NaN, too."""
    import tvm

    from tvm_hopper.errors import ScheduleError

    rng = random.Random(seed)
    for i in range(12):
        case = random_forms.draw(rng)
        try:
            random_forms.build(case).export_library(str(tmp_path / f"{i}.so"))
        except ScheduleError:
            continue
        run = tvm.runtime.load_module(str(tmp_path / f"{i}.so"))["main"]
        random_forms.check(case, run, seed)


@pytest.mark.parametrize("formula", contractions.FORMS)
def test_axes(formula: str) -> None:
    """Integers, whose sums are exact, in float16."""
    import torch
    import tvm
    from tvm import s_tir

    from tvm_hopper import schedule as hs
    from tvm_hopper.testing.contractions import contraction, reference
    from tvm_hopper.testing.workloads import make_inputs

    mod = contraction(formula, contractions.sizes_of(formula))
    sch = s_tir.Schedule(mod)
    hs.matmul(sch, "C")
    run = tvm.compile(sch.mod, target=forms.TARGET)["main"]
    a, b = make_inputs(mod)
    want = reference(formula, a, b)
    out = torch.full(want.shape, float("nan"), device="cuda")
    run(*(torch.from_numpy(np.ascontiguousarray(x)).cuda() for x in (a, b)), out)
    torch.cuda.synchronize()
    np.testing.assert_array_equal(out.cpu().numpy(), want)


def test_strides_of_a_batch() -> None:
    """A batch stride of zero and one that a call decides: the driver takes both."""
    import torch
    import tvm
    from tvm import s_tir

    from tvm_hopper import schedule as hs

    sch = s_tir.Schedule(contractions.as_module(contractions.strided))
    hs.matmul(sch, "C")
    run = tvm.compile(sch.mod, target=forms.TARGET)["main"]
    memory = torch.randint(-2, 3, (2, 60, 48), device="cuda").half()
    a = memory[:, :50, :40]
    b = torch.randint(-2, 3, (24, 48), device="cuda").half()[:, :40].expand(2, 24, 40)
    out = torch.full((2, 50, 24), float("nan"), device="cuda")
    run(a, b, out)
    torch.cuda.synchronize()
    assert torch.equal(out.double(), a.double() @ b.double().transpose(1, 2))


@pytest.mark.parametrize(
    ("columns", "dtype"),
    [(197, "bfloat16"), (99, "float16"), (50, "float16"), (136, "float16"), (75, "float8_e4m3fn")],
)
def test_rows_that_begin_at_any_element(columns: int, dtype: str) -> None:
    """Small integers, exact or rounded alike in each type."""
    import torch
    import tvm
    from tvm import s_tir

    from tvm_hopper import schedule as hs
    from tvm_hopper.testing.contractions import contraction

    extents = {"b": 5, "m": 150, "n": columns, "k": 40}
    mod = contraction("bmk,bnk->bmn", extents, epilogue=lambda total, *i: total(*i).astype(dtype))
    sch = s_tir.Schedule(mod)
    hs.matmul(sch, "C")
    run = tvm.compile(sch.mod, target=forms.TARGET)["main"]
    a, b = (torch.randint(-2, 3, (5, x, 40), device="cuda").half() for x in (150, columns))
    out = torch.empty(5, 150, columns, device="cuda", dtype=getattr(torch, dtype))
    run(a, b, forms.as_argument(out))
    torch.cuda.synchronize()
    want = (a.float() @ b.float().transpose(1, 2)).to(out.dtype)
    assert torch.equal(out.float(), want.float())


@pytest.mark.parametrize("mode", ["cluster", "serial", "workspace", "atomic", "stream"])
def test_shared_sums_of_integers(mode: str) -> None:
    import torch
    import tvm
    from tvm import s_tir

    from tvm_hopper import schedule as hs
    from tvm_hopper.testing.contractions import contraction

    extents = {"m": 100, "n": 72, "k": 4096}
    sch = s_tir.Schedule(contraction("mk,nk->mn", extents, ("int8", "int8"), "int32"))
    stream = mode == "stream"
    given = {"split_k": mode, "persistent": 16} if stream else {"split_k": hs.SplitK(4, mode)}
    hs.matmul(sch, "C", hs.MatmulConfig(tile=(64, 64, 64), consumers=1, stages=4, **given))
    run = tvm.compile(sch.mod, target=forms.TARGET)["main"]
    a, b = (torch.randint(-128, 128, (x, 4096), device="cuda", dtype=torch.int8) for x in (100, 72))
    out = torch.empty(100, 72, device="cuda", dtype=torch.int32)
    run(a, b, out)
    torch.cuda.synchronize()
    assert torch.equal(out.double(), a.double() @ b.double().T)


@pytest.mark.parametrize("options", [{}, {"tile": (128, 128, 128), "consumers": 2}], ids=str)
def test_promoted_sums_of_float8(options: dict[str, object]) -> None:
    """Positive numbers: a sum of 16384 products is 22% too small in one accumulator.

    Of four parts each is less so.
    """
    import torch
    import tvm
    from tvm import s_tir

    from tvm_hopper import schedule as hs
    from tvm_hopper.testing.contractions import contraction

    mod = contraction("mk,nk->mn", {"m": 500, "n": 384, "k": 16384}, ("float8_e4m3fn",) * 2)
    sides = [torch.randn(x, 16384, device="cuda").abs() for x in (500, 384)]
    a, b = (x.to(torch.float8_e4m3fn) for x in sides)
    want = a.double() @ b.double().T
    lost = {}
    for accumulate in (None, "promoted"):
        sch = s_tir.Schedule(mod)
        hs.matmul(sch, "C", hs.MatmulConfig(accumulate=accumulate, **options))
        run = tvm.compile(sch.mod, target=forms.TARGET)["main"]
        out = torch.full((500, 384), float("nan"), device="cuda")
        run(*map(forms.as_argument, (a, b)), out)
        torch.cuda.synchronize()
        lost[accumulate] = ((out.double() - want) / want).abs().max().item()
    assert lost["promoted"] < 1e-3 < 0.02 < lost[None]


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize(("m", "n", "k"), [(1, 256, 64), (333, 1024, 512), (8192, 4096, 4096)])
def test_reductions_over_rows(m: int, n: int, k: int, residual: bool) -> None:
    """Sums of squares of what is stored, and maxima; the same bits each time."""
    import torch
    import tvm
    from tvm import s_tir

    from tests.schedule.test_row_statistics import statistics
    from tvm_hopper import schedule as hs

    sch = s_tir.Schedule(statistics("m", n, k, residual=residual))
    hs.matmul(sch, ("C", "Q", "X"))
    run = tvm.compile(sch.mod, target=forms.TARGET)["main"]
    made = {"device": "cuda", "dtype": torch.bfloat16}
    a, b, v = (torch.randn(x, **made) for x in ((m, k), (n, k), (n,)))
    more = [torch.randn(m, n, **made)] if residual else []
    results = []
    for _ in range(2):
        d = torch.full((m, n), float("nan"), **made)
        q, x = (torch.full((m,), float("nan"), device="cuda") for _ in range(2))
        run(a, b, *more, v, d, q, x)
        torch.cuda.synchronize()
        results.append((d, q, x))
    assert all(torch.equal(one, two) for one, two in zip(*results, strict=True))
    c = a.double() @ b.double().T
    whole = c + more[0].double() if residual else c
    torch.testing.assert_close(d.double(), whole, rtol=2**-7, atol=1e-2)
    torch.testing.assert_close(q.double(), (d.double() ** 2).sum(1), rtol=1e-5, atol=0)
    torch.testing.assert_close(x.double(), (c + v.double()).amax(1), rtol=1e-5, atol=1e-3)
