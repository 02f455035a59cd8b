"""Tile scheduling: rasterization, persistent kernels, stream-K, multicast."""

from .multicast_loads import MulticastLoads as MulticastLoads
from .schedule_tiles import ScheduleTiles as ScheduleTiles
from .size_persistent_grid import SizePersistentGrid as SizePersistentGrid
