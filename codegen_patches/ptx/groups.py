"""Emit the sync engine's fences, commits and waits, by kind and mechanism."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm_hopper.codegen_patches import dma
from tvm_hopper.codegen_patches.ptx import bulk, cp_async, fences, wgmma
from tvm_hopper.facts.async_ops import BULK_GROUP, CP_ASYNC_GROUP, DMA_GROUP, WGMMA_GROUP


@dataclass(frozen=True)
class GroupInstructions:
    """The instructions of one mechanism.

    `wait(n, read_only)` leaves at most the n newest groups pending. `open` begins a group, where
    that takes an instruction.
    """

    commit: Callable[[], Any]
    wait: Callable[[int, bool], Any]
    open: Callable[[], Any] | None = None


FENCES: dict[str, Callable[[], Any]] = {
    "async_proxy": fences.proxy_async,
    "wgmma": wgmma.fence,  # before a group's first operation
}

GROUPS = {
    BULK_GROUP: GroupInstructions(commit=bulk.commit_group, wait=bulk.wait_group),
    CP_ASYNC_GROUP: GroupInstructions(
        commit=cp_async.commit_group,
        wait=lambda num_pending, _read_only: cp_async.wait_group(num_pending),
    ),
    DMA_GROUP: GroupInstructions(
        open=dma.start_group,
        commit=dma.end_group,
        wait=lambda num_pending, _read_only: dma.wait_group(num_pending),
    ),
    WGMMA_GROUP: GroupInstructions(
        commit=wgmma.commit_group,
        wait=lambda num_pending, _read_only: wgmma.wait_group(num_pending),
    ),
}
