"""When two programs are the same although their text differs: rules about what their warps do.

A mutant that no judge objects to is equivalent only if these rules turn what each of its warps does
into what the unchanged kernel's warp does. That nobody objected is no rule.
"""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tvm_hopper.sim.machine.memory import RANK_SHIFT, SHARED, global_number

from .fences import fences_behind_meetings, without_fences_of_idle_warps, without_fences_of_nothing
from .last_uses import (
    CLUSTER_ARRIVE,
    without_added_meetings,
    without_last_waits_for_the_cluster,
    without_late_releases,
    without_meetings_behind_the_cluster,
    without_unawaited_counts,
    without_unmet_arrivals,
)
from .meetings import COPIES, EXPECTS, FENCES, MEETINGS, without_spare_meetings
from .recording import Operation, Trace
from .spare_syncs import (
    WAITS,
    at_least,
    fences_of_registers_once,
    grid_waits_by_lanes,
    idle_lanes_wait_for_grid,
    last_wait,
    one_group,
    one_sum,
    released_by_any_warp,
    waits_for_grid,
    without_first_phase,
    without_grid_waits_of_others,
    without_unawaited_releases,
    without_unused_barriers,
    without_waits_for_none,
)

# -- rule by rule ---------------------------------------------------------------------------------

# For the compilers alone: they print nothing that the machine executes (codegen_patches/hold.py).
FOR_COMPILERS = {
    "tvm_hopper_hold_float32",
    "tvm_hopper_hold_int32",
    "tvm_hopper_hold_uint32",
    "tvm_hopper_hold_value",
    "tvm_hopper_code_fence",
}
# PTX ISA 9.1, 9.7.19.5: setmaxnreg is a hint; a program computes the same without it. That the
# registers suffice is the judges' part: SETMAXNREG_BUDGET.
# 9.7.13.13: griddepcontrol.launch_dependents lets the next grid start before this one's end; that
# one waits for the end in griddepcontrol.wait, which the judges see to.
HINTS = {"setmaxnreg", "launch_dependents"}
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
NAMED = ("bar_sync", "bar_arrive")
USE_NOTHING = {"load", "griddepcontrol", "cuda_mbarrier_wait", "cuda_warp_sync", *MEETINGS}
REGISTERS_ALONE = {"ptx_legacy_mma", "mma"}


def without(names: set[str]) -> Callable[[list[Operation]], list[Operation]]:
    """Make a rule that leaves operations out."""

    def name(x: Operation) -> str:
        early = x.name == "griddepcontrol" and "launch_dependents" in str(x.operand("0"))
        return "launch_dependents" if early else x.name

    return lambda operations: [x for x in operations if name(x) not in names]


def once(names: set[str]) -> Callable[[list[Operation]], list[Operation]]:
    """Make a rule that takes an operation that follows itself for one."""

    def rule(operations: list[Operation]) -> list[Operation]:
        kept: list[Operation] = []
        for x in operations:
            if not (kept and x.name in names and x == kept[-1]):
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


def stored_by_anybody(operations: list[Operation]) -> list[Operation]:
    """Leave out which lanes store one value to one place: one of the stores is done."""

    def rule(x: Operation) -> Operation:
        value = x.operand("2")
        one = isinstance(value, int) or (isinstance(value, tuple) and value[:1] == ((),))
        if x.name == "store" and isinstance(x.operand("1"), int) and one:
            return Operation(x.name, (), x.operands)
        return x

    return [rule(x) for x in operations]


def element_by_element(operations: list[Operation]) -> list[Operation]:
    """Take a load of several elements for a load of each, by each lane; a store by each lane.

    Loads in a row are in any order, stores in a row if no two are to one place.
    """
    parts: list[Operation] = []
    for kind, run in itertools.groupby(operations, lambda x: x.name):
        each = list(run)
        if kind == "ld" and all("'sem': ''" in str(x.operand("0")) for x in each):
            each = sorted((y for x in each for y in _weak_loads(x)), key=str)
        if kind in ("load", "store") and all(isinstance(x.operand("0"), int) for x in each):
            width = {"load": "4", "store": "5"}[kind]
            if all(x.operand(width) == 1 for x in each):
                each = _lane_by_lane(each)
        parts += each
    return parts


