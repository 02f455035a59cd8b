"""Split-K: by clusters, by a workspace, serially, by atomics, chosen at each call."""

from .lower_split_k import LowerSplitK as LowerSplitK
from .make_split_k_kernels import MakeSplitKKernels as MakeSplitKKernels
