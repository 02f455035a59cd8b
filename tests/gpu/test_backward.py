"""Losses, gradients of norms and reductions of columns, on a GPU."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import s_tir

from tvm_hopper import ir
from tvm_hopper import schedule as hs
from tvm_hopper.testing import backward, columns, losses

pytestmark = pytest.mark.gpu

torch = pytest.importorskip("torch")

POISON = 12345.0
TOLERANCE = 1e-2  # relative, of results in bfloat16
SHAPES = [(64, 4096), (1000, 1032), (3, 8192)]


@pytest.fixture(scope="module", autouse=True)
def _gpu():
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("no GPU of compute capability 9.0")


def run(mod, helper, inputs: list[np.ndarray]) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Run a program three times on poisoned outputs; return inputs and results in float64."""
    sch = s_tir.Schedule(mod)
    helper(sch)
    kernel = tvm.compile(sch.mod, target="nvidia/nvidia-h200")["main"]
    params = list(mod["main"].params)
    kinds = [getattr(torch, ir.dtype_of(p)) for p in params]
    given = [torch.tensor(x, device="cuda").to(k) for x, k in zip(inputs, kinds, strict=False)]
    shapes = [[int(x) for x in p.shape] for p in params[len(given) :]]
    runs = []
    for _ in range(3):
        outs = [
            torch.full(s, POISON, device="cuda").to(k)
            for s, k in zip(shapes, kinds[len(given) :], strict=True)
        ]
        kernel(*given, *outs)
        torch.cuda.synchronize()
        runs.append(outs)
    for again in runs[1:]:  # the same bits in every run
        for one, other in zip(runs[0], again, strict=True):
            assert torch.equal(one.view(torch.uint8), other.view(torch.uint8))
    return [x.double().cpu().numpy() for x in given], [x.double().cpu().numpy() for x in runs[0]]


def close(got: list[np.ndarray], wanted: list[np.ndarray]) -> None:
    for one, want in zip(got, wanted, strict=True):
        scale = np.abs(want) + np.abs(want).mean() / 10 + 1e-6
        assert np.all(np.abs(one - want) / scale < TOLERANCE)  # what is no number is not


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", backward.BACKWARD)
def test_gradients(name, shape):
    given, got = run(
        backward.BACKWARD[name](*shape), hs.row_reduction, backward.inputs(name, *shape)
    )
    close(got, backward.reference(name, given))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", losses.LOSSES)
def test_losses(name, shape):
    rng = np.random.default_rng(1)
    x = rng.standard_normal(shape)
    labels = rng.integers(0, shape[1], shape[0])
    labels[::3] = losses.IGNORED
    inputs = [x, labels] if name == "cross_entropy" else [x]
    given, got = run(losses.LOSSES[name](*shape), hs.row_reduction, inputs)
    close(got, losses.reference(name, given[0], labels))


@pytest.mark.parametrize("shape", [(4096, 1024), (1003, 520), (70, 33), (5, 8192)], ids=str)
@pytest.mark.parametrize("name", columns.COLUMNS)
def test_columns(name, shape):
    x = np.random.default_rng(1).standard_normal(shape)
    given, got = run(columns.COLUMNS[name](*shape), hs.column_reduction, [x])
    close(got, columns.reference(name, given[0]))


def test_a_mean_of_all_elements():
    x = np.random.default_rng(1).standard_normal((3000, 1032)) + 1
    given, got = run(columns.mean(3000, 1032), hs.column_reduction, [x])
    close(got, [given[0].mean().reshape(1)])


def test_what_is_no_number_stays_in_its_row_and_column():
    name, shape = "rms_norm_backward", (40, 520)
    inputs = backward.inputs(name, *shape)
    inputs[1][7, 3] = np.nan
    _, (dx, dw) = run(backward.BACKWARD[name](*shape), hs.row_reduction, inputs)
    assert np.isnan(dx[7]).all()
    assert not np.isnan(np.delete(dx, 7, 0)).any()
    assert np.isnan(dw[3])
    assert not np.isnan(np.delete(dw, 3)).any()
