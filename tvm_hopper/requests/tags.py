"""Target tags for Hopper chips that TVM does not name.

A tag says what TVM's own schedules may assume, so ours copy those of TVM's `nvidia/nvidia-h100`
(48 KiB of static shared memory); what our kernels may use comes from `facts.arch`.  `import tvm`
registers them, so that this file imports little.
"""

from __future__ import annotations

from tvm_hopper.facts.devices import CHIPS, NUM_SMS, NUM_SMS_ATTR, Chip

PART_ATTR = "feature.part"  # whose rates it has: a target made of a tag does not say which one
ARCH, GENERIC_ARCH = "sm_90a", "sm_90"  # the second one has no WGMMA, and no kernel of ours

HOPPER_TAGS: dict[str, dict[str, object]] = {
    f"nvidia/nvidia-{part}": {
        "kind": "cuda",
        "keys": ["cuda", "gpu"],
        "arch": ARCH,
        "max_shared_memory_per_block": 49152,
        "max_threads_per_block": 1024,
        "thread_warp_size": 32,
        "registers_per_block": 65536,
        "l2_cache_size_bytes": 52428800,
        NUM_SMS_ATTR: num_sms,
        **({PART_ATTR: part} if CHIPS[part] != Chip(num_sms) else {}),
    }
    for part, num_sms in NUM_SMS.items()
}


def register_tags() -> None:
    """Add the tags that are not there yet; an existing tag is never touched."""
    from tvm.target import list_tags, register_tag

    known = list_tags() or {}
    for name, config in HOPPER_TAGS.items():
        if name not in known:
            register_tag(name, config)
