"""The pass list, in stages: the table of contents of the lowering.

A stage runs at one of four places of TVM's own list (`pipeline/passes.py`). The kernel is correct
at each stage boundary, if slower, when the passes of `REALISING` follow
(`tests/sim_kernels/test_prefixes.py`). The list may not be cut inside a stage.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from tvm import tirx
from tvm.ir.transform import Pass

from tvm_hopper.requests.bodies import asks_for_copies, has_rows
from tvm_hopper.requests.keys import PREFIX

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

    - `name`: unique.
    - `place`: where in TVM's list it runs: "early", on scheduled functions; "hook", where regions
      are exact and blocks still exist; "late", on flat buffers; "host", after TVM's last pass.
    - `leaves`: what the kernel is like after it.
    - `passes`: makers of the passes, in order.
    - `when`: whether a function takes the stage; one that does not never meets its passes.
    """

    name: str
    place: Place
    leaves: str
    passes: tuple[Callable[[], Pass], ...]
    when: Callable[[tirx.PrimFunc], bool] | None = None


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
            # before anything is noted of a kernel: one becomes two
            split_k.MakeSplitKKernels,
            prepare.RecordConfiguration,  # for `explain` alone
            prepare.CompactTiles,  # what TVM sized for all threads or not at all
            # before any copy is looked at: its condition is part of it
            prepare.PropagateTileGuards,
            # the passes below read plain indices of compact buffers
            mma_sync.LowerMmaSync,  # from here on vectors and registers of a lane
        ),
    ),
    Stage(
        "rows",
        "hook",
        "vectors of a thread's own elements; a row's later loads on their way",
        (
            # a thread without rows has its sums' initial values, too
            memory_bound.HoistReductionInits,
            # needs whole loops over parts of rows, without split tails
            memory_bound.FuseOnlineSoftmax,
            memory_bound.PrefetchRows,  # what a turn loads is a block yet, with its condition
            # while a thread's elements are a loop, and conditions simple
            memory_bound.VectorizeAccesses,
        ),
        has_rows,
    ),
    Stage(
        "functions",
        "hook",
        "functions of types that CUDA has them for, in few instructions",
        (math.LowerFloatMath,),  # each element's value stands once, its register not yet
    ),
    Stage(
        "reductions",
        "hook",
        "reductions across threads and clusters as shuffles, barriers and st.async",
        (
            reductions.ReduceAcrossThreads,  # stock passes reduce by two barriers, and only warps
            # what a turn sends and waits for is in it, and no copy is yet
            memory_bound.PipelineRowLoop,  # a turn is one condition and one wait for its cluster
        ),
        has_rows,
    ),
    Stage(
        "vectors",
        "hook",
        "vectors that CUDA can print, inner pipelines apart",
        (
            prepare.ExpandInnerPipelines,  # stages count the expanded statements
            legalize.LegalizeVectors,  # at most 16 bytes, which the swizzle keeps whole
            # row pointers follow their tile from here on
            prepare.IndexRowPointers,
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
        asks_for_copies,
    ),
    Stage(
        "instructions",
        "hook",
        "products and copies as asynchronous operations that nothing waits for",
        (
            wgmma.LowerWgmma,  # the accumulator goes to registers, rows and columns to threads
            prepare.FuseThreadAxes,  # roles and elections number the threads along one axis
            # copies become boxes of a tensor map, without a barrier yet
            copies.LowerAsyncCopies,
            split_k.LowerSplitK,  # before trips are counted: each block of a cluster has its own
        ),
        asks_for_copies,
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
            # the numbers of trips are final, who gives slots back is known
            pipeline.ExpandPipeline,  # where there is no producer, loads run ahead in the loop
        ),
        asks_for_copies,
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
        asks_for_copies,
    ),
    Stage(
        "launch",
        "hook",
        "final accesses and loops, limits, hints, early launches; no request is left",
        (
            # WGMMA waits are placed
            wgmma.OverlapEpilogueLoads,
            mma_sync.PairFragmentStores,  # pointers are asked for by no pass below
            launch.WidenIndices,  # accesses are final: large tensors are indexed by 64 bits
            # threads and thread blocks are final, and clusters that share something
            launch.PlaceThreadBlocks,
            launch.RecordModelChoice,  # no later pass reads the mark of such a kernel
            launch.EnableProgrammaticLaunch,  # vectors are loads yet, and stand in their order
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
            # TVM takes threadIdx.x for a warp where buffers belong to one
            mma_sync.LowerWarpMemory,  # TVM's own leaves whole fragments to each of its lanes
            # pipelines are apart, and TVM's barriers not placed yet
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
            launch.AllocateWorkspace,  # what lies between two kernels outlives the call
            launch.RemoveRestrict,  # TVM marks every kernel that it splits off
            launch.CheckLaunches,  # TVM's barriers stand, and what is counted says so yet
            tile_scheduling.SizePersistentGrid,  # only now is the device of a call known
            # conditions are written out; the next looks for neighbours
            legalize.UnpackHalfPairs,  # registers have their numbers, and share what is dead
            math.ForbidFmaContraction,  # no pass behind it looks for sums
            launch.AssertAlignment,  # kernels are final: which accesses are vectors is known
        ),
    ),
)
_STAGES_BY_PASS = {PREFIX + make.__name__: stage for stage in STAGES for make in stage.passes}
# Requests that TVM has no pass for: clusters, reductions in them, waits and barriers.
REALISING = (
    reductions.ReduceAcrossThreads,
    sync.InsertSyncs,
    mbarriers.LowerChannelsToMbarriers,
)


def stage_of(name: str) -> Stage | None:
    """Return the stage of a pass by its whole name, None for one of TVM's."""
    return _STAGES_BY_PASS.get(name)


def passes_at(place: Place) -> list[Pass]:
    """Return the passes at one place, in order."""
    return [make() for stage in STAGES if stage.place == place for make in stage.passes]
