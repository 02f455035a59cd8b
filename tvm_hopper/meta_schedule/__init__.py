"""Tuning with TVM's MetaSchedule: build and measure many configurations, and lose nothing.

Names are loaded on first use: worker processes import a part of this package without TVM.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # what __getattr__ finds, for type checkers
    from tvm_hopper.meta_schedule.builder import ArtifactBuilder
    from tvm_hopper.meta_schedule.fake_runner import FakeRunner, fake_gpus
    from tvm_hopper.meta_schedule.rpc_runner import RpcRunner
    from tvm_hopper.meta_schedule.runner import GpuRunner

_NAMES = {  # public name -> module that holds it
    "ArtifactBuilder": "builder",
    "FakeRunner": "fake_runner",
    "GpuRunner": "runner",
    "RpcRunner": "rpc_runner",
    "fake_gpus": "fake_runner",
}

__all__ = ["ArtifactBuilder", "FakeRunner", "GpuRunner", "RpcRunner", "fake_gpus"]


if not TYPE_CHECKING:  # which would take any name for one of these

    def __getattr__(name: str) -> object:
        if name in _NAMES:
            return getattr(importlib.import_module(f"{__name__}.{_NAMES[name]}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
