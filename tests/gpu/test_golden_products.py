"""Hand-written products on a GPU: cp.async and mma.sync, TMA store, A from registers, fp8.

The simulator finds these kernels clean (tests/seeded); here the chip runs them ten times each.
Operands and scales are such that every sum is exact.
"""

from __future__ import annotations

import numpy as np
import pytest
import tvm

from tests.seeded.families.products import AMPERE, FP8, FP8_E5M2, MIXED, TMA_STORE

pytestmark = pytest.mark.gpu

SIZES = {  # m, n, k: ragged, with a K tail; whole tiles; less than one tile and one K step
    "ragged": {"m": 1001, "n": 520, "k": 720},
    "whole": {"m": 1024, "n": 512, "k": 2048},
    "small": {"m": 5, "n": 8, "k": 16},
}
GOLDEN = {g.name: g for g in (AMPERE, TMA_STORE, MIXED, FP8, FP8_E5M2)}


def on_device(array: np.ndarray) -> tvm.runtime.Tensor:
    return tvm.runtime.tensor(array, device=tvm.cuda(0))


@pytest.mark.parametrize("stages", [2, 4])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", GOLDEN)
def test_agrees_with_float64(name, size, stages):
    golden = GOLDEN[name]
    grid = {"grid": 132} if golden is TMA_STORE else {}
    options = {**golden.options, **SIZES[size], **grid, "stages": stages, "seed": 3}
    kernel = golden.make(None, **options)
    target = tvm.target.Target({"kind": "cuda", "arch": "sm_90a"}, host={"kind": "llvm"})
    # views of shared memory keep their types
    with tvm.transform.PassContext(disabled_pass=["tirx.StorageRewrite"]):
        run = tvm.compile(tvm.IRModule({"main": kernel.func}), target=target, tir_pipeline="s_tir")[
            "main"
        ]
    (buffer,) = [b for b in kernel.func.params if b.name == "C"]
    poison = np.full([int(x) for x in buffer.ty.shape], np.nan, str(buffer.ty.dtype.dtype))
    inputs = {n: on_device(array) for n, array in kernel.inputs.items()}
    for _ in range(10):
        out = on_device(poison)
        run(*(out if b.name == "C" else inputs[b.name] for b in kernel.func.params))
        tvm.cuda(0).sync()
        np.testing.assert_array_equal(out.numpy().astype("float64"), kernel.expected["C"])
    for n, array in kernel.inputs.items():
        after = inputs[n].numpy()
        assert after.tobytes() == array.tobytes(), n
