"""The TIR passes: one file, one pass, one test file each; `stages.py` orders them."""

if __name__ != "tvm_hopper.transforms":
    raise ImportError("transforms/ is a part of tvm_hopper: import tvm_hopper.transforms")

from .copies import (
    LowerAsyncCopies as LowerAsyncCopies,
    ReuseOperandTiles as ReuseOperandTiles,
    SelectCopyMechanisms as SelectCopyMechanisms,
)
from .inject_barrier_pipeline import InjectBarrierPipeline as InjectBarrierPipeline
from .inject_bulk_async_copy import InjectBulkAsyncCopy as InjectBulkAsyncCopy
from .inject_tma_store_groups import InjectTmaStoreGroups as InjectTmaStoreGroups
from .launch import (
    AddCacheHints as AddCacheHints,
    AllocateWorkspace as AllocateWorkspace,
    AssertAlignment as AssertAlignment,
    CheckLaunches as CheckLaunches,
    EnableProgrammaticLaunch as EnableProgrammaticLaunch,
    PlaceThreadBlocks as PlaceThreadBlocks,
    RecordModelChoice as RecordModelChoice,
    RejectUnloweredRequests as RejectUnloweredRequests,
    RemoveRestrict as RemoveRestrict,
    WidenIndices as WidenIndices,
)
from .layouts import SwizzleSharedTiles as SwizzleSharedTiles
from .legalize import (
    BarrierAfterZeroTripLoops as BarrierAfterZeroTripLoops,
    LegalizeVectors as LegalizeVectors,
    UnpackHalfPairs as UnpackHalfPairs,
    UnrollRegisterLoops as UnrollRegisterLoops,
)
from .math import ForbidFmaContraction as ForbidFmaContraction, LowerFloatMath as LowerFloatMath
from .mbarriers import LowerChannelsToMbarriers as LowerChannelsToMbarriers
from .memory_bound import (
    FuseOnlineSoftmax as FuseOnlineSoftmax,
    HoistReductionInits as HoistReductionInits,
    PipelineRowLoop as PipelineRowLoop,
    PrefetchRows as PrefetchRows,
    VectorizeAccesses as VectorizeAccesses,
)
from .mma_sync import (
    LowerMmaSync as LowerMmaSync,
    LowerWarpMemory as LowerWarpMemory,
    PairFragmentStores as PairFragmentStores,
)
from .pipeline import ExpandPipeline as ExpandPipeline, PlanRingBuffers as PlanRingBuffers
from .prepare import (
    CompactTiles as CompactTiles,
    ExpandInnerPipelines as ExpandInnerPipelines,
    FuseThreadAxes as FuseThreadAxes,
    HoistStoreGuards as HoistStoreGuards,
    IndexRowPointers as IndexRowPointers,
    LowerToOpaqueBlocks as LowerToOpaqueBlocks,
    PropagateTileGuards as PropagateTileGuards,
    RecordConfiguration as RecordConfiguration,
    RestoreAxisAnnotations as RestoreAxisAnnotations,
    SimplifyRegisterIndices as SimplifyRegisterIndices,
)
from .reductions import ReduceAcrossThreads as ReduceAcrossThreads
from .split_k import LowerSplitK as LowerSplitK, MakeSplitKKernels as MakeSplitKKernels
from .sync import (
    InsertSyncs as InsertSyncs,
    MergeSharedBuffers as MergeSharedBuffers,
    OverlaySharedBuffers as OverlaySharedBuffers,
)
from .tile_scheduling import (
    MulticastLoads as MulticastLoads,
    ScheduleTiles as ScheduleTiles,
    SizePersistentGrid as SizePersistentGrid,
)
from .warp_specialization import SpecializeWarps as SpecializeWarps
from .wgmma import LowerWgmma as LowerWgmma, OverlapEpilogueLoads as OverlapEpilogueLoads
