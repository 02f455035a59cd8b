"""Checks of lowered kernels that need neither a GPU nor a run."""

from tvm_hopper.static_check.room import require_room
from tvm_hopper.static_check.sync import StaticFinding, check_sync, require_sync

__all__ = ["StaticFinding", "check_sync", "require_room", "require_sync"]
