"""Tune with TVM's MetaSchedule: search, build, measure, and keep every result.

Names are loaded on first use: worker processes import a part of this package without TVM.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # what __getattr__ finds, for type checkers
    from tvm_hopper.meta_schedule.annotations import (
        annotate as annotate,
        configurations_of as configurations_of,
    )
    from tvm_hopper.meta_schedule.applying import apply as apply
    from tvm_hopper.meta_schedule.builder import ArtifactBuilder as ArtifactBuilder
    from tvm_hopper.meta_schedule.database import Database as Database, merge as merge
    from tvm_hopper.meta_schedule.drawing import draw as draw
    from tvm_hopper.meta_schedule.fake_runner import (
        FakeRunner as FakeRunner,
        fake_gpus as fake_gpus,
    )
    from tvm_hopper.meta_schedule.finding import lookup as lookup
    from tvm_hopper.meta_schedule.report import TuningReport as TuningReport
    from tvm_hopper.meta_schedule.rpc_runner import RpcRunner as RpcRunner
    from tvm_hopper.meta_schedule.runner import GpuRunner as GpuRunner
    from tvm_hopper.meta_schedule.scheduling import schedule_with as schedule_with
    from tvm_hopper.meta_schedule.spaces import (
        MutateSample as MutateSample,
        RefuseIllegal as RefuseIllegal,
        space as space,
    )
    from tvm_hopper.meta_schedule.strategies import ConfigurationStrategy as ConfigurationStrategy
    from tvm_hopper.meta_schedule.tasks import Task as Task, find_tasks as find_tasks
    from tvm_hopper.meta_schedule.tuning import tune as tune

_NAMES = {  # public name -> module that holds it
    "ArtifactBuilder": "builder",
    "ConfigurationStrategy": "strategies",
    "Database": "database",
    "FakeRunner": "fake_runner",
    "GpuRunner": "runner",
    "MutateSample": "spaces",
    "RefuseIllegal": "spaces",
    "RpcRunner": "rpc_runner",
    "Task": "tasks",
    "TuningReport": "report",
    "annotate": "annotations",
    "apply": "applying",
    "configurations_of": "annotations",
    "draw": "drawing",
    "fake_gpus": "fake_runner",
    "find_tasks": "tasks",
    "lookup": "finding",
    "merge": "database",
    "schedule_with": "scheduling",
    "space": "spaces",
    "tune": "tuning",
}

__all__ = sorted(_NAMES)


if not TYPE_CHECKING:  # which would take any name for one of these

    def __getattr__(name: str) -> object:
        if name in _NAMES:
            return getattr(importlib.import_module(f"{__name__}.{_NAMES[name]}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
