"""Split-K: by clusters, by a workspace, serially, by atomics, chosen at each call."""

from .bind_reduction_loop_to_grid import BindReductionLoopToGrid as BindReductionLoopToGrid
from .dispatch_split_k_by_allocator import DispatchSplitKByAllocator as DispatchSplitKByAllocator
from .lower_split_k import LowerSplitK as LowerSplitK
from .split_k_by_atomics import SplitKByAtomics as SplitKByAtomics
