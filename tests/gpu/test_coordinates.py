"""Where a box may begin: what `facts.tensor_map.COORDINATE_ALIGNMENT` says, on the chip.

An illegal instruction ends the process's context, so each start is tried in one of its own.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.gpu

PROGRAM = """
import sys
import torch, tvm, tvm_ffi
from tvm import s_tir
from tvm.script import tirx as T
from tvm_hopper import schedule as hs
from tvm_hopper.transforms.mechanisms import tma_plan
from tvm_hopper.schedule.products import views

start, swizzle = map(int, sys.argv[1:])
tma_plan._check_start = views._check_start = lambda *_: None

@T.prim_func(s_tir=True)
def main(A: T.Buffer((64, 256), "float16"), B: T.Buffer((64, 256), "float16"),
         C: T.Buffer((64, 64), "float32")):
    for i, j, k in T.grid(64, 64, 128):
        with T.sblock("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = T.float32(0)
            C[vi, vj] = C[vi, vj] + T.Cast("float32", A[vi, vk + start]) * T.Cast(
                "float32", B[vj, vk]
            )

sch = s_tir.Schedule(tvm.IRModule({"main": main.with_attr("global_symbol", "main")}))
hs.matmul(sch, "C", hs.MatmulConfig((64, 64, 64), stages=2, consumers=1, swizzle=swizzle))
ex = tvm.compile(sch.mod, target="nvidia/nvidia-h200")
a, b = (torch.randint(-2, 3, (64, 256), device="cuda").half() for _ in range(2))
c = torch.full((64, 64), -77.0, device="cuda")
ex["main"](*map(tvm_ffi.from_dlpack, (a, b, c)))
torch.cuda.synchronize()
assert torch.equal(c, a[:, start : start + 128].float() @ b[:, :128].float().t())
print("right")
"""


@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
@pytest.mark.parametrize(("start", "legal"), [(0, True), (8, True), (4, False), (3, False)])
def test_a_box_begins_at_a_multiple_of_16_bytes(
    start: int, legal: bool, swizzle: int, tmp_path: Path
) -> None:
    script = tmp_path / "probe.py"  # TVMScript is read from a file
    script.write_text(PROGRAM)
    command = [sys.executable, "-W", "ignore", str(script), str(start), str(swizzle)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if legal:
        assert "right" in done.stdout, done.stderr[-2000:]
    else:
        assert "illegal instruction" in done.stderr, done.stdout + done.stderr[-2000:]
