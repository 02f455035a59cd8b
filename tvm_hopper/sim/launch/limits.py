"""Rules of a launch, whatever the kernel does: sizes, shared memory, instructions of its target.

Source: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability" (9.0) and
"Thread Block Clusters"; `facts.arch`. The runtime refuses such a launch, or the assembler such an
instruction, so nothing of it is run.
"""

from __future__ import annotations

from math import prod
from typing import Any

from tvm import ir, tirx

from tvm_hopper.facts.arch import ARCHS, DEFAULT_ARCH, Arch
from tvm_hopper.facts.devices import DEFAULT_NUM_SMS, sms_together
from tvm_hopper.facts.instruction_archs import FUNCTIONS, has_instructions, needed_arch
from tvm_hopper.facts.programming_model import MAX_BLOCK_Z, MAX_GRID_X, MAX_GRID_YZ, MAX_THREADS
from tvm_hopper.sim.findings import Finding, finding
from tvm_hopper.sim.tir import (
    PTX,
    arch_name,
    decode_ptx,
    nodes_in,
    op_name,
    short_name,
    statement_text,
)


def check_launch(
    kernel: str,
    setup: dict[str, Any],
    shared: list[tuple[str, str, int, int]],
    arch: Arch = DEFAULT_ARCH,
    num_sms: int = DEFAULT_NUM_SMS,
    sure_sms: int | None = None,
) -> list[Finding]:
    """Return the rules that a launch breaks.

    - `setup` (dict): grid, block and cluster as (x, y, z), the bytes of dynamic shared memory
      passed (None if not known), and whether the launch is `cooperative`.
    - `shared`: allocations of the kernel: name, scope, bytes, alignment.
    - `arch`: architecture that it is built for.
    - `num_sms`: multiprocessors of the device: all thread blocks of a cooperative launch must fit
      at once (CUDA Runtime API, cudaErrorCooperativeLaunchTooLarge).
    - `sure_sms`: `num_sms`, or fewer if the kernel's target states fewer: a cluster with more
      thread blocks than every device supports must fit on these.
    """
    broken = [*_extents(setup, arch), *_shared(setup["dyn_smem_bytes"], shared, arch)]
    if setup.get("cooperative") and not broken:
        total, resident = prod(setup["grid"]), resident_ctas(setup, shared, arch, num_sms)
        if total > resident:
            broken = [
                f"found {total} thread blocks in a cooperative launch; need at most {resident}, "
                f"which is what {num_sms} SMs hold at once"
            ]
    found = [finding("LAUNCH_LIMITS", f"launch of {kernel}: {text}") for text in broken]
    together = sms_together(num_sms if sure_sms is None else sure_sms)
    if is_large(setup, arch) and (size := prod(setup["cluster"])) > together:
        text = (
            f"launch of {kernel}: found a cluster of {size} thread blocks; {arch.max_cluster_size} "
            f"run everywhere, and of {sure_sms or num_sms} SMs {together} are sure to be together"
        )
        found.append(finding("CLUSTER_NOT_PORTABLE", text))
    return found


def is_large(setup: dict[str, Any], arch: Arch) -> bool:
    """Tell a cluster of more thread blocks than run everywhere, as some devices do.

    Such a launch needs CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, which TVM's runtime
    sets for each, and as many SMs in one GPC, which `facts.devices.sms_together` counts.
    """
    size = prod(setup["cluster"])
    return arch.has_clusters and arch.max_cluster_size < size <= arch.largest_cluster_size


def say_large(
    kernel: str, setup: dict[str, Any], arch: Arch, num_sms: int = DEFAULT_NUM_SMS
) -> list[str]:
    """Name the devices that a launch with a large cluster runs on; nothing for other launches."""
    size = prod(setup["cluster"])
    if not is_large(setup, arch) or size > sms_together(num_sms):
        return []
    return [
        f"{kernel}: clusters of {size} thread blocks, which a device of {num_sms} SMs can hold; "
        f"those of {arch.max_cluster_size} run everywhere"
    ]


def resident_ctas(
    setup: dict[str, Any], shared: list[tuple[str, str, int, int]], arch: Arch, num_sms: int
) -> int:
    """Return how many CTAs of a launch a device can hold at once, at most.

    By threads and shared memory; registers, which are not known before assembly, may allow fewer.

    - `setup`, `shared`, `arch`: as for `check_launch`.
    - `num_sms`: multiprocessors of the device.
    """
    threads = -(-prod(setup["block"]) // 32) * 32
    fixed = sum(size for _, scope, size, _ in shared if scope == "shared")
    dynamic = max((size for _, scope, size, _ in shared if scope == "shared.dyn"), default=0)
    memory = fixed + max(setup["dyn_smem_bytes"] or 0, dynamic) + arch.smem_reserved_per_block
    by_sm = (arch.max_blocks_per_sm, arch.max_threads_per_sm // threads, arch.smem_per_sm // memory)
    return num_sms * max(min(by_sm), 1)


def _extents(setup: dict[str, Any], arch: Arch) -> list[str]:
    grid, block, cluster = setup["grid"], setup["block"], setup["cluster"]
    found = []
    threads = prod(block)
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
    if not 1 <= prod(cluster) <= most:
        need = f"1 to {most}" if arch.has_clusters else f"1 on {arch.name}"
        found.append(f"found a cluster of {prod(cluster)} thread blocks; need {need}")
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


def missing_instructions(func: Any, arch: Arch) -> list[Finding]:
    """Return a finding for each instruction of a device function that an architecture lacks.

    - `func` (tvm.tirx.PrimFunc): final device function.
    - `arch`: architecture with the limits of its target.
    """
    found: dict[str, Finding] = {}
    for call in nodes_in(func.body, ir.Call):
        name, needed = _needed(call)
        if needed and name not in found and not has_instructions(arch, needed):
            found[name] = finding(
                "TARGET_ARCH",
                f"{name} needs {needed}; the kernel is built for {arch.name}",
                statements=(statement_text(tirx.Evaluate(call)),),
            )
    named = arch_name(func)
    if named and named not in ARCHS:
        text = f"built for {named}: its limits are not known, those of {arch.name} were taken"
        hint = f"verify for one of {', '.join(ARCHS)}"
        found[""] = finding("INCOMPLETE", text, hint=hint)
    return list(found.values())


def _needed(call: ir.Call) -> tuple[str, str]:
    """Return the name of an instruction, and the arch that it needs if that is more than sm_80."""
    name = op_name(call)
    if not name.startswith(PTX):
        helper = short_name(call).removeprefix("cuda.")
        return f"T.cuda.{helper}", FUNCTIONS.get(helper, "")
    ptx = decode_ptx(call)
    if ptx is None:
        return name, ""
    return ptx.name, needed_arch(ptx.name, [token for token in ptx.mods.values() if token])
