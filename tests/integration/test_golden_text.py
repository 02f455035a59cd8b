"""The CUDA text of two kernels, to be read: a change of it must be meant.

`pytest tests/integration/test_golden_text.py --update-golden` rewrites them.
"""

from __future__ import annotations

import tvm
from tvm import s_tir

from tvm_hopper import capture, schedule as hs
from tvm_hopper.testing import workloads


def kernel_text(mod: tvm.IRModule, block: str, config: hs.MatmulConfig) -> str:
    """Return the kernel of a build, without the helpers that TVM prints before it."""
    sch = s_tir.Schedule(mod)
    hs.matmul(sch, block, config)
    source = capture.lookup(tvm.compile(sch.mod, target="nvidia/nvidia-h200")).source
    declaration = 'extern "C" __global__'
    assert source.count(declaration) == 2  # declared, then defined
    return declaration + source.split(declaration)[-1]


def test_square_nt(golden) -> None:
    mod = workloads.matmul(4096, 4096, 4096, "NT", "float16", "float32")
    config = hs.MatmulConfig(tile=(128, 128, 64), stages=4, consumers=2)
    golden(kernel_text(mod, "C", config), "cu")


def test_symbolic_rows_with_bias_and_relu(golden) -> None:
    mod = workloads.matmul(
        "m", 1000, 264, "NN", "bfloat16", "bfloat16", epilogue=("bias_col", "relu")
    )
    config = hs.MatmulConfig(tile=(128, 128, 64), stages=3, consumers=2)
    golden(kernel_text(mod, "C", config), "cu")
