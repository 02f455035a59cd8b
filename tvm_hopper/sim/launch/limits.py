"""Rules of a launch, whatever the kernel does: sizes of grid, block and cluster, shared memory.

Source: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability" (9.0) and
"Thread Block Clusters"; `facts.arch`. The runtime refuses such a launch, so nothing of it is run.
"""

from __future__ import annotations

from typing import Any

from tvm_hopper.facts.arch import SM_90A, Arch
from tvm_hopper.facts.devices import DEFAULT_NUM_SMS
from tvm_hopper.facts.programming_model import (
    MAX_BLOCK_Z,
    MAX_GRID_X,
    MAX_GRID_YZ,
    MAX_THREADS,
)
from tvm_hopper.sim.findings import Finding, finding


def check_launch(
    kernel: str,
    setup: dict[str, Any],
    shared: list[tuple[str, str, int, int]],
    arch: Arch = SM_90A,
    num_sms: int = DEFAULT_NUM_SMS,
) -> list[Finding]:
    """Return the rules that a launch breaks.

    Parameters
    ----------
    setup : dict
        Grid, block and cluster as (x, y, z), the bytes of dynamic shared memory passed (None if
        not known), and whether the launch is `cooperative`.
    shared : list
        Allocations of the kernel: name, scope, bytes, alignment.
    arch : Arch
        What it is built for.
    num_sms : int
        Multiprocessors of the device: a cooperative launch needs room for all thread blocks at once
        (CUDA Runtime API, cudaErrorCooperativeLaunchTooLarge).
    """
    broken = [*_extents(setup, arch), *_shared(setup["dyn_smem_bytes"], shared, arch)]
    if setup.get("cooperative") and not broken:
        total, room = _product(setup["grid"]), resident_ctas(setup, shared, arch, num_sms)
        if total > room:
            broken = [
                f"found {total} thread blocks in a cooperative launch; need at most {room}, which "
                f"is what {num_sms} SMs hold at once"
            ]
    found = [finding("LAUNCH_LIMITS", f"launch of {kernel}: {text}") for text in broken]
    size = _product(setup["cluster"])
    most = arch.max_cluster_size
    if arch.has_clusters and most < size <= arch.largest_cluster_size:
        text = f"launch of {kernel}: found a cluster of {size} thread blocks"
        found.append(finding("CLUSTER_NOT_PORTABLE", f"{text}; {most} run everywhere"))
    return found


def resident_ctas(
    setup: dict[str, Any], shared: list[tuple[str, str, int, int]], arch: Arch, num_sms: int
) -> int:
    """Return how many CTAs of a launch a device can hold at once, at most.

    By threads and shared memory; registers, which are not known before assembly, may allow fewer.

    Parameters
    ----------
    setup, shared, arch
        As for `check_launch`.
    num_sms : int
        Multiprocessors of the device.
    """
    threads = -(-_product(setup["block"]) // 32) * 32
    fixed = sum(size for _, scope, size, _ in shared if scope == "shared")
    dynamic = max((size for _, scope, size, _ in shared if scope == "shared.dyn"), default=0)
    memory = fixed + max(setup["dyn_smem_bytes"] or 0, dynamic) + arch.smem_reserved_per_block
    by_sm = (arch.max_blocks_per_sm, arch.max_threads_per_sm // threads, arch.smem_per_sm // memory)
    return num_sms * max(min(by_sm), 1)


def _product(extents: tuple[int, ...]) -> int:
    x, y, z = extents
    return x * y * z


def _extents(setup: dict[str, Any], arch: Arch) -> list[str]:
    grid, block, cluster = setup["grid"], setup["block"], setup["cluster"]
    found = []
    threads = _product(block)
    if not 1 <= threads <= MAX_THREADS:
        found.append(f"found {threads} threads in a block; need 1 to {MAX_THREADS}")
    if block[2] > MAX_BLOCK_Z:
        found.append(f"found a block of {block[2]} threads in z; need at most {MAX_BLOCK_Z}")
    for axis, extent, most in zip("xyz", grid, (MAX_GRID_X, MAX_GRID_YZ, MAX_GRID_YZ), strict=True):
        if extent > most:
            found.append(f"found a grid of {extent} blocks in {axis}; need at most {most}")
        if extent < 1:  # cuLaunchKernel: CUDA_ERROR_INVALID_VALUE
            found.append(f"found a grid of {extent} blocks in {axis}; need 1 or more")
    for axis, extent, part in zip("xyz", grid, cluster, strict=True):
        if extent % max(part, 1):
            found.append(
                f"found a grid of {extent} blocks in {axis} with clusters of {part}; need a "
                "multiple"
            )
    most = arch.largest_cluster_size
    if not 1 <= _product(cluster) <= most:
        need = f"1 to {most}" if arch.has_clusters else f"1 on {arch.name}"
        found.append(f"found a cluster of {_product(cluster)} thread blocks; need {need}")
    return found


def _shared(passed: int | None, shared: list[tuple[str, str, int, int]], arch: Arch) -> list[str]:
    fixed = sum(size for _, scope, size, _ in shared if scope == "shared")
    used = max((size for _, scope, size, _ in shared if scope == "shared.dyn"), default=0)
    found = []
    if passed is not None and used > passed:
        found.append(
            f"found {passed} bytes of dynamic shared memory passed, {used} used; need {used}"
        )
    total = fixed + max(passed or 0, used)
    if total > arch.smem_per_block:
        found.append(f"found {total} bytes of shared memory; need at most {arch.smem_per_block}")
    return found
