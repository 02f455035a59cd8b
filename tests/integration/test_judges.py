"""Each synchronisation instruction that is taken out of our kernel is missed by a judge.

The static check sees the IR before it is printed; the assembler's log is read after. Together they
leave nothing: what ptxas mends without a word is the static check's. That is a missing commit, and
for assemblers later than CUDA 13.0 a missing fence.
"""

from __future__ import annotations

import pytest
import tvm
from tvm import s_tir

from tvm_hopper import VerifyError, capture, ir, pipeline, schedule as hs
from tvm_hopper.cuda_build import records
from tvm_hopper.sim.tir import op_name
from tvm_hopper.static_check import require_sync
from tvm_hopper.testing import workloads

H200 = "nvidia/nvidia-h200"
OPS = (  # all but fence.mbarrier_init, which orders nothing inside one CTA after __syncthreads
    "tirx.cuda.mbarrier_wait",
    "tirx.ptx.cp_async_bulk_tensor_g2s_cluster",
    "tirx.ptx.mbarrier_arrive_expect_tx",
    "tirx.ptx.mbarrier_arrive_nocount",
    "tirx.ptx.mbarrier_init",
    "tirx.ptx.wgmma_commit_group",
    "tirx.ptx.wgmma_fence",
    "tirx.ptx.wgmma_wait_group",
    "tirx.tvm_storage_sync",
)


@pytest.fixture(scope="module")
def schedule() -> s_tir.Schedule:
    sch = s_tir.Schedule(workloads.matmul(512, 512, 512))
    hs.matmul(sch, "C", hs.MatmulConfig(tile=(128, 128, 64), stages=3, consumers=2))
    return sch


@pytest.fixture(scope="module")
def final(schedule) -> pipeline.Lowered:
    return pipeline.lower_final(schedule.mod, H200)


@pytest.fixture(scope="module")
def one_trip() -> pipeline.Lowered:
    """Lower a product whose loop over k runs once and whose registers are named by a loop."""
    sch = s_tir.Schedule(workloads.matmul(128, 128, 64))
    hs.matmul(sch, "C", hs.MatmulConfig(tile=(128, 128, 64), stages=1, consumers=1))
    return pipeline.lower_final(sch.mod, H200)


def test_the_whole_kernel_passes_both(schedule) -> None:
    built = tvm.compile(schedule.mod, target=H200)
    assert records.compiled(built).cubin
    assert capture.lookup(built).kernels == ("main_kernel",)


def check_without(final: pipeline.Lowered, op: str) -> None:
    """Run the static check on a kernel that lacks one instruction."""
    (kernel,), (host,) = final.device.functions.values(), final.host.functions.values()
    require_sync(kernel, host)

    def drop(statement: ir.Evaluate) -> ir.Evaluate:
        value = statement.value
        gone = isinstance(value, ir.Call) and op_name(value) == op
        return tvm.tirx.Evaluate(0) if gone else statement

    broken = kernel.with_body(ir.replace(kernel.body, ir.Evaluate, drop))
    assert len(broken.script()) < len(kernel.script())
    require_sync(broken, host)


@pytest.mark.parametrize("op", OPS)
def test_a_removed_instruction_is_missed(final, op: str) -> None:
    with pytest.raises(VerifyError, match="synchronisation of main_kernel: found"):
        check_without(final, op)


@pytest.mark.parametrize(
    ("op", "rule"),
    [
        ("commit_group", "WGMMA_REG_INFLIGHT"),
        ("fence", "WGMMA_FENCE_MISSING"),
        ("wait_group", "WGMMA_REG_INFLIGHT"),
    ],
)
def test_registers_that_a_loop_names_are_followed(one_trip, op: str, rule: str) -> None:
    with pytest.raises(VerifyError, match=rule):
        check_without(one_trip, f"tirx.ptx.wgmma_{op}")
