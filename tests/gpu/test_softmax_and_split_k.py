"""Hand-written softmax and split-K kernels of `tests/seeded/golden`, on a GPU, against float64."""

from __future__ import annotations

import numpy as np
import pytest
import tvm

from tests.seeded.families.memory_kernels import GOLDEN
from tests.seeded.golden import (
    softmax_block,
    softmax_cluster,
    softmax_push,
    softmax_warp,
    splitk_reduce,
)

pytestmark = pytest.mark.gpu

torch = pytest.importorskip("torch")

RUNS = 50
LARGER = {
    "warps": (softmax_warp, {"rows": 4097, "columns": 1000, "warps": 4}),
    "warps, half": (
        softmax_warp,
        {"rows": 513, "columns": 2048, "warps": 8, "dtype": "float16"},
    ),
    "CTAs": (softmax_block, {"rows": 1000, "columns": 5003, "warps": 8, "grid": 264}),
    "CTAs, half": (
        softmax_block,
        {"rows": 7, "columns": 33, "warps": 4, "grid": 3, "dtype": "float16"},
    ),
    "clusters of 4": (softmax_cluster, {"rows": 500, "columns": 10007, "warps": 8, "clusters": 64}),
    "clusters of 8": (
        softmax_cluster,
        {"rows": 100, "columns": 20000, "size": 8, "warps": 8, "clusters": 16, "by": "lanes"},
    ),
    "records by copies, 8": (
        softmax_push,
        {"by": "copy", "rows": 400, "columns": 3001, "size": 8, "clusters": 16},
    ),
    "records by stores, 8": (
        softmax_push,
        {"by": "store", "rows": 400, "columns": 3001, "size": 8, "clusters": 16},
    ),
    "200 splits, the last": (splitk_reduce, {"splits": 200, "k": 6143}),
    "200 splits, in turns": (splitk_reduce, {"splits": 200, "k": 6143, "order": "turns"}),
}


@pytest.fixture(scope="module", autouse=True)
def _gpu():
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("no GPU of compute capability 9.0")


def check(kernel) -> None:
    """Run a kernel many times, its outputs poisoned before each; compare every time."""
    target = tvm.target.Target({"kind": "cuda", "arch": "sm_90a"}, host={"kind": "llvm"})
    with tvm.transform.PassContext(disabled_pass=["tirx.StorageRewrite"]):
        built = tvm.compile(
            tvm.IRModule({"main": kernel.func}), target=target, tir_pipeline="s_tir"
        )
    start = {}
    for buffer in kernel.func.params:
        shape = [int(extent) for extent in buffer.ty.shape]
        value = kernel.inputs.get(buffer.name)
        if value is None:
            dtype = np.dtype(str(buffer.ty.dtype.dtype))
            value = np.full(int(np.prod(shape)) * dtype.itemsize, 0xFF, np.uint8)
            value = value.view(dtype).reshape(shape)
        start[buffer.name] = torch.from_numpy(value.copy()).cuda()
    for _ in range(RUNS):
        arrays = {name: tensor.clone() for name, tensor in start.items()}
        torch.cuda.synchronize()
        built["main"](*arrays.values())
        torch.cuda.synchronize()
        for name, expected in kernel.expected.items():
            got = arrays[name].cpu().numpy()
            want = expected.astype(got.dtype).astype(np.float64)
            np.testing.assert_allclose(
                got.astype(np.float64), want, rtol=kernel.tolerance, atol=0, err_msg=name
            )
        for name in set(start) - set(kernel.expected):
            assert torch.equal(arrays[name].cpu(), start[name].cpu()), name


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda golden: golden.name)
def test_golden_kernel(golden):
    check(golden.build())


@pytest.mark.parametrize("name", LARGER)
def test_larger(name):
    module, options = LARGER[name]
    check(module.build(**options))
