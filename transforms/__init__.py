"""The TIR passes: one file, one pass, one test file each; `stages.py` orders them."""

if __name__ != "tvm_hopper.transforms":
    raise ImportError("transforms/ is a part of tvm_hopper: import tvm_hopper.transforms")

from .copies import (
    LowerAsyncCopies as LowerAsyncCopies,
)
from .copies import (
    ReuseOperandTiles as ReuseOperandTiles,
)
from .copies import (
    SelectCopyMechanisms as SelectCopyMechanisms,
)
from .inject_barrier_pipeline import InjectBarrierPipeline as InjectBarrierPipeline
from .inject_bulk_async_copy import InjectBulkAsyncCopy as InjectBulkAsyncCopy
from .inject_tma_store_groups import InjectTmaStoreGroups as InjectTmaStoreGroups
from .launch import (
    AddCacheHints as AddCacheHints,
)
from .launch import (
    AllocateWorkspace as AllocateWorkspace,
)
from .launch import (
    AssertAlignment as AssertAlignment,
)
from .launch import (
    CheckLaunches as CheckLaunches,
)
from .launch import (
    EnableProgrammaticLaunch as EnableProgrammaticLaunch,
)
from .launch import (
    PlaceThreadBlocks as PlaceThreadBlocks,
)
from .launch import (
    RecordModelChoice as RecordModelChoice,
)
from .launch import (
    RejectUnloweredRequests as RejectUnloweredRequests,
)
from .launch import (
    RemoveRestrict as RemoveRestrict,
)
from .launch import (
    WidenIndices as WidenIndices,
)
from .layouts import (
    SwizzleSharedTiles as SwizzleSharedTiles,
)
from .legalize import (
    BarrierAfterZeroTripLoops as BarrierAfterZeroTripLoops,
)
from .legalize import (
    LegalizeVectors as LegalizeVectors,
)
from .legalize import (
    UnpackHalfPairs as UnpackHalfPairs,
)
from .legalize import (
    UnrollRegisterLoops as UnrollRegisterLoops,
)
from .math import (
    ForbidFmaContraction as ForbidFmaContraction,
)
from .math import (
    LowerFloatMath as LowerFloatMath,
)
from .mbarriers import (
    LowerChannelsToMbarriers as LowerChannelsToMbarriers,
)
from .memory_bound import (
    FuseOnlineSoftmax as FuseOnlineSoftmax,
)
from .memory_bound import (
    HoistReductionInits as HoistReductionInits,
)
from .memory_bound import (
    PipelineRowLoop as PipelineRowLoop,
)
from .memory_bound import (
    PrefetchRows as PrefetchRows,
)
from .memory_bound import (
    VectorizeAccesses as VectorizeAccesses,
)
from .mma_sync import (
    LowerMmaSync as LowerMmaSync,
)
from .mma_sync import (
    LowerWarpMemory as LowerWarpMemory,
)
from .mma_sync import (
    PairFragmentStores as PairFragmentStores,
)
from .pipeline import (
    ExpandPipeline as ExpandPipeline,
)
from .pipeline import PlanRingBuffers as PlanRingBuffers
from .prepare import (
    CompactTiles as CompactTiles,
)
from .prepare import (
    ExpandInnerPipelines as ExpandInnerPipelines,
)
from .prepare import (
    FuseThreadAxes as FuseThreadAxes,
)
from .prepare import (
    HoistStoreGuards as HoistStoreGuards,
)
from .prepare import (
    IndexRowPointers as IndexRowPointers,
)
from .prepare import (
    LowerToOpaqueBlocks as LowerToOpaqueBlocks,
)
from .prepare import (
    PropagateTileGuards as PropagateTileGuards,
)
from .prepare import (
    RecordConfiguration as RecordConfiguration,
)
from .prepare import (
    RestoreAxisAnnotations as RestoreAxisAnnotations,
)
from .prepare import (
    SimplifyRegisterIndices as SimplifyRegisterIndices,
)
from .reductions import (
    ReduceAcrossThreads as ReduceAcrossThreads,
)
from .split_k import (
    LowerSplitK as LowerSplitK,
)
from .split_k import (
    MakeSplitKKernels as MakeSplitKKernels,
)
from .sync import (
    InsertSyncs as InsertSyncs,
)
from .sync import (
    MergeSharedBuffers as MergeSharedBuffers,
)
from .sync import (
    OverlaySharedBuffers as OverlaySharedBuffers,
)
from .tile_scheduling import (
    MulticastLoads as MulticastLoads,
)
from .tile_scheduling import (
    ScheduleTiles as ScheduleTiles,
)
from .tile_scheduling import (
    SizePersistentGrid as SizePersistentGrid,
)
from .warp_specialization import (
    SpecializeWarps as SpecializeWarps,
)
from .wgmma import (
    LowerWgmma as LowerWgmma,
)
from .wgmma import (
    OverlapEpilogueLoads as OverlapEpilogueLoads,
)
