"""The pass list, in stages: the table of contents of the lowering.

A stage runs at one of four places of TVM's own list (`pipeline/passes.py`). Behind each stage the
kernel computes the same, more slowly, if the passes of `REALISING` follow
(`tests/sim_kernels/test_prefixes.py`). Inside of a stage the list may not be cut.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from tvm.ir.transform import Pass

from tvm_hopper import transforms

Place = Literal["early", "hook", "late", "host"]


@dataclass(frozen=True)
class Stage:
    """Passes that belong together.

    Parameters
    ----------
    name : str
        Unique.
    place : str
        Where in TVM's list they run: "early", on functions as they are scheduled; "hook", where
        regions are exact and blocks still exist; "late", on flat buffers; "host", after TVM's last.
    leaves : str
        What holds behind them.
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
            transforms.SimplifyRegisterIndices,  # TVM sizes registers by their indices' ranges
        ),
    ),
    Stage(
        "prepare",
        "hook",
        "compact tiles and registers, plain indices, one kernel for each way of a call",
        (
            transforms.RestoreAxisNotes,  # unification left annotations on unit loops
            transforms.AskCaller,  # before anything is noted of a kernel: one becomes two
            transforms.AddAnyOrder,  # copies are requests yet: they become reductions
            transforms.NoteRows,  # for `explain` alone
            transforms.CompactTiles,  # what TVM gave no static extent, before copies look at it
            transforms.KeepConditions,  # before any copy is looked at: its condition is part of it
            transforms.ResolveBounds,  # the passes below read plain indices of compact buffers
            transforms.LoadFragments,  # from here on vectors and registers of a lane
        ),
    ),
    Stage(
        "rows",
        "hook",
        "vectors of a thread's own elements; a row's later loads on their way",
        (
            transforms.OwnRegisters,  # vectors are cut by what is left of an index: a thread's part
            transforms.HoistInitials,  # a thread without rows has its sums' initial values, too
            transforms.SumOnline,  # whole loops over parts of rows, before a tail comes apart
            transforms.ValuesAhead,  # loops that ask for rows still say so
            transforms.StageRows,  # what a turn loads is a block yet, with its condition
            transforms.PrefetchRows,  # what a turn loads is a block yet, with its condition
            transforms.SplitTails,  # of a condition on an element TVM makes a loop over all
            transforms.GatherVectors,  # while a thread's elements are a loop, and conditions simple
            transforms.DivideByRows,  # while stores still name the row that they belong to
            transforms.UnstageRows,  # the next cuts what is staged to what a thread block has of it
        ),
    ),
    Stage(
        "reductions",
        "hook",
        "reductions across threads and clusters as shuffles, barriers and st.async",
        (
            transforms.SpreadRows,  # the next asks who reduces together
            transforms.MergeMoments,  # who reduces together is known, and each sum is a call yet
            transforms.ReduceAcrossThreads,  # stock passes reduce by two barriers, and only warps
            transforms.GuardTurns,  # what a turn sends and waits for is in it, and no copy is yet
            transforms.SkewTurns,  # a turn is one condition and one wait for its cluster
        ),
    ),
    Stage(
        "vectors",
        "hook",
        "vectors and functions that CUDA can print, inner pipelines apart",
        (
            transforms.ExpandInner,  # stages count what inner pipelines come apart to
            transforms.CutVectors,  # of 16 bytes at most, which the swizzle leaves whole
            transforms.IndexRows,  # what fragments are loaded from follows its tile from here on
            transforms.WidenFunctions,  # those that stay are of types that CUDA has them for
            transforms.ShortenFunctions,  # each element's value stands once, its register not yet
        ),
    ),
    Stage(
        "copies",
        "hook",
        "each copy a loop over its tile, with a mechanism and a layout",
        (
            transforms.StageInPlace,  # whole tiles yet, in the order of the program
            transforms.HoistConditions,  # what is left of a condition a store's mechanism serves
            transforms.SelectCopies,  # dealt out to threads or not, a copy is a tile from here on
            transforms.LayoutShared,  # early: descriptors and boxes follow the panels chosen here
        ),
    ),
    Stage(
        "instructions",
        "hook",
        "products and copies as asynchronous operations that nothing waits for",
        (
            transforms.LowerMma,  # the accumulator goes to registers, rows and columns to threads
            transforms.FuseThreads,  # roles and elections number the threads along one axis
            transforms.LowerCopies,  # copies become boxes of a tensor map, without a barrier yet
            transforms.BindAcrossBlocks,  # what combines in memory is known now
            transforms.ShareSums,  # before trips are counted: each block of a cluster has its own
        ),
    ),
    Stage(
        "pipeline",
        "hook",
        "slots, roles, the order of tiles, loads that run ahead",
        (
            transforms.PlanPipeline,  # loads get slots, and trips are counted
            transforms.SpecializeWarps,  # or not: a producer, and consumers that it hands slots to
            transforms.ScheduleTiles,  # the passes above reason about plain block indices
            transforms.SkewStages,  # the numbers of trips are final, who gives slots back is known
            transforms.ExpandPipeline,  # where there is no producer, loads run ahead in the loop
        ),
    ),
    Stage(
        "barriers",
        "hook",
        "waits, fences and mbarriers: the kernel is synchronised",
        (
            transforms.OverlayShared,  # what is dead before another array lives may give it room
            transforms.InsertSyncs,  # what a role has to wait for depends on all of the above
            transforms.ShareLoads,  # last of what is right without: each block loads for itself
            transforms.LowerChannels,  # slots that are handed over become mbarriers
        ),
    ),
    Stage(
        "launch",
        "hook",
        "final accesses and loops, limits, hints, early launches; no request is left",
        (
            transforms.BesideProducts,  # where products are waited for, and what threads then do
            transforms.PairStores,  # pointers are asked for by no pass below
            transforms.WidenIndices,  # accesses are final: large tensors are indexed by 64 bits
            transforms.LimitRegisters,  # threads are final
            transforms.LaunchTogether,  # so are thread blocks, and clusters that share something
            transforms.NoteChoices,  # nobody asks for the mark of such a kernel any more
            transforms.WaitForLaunches,  # vectors are loads yet, and stand in their order
            transforms.UnrollRegisters,  # no pass below makes a loop
            transforms.HintVectors,  # vectors become instructions, which no pass above looks for
            transforms.RefuseLeftovers,  # last: what no pass acted on would fall away in silence
        ),
    ),
    Stage(
        "shared memory",
        "late",
        "one shared allocation with final offsets, registers of each lane",
        (
            transforms.SplitWarps,  # TVM takes threadIdx.x for a warp where buffers belong to one
            transforms.LowerWarpMemory,  # TVM's own leaves whole fragments to each of its lanes
            transforms.MeetBehindLoops,  # pipelines are apart, and TVM's barriers not placed yet
            transforms.MergeShared,  # TVM would overlap what copies in flight still read and write
        ),
    ),
    Stage(
        "calls",
        "host",
        "checks of arguments and launches, workspaces; kernels as they are printed",
        (
            transforms.OwnWorkspace,  # what lies between two kernels outlives the call
            transforms.LoadInOrder,  # TVM marks every kernel that it splits off
            transforms.AssertLimits,  # a launch that is too large is an error that says of what
            transforms.SkipEmpty,  # TVM's barriers stand, and what is counted says so yet
            transforms.CountBlocks,  # only now is the device of a call known
            transforms.JoinConditions,  # conditions are written out; the next looks for neighbours
            transforms.UnpackPairs,  # registers have their numbers, and share what is dead
            transforms.ForbidContraction,  # no pass behind it looks for sums
            transforms.AssertAlignment,  # kernels are final: which accesses are vectors is known
        ),
    ),
)
# What serves requests that TVM has no pass for: clusters, reductions in them, waits and barriers.
REALISING = (
    transforms.SpreadRows,
    transforms.ReduceAcrossThreads,
    transforms.InsertSyncs,
    transforms.LowerChannels,
)


def passes_at(place: Place) -> list[Pass]:
    """Return the passes at one place, in order."""
    return [make() for stage in STAGES if stage.place == place for make in stage.passes]
