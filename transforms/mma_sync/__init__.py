"""Products by warps: mma.sync on operands that each lane loads from global memory."""

from .lower_mma_sync import LowerMmaSync as LowerMmaSync
from .lower_warp_memory import LowerWarpMemory as LowerWarpMemory
from .pair_fragment_stores import PairFragmentStores as PairFragmentStores
