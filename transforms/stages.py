"""The pass list, in stages: the table of contents of the lowering.

A stage runs at one of four places of TVM's own list (`pipeline/passes.py`). The kernel is correct
at each stage boundary, if slower, when the passes of `REALISING` follow
(`tests/sim_kernels/test_prefixes.py`). The list may not be cut inside a stage.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from tvm.ir.transform import Pass

from . import (
    copies,
    launch,
    layouts,
    legalize,
    math,
    mbarriers,
    memory_bound,
    mma_sync,
    pipeline,
    prepare,
    reductions,
    split_k,
    sync,
    tile_scheduling,
    warp_specialization,
    wgmma,
)

Place = Literal["early", "hook", "late", "host"]


@dataclass(frozen=True)
class Stage:
    """A stage of the lowering: a sequence of passes.

    Parameters
    ----------
    name : str
        Unique.
    place : str
        Where in TVM's list it runs: "early", on scheduled functions; "hook", where regions are
        exact and blocks still exist; "late", on flat buffers; "host", after TVM's last pass.
    leaves : str
        What the kernel is like after it.
    passes : tuple
        Makers of the passes, in order.
    """

    name: str
    place: Place
    leaves: str
    passes: tuple[Callable[[], Pass], ...]


STAGES = (
    Stage(
        "register indices",
        "early",
        "indices of register arrays without what their ranges decide",
        (
            prepare.SimplifyRegisterIndices,  # TVM sizes registers by their indices' ranges
        ),
    ),
    Stage(
        "prepare",
        "hook",
        "compact tiles and registers, plain indices, one kernel for each way of a call",
        (
            prepare.RestoreAxisAnnotations,  # unification left annotations on unit loops
            # before notes: one kernel becomes two
            split_k.DispatchSplitKByAllocator,
            split_k.SplitKByAtomics,  # while copies are requests: they become reductions
            prepare.RecordConfiguration,  # for `explain` alone
            prepare.CompactTiles,  # extents that TVM left open, before passes that look at copies
            # before passes that look at copies: a guard is part of a copy
            prepare.PropagateTileGuards,
            # the passes below read plain indices of compact buffers
            prepare.SimplifyIndexBounds,
            mma_sync.LowerMmaSync,  # makes vectors and registers of a lane
        ),
    ),
    Stage(
        "rows",
        "hook",
        "vectors of a thread's own elements; a row's later loads on their way",
        (
            # before vectors: they follow from a thread's part of an index
            memory_bound.PartitionRegisterArrays,
            # threads without rows need initial values, too
            memory_bound.HoistReductionInits,
            # needs whole loops over parts of rows, without split tails
            memory_bound.FuseOnlineSoftmax,
            memory_bound.PrefetchRowScalars,  # while loops still carry their row requests
            memory_bound.StageRowsInShared,  # while each load is a block with its guard
            memory_bound.PrefetchRowsToL2,  # while each load is a block with its guard
            memory_bound.SplitVectorTails,  # TVM would scalarize guarded vectors
            # while a thread's elements are a loop, and conditions simple
            memory_bound.VectorizeGathers,
            memory_bound.HoistRowReciprocals,  # while stores still name their row
            # before staged rows shrink to a thread block's part
            memory_bound.UnstageRows,
        ),
    ),
    Stage(
        "reductions",
        "hook",
        "reductions across threads and clusters as shuffles, barriers and st.async",
        (
            reductions.SplitRowsAcrossCluster,  # before reductions across threads
            # while each sum is one call
            reductions.FuseMeanAndVariance,
            reductions.ReduceAcrossThreads,  # TVM's pass takes two barriers
            # after the cluster exchange, before copies
            memory_bound.GuardRowLoop,
            memory_bound.PipelineRowLoop,  # an iteration has one guard and one cluster wait
        ),
    ),
    Stage(
        "vectors",
        "hook",
        "vectors and functions that CUDA can print, inner pipelines apart",
        (
            prepare.ExpandInnerPipelines,  # stages count the expanded statements
            legalize.LegalizeVectors,  # at most 16 bytes, which the swizzle keeps whole
            # row pointers follow their tile from here on
            prepare.IndexRowPointers,
            math.WidenNarrowFloats,  # leaves functions of types that CUDA supports
            # while each value is one expression
            math.ApproximateFunctions,
        ),
    ),
    Stage(
        "copies",
        "hook",
        "each copy a loop over its tile, with a mechanism and a layout",
        (
            copies.ReuseOperandTiles,  # while tiles are whole and in program order
            prepare.HoistStoreGuards,  # the mechanism serves the remaining guards
            # each copy is a tile from here on
            copies.SelectCopyMechanisms,
            # early: descriptors and boxes follow the panels chosen here
            layouts.SwizzleSharedTiles,
        ),
    ),
    Stage(
        "instructions",
        "hook",
        "products and copies as asynchronous operations that nothing waits for",
        (
            wgmma.LowerWgmma,  # accumulators to registers, rows and columns to threads
            prepare.FuseThreadAxes,  # roles and elect.sync number threads along one axis
            # copies become boxes of tensor maps, without mbarriers
            copies.LowerAsyncCopies,
            split_k.BindReductionLoopToGrid,  # atomic reductions are known now
            split_k.LowerSplitK,  # before iteration counts, which differ between the blocks
        ),
    ),
    Stage(
        "pipeline",
        "hook",
        "slots, roles, the order of tiles, loads that run ahead",
        (
            pipeline.PlanRingBuffers,  # assigns ring slots and counts iterations
            # producer and consumers, if requested
            warp_specialization.SpecializeWarps,
            tile_scheduling.ScheduleTiles,  # the passes above reason about plain block indices
            # iteration counts and slot releases are final
            pipeline.PipelineComputeStages,
            pipeline.ExpandPipeline,  # look-ahead without a producer
        ),
    ),
    Stage(
        "barriers",
        "hook",
        "waits, fences and mbarriers: the kernel is synchronised",
        (
            # lifetimes are final
            sync.OverlaySharedBuffers,
            sync.InsertSyncs,  # depends on all of the above
            # an optimisation: without it each block loads for itself
            tile_scheduling.MulticastLoads,
            mbarriers.LowerChannelsToMbarriers,  # full and empty mbarriers of each slot
        ),
    ),
    Stage(
        "launch",
        "hook",
        "final accesses and loops, limits, hints, early launches; no request is left",
        (
            # WGMMA waits are placed
            wgmma.OverlapEpilogueLoads,
            mma_sync.PairFragmentStores,  # no pass below looks at fragment pointers
            launch.WidenIndices,  # accesses are final
            launch.LimitRegistersForOccupancy,  # threads are final
            # needs the final grid; skips kernels that already have a cluster
            launch.FormLaunchClusters,
            launch.RecordModelChoice,  # the last reader of the mark ran before
            launch.EnableProgrammaticLaunch,  # while vectors are plain loads
            legalize.UnrollRegisterLoops,  # no pass below makes a loop
            launch.AddCacheHints,  # vectors become PTX instructions
            # last: an unlowered request is an error
            launch.RejectUnloweredRequests,
        ),
    ),
    Stage(
        "shared memory",
        "late",
        "one shared allocation with final offsets, registers of each lane",
        (
            # TVM expects a warp on threadIdx.x for buffers of scope "warp"
            mma_sync.SplitWarpAxis,
            mma_sync.LowerWarpMemory,  # TVM's own gives each lane whole fragments
            # after TVM's pipelines, before TVM's barriers
            legalize.BarrierAfterZeroTripLoops,
            # TVM would overlap arrays that copies in flight use
            sync.MergeSharedBuffers,
        ),
    ),
    Stage(
        "calls",
        "host",
        "checks of arguments and launches, workspaces; kernels as they are printed",
        (
            launch.AllocateWorkspace,  # takes workspaces from the caller's allocator
            launch.RemoveRestrict,  # TVM adds it to every kernel
            # names the extent of a launch that is too large
            launch.AssertLaunchLimits,
            launch.SkipEmptyLaunches,  # while grid extents are still expressions
            tile_scheduling.SizePersistentGrid,  # the device of the call is known on the host
            # guards are final; the next pass needs adjacent statements
            legalize.MergeAdjacentGuards,
            legalize.UnpackHalfPairs,  # registers are allocated
            math.ForbidFmaContraction,  # no pass below looks for sums
            launch.AssertAlignment,  # kernels are final: their vector widths are known
        ),
    ),
)
# Passes without which a prefix is incomplete: clusters, reductions across them, synchronisation.
REALISING = (
    reductions.SplitRowsAcrossCluster,
    reductions.ReduceAcrossThreads,
    sync.InsertSyncs,
    mbarriers.LowerChannelsToMbarriers,
)


def passes_at(place: Place) -> list[Pass]:
    """Return the passes at one place, in order."""
    return [make() for stage in STAGES if stage.place == place for make in stage.passes]
