"""Products with tensors of the output's shape behind them, which come through shared memory."""

import functools

import pytest
import tvm
from tvm import s_tir, te

from tests.sim_kernels.mutate import change, instructions
from tvm_hopper import capture, schedule as hs
from tvm_hopper.simulation import load, verify
from tvm_hopper.testing import workloads
from tvm_hopper.testing.tiling import module_of, product_of

H200 = "nvidia/nvidia-h200"
PAIR = {"tile": (128, 32, 16), "stages": 2, "consumers": 2, "persistent": 2}
PARTS = {**PAIR, "store": hs.TmaStore(2)}
RESIDUAL = ("residual", "relu")


def scheduled(problem, **config):
    """Schedule a matmul whose epilogue reads a tensor of the output's shape."""
    form = {"out_dtype": "float16", "epilogue": RESIDUAL, **problem}
    sch = s_tir.Schedule(workloads.matmul(**form))
    hs.matmul(sch, "C", hs.MatmulConfig(**config))
    return sch


def check(sch) -> str:
    """Verify a schedule, and its values against the plain program; return the kernel's text."""
    report = verify(sch).require_clean()
    assert "values compared" in str(report)
    return str(capture.lookup(tvm.compile(sch.mod, target=H200)).source)


@pytest.mark.parametrize(
    ("problem", "config"),
    [
        ({"m": 256, "n": 64, "k": 32}, {**PAIR}),
        pytest.param(
            {"m": 256, "n": 64, "k": 32},
            {**PAIR, "store": hs.TmaStore(2, 2)},
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {"m": 200, "n": 40, "k": 48},
            {**PAIR, "store": hs.TmaStore(2, 1)},
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {"m": 200, "n": 40, "k": 16, "batch": True}, {**PARTS}, marks=pytest.mark.slow
        ),
        pytest.param(
            {"m": 136, "n": 64, "k": 32, "out_dtype": "float32"}, PARTS, marks=pytest.mark.slow
        ),
        pytest.param(
            {"m": 72, "n": 40, "k": 16}, {**PAIR, "persistent": 0}, marks=pytest.mark.slow
        ),
    ],
    ids=["by itself", "parts", "ragged, one slot", "batch", "float32", "one tile each"],
)
def test_every_form(problem, config):
    assert "residual_map" in check(scheduled(problem, **config))


def test_what_is_asked_for_otherwise_is_loaded_by_threads():
    sch = scheduled({"m": 72, "n": 40, "k": 16}, **PAIR, store="threads")
    text = str(capture.lookup(tvm.compile(sch.mod, target=H200)).source)
    assert "residual_map" not in text
    assert "D_map" not in text


@pytest.mark.slow
def test_rows_that_tma_cannot_load_are_loaded_by_threads():
    assert "residual_map" not in check(scheduled({"m": 72, "n": 36, "k": 16}, **PAIR))


def two_operands():
    """Return D = A B R + S^T: an element of R meets that of the product, one of S does not."""
    a, b, c = product_of(64, 64, 16)
    r, s = (te.placeholder((64, 64), "float16", name=x) for x in "RS")
    d = te.compute(
        (64, 64),
        lambda i, j: (c[i, j] * r[i, j].astype("float32") + s[j, i].astype("float32")).astype(
            "float16"
        ),
        name="D",
    )
    return module_of(a, b, r, s, d)


@pytest.mark.slow
def test_what_is_read_at_another_place_is_loaded_by_threads():
    sch = s_tir.Schedule(two_operands())
    hs.matmul(sch, "C", hs.MatmulConfig((64, 64, 16), 2, 1))
    text = check(sch)
    assert "R_map" in text
    assert "S_map" not in text


def test_parts_of_the_accumulator_stay_in_registers():
    """A pipelined loop is not unrolled, unless it counts registers."""
    sch = scheduled({"m": 256, "n": 64, "k": 32}, **PAIR, store=hs.TmaStore(2, 2))
    text = str(capture.lookup(tvm.compile(sch.mod, target=H200)).source)
    loop = text[: text.index("stmatrix_sync_aligned_m8n8_x4_shared_b16(tvm")].rindex("ax1_0")
    before = text[:loop].splitlines()
    head = next(i for i in reversed(range(len(before))) if "for (int ax1_0" in before[i])
    assert before[head - 1].strip() == "#pragma unroll 2"
    assert "unroll 1" not in before[head - 2]


# -- what is placed


@functools.cache
def right():
    """Return a kernel of four tiles in two parts, on two thread blocks."""
    return load(scheduled({"m": 256, "n": 64, "k": 16}, **PAIR, store=hs.TmaStore(2, 1)).mod)


# The lanes of a warp meet before one gives a slot back: behind a store of the output they have met
# anyway, for the copy that takes it away.
# Waits: for slots of A, B and the residual, free and filled; arrivals for the same.
REMOVED = {
    ("mbarrier_wait", 1): {"RACE_OVERWRITE_BUSY"},
    ("mbarrier_wait", 3): {"RACE_READ_INFLIGHT"},
    ("mbarrier_arrive_expect_tx", 1): {"DEADLOCK"},
    ("mbarrier_arrive_nocount", 1): {"DEADLOCK"},
}


@pytest.mark.parametrize(("instruction", "which"), REMOVED)
def test_each_sync_is_needed(instruction, which):
    report = verify(change(right(), instruction, which))
    assert REMOVED[instruction, which] <= {finding.rule for finding in report.findings}


def test_the_kernel_with_all_of_them_is_clean():
    assert verify(right()).verdict == "clean"
    ((_, func),) = right().kernels.items()
    assert len(instructions(func, "mbarrier_wait")) == 4


@pytest.mark.looks_ahead
@pytest.mark.parametrize("which", ["no room", "rows of the output"])
def test_where_it_cannot_be_nothing_is_refused(which):
    """What is chosen for a residual gives way to what was asked for, and to the output's rows."""
    config = {"tile": (128, 128, 64), "stages": 7, "consumers": 2}  # all of shared memory
    if which == "no room":
        mod = workloads.matmul(512, 256, 64, out_dtype="float16", epilogue=RESIDUAL)
    else:
        mod, config = transposed(), {"tile": (64, 64, 16), "stages": 2}
    sch = s_tir.Schedule(mod)
    hs.matmul(sch, "C", hs.MatmulConfig(**config))
    text = str(capture.lookup(tvm.compile(sch.mod, target=H200)).source)
    assert "residual_map" not in text
    assert "D_map" not in text


def transposed():
    """Return an output whose rows, the product's columns, are no multiple of 16 bytes."""
    a, b, c = product_of(36, 64, 16)
    residual = te.placeholder((36, 64), "float16", name="residual")
    total = te.compute((36, 64), lambda i, j: c[i, j] + residual[i, j].astype("float32"), name="E")
    d = te.compute((64, 36), lambda j, i: total[i, j].astype("float16"), name="D")
    return module_of(a, b, residual, d)
