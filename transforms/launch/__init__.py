"""Launches: programmatic launch, clusters, occupancy, cache hints, host checks, workspaces."""

from .add_cache_hints import AddCacheHints as AddCacheHints
from .allocate_workspace import AllocateWorkspace as AllocateWorkspace
from .assert_alignment import AssertAlignment as AssertAlignment
from .assert_launch_limits import AssertLaunchLimits as AssertLaunchLimits
from .enable_programmatic_launch import EnableProgrammaticLaunch as EnableProgrammaticLaunch
from .form_launch_clusters import FormLaunchClusters as FormLaunchClusters
from .limit_registers_for_occupancy import LimitRegistersForOccupancy as LimitRegistersForOccupancy
from .record_model_choice import RecordModelChoice as RecordModelChoice
from .reject_unlowered_requests import RejectUnloweredRequests as RejectUnloweredRequests
from .remove_restrict import RemoveRestrict as RemoveRestrict
from .skip_empty_launches import SkipEmptyLaunches as SkipEmptyLaunches
from .widen_indices import WidenIndices as WidenIndices
