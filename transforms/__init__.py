"""The TIR passes: one file, one pass, one test file each; `tvm_hopper.pipeline` orders them."""

if __name__ != "tvm_hopper.transforms":
    raise ImportError("transforms/ is a part of tvm_hopper: import tvm_hopper.transforms")

from .assert_alignment import AssertAlignment, RequireAlignment
from .count_blocks import CountBlocks
from .inject_tma_load import InjectTmaLoad
from .insert_async_waits import InsertAsyncWaits
from .layout_shared import LayoutShared
from .lower_wgmma import LowerWgmma
from .merge_shared import MergeShared
from .pipeline_mbarriers import PipelineMbarriers
from .raster_blocks import RasterBlocks
from .refuse_leftovers import RefuseLeftovers
from .resolve_bounds import ResolveBounds
from .restore_axis_notes import RestoreAxisNotes
from .widen_indices import WidenIndices

__all__ = [
    "AssertAlignment",
    "CountBlocks",
    "InjectTmaLoad",
    "InsertAsyncWaits",
    "LayoutShared",
    "LowerWgmma",
    "MergeShared",
    "PipelineMbarriers",
    "RasterBlocks",
    "RefuseLeftovers",
    "RequireAlignment",
    "ResolveBounds",
    "RestoreAxisNotes",
    "WidenIndices",
]