def without_unused_loads(operations: list[Operation]) -> list[Operation]:
    """Leave out loads of lanes that do nothing else: what they loaded goes nowhere.

    What is in registers is not recorded; a lane hands it on by a store, or with its whole warp.
    """
    using = {lane for x in operations if x.name not in USE_NOTHING for lane in x.lanes}
    kept = [x for x in operations if x.name != "load" or not x.lanes or {*x.lanes} & using]
    return kept if using else operations


def _weak_loads(x: Operation) -> Iterator[Operation]:
    """Yield the loads of the lanes of an `ld` that orders nothing."""
    for i, lane in enumerate(x.lanes):
        own = {k: _of_lane(v, i, len(x.lanes)) for k, v in x.operands}
        place = own.pop("addr")
        where = place if isinstance(place, int) else int(_numbers(place))
        yield Operation("load", (lane,), (("from", where), *own.items()))


def _lane_by_lane(run: list[Operation]) -> list[Operation]:
    found: list[Operation] = []
    for x in run:
        count = x.operand("3" if x.name == "load" else "4")
        unused = "1345" if x.name == "load" else "156"
        for i, lane in enumerate(x.lanes):
            own = {k: _of_lane(v, i, len(x.lanes)) for k, v in x.operands}
            start = own["1"] if isinstance(own["1"], int) else int(_numbers(own["1"]))
            rest = tuple((k, v) for k, v in own.items() if k not in unused)
            steps = range(count) if x.name == "load" else [0]
            found += [Operation(x.name, (lane,), (("1", start + s), *rest)) for s in steps]
    once = found if run[0].name == "load" else list(dict.fromkeys(found))
    places = sorted({(x.operand("0"), x.operand("1")) for x in found})
    most = max((x.operand("4") for x in run), default=1)
    apart = len(places) == len(once) and all(
        a[0] != b[0] or b[1] - a[1] >= most for a, b in itertools.pairwise(places)
    )
    return sorted(once, key=str) if run[0].name == "load" or apart else found


def _of_lane(value: Any, number: int, lanes: int) -> Any:
    """Return a lane's part of an operand that differs between lanes."""
    if not (isinstance(value, tuple) and len(value) == 3 and value[0][:1] == (lanes,)):
        return value
    shape, dtype, data = value
    size = len(data) // lanes
    return shape[1:], dtype, data[size * number : size * (number + 1)]


def _numbers(recorded: tuple[Any, str, bytes]) -> np.ndarray:
    """Return the integers of an operand that `recording.py` wrote down."""
    shape, dtype, data = recorded
    return np.frombuffer(data, dtype).reshape(shape).astype(np.int64)


def elected_by_anybody(operations: list[Operation]) -> list[Operation]:
    """Give lanes that execute something alone numbers by their first appearance.

    Which lane issues a copy, arrives or waits for its warp makes no difference, if the same lane
    does what belongs together; the judges know what each lane has seen. Behind a meeting of all
    lanes every lane knows the same.
    """
    numbers: dict[int, int] = {}
    renamed = []
    for x in operations:
        if x.name in MEETINGS or x.name == "cuda_warp_sync":
            numbers = {}
        if len(x.lanes) == 1 and x.name not in ("load", "store"):
            lane = numbers.setdefault(x.lanes[0], len(numbers))
            renamed.append(Operation(x.name, (lane,), x.operands))
        else:
            renamed.append(x)
    return renamed


