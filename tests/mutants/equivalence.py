"""When two programs are the same although their text differs: rules about what their warps do.

A mutant that no judge objects to is equivalent only if these rules turn what each of its warps does
into what the unchanged kernel's warp does. That nobody objected is no rule.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm_hopper.sim.machine.memory import RANK_SHIFT

from .recording import Operation, Trace

# -- rule by rule ---------------------------------------------------------------------------------

# For the compilers alone: they print nothing that the machine executes (codegen_patches/hold.py).
FOR_COMPILERS = {
    "tvm_hopper_hold_float32",
    "tvm_hopper_hold_int32",
    "tvm_hopper_hold_uint32",
    "tvm_hopper_code_fence",
}
# PTX ISA 9.1, 9.7.19.5: setmaxnreg is a hint; a program computes the same without it. That the
# registers suffice is the judges' part: SETMAXNREG_BUDGET.
HINTS = {"setmaxnreg"}
# Done twice in a row they do what they do once: a wait for a phase that is over returns at once, a
# fence orders what the first one ordered, a second group of nothing is complete (9.7.15.7.2).
REPEATABLE = {
    "cuda_mbarrier_wait",
    "fence_mbarrier_init",
    "fence_proxy",
    "wgmma_fence",
    "wgmma_commit_group",
    "wgmma_wait_group",
    "cp_async_bulk_commit_group",
    "cp_async_bulk_wait_group",
    "cuda_warp_sync",
    "ptx_legacy_ldmatrix",
    "store",
    "load",
}
# Every thread of the CTA (cluster) is there already: a second meeting orders nothing new. All warps
# must have as many, since one warp alone would meet the others at another place.
MEETINGS = {"tvm_storage_sync", "cuda_cluster_sync"}
REGISTERS_ALONE = {"ptx_legacy_mma", "mma"}
FENCES = {"fence_proxy", "cuda_warp_sync"}
WAITS = {"cuda_mbarrier_wait"}
COPIES = ("cp_async_bulk_tensor_g2s",)
EXPECTS = "mbarrier_arrive_expect_tx"
# A wait that leaves fewer groups pending waits for more, and of what ends by itself.
FEWER_PENDING = {"wgmma_wait_group", "cp_async_bulk_wait_group"}


def without(names: set[str]) -> Callable[[list[Operation]], list[Operation]]:
    """Make a rule that leaves operations out."""
    return lambda operations: [x for x in operations if x.name not in names]


def once(names: set[str]) -> Callable[[list[Operation]], list[Operation]]:
    """Make a rule that takes an operation that follows itself for one."""

    def rule(operations: list[Operation]) -> list[Operation]:
        kept: list[Operation] = []
        for x in operations:
            if kept and at_least(kept[-1], x) and x != kept[-1]:
                kept[-1] = x  # a wait for more, right behind the wait for less
            elif not (kept and x.name in names and x == kept[-1]):
                kept.append(x)
        return _statements_once(kept)

    return rule


def _statements_once(operations: list[Operation]) -> list[Operation]:
    """Take a statement of loads and a store that follows itself for one.

    It gives the same again if the store is to another tensor than the loads are from.
    """
    kept: list[Operation] = []
    i = 0
    while i < len(operations):
        kept.append(operations[i])
        i += 1
        if kept[-1].name != "store":
            continue
        first = len(kept) - 1
        while first and kept[first - 1].name == "load":
            first -= 1
        block = kept[first:]
        if kept[-1].operand("0") in {x.operand("0") for x in block[:-1]}:
            continue
        while operations[i : i + len(block)] == block:
            i += len(block)
    return kept


def as_printed(operations: list[Operation]) -> list[Operation]:
    """Leave out operands that TVM's CUDA text does not have.

    `tvm_storage_sync("shared", ...)` is `__syncthreads()` whatever follows the scope.
    """
    return [
        Operation(x.name, x.lanes, x.operands[:1]) if x.name == "tvm_storage_sync" else x
        for x in operations
    ]


def elected_by_anybody(operations: list[Operation]) -> list[Operation]:
    """Give lanes that execute something alone numbers by their first appearance.

    Which lane issues a copy, arrives or waits for its warp makes no difference, if the same lane
    does what belongs together; the judges know what each lane has seen.
    """
    numbers: dict[int, int] = {}
    renamed = []
    for x in operations:
        if len(x.lanes) == 1 and x.name not in ("load", "store"):
            lane = numbers.setdefault(x.lanes[0], len(numbers))
            x = Operation(x.name, (lane,), x.operands)
        renamed.append(x)
    return renamed


def commute(one: Operation, other: Operation) -> bool:
    """Tell whether two neighbours of one warp may change places.

    * initialisations of different mbarriers: nobody waits before the barrier that follows both;
    * copies into shared memory: nothing orders them, their phase ends after the last;
    * a copy and the expectation of its bytes: the phase stays open until that arrival, and the
      count of bytes may be below zero until then (PTX ISA 9.1, 9.7.13.15.5);
    * waits for two mbarriers: both are over behind the second;
    * wgmma.fence and a wait for an mbarrier: the fence orders registers, the wait memory;
    * loads;
    * a product of registers, and a fence or a meeting of the warp, which order memory;
    * loads of matrices into different registers, products into different registers;
    * a proxy fence by all lanes and a meeting of them: in front, each lane's fence covers its own
      accesses; behind, the lane that goes on knows of all accesses, and its own fence covers them
      (PTX ISA 9.1, 8.9.1 "Causality order": a proxy fence along the path, whoever executes it).
    """
    names = {one.name, other.name}
    if names == {"fence_proxy", "cuda_warp_sync"} or names == {"fence_proxy", "tvm_storage_sync"}:
        return len(one.lanes) == len(other.lanes) == 32
    if names == {"ptx_legacy_ldmatrix"}:
        return one.operand("3") != other.operand("3")
    if names == {"ptx_legacy_mma"}:
        return [one.operand(i) for i in ("10", "11")] != [other.operand(i) for i in ("10", "11")]
    if names == {one.name} and one.operand("b_desc") is not None:
        return _one_sum(one, other)
    copies = [x.name.startswith(COPIES) for x in (one, other)]
    if all(copies):
        return one.operand("dst_mem") != other.operand("dst_mem")
    if any(copies) and EXPECTS in names:
        return True
    if names == {"mbarrier_init"}:
        return bool(one.operand("addr") != other.operand("addr"))
    if names <= WAITS or (names & WAITS and "wgmma_fence" in names):
        return True
    if names & REGISTERS_ALONE and names & FENCES:
        return True
    return names == {"load"}


def _one_sum(one: Operation, other: Operation) -> bool:
    """Tell whether two products are terms of one sum: equal but for rounding, in either order."""
    rest = [{k: v for k, v in x.operands if not k.endswith("_desc")} for x in (one, other)]
    return rest[0] == rest[1] and rest[0].get("scale_d") == 1


def at_least(wanted: Operation, found: Operation) -> bool:
    """Tell whether an operation does what another does, or waits for more."""
    if wanted == found:
        return True
    if wanted.name != found.name or wanted.name not in FEWER_PENDING:
        return False
    if wanted.lanes != found.lanes:
        return False
    rest = [{k: v for k, v in x.operands if k != "group"} for x in (wanted, found)]
    return rest[0] == rest[1] and 0 <= found.operand("group") <= wanted.operand("group")


ORDER, SAME, MORE = "another order", "the same operations", "waits for more"
AGAIN = "the same again"
IDLE = "CTAs that leave nothing behind"
ALONE = "meetings around one warp"
LEAVES_NOTHING = {
    "mbarrier_init",
    "fence_mbarrier_init",
    "tvm_storage_sync",
    "setmaxnreg",
    "cuda_mbarrier_wait",
    "mbarrier_arrive",
    "mbarrier_arrive_expect_tx",
    "cp_async_bulk_tensor_g2s_cluster",
    "load",
    "fence_proxy",
    "cuda_warp_sync",
    *FOR_COMPILERS,
}


def leaves_nothing(operation: Operation) -> bool:
    """Tell whether an operation changes its own CTA's shared memory or registers alone."""
    name = operation.name
    places = (operation.operand("addr") or 0, operation.operand("dst_mem") or 0)
    if operation.operand("cta_mask") is not None or any(x >> RANK_SHIFT for x in places):
        return False
    return name in LEAVES_NOTHING or name.startswith(("wgmma", "ptx_legacy", "mma"))


