"""TVM's s_tir pass list of apache-tvm 0.27.0.post1, as `tvm.s_tir.pipeline` builds it.

TVM keeps its list inside a function that runs it, so nothing can be put in between.  It is written
down here; `tests/integration/test_stock_passes.py` compares it with TVM's own, pass by pass and
argument by argument, for every option that TVM's function reads.
"""

from __future__ import annotations

from tvm import s_tir, tirx
from tvm.ir.transform import Pass, PassContext

from tvm_hopper.transforms.prepare.lower_to_opaque_blocks import opaque_block_passes


def stock_passes() -> list[Pass]:
    """List TVM's own passes under the current PassContext, in order."""
    config = PassContext.current().config

    def on(option: str) -> bool:
        return bool(config.get(option, False))

    passes = [
        *opaque_block_passes(),
        s_tir.transform.InjectSoftwarePipeline(),
        s_tir.transform.TransformMmaBufferLayout(),
        s_tir.transform.LowerOpaqueBlock(),
        tirx.transform.FlattenBuffer(),
        tirx.transform.BF16ComputeLegalize(),
        tirx.transform.NarrowDataType(32),
        s_tir.transform.LoopPartition(),
        tirx.transform.VectorizeLoop(not on("tirx.disable_vectorize")),
        s_tir.transform.InjectVirtualThread(),
        s_tir.transform.InjectDoubleBuffer(),
    ]
    if not on("tirx.disable_storage_rewrite"):
        passes.append(tirx.transform.StorageRewrite())
    if on("tirx.use_async_copy"):
        passes.append(s_tir.transform.LowerAsyncDMA())
    passes += [
        s_tir.transform.HoistIfThenElse(),
        tirx.transform.UnrollLoop(),
        s_tir.transform.RenormalizeSplitPattern(),
        tirx.transform.StmtSimplify(),
        tirx.transform.RemoveNoOp(),
        s_tir.transform.RewriteUnsafeSelect(),
    ]
    if on("tirx.instrument_bound_checkers"):
        passes.append(s_tir.transform.InstrumentBoundCheckers())
    if on("tirx.s_tir.ldg32"):
        passes.append(s_tir.transform.InjectPTXLDG32(True))
    if not on("tirx.disable_cse_tir"):
        passes.append(tirx.transform.CommonSubexprElim())
    if on("tirx.instrument_lwp"):
        passes.append(s_tir.transform.InstrumentProfileIntrinsics())
    passes += [
        tirx.transform.FP8ComputeLegalize(),
        s_tir.transform.VerifyVTCMLimit(),
        s_tir.transform.LowerVtcmAlloc(),
        tirx.transform.VerifyMemory(),
        tirx.transform.AnnotateEntryFunc(),
        s_tir.transform.ThreadSync("shared"),
        s_tir.transform.ThreadSync("shared.dyn"),
        s_tir.transform.ThreadSync("warp"),
        s_tir.transform.InferFragment(),
        s_tir.transform.LowerThreadAllreduce(),
    ]
    if on("tirx.use_async_copy"):
        passes.append(s_tir.transform.InjectPTXAsyncCopy())
    if on("tirx.s_tir.ldg32"):
        passes.append(s_tir.transform.InjectPTXLDG32())
    passes += [
        s_tir.transform.MergeSharedMemoryAllocations(),
        tirx.transform.SplitHostDevice(),
        tirx.transform.MakePackedAPI(),
        tirx.transform.FP8StorageLegalize(),
        tirx.transform.BF16StorageLegalize(),
    ]
    return passes