def meetings_by_who_meets(trace: Trace) -> Trace:
    """Name barriers that nobody else comes to, nor arrives at alone, by the warps that meet there.

    Whether these meet at one barrier, at another or at two in turn is the same.
    """
    users: dict[Any, dict[Any, set[Any]]] = {}
    for key, operations in trace.items():
        for x in operations:
            if (number := x.operand("a")) and x.name in NAMED:
                users.setdefault((key[:-1], number), {}).setdefault(x.name, set()).add(key[-1])
                users[key[:-1], number].setdefault("counts", set()).add(x.operand("b"))

    def name(cta: Any, x: Operation) -> Operation:
        own = users.get((cta, x.operand("a")), {}) if x.name == NAMED[0] else {}
        who = own.get(NAMED[0], set())
        if NAMED[1] in own or own.get("counts") != {32 * len(who)}:
            return x
        operands = [(k, ("met by", *sorted(who)) if k == "a" else v) for k, v in x.operands]
        return Operation(x.name, x.lanes, tuple(operands))

    return {key: [name(key[:-1], x) for x in each] for key, each in trace.items()}


def commute(one: Operation, other: Operation) -> bool:
    """Tell whether two neighbours of one warp may change places.

    * initialisations of different mbarriers: nobody waits before the barrier that follows both;
    * copies into shared memory: nothing orders them, their phase ends after the last;
    * a copy and the expectation of its bytes: the phase stays open until that arrival, and the
      count of bytes may be below zero until then (PTX ISA 9.1, 9.7.13.15.5);
    * expectations at different mbarriers: their thread waits for nothing in between;
    * waits for two mbarriers: both are over behind the second;
    * wgmma.fence and a wait for an mbarrier: the fence orders registers, the wait memory;
    * loads;
    * a product of registers, and a fence or a meeting of the warp, which order memory;
    * loads of matrices into different registers, products into different registers;
    * a wait for the grid before, if that comes earlier: what follows it, follows it still;
    * an arrival, if that comes later, and loads and stores: nobody waits for anything in between;
    * stores of lanes to different elements of one tensor;
    * a proxy fence by all lanes and a meeting of them: in front, each lane's fence covers its own
      accesses; behind, the lane that goes on knows of all accesses, and its own fence covers them
      (PTX ISA 9.1, 8.9.1 "Causality order": a proxy fence along the path, whoever executes it).
    """
    names = {one.name, other.name}
    if waits_for_grid(other):
        return True  # `other` is the one that comes first in what was found
    if names == {"fence_proxy", "cuda_warp_sync"} or names == {"fence_proxy", "tvm_storage_sync"}:
        return len(one.lanes) == len(other.lanes) == 32
    if names == {"ptx_legacy_ldmatrix"}:
        return one.operand("3") != other.operand("3")
    if names == {"ptx_legacy_mma"}:
        return [one.operand(i) for i in ("10", "11")] != [other.operand(i) for i in ("10", "11")]
    if names == {one.name} and one.operand("b_desc") is not None:
        return one_sum(one, other)
    copies = [x.name.startswith(COPIES) for x in (one, other)]
    if all(copies):
        return one.operand("dst_mem") != other.operand("dst_mem")
    if any(copies) and EXPECTS in names:
        return True
    if names in ({"mbarrier_init"}, {EXPECTS}):
        return bool(one.operand("addr") != other.operand("addr"))
    if names <= WAITS or (names & WAITS and "wgmma_fence" in names):
        return True
    if names & REGISTERS_ALONE and names & FENCES:
        return True
    if one.name in ("mbarrier_arrive", CLUSTER_ARRIVE) and other.name in ("load", "store"):
        return True
    return names == {"load"} or (names == {"store"} and apart(one, other))


def apart(one: Operation, other: Operation) -> bool:
    """Tell whether two stores are to different elements of one tensor."""
    starts = [x.operand("1") for x in (one, other)]
    counts = [x.operand("4") for x in (one, other)]
    alike = all(one.operand(i) == other.operand(i) for i in "03")
    known = all(isinstance(x, int) for x in (*starts, *counts))
    return alike and known and abs(starts[0] - starts[1]) >= max(counts)


ORDER, SAME, MORE = "another order", "the same operations", "waits for more"
AGAIN = "the same again"
MEETS_MORE = "meets more"
IDLE = "CTAs that leave nothing behind"
LEAVES_NOTHING = {
    "mbarrier_init",
    "fence_mbarrier_init",
    "tvm_storage_sync",
    "setmaxnreg",
    "cuda_mbarrier_wait",
    "mbarrier_arrive",
    EXPECTS,
    *COPIES,
    "load",
    "fence_proxy",
    "cuda_warp_sync",
    "griddepcontrol",
    *NAMED,
    *FOR_COMPILERS,
}