def without_idle_ctas(trace: Trace) -> Trace:
    """Leave out CTAs that store nothing: a grid may be larger than its tensors need."""
    busy = {key[:-1] for key, x in trace.items() if not all(map(leaves_nothing, x))}
    return {key: x for key, x in trace.items() if key[:-1] in busy}


def without_meetings_around_one_warp(trace: Trace) -> Trace:
    """Leave out a meeting if one warp alone does anything since the last and until the next.

    The other warps neither wait for that warp's work before the next meeting, nor did anything that
    it could wait for: its own program order is all there is.
    """
    result: Trace = {}
    ctas = {key[:-1] for key in trace}
    for cta in ctas:
        warps = {key: _between_meetings(x) for key, x in trace.items() if key[:-1] == cta}
        if len({len(x) for x in warps.values()}) != 1:
            return trace
        (count,) = {len(x) for x in warps.values()}
        joined = {key: [list(parts[0])] for key, parts in warps.items()}
        for i in range(1, count):
            active = {key for key, parts in warps.items() if parts[i]}
            active |= {key for key in warps if joined[key][-1]}
            for key, parts in warps.items():
                if len(active) <= 1 and i < count - 1:
                    joined[key][-1] += parts[i]
                else:
                    joined[key].append(list(parts[i]))
        meeting = next(
            (x for key in warps for x in trace[key] if x.name == "tvm_storage_sync"), None
        )
        for key, parts in joined.items():
            flat = list(parts[0])
            for part in parts[1:]:
                flat += [meeting, *part] if meeting is not None else part
            result[key] = flat
    return result


