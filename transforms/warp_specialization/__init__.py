"""Producer and consumer warp groups, and ping-pong of consumer groups."""

from .specialize_warps import SpecializeWarps as SpecializeWarps
