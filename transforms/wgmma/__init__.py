"""Products by warp groups: WGMMA, accumulator fragments, epilogues."""

from .lower_wgmma import LowerWgmma as LowerWgmma
from .overlap_epilogue_loads import OverlapEpilogueLoads as OverlapEpilogueLoads
