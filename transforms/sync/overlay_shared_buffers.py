"""Let shared arrays use the same bytes, where a kernel has no space for all of them.

    ring = alloc((6, 1, 64, 128), "float32", "shared.dyn")
    for k in serial(8): load(ring[k % 6]); use(ring[k % 6])
    with sblock(""):
        staging = alloc((64, 128), "float32", "shared.dyn")
        staging[...] = ...
        C[...] = staging[...]
  ->
    ring = alloc(...); staging = alloc(...)
    overlay(&ring[0, 0, 0, 0], &staging[0, 0])
    ...

Nothing is promised of the values: `overlay_shared_buffers_plan.py` proves that none has to survive.
InsertSyncs places the waits in between, as for any other bytes.

Before: loads have slots, roles are.  After: arrays that share bytes are allocated in the kernel's
block, where the statement is about both.
Not here: offsets (merge_shared_buffers.py).
"""

from __future__ import annotations

from tvm_hopper import ir
from tvm_hopper.requests.keys import KERNEL
from tvm_hopper.requests.targets import arch_of
from tvm_hopper.transforms.common.overlay_pairs import Overlay, make_overlay
from tvm_hopper.transforms.kernel_pass import kernel_pass

from .overlay_shared_buffers_plan import plan_overlays


def rewrite_overlays(kernel: ir.For, plan: tuple[Overlay, ...]) -> ir.For:
    """Say of each pair that it may share bytes, where both are allocated."""
    shared = {x for pair in plan for x in pair}

    def without(block: ir.SBlock) -> ir.SBlock:
        kept = [x for x in block.alloc_buffers if x not in shared]
        if KERNEL in block.annotations or len(kept) == len(block.alloc_buffers):
            return block
        return ir.with_block(block, alloc_buffers=kept)

    (whole,) = ir.find_blocks(kernel, KERNEL)
    inner = ir.replace(whole, ir.SBlock, without)
    own = [x for x in inner.alloc_buffers if x not in shared]
    both = sorted(shared, key=lambda x: x.name)
    body = ir.seq([make_overlay(a, b) for a, b in plan], inner.body)
    new = ir.with_block(inner, alloc_buffers=[*own, *both], body=body)
    return ir.replace_nodes(kernel, ir.SBlock, {whole: new})


OverlaySharedBuffers = kernel_pass(
    "OverlaySharedBuffers",
    plan_overlays,
    rewrite_overlays,
    when=lambda kernel: bool(ir.find_blocks(kernel, KERNEL)),
    given=arch_of,
)
