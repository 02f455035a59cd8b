"""Targets: the `Arch` that one names, and tags for the Hopper parts that TVM has no name for.

A tag says what TVM's own schedules may assume, so ours copy those of TVM's `nvidia/nvidia-h100`
(48 KiB of static shared memory); what our kernels may use comes from `facts.arch`.

`feature.num_sms` says how many SMs there are: of the attributes that TVM gives a meaning to none
does, and one named `feature.` survives export and JSON. Only the choice of a configuration reads
it: the kernel asks the device that it is launched on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tvm_hopper.errors import cannot_lower, cannot_schedule
from tvm_hopper.facts.arch import ARCHS, SM_90A, Arch
from tvm_hopper.facts.devices import DEFAULT_NUM_SMS, NUM_SMS

if TYPE_CHECKING:
    from tvm import tirx
    from tvm.target import Target

NUM_SMS_ATTR = "feature.num_sms"

HOPPER_TAGS: dict[str, dict[str, object]] = {
    f"nvidia/nvidia-{part}": {
        "kind": "cuda",
        "keys": ["cuda", "gpu"],
        "arch": SM_90A.name,
        "max_shared_memory_per_block": 49152,
        "max_threads_per_block": 1024,
        "thread_warp_size": 32,
        "registers_per_block": 65536,
        "l2_cache_size_bytes": 52428800,
        NUM_SMS_ATTR: num_sms,
    }
    for part, num_sms in NUM_SMS.items()
}


def target_arch(target: Target | None) -> str:
    """Return the arch of a cuda target, or an empty string."""
    if target is None or target.kind.name != "cuda":
        return ""
    return str(target.attrs.get("arch", ""))


def arch_of(func: tirx.PrimFunc) -> Arch:
    """Return the architecture that a function is built for.

    One without a target, as a single pass may be given it, is taken to be for `SM_90A`.

    Raises
    ------
    LoweringError
        Nothing is known of the arch that its target names.
    """
    target = func.attrs.get("target", None) if func.attrs else None
    if target is None:
        return SM_90A
    arch = target_arch(target)
    if arch not in ARCHS:
        raise cannot_lower(
            f"function {func.attrs.get('global_symbol', 'without a name')}",
            f"target {target.kind.name} {arch}".rstrip(),
            f"a cuda target with arch {' or '.join(ARCHS)}",
        )
    return ARCHS[arch]


def num_sms(target: Target | None = None) -> int:
    """Return how many SMs a target, or else the one in scope, says that its device has.

    Raises
    ------
    ScheduleError
        It says something that is no number of SMs.
    """
    from tvm.target import Target

    target = Target.current(allow_none=True) if target is None else target
    said = target.attrs.get(NUM_SMS_ATTR) if target is not None else None
    if said is None:
        return DEFAULT_NUM_SMS
    if isinstance(said, (bool, float, str)) or int(said) < 1:
        raise cannot_schedule("target", f"{NUM_SMS_ATTR} = {said!r}", "a number of SMs, e.g. 132")
    return int(said)


def register_tags() -> None:
    """Add the tags that are not there yet; an existing tag is never touched."""
    from tvm.target import list_tags, register_tag

    known = list_tags() or {}
    for name, config in HOPPER_TAGS.items():
        if name not in known:
            register_tag(name, config)
