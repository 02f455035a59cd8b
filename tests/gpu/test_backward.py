"""Losses, gradients of norms and reductions of columns, on a GPU."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import s_tir

from tvm_hopper import ir, schedule as hs
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


LONG = [(600, 1024), (700, 4096), (400, 16384), (200, 32768), (70, 65536), (40, 131072)]


@pytest.mark.parametrize("shape", LONG, ids=str)
@pytest.mark.parametrize("name", ["rms_norm_backward", "layer_norm_backward"])
def test_gradients_in_several_turns(name, shape):
    """Rows wait in shared memory, and clusters share the long ones."""
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


STREAMS, CALLS = 2, 24
SUMS = (40000, 1024)  # rows that keep a kernel busy while the next call is made


@pytest.fixture(scope="module")
def column_sums():
    sch = s_tir.Schedule(columns.column_sum(*SUMS))
    hs.column_reduction(sch)
    return tvm.compile(sch.mod, target="nvidia/nvidia-h200")["main"]


def drawn(count: int) -> tuple[list, list]:
    """Return inputs, and poisoned outputs, with what belongs there."""
    inputs = [torch.randn(SUMS, device="cuda", dtype=torch.bfloat16) + i for i in range(count)]
    outs = [torch.full(SUMS[1:], POISON, device="cuda").bfloat16() for _ in inputs]
    torch.cuda.synchronize()
    return inputs, outs


def are_sums(inputs: list, outs: list) -> bool:
    torch.cuda.synchronize()
    wanted = [x.double().sum(0) for x in inputs]
    return all(
        bool(((y.double() - z).abs() < TOLERANCE * (z.abs() + 200)).all())
        for y, z in zip(outs, wanted, strict=True)
    )


def test_one_thread_drives_two_streams(column_sums):
    """Partial sums of calls that run at once are apart."""
    inputs, outs = drawn(CALLS)
    streams = [torch.cuda.Stream() for _ in range(STREAMS)]
    for turn, (x, y) in enumerate(zip(inputs, outs, strict=True)):
        with tvm_ffi.use_torch_stream(torch.cuda.stream(streams[turn % STREAMS])):
            column_sums(x, y)
    assert are_sums(inputs, outs)


def test_a_graph_has_partial_sums_of_its_own(column_sums):
    (x, other), (y, z) = drawn(2)
    graph = torch.cuda.CUDAGraph()
    with tvm_ffi.use_torch_stream(torch.cuda.graph(graph)):
        column_sums(x, y)
    for _ in range(4):
        graph.replay()
        column_sums(other, z)  # on another stream
    assert are_sums([x, other], [y, z])


def test_rows_that_are_summed_as_the_greatest_is_found():
    """-inf, +inf and NaN are as in the program that finds it first."""
    shape = (6, 65536)
    x = np.random.default_rng(1).standard_normal(shape) * 3
    x[0, ::2], x[1], x[2, 7], x[3, 9], x[4, 50000] = -np.inf, -np.inf, np.inf, np.nan, 60
    labels = np.arange(6) + 1

    def streamed(sch: s_tir.Schedule) -> None:
        hs.row_reduction(sch, config=hs.RowReductionConfig(threads=256, chunks=4))

    (given, _), (loss,) = run(losses.cross_entropy(*shape), streamed, [x, labels])
    wanted = torch.nn.functional.cross_entropy(
        torch.tensor(given), torch.tensor(labels), reduction="none"
    ).numpy()
    whole = np.isfinite(wanted)
    assert list(whole) == [True, False, False, False, True, True]
    assert np.abs(loss[whole] - wanted[whole]).max() < 1e-2
    assert not np.isfinite(loss[~whole]).any()