def _between_meetings(operations: list[Operation]) -> list[list[Operation]]:
    parts: list[list[Operation]] = [[]]
    for x in operations:
        if x.name == "tvm_storage_sync":
            parts.append([])
        else:
            parts[-1].append(x)
    return parts


RULES: dict[str, Callable[[list[Operation]], list[Operation]]] = {
    "not in the CUDA text": as_printed,
    "for compilers alone": without(FOR_COMPILERS),
    "registers are a hint": without(HINTS),
    AGAIN: once(REPEATABLE | MEETINGS),
    "another lane of the warp": elected_by_anybody,
}


def reason(before: Trace, after: Trace) -> str:
    """Return by which rules two programs are the same, "" if no rule says so."""
    if before == after:
        return SAME
    if before.keys() != after.keys():
        one, other = without_idle_ctas(before), without_idle_ctas(after)
        return IDLE if one == other else ""
    one, other = dict(before), dict(after)
    used = ""
    for name, rule in RULES.items():
        if one == other:
            return used
        if name == AGAIN and not meetings_agree(one, other):
            return _alone(one, other)
        one = {key: rule(x) for key, x in one.items()}
        other = {key: rule(x) for key, x in other.items()}
        used = name
    if one == other:
        return used
    return _reordered(one, other) or _alone(one, other)


def _alone(one: Trace, other: Trace) -> str:
    one, other = map(without_meetings_around_one_warp, (one, other))
    return ALONE if one == other else ""


def _reordered(one: Trace, other: Trace) -> str:
    found = {_order_of(one[key], other[key]) for key in one}
    if "" in found:
        return ""
    return " and ".join(sorted(found - {SAME})) or SAME


def _order_of(wanted: list[Operation], found: list[Operation]) -> str:
    """Compare one warp's operations, neighbours that commute in either order."""
    if len(wanted) != len(found):
        return ""
    reasons, left = set(), list(found)
    for x in wanted:
        i = next((i for i, y in enumerate(left) if at_least(x, y)), None)
        if i is None:
            return ""
        y = left[i]
        if not all(commute(x, y) for y in left[:i]):
            return ""
        if i:
            reasons.add(ORDER)
        if x != y:
            reasons.add(MORE)
        del left[i]
    return " and ".join(sorted(reasons)) or SAME


def meetings_agree(before: Trace, after: Trace) -> bool:
    """Tell whether all warps of a CTA gained or lost as many meetings."""

    def count(trace: Trace, key: Any) -> int:
        return sum(x.name in MEETINGS for x in trace[key])

    changes: dict[Any, set[int]] = {}
    for key in before:
        changes.setdefault(key[:-1], set()).add(count(after, key) - count(before, key))
    return all(len(x) == 1 for x in changes.values())
