"""Choose L2 eviction policies for a kernel's bytes, and for those of its last thread blocks.

With `tvm_hopper.kept_end` = n on the loop over thread blocks the last n of them do the reverse of
what the others do: L2 evicts their loads first and their stores last.

    policy = bx >= extent - n ? evict_first : evict_last                    of loads
    policy = bx >= extent - n ? evict_last : evict_normal                   of stores
"""

from __future__ import annotations

from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.codegen_patches.ptx import cache
from tvm_hopper.requests.keys import KEPT_END

FIRST, LAST, NORMAL = "evict_first", "evict_last", "evict_normal"
STORES = "stores"  # the name of their policy


def kept_end(kernel: ir.For) -> int | None:
    """Return how many thread blocks, the last ones, leave in L2 what they store."""
    axis = ir.thread_axes(kernel).get("blockIdx.x")
    return None if axis is None else axis.annotations.get(KEPT_END)


def create_policies(
    policies: dict[str, ir.Var], kernel: ir.For
) -> tuple[list[ir.Stmt], list[ir.Var]]:
    """Make policies at a kernel's start.

    - `policies`: the register of each, by the word of a load or STORES.
    - returns: what makes them, and the arrays that it takes.
    """
    count = kept_end(kernel)
    if count is None:
        return [ir.seq(cache.create_policy(x[0], hint)) for hint, x in policies.items()], []
    axis = ir.thread_axes(kernel)["blockIdx.x"]
    at_end = axis.loop_var >= axis.extent - ir.cast_like(count, axis.extent)
    kinds = {hint: (LAST, NORMAL) if hint == STORES else (FIRST, hint) for hint in policies}
    known = {
        kind: ir.new_buffer(f"policy_of_{kind}", (1,), "uint64", "local")
        for kind in sorted({kind for pair in kinds.values() for kind in pair})
    }
    made = [ir.seq(cache.create_policy(x[0], kind)) for kind, x in known.items()]
    for hint, (there, before) in kinds.items():
        chosen = tirx.Select(at_end, known[there][0], known[before][0])
        made.append(ir.BufferStore(policies[hint], chosen, [0]))
    return made, list(known.values())
