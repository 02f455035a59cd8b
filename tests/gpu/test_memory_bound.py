"""Elementwise kernels and reductions of rows, on a GPU."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import s_tir, te

from tvm_hopper import ir, schedule as hs
from tvm_hopper.schedule.memory_bound import nests
from tvm_hopper.testing import memory_bound

pytestmark = pytest.mark.gpu

torch = pytest.importorskip("torch")

POISON = 12345.0
TOLERANCE = {"float32": 2e-5, "float16": 2e-3, "bfloat16": 2e-2}
SHAPES = [(64, 4096), (1000, 1001), (33, 96), (3, 32768), (1, 2)]
COLUMN_TENSORS = {"rms_norm": (1,), "add_rms_norm": (2,), "layer_norm": (1, 2), "scale_shift": (2,)}
COUNTS = {
    "rms_norm": 2,
    "add_rms_norm": 3,
    "layer_norm": 3,
    "gelu_mul": 2,
    "silu_mul": 2,
    "scale_shift": 3,
    "sum_and_difference": 2,
}


@pytest.fixture(scope="module", autouse=True)
def _gpu():
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("no GPU of compute capability 9.0")


def inputs_of(name: str, rows: int, columns: int, dtype: str) -> list:
    found = []
    for number in range(COUNTS.get(name, 1)):
        shape = (columns,) if number in COLUMN_TENSORS.get(name, ()) else (rows, columns)
        if name == "scale_shift" and number == 1:
            shape = (rows,)
        found.append(torch.randn(shape, device="cuda").to(getattr(torch, dtype)))
    return found


def build(name: str, rows: int, columns: int, dtype: str, config=None):
    kinds = {**memory_bound.ROW_REDUCTIONS, **memory_bound.POINTWISE}
    sch = s_tir.Schedule(kinds[name](rows, columns, dtype))
    helper = hs.row_reduction if name in memory_bound.ROW_REDUCTIONS else hs.pointwise
    helper(sch, config=config)
    return tvm.compile(sch.mod, target="nvidia/nvidia-h200")["main"], sch.mod["main"].params


def poisoned(buffer) -> tuple:
    """Make an output inside of a longer array, all of it poison."""
    shape = [int(x) for x in buffer.shape]
    margin, count = 64, int(np.prod(shape))
    kind = getattr(torch, ir.dtype_of(buffer))
    whole = torch.full((count + 2 * margin,), POISON, device="cuda").to(kind)
    return whole, whole[margin : margin + count].view(shape)


def check(name: str, rows: int, columns: int, dtype: str, config=None) -> None:
    """Run a kernel three times on poisoned outputs; compare with float64."""
    run, params = build(name, rows, columns, dtype, config)
    inputs = inputs_of(name, rows, columns, dtype)
    outputs = [poisoned(x) for x in params[len(inputs) :]]
    exact = [x.double().cpu().numpy() for x in inputs]
    wanted = memory_bound.reference(name, exact, dtype)
    for _ in range(3):
        for whole, _out in outputs:
            whole.fill_(POISON)
        run(*inputs, *(out for _, out in outputs))
        torch.cuda.synchronize()
        for (whole, out), want in zip(outputs, wanted, strict=True):
            got = out.double().cpu().numpy()
            scale = np.abs(want) + np.abs(want).mean() / 10 + 1e-6
            assert np.all(np.abs(got - want) / scale < TOLERANCE[dtype])  # what is no number is not
            assert bool((whole[:64] == whole[0]).all() and (whole[-64:] == whole[0]).all())


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", memory_bound.ROW_REDUCTIONS)
def test_row_reductions(name, shape):
    check(name, *shape, "bfloat16")


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", memory_bound.POINTWISE)
def test_pointwise(name, shape):
    check(name, *shape, "bfloat16")


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("name", ["softmax", "layer_norm", "gelu_mul"])
def test_types(name, dtype):
    check(name, 100, 1000, dtype)


@pytest.mark.parametrize(("threads", "rows"), [(4, 32), (32, 4), (64, 2), (96, 1), (1024, 1)])
def test_threads_of_a_row(threads, rows):
    check(
        "softmax",
        101,
        4096 if threads > 4 else 64,
        "bfloat16",
        hs.RowReductionConfig(threads, rows),
    )


@pytest.mark.parametrize(
    "config",
    [
        hs.RowReductionConfig(512, reload=True, recompute=True, blocks=2, hint=True),
        hs.RowReductionConfig(256, blocks=3, hint=True),
        hs.RowReductionConfig(256, chunks=2, hint=True),
    ],
    ids=["loaded again", "in registers", "streamed"],
)
@pytest.mark.parametrize("name", ["rms_norm", "layer_norm", "softmax", "row_sum"])
def test_hints_and_rows_that_are_loaded_more_than_once(name, config):
    check(name, 70, 16384, "bfloat16", config)
    check(name, 5, 16392, "float32", config)


@pytest.mark.parametrize(
    ("name", "rows", "columns", "dtype", "config"),
    [
        ("rms_norm", 4098, 4096, "bfloat16", hs.RowReductionConfig(hint=True)),
        ("add_rms_norm", 1002, 8192, "float32", hs.RowReductionConfig(hint=True)),
        ("layer_norm", 801, 32768, "float16", hs.RowReductionConfig(hint=True)),
        ("layer_norm", 1001, 1024, "bfloat16", hs.RowReductionConfig(32, 4, hint=True)),
        ("softmax", 1002, 32768, "float32", None),
    ],
)
def test_pairs_of_thread_blocks_and_the_end_of_a_result(
    monkeypatch, name, rows, columns, dtype, config
):
    monkeypatch.setattr(nests, "kept_bytes", lambda _: 1 << 20)
    check(name, rows, columns, dtype, config)


@pytest.mark.parametrize("name", ["rms_norm", "softmax", "layer_norm", "add_rms_norm"])
def test_rows_that_no_thread_block_holds(name):
    check(name, 3, 262144, "bfloat16")


@pytest.mark.parametrize("columns", [16384, 20001, 40008])
@pytest.mark.parametrize(
    "config",
    [
        hs.RowReductionConfig(256, 1, cluster=2),
        hs.RowReductionConfig(512, 1, cluster=4, reload=True, blocks=2, hint=True),
        hs.RowReductionConfig(128, 2, cluster=8, hint=True),
    ],
    ids=["2", "4, loaded again", "8, of two rows"],
)
@pytest.mark.parametrize("name", ["rms_norm", "layer_norm", "softmax", "row_sum"])
def test_rows_that_a_cluster_shares(name, config, columns):
    half = "float16" if name == "layer_norm" else "bfloat16"  # small for a softmax of such rows
    check(name, 301, columns, half, config)


@pytest.mark.parametrize("columns", [16384, 40008])
@pytest.mark.parametrize(
    "config",
    [
        hs.RowReductionConfig(512, 1, chunks=2, stage=True, hint=True),
        hs.RowReductionConfig(256, 1, chunks=2, stage=True, cluster=4, hint=True),
        hs.RowReductionConfig(128, 2, chunks=1, stage=True, cluster=8),
        hs.RowReductionConfig(64, 4, chunks=1, stage=True, preload=True, cluster=8, hint=True),
    ],
    ids=["alone", "4", "8, of two rows", "8, of four rows and what they share"],
)
@pytest.mark.parametrize("name", ["rms_norm", "layer_norm", "softmax", "row_sum"])
def test_rows_that_wait_in_shared_memory(name, config, columns):
    check(name, 1001, columns, "bfloat16", config)


def test_rows_of_float32_that_a_cluster_shares():
    check("layer_norm", 1000, 65536, "float32")
    check("softmax", 130, 131072, "float32", hs.RowReductionConfig(512, 1, cluster=16))


def test_many_turns_of_a_cluster_give_the_same_bits():
    run, _ = build("softmax", 4096, 65536, "bfloat16", hs.RowReductionConfig(512, 1, cluster=8))
    x = torch.randn((4096, 65536), device="cuda").bfloat16()
    first, again = torch.empty_like(x), torch.empty_like(x)
    run(x, first)
    for _ in range(20):
        again.fill_(POISON)
        run(x, again)
        assert torch.equal(first, again)


@pytest.mark.parametrize(
    ("name", "rows", "columns", "dtype", "config"),
    [
        ("layer_norm", 151, 131072, "bfloat16", {"threads": 256, "cluster": 8, "persistent": 15}),
        ("layer_norm", 51, 262144, "float16", {"threads": 256, "cluster": 16, "persistent": 7}),
        ("layer_norm", 401, 32768, "float32", {"threads": 256, "cluster": 4, "persistent": 30}),
        ("layer_norm", 99, 131072, "bfloat16", {"cluster": 8, "persistent": 15, "reload": True}),
        ("rms_norm", 131, 131072, "bfloat16", {"threads": 512, "cluster": 8, "persistent": 15}),
    ],
    ids=str,
)
def test_what_rows_share_stays_in_registers(name, rows, columns, dtype, config):
    """Many turns of clusters, the last ones without a row for each."""
    given = hs.RowReductionConfig(**{"stage": True, "ahead": 2, "reload": False, **config})
    check(name, rows, columns, dtype, given)
    run, _ = build(name, 16 * rows, columns, dtype, given)
    inputs = inputs_of(name, 16 * rows, columns, dtype)
    first, again = torch.empty_like(inputs[0]), torch.empty_like(inputs[0])
    run(*inputs, first)
    for _ in range(10):
        again.fill_(POISON)
        run(*inputs, again)
        assert torch.equal(first, again)


@pytest.mark.parametrize("shape", [(128, 64), (1024, 4096)], ids=str)
def test_transposed_tensors(shape):
    n, m = shape
    x, z = (te.placeholder(s, "bfloat16", name=c) for s, c in (((m, n), "X"), ((n, m), "Z")))
    y = te.compute((n, m), lambda i, j: x[j, i] + z[i, j], name="Y")
    func = te.create_prim_func([x, z, y]).with_attr("global_symbol", "main")
    sch = s_tir.Schedule(tvm.IRModule({"main": func}))
    hs.pointwise(sch)
    run = tvm.compile(sch.mod, target="nvidia/nvidia-h200")["main"]
    one, two = (torch.randn(s, device="cuda").bfloat16() for s in ((m, n), (n, m)))
    whole, out = poisoned(func.params[2])
    run(one, two, out)
    assert torch.equal(out, one.t() + two)
    assert bool((whole[:64] == whole[0]).all() and (whole[-64:] == whole[0]).all())


def test_hinted_elements():
    check("gelu_mul", 33, 4104, "bfloat16", hs.PointwiseConfig(hint=True))
    check("sum_and_difference", 7, 101, "float32", hs.PointwiseConfig(hint=True))


@pytest.mark.parametrize("rows", [33, 64])
def test_thread_blocks_that_begin_together(rows):
    config = hs.PointwiseConfig(threads=1024, hint=True, together=4)
    check("silu_mul", rows, 4104, "bfloat16", config)
    check("gelu_mul", rows, 4104, "float16", config)


def test_a_result_of_which_l2_keeps_the_end():
    rows, columns = 36901, 4104  # 289 MiB, the last thread block has elements left over
    run, _ = build("gelu_mul", rows, columns, "bfloat16")
    x, z = inputs_of("gelu_mul", rows, columns, "bfloat16")
    y = torch.full_like(x, POISON)
    run(x, z, y)
    for part in (slice(0, 64), slice(rows // 2, rows // 2 + 64), slice(rows - 64, rows)):
        want = torch.nn.functional.gelu(x[part].double()) * z[part].double()
        scale = want.abs() + want.abs().mean() / 10
        assert bool(((y[part].double() - want).abs() < TOLERANCE["bfloat16"] * scale).all())
    assert not bool((y == POISON).any())


def test_more_than_32_bits_count():
    rows, columns = (1 << 16) + 1, 1 << 15
    run, _ = build("copy", rows, columns, "bfloat16")
    x = torch.zeros((rows, columns), device="cuda", dtype=torch.bfloat16)
    x[-1] = 3
    x[0] = 2
    y = torch.full_like(x, POISON)
    run(x, y)
    assert torch.equal(x, y)


def test_rows_that_are_no_numbers():
    run, _ = build("softmax", 6, 512, "float32")
    x = torch.randn((6, 512), device="cuda")
    x[1, 7] = float("nan")
    x[2, 3] = float("inf")
    x[3, ::2] = float("-inf")
    y = torch.full_like(x, POISON)
    run(x, y)
    want = torch.softmax(x.double(), -1)
    for row in (0, 3, 4, 5):
        torch.testing.assert_close(y[row].double(), want[row], rtol=1e-5, atol=1e-7)
    assert bool(torch.isnan(y[1]).any())
    assert bool(torch.isnan(y[2]).any())
