"""Launches: programmatic launch, clusters, occupancy, cache hints, host checks, workspaces."""

from .add_cache_hints import AddCacheHints as AddCacheHints
from .allocate_workspace import AllocateWorkspace as AllocateWorkspace
from .assert_alignment import AssertAlignment as AssertAlignment
from .check_launches import CheckLaunches as CheckLaunches
from .enable_programmatic_launch import EnableProgrammaticLaunch as EnableProgrammaticLaunch
from .place_thread_blocks import PlaceThreadBlocks as PlaceThreadBlocks
from .record_model_choice import RecordModelChoice as RecordModelChoice
from .reject_unlowered_requests import RejectUnloweredRequests as RejectUnloweredRequests
from .remove_restrict import RemoveRestrict as RemoveRestrict
from .widen_indices import WidenIndices as WidenIndices
