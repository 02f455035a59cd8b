"""The TIR passes: one file, one pass, one test file each; `tvm_hopper.pipeline` orders them."""

if __name__ != "tvm_hopper.transforms":
    raise ImportError("transforms/ is a part of tvm_hopper: import tvm_hopper.transforms")

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

__all__ = [
    "AddAnyOrder",
    "AskCaller",
    "AssertAlignment",
    "AssertLimits",
    "BesideProducts",
    "BindAcrossBlocks",
    "CompactTiles",
    "CountBlocks",
    "CutVectors",
    "DivideByRows",
    "ExpandInner",
    "ExpandPipeline",
    "ForbidContraction",
    "FuseThreads",
    "GatherVectors",
    "GuardTurns",
    "HintVectors",
    "HoistConditions",
    "HoistInitials",
    "IndexRows",
    "InsertSyncs",
    "JoinConditions",
    "KeepConditions",
    "LaunchTogether",
    "LayoutShared",
    "LimitRegisters",
    "LoadFragments",
    "LoadInOrder",
    "LowerChannels",
    "LowerCopies",
    "LowerMma",
    "LowerWarpMemory",
    "MeetBehindLoops",
    "MergeMoments",
    "MergeShared",
    "NoteChoices",
    "NoteRows",
    "OverlayShared",
    "OwnRegisters",
    "OwnWorkspace",
    "PairStores",
    "PlanPipeline",
    "PrefetchRows",
    "ReduceAcrossThreads",
    "RefuseLeftovers",
    "ResolveBounds",
    "RestoreAxisNotes",
    "ScheduleTiles",
    "SelectCopies",
    "ShareLoads",
    "ShareSums",
    "ShortenFunctions",
    "SimplifyRegisterIndices",
    "SkewStages",
    "SkewTurns",
    "SkipEmpty",
    "SpecializeWarps",
    "SplitTails",
    "SplitWarps",
    "SpreadRows",
    "StageInPlace",
    "StageRows",
    "SumOnline",
    "UnpackPairs",
    "UnrollRegisters",
    "UnstageRows",
    "ValuesAhead",
    "WaitForLaunches",
    "WidenFunctions",
    "WidenIndices",
]