def leaves_nothing(operation: Operation) -> bool:
    """Tell whether an operation changes its own CTA's shared memory or registers alone."""
    name = operation.name
    places = (operation.operand("addr") or 0, operation.operand("dst_mem") or 0)
    if operation.operand("cta_mask") is not None or any(x >> RANK_SHIFT for x in places):
        return False
    if name == "store":
        base = operation.operand("0")
        return isinstance(base, int) and not global_number(base) and bool(base & SHARED)
    return name in LEAVES_NOTHING or name.startswith(("wgmma", "ptx_legacy", "mma"))


def without_idle_ctas(trace: Trace) -> Trace:
    """Leave out CTAs that store nothing: a grid may be larger than its tensors need."""
    busy = {key[:-1] for key, x in trace.items() if not all(map(leaves_nothing, x))}
    return {key: x for key, x in trace.items() if key[:-1] in busy}


def each_warp(rule: Callable[[list[Operation]], list[Operation]]) -> Callable[[Trace], Trace]:
    """Make a rule about programs out of one about a warp."""
    return lambda trace: {key: rule(x) for key, x in trace.items()}


RULES: dict[str, Callable[[Trace], Trace]] = {
    "not in the CUDA text": each_warp(as_printed),
    "for compilers alone": each_warp(without(FOR_COMPILERS)),
    "a hint": each_warp(without(HINTS)),
    "each lane waits for the grid": each_warp(grid_waits_by_lanes),
    "a wait of idle lanes": each_warp(idle_lanes_wait_for_grid),
    "one value by any lanes": each_warp(stored_by_anybody),
    "element by element": each_warp(element_by_element),
    "a load of lanes that do nothing else": each_warp(without_unused_loads),
    "a barrier right behind the cluster's": without_meetings_behind_the_cluster,
    "an arrival at a barrier that nobody waits at": without_unmet_arrivals,
    "another number of a barrier": meetings_by_who_meets,
    "another lane of the warp": each_warp(elected_by_anybody),
    "meetings that order nothing": without_spare_meetings,
    AGAIN: each_warp(once(REPEATABLE)),
    "the phase before the first": each_warp(without_first_phase),
    "a count that nobody waits for": without_unawaited_counts,
    "a release that nobody waits for": without_unawaited_releases,
    "a release behind the last wait": without_late_releases,
    "an mbarrier that nobody comes to": without_unused_barriers,
    "one sum": each_warp(fences_of_registers_once),
    "another warp of the group": released_by_any_warp,
    "a wait for no group": each_warp(without_waits_for_none),
    "a wait right behind another": each_warp(last_wait),
    "one group of products": each_warp(one_group),
    "another warp stays for the cluster": without_last_waits_for_the_cluster,
}
# The last step, each alone: what an order of neighbours covers is covered with all in place.
LAST_RULES: dict[str, Callable[[Trace], Trace]] = {
    "another one waits for the grid": without_grid_waits_of_others,
    "a fence of lanes that did nothing": without_fences_of_nothing,
    "a fence in front of any access": without_fences_of_idle_warps,
    "a fence in front of a meeting or behind it": fences_behind_meetings,
}


def reason(before: Trace, after: Trace) -> str:
    """Return by which rules two programs are the same, "" if no rule says so."""
    if before == after:
        return SAME
    if before.keys() != after.keys():
        return IDLE if without_idle_ctas(before) == without_idle_ctas(after) else ""
    one, other = before, after
    for name, rule in RULES.items():
        if rule is released_by_any_warp and (found := _reordered(one, other)):
            return found  # with each release among what its own warp does
        one, other = rule(one), rule(other)
        if one == other:
            return name
    if one.keys() != other.keys():
        return ""
    alike = (name for name, rule in LAST_RULES.items() if rule(one) == rule(other))
    if found := _reordered(one, other) or next(alike, ""):
        return found
    return MEETS_MORE if _reordered(one, without_added_meetings(one, other)) else ""


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
