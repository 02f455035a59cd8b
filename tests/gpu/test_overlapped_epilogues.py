"""Epilogues beside the other half's products: the same bits as behind all of them."""

from __future__ import annotations

import pytest
import tvm
from tvm import s_tir

from benchmarks import epilogues
from tvm_hopper import schedule as hs
from tvm_hopper.requests.keys import OVERLAP

pytestmark = pytest.mark.gpu

torch = pytest.importorskip("torch")

CASES = [
    (2, (2048, 1600, 512), "bias, gelu (tanh)", {"tile": (256, 160, 64), "stages": 4}),
    (4, (2000, 1608, 640), "bias, gelu (erf)", {"tile": (256, 160, 64), "stages": 4}),
    (1, (1024, 1024, 128), "none", {"tile": (256, 128, 64), "stages": 3}),
    (3, (4096, 512, 4096), "silu", {"tile": (256, 64, 64), "stages": 4, "cluster": (2, 1)}),
]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(("steps", "extents", "epilogue", "config"), CASES)
def test_the_same_bits(steps, extents, epilogue, config, dtype):
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("no GPU of compute capability 9.0")
    epilogues.register()
    m, n, k = extents
    torch.manual_seed(1)
    kind = getattr(torch, dtype)
    shapes = [(m, k), (n, k), *[(n,)] * ("bias" in epilogue)]
    given = [torch.randn(*x, device="cuda", dtype=kind) for x in shapes]
    outputs = []
    for asked in (0, steps):
        sch = s_tir.Schedule(epilogues.program(m, n, k, epilogue, dtype))
        hs.matmul(sch, "C", hs.MatmulConfig(consumers=2, persistent=-1, **config))
        with tvm.transform.PassContext(config={OVERLAP: asked}):
            kernel = tvm.compile(sch.mod, target=epilogues.TARGET)["main"]
        for _ in range(3):
            out = torch.full((m, n), float("nan"), device="cuda", dtype=kind)
            kernel(*given, out)
            outputs.append(out)
    assert not outputs[0].isnan().any()
    assert all(torch.equal(outputs[0], x) for x in outputs[1:])
