"""Layouts of shared tiles: panels, swizzles, padding, and the accesses that follow them."""

from .swizzle_shared_tiles import SwizzleSharedTiles as SwizzleSharedTiles
