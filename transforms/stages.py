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

from .across_cluster import ShareSums
from .add_any_order import AddAnyOrder
from .ask_caller import AskCaller
from .assert_alignment import AssertAlignment
from .assert_limits import AssertLimits
from .beside_products import BesideProducts
from .bind_across_blocks import BindAcrossBlocks
from .compact_tiles import CompactTiles
from .count_blocks import CountBlocks
from .cut_vectors import CutVectors
from .divide_by_rows import DivideByRows
from .expand_inner import ExpandInner
from .expand_pipeline import ExpandPipeline
from .forbid_contraction import ForbidContraction
from .fuse_threads import FuseThreads
from .gather_vectors import GatherVectors
from .guard_turns import GuardTurns
from .hint_vectors import HintVectors
from .hoist_conditions import HoistConditions
from .hoist_initials import HoistInitials
from .index_rows import IndexRows
from .insert_syncs import InsertSyncs
from .join_conditions import JoinConditions
from .keep_conditions import KeepConditions
from .launch_together import LaunchTogether
from .layout_shared import LayoutShared
from .limit_registers import LimitRegisters
from .load_fragments import LoadFragments
from .load_in_order import LoadInOrder
from .lower_channels import LowerChannels
from .lower_copies import LowerCopies
from .lower_mma import LowerMma
from .lower_warp_memory import LowerWarpMemory
from .meet_behind_loops import MeetBehindLoops
from .merge_moments import MergeMoments
from .merge_shared import MergeShared
from .note_choices import NoteChoices
from .note_rows import NoteRows
from .overlay_shared import OverlayShared
from .own_registers import OwnRegisters
from .own_workspace import OwnWorkspace
from .pair_stores import PairStores
from .plan_pipeline import PlanPipeline
from .prefetch_rows import PrefetchRows
from .reduce_across_threads import ReduceAcrossThreads
from .refuse_leftovers import RefuseLeftovers
from .resolve_bounds import ResolveBounds
from .restore_axis_notes import RestoreAxisNotes
from .schedule_tiles import ScheduleTiles
from .select_copies import SelectCopies
from .share_loads import ShareLoads
from .shorten_functions import ShortenFunctions
from .simplify_register_indices import SimplifyRegisterIndices
from .skew_stages import SkewStages
from .skew_turns import SkewTurns
from .skip_empty import SkipEmpty
from .specialize_warps import SpecializeWarps
from .split_tails import SplitTails
from .split_warps import SplitWarps
from .spread_rows import SpreadRows
from .stage_in_place import StageInPlace
from .stage_rows import StageRows
from .sum_online import SumOnline
from .unpack_pairs import UnpackPairs
from .unroll_registers import UnrollRegisters
from .unstage_rows import UnstageRows
from .values_ahead import ValuesAhead
from .wait_for_launches import WaitForLaunches
from .widen_functions import WidenFunctions
from .widen_indices import WidenIndices

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
            SimplifyRegisterIndices,  # TVM sizes registers by their indices' ranges
        ),
    ),
    Stage(
        "prepare",
        "hook",
        "compact tiles and registers, plain indices, one kernel for each way of a call",
        (
            RestoreAxisNotes,  # unification left annotations of bound loops on unit loops
            AskCaller,  # before anything is noted of a kernel: one becomes two
            AddAnyOrder,  # copies are requests yet: they become reductions
            NoteRows,  # for `explain` alone
            CompactTiles,  # what TVM gave no static extent, before copies look at it
            KeepConditions,  # before any copy is looked at: its condition is part of it
            ResolveBounds,  # the passes below read plain indices of compact buffers
            LoadFragments,  # vectors and registers of a lane from here on, as others have
        ),
    ),
    Stage(
        "rows",
        "hook",
        "vectors of a thread's own elements; a row's later loads on their way",
        (
            OwnRegisters,  # vectors are cut by what is left of an index: a thread's part
            HoistInitials,  # a thread without rows has its sums' initial values, too
            SumOnline,  # whole loops over parts of rows, before a tail comes apart
            ValuesAhead,  # loops that ask for rows still say so
            StageRows,  # what a turn loads is a block yet, with its condition
            PrefetchRows,  # what a turn loads is a block yet, with its condition
            SplitTails,  # of a condition on an element TVM makes a loop over all
            GatherVectors,  # while a thread's elements are a loop, and conditions simple
            DivideByRows,  # while stores still name the row that they belong to
            UnstageRows,  # the next cuts what is staged to what a thread block has of it
        ),
    ),
    Stage(
        "reductions",
        "hook",
        "reductions across threads and clusters as shuffles, barriers and st.async",
        (
            SpreadRows,  # registers are a thread's own; the next asks who reduces together
            MergeMoments,  # who reduces together is known, and each sum is a call yet
            ReduceAcrossThreads,  # stock passes reduce by two barriers, and only warps
            GuardTurns,  # what a turn sends and waits for is in it, and no copy is yet
            SkewTurns,  # a turn is one condition and one wait for its cluster
        ),
    ),
    Stage(
        "vectors",
        "hook",
        "vectors and functions that CUDA can print, inner pipelines apart",
        (
            ExpandInner,  # a loop's stages count what pipelines inside of it come apart to
            CutVectors,  # of 16 bytes at most, which the swizzle leaves whole
            IndexRows,  # what fragments are loaded from follows its tile from here on
            WidenFunctions,  # those that stay are of types that CUDA has them for
            ShortenFunctions,  # each element's value stands once, its register not yet
        ),
    ),
    Stage(
        "copies",
        "hook",
        "each copy a loop over its tile, with a mechanism and a layout",
        (
            StageInPlace,  # whole tiles yet, in the order of the program
            HoistConditions,  # what is left of a condition a store's mechanism serves
            SelectCopies,  # dealt out to threads or not, a copy is a tile from here on
            LayoutShared,  # early: descriptors and boxes follow the panels chosen here
        ),
    ),
    Stage(
        "instructions",
        "hook",
        "products and copies as asynchronous operations that nothing waits for",
        (
            LowerMma,  # the accumulator goes to registers, rows and columns to threads
            FuseThreads,  # roles and elections number the threads along one axis
            LowerCopies,  # copies become boxes of a tensor map, without a barrier yet
            BindAcrossBlocks,  # what combines in memory is known now
            ShareSums,  # before trips are counted: each block of a cluster has its own
        ),
    ),
    Stage(
        "pipeline",
        "hook",
        "slots, roles, the order of tiles, loads that run ahead",
        (
            PlanPipeline,  # loads get slots, and trips are counted
            SpecializeWarps,  # or not: a producer, and consumers that it hands slots to
            ScheduleTiles,  # the passes above reason about plain block indices
            SkewStages,  # the numbers of trips are final, who gives slots back is known
            ExpandPipeline,  # where there is no producer, loads run ahead in the loop
        ),
    ),
    Stage(
        "barriers",
        "hook",
        "waits, fences and mbarriers: the kernel is synchronised",
        (
            OverlayShared,  # what is dead before another array lives may give it room
            InsertSyncs,  # what a role has to wait for depends on all of the above
            ShareLoads,  # last of what is right without: each block loads for itself
            LowerChannels,  # slots that are handed over become mbarriers
        ),
    ),
    Stage(
        "launch",
        "hook",
        "final accesses and loops, limits, hints, early launches; no request is left",
        (
            BesideProducts,  # where products are waited for, and what threads then do
            PairStores,  # pointers are asked for by no pass below
            WidenIndices,  # accesses are final: large tensors are indexed by 64 bits
            LimitRegisters,  # threads are final
            LaunchTogether,  # so are thread blocks, and clusters that share something
            NoteChoices,  # nobody asks for the mark of such a kernel any more
            WaitForLaunches,  # vectors are loads yet, and stand in their order
            UnrollRegisters,  # no pass below makes a loop
            HintVectors,  # vectors become instructions, which no pass above looks for
            RefuseLeftovers,  # last: what no pass acted on would fall away in silence
        ),
    ),
    Stage(
        "shared memory",
        "late",
        "one shared allocation with final offsets, registers of each lane",
        (
            SplitWarps,  # TVM takes threadIdx.x for a warp where buffers belong to one
            LowerWarpMemory,  # TVM's own leaves whole fragments to each of its lanes
            MeetBehindLoops,  # pipelines are apart, and TVM's barriers not placed yet
            MergeShared,  # TVM would overlap what copies in flight still read and write
        ),
    ),
    Stage(
        "calls",
        "host",
        "checks of arguments and launches, workspaces; kernels as they are printed",
        (
            OwnWorkspace,  # what lies between two kernels outlives the call, on its stream
            LoadInOrder,  # TVM marks every kernel that it splits off
            AssertLimits,  # a launch that is too large is an error that says of what
            SkipEmpty,  # TVM's barriers stand, and what is counted says so yet
            CountBlocks,  # only now is the device of a call known
            JoinConditions,  # conditions are written out; the next looks for neighbours
            UnpackPairs,  # registers have their numbers, and share what is dead
            ForbidContraction,  # no pass behind it looks for sums
            AssertAlignment,  # kernels are final: which accesses are vectors is known
        ),
    ),
)
# What serves requests that TVM has no pass for: clusters, reductions in them, waits and barriers.
REALISING = (SpreadRows, ReduceAcrossThreads, InsertSyncs, LowerChannels)


def passes_at(place: Place) -> list[Pass]:
    """Return the passes at one place, in order."""
    return [make() for stage in STAGES if stage.place == place for make in stage.passes]
