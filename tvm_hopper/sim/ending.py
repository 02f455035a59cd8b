"""Checks at a kernel's end: copies in flight, open groups, phases, unwritten outputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tvm_hopper.sim.launch.tensors import TensorPlacement
from tvm_hopper.sim.races.clocks import Clock


def warp_exit(warp: Any) -> None:
    """Check the state that one warp leaves when it exits."""
    machine = warp.machine
    known = warp.known_to_any().generic.events
    for lane, groups in warp.bulk.items():
        if groups.open:
            op = groups.open[0]
            text = f"{warp.label}/lane{lane} issued a {op.kind} and never committed it"
            machine.of_op("BULK_GROUP_MISUSE", op, f"{text}: no wait_group covers it", "open")
        unread = [
            op
            for ops in (*groups.committed, groups.open)
            for op in ops
            if not known >> op.read_event & 1
        ]
        if unread:
            op = unread[0]
            text = f"{warp.label}/lane{lane} exits with {len(unread)} {op.kind} whose shared source"
            machine.of_op("EXIT_PENDING_ASYNC", op, f"{text} may be unread", "exit")
    if warp.wgmma_open or warp.wgmma_groups:
        op = (warp.wgmma_open or [o for ops in warp.wgmma_groups for o in ops] or [None])[0]
        if op is not None:
            text = f"{warp.label} exits with a wgmma that no wait_group covers"
            site, it = op.site, op.it
            machine.at("WGMMA_REG_INFLIGHT", warp, site, text, it, key=(site, "exit"))


def known_at_exit(machine: Any, cta: Any) -> Clock:
    """Return the joint knowledge of the warps of one CTA when they end."""
    known = Clock(machine.cluster_warps)
    for warp in cta.warps:
        everything = warp.known_to_any()
        known.join(everything.generic)
        known.join(everything.narrow)
    return known


def machine_end(machine: Any, ctas: Sequence[Any]) -> None:
    """Check the state that some CTAs (whole clusters) leave; adds findings and changes nothing."""
    complete = all(warp.finished for cta in ctas for warp in cta.warps)
    if complete:
        _copies_into_exited(machine, ctas)
        _remote(machine, ctas)
    _groups_of_others(machine, ctas)
    _registers(machine, ctas)
    _unissued(machine, ctas)
    inside = set(ctas)
    for barrier in machine.barriers:
        if barrier.cta not in inside:
            continue
        if complete and barrier.tx:
            text = (
                f"{barrier.name}: at the end of the kernel the tx-count is {barrier.tx}: "
                "expected and delivered bytes differ"
            )
            machine.add("MBAR_TX_MISMATCH", text, key=("end", barrier.name), buffer=barrier.name)
        if complete and barrier.used_early:
            text = f"{barrier.name}: no fence.mbarrier_init between its init and its first use"
            machine.add("MBAR_INIT_FENCE", text, key="fence", buffer=barrier.name)


def _copies_into_exited(machine: Any, ctas: Sequence[Any]) -> None:
    known = {cta: known_at_exit(machine, cta) for cta in ctas}
    for op in machine.loads:
        if op.barrier.cta in known and not known[op.barrier.cta].events >> op.write_event & 1:
            text = (
                f"{op.barrier.cta.label} may exit before a {op.kind} into it has completed: "
                f"no thread waits for it on {op.barrier.name}"
            )
            machine.of_op("EXIT_PENDING_ASYNC", op, text, "load", buffer=op.barrier.name)
    for cta, op in machine.copies_out:
        if cta in known and not known[cta].events >> op.read_event & 1:
            text = f"{cta.label} may exit before a {op.kind} has read its shared memory"
            machine.of_op("EXIT_PENDING_ASYNC", op, text, "source")


def _remote(machine: Any, ctas: Sequence[Any]) -> None:
    known = {cta: known_at_exit(machine, cta) for cta in ctas}
    reached = [
        (cta, warp, epoch, -1, site, it)
        for (cta, warp, site), (epoch, it) in machine.reached.items()
    ]
    for cta, warp, epoch, event, site, it in [*machine.remote_ops, *reached]:
        if cta not in known:
            continue
        clock = known[cta]
        seen = clock.events >> event & 1 if event >= 0 else clock.epochs[warp.index] >= epoch
        if not seen:
            text = f"{cta.label} may exit before {warp.label} reaches into it"
            machine.at("CLUSTER_TARGET_EXITED", warp, site, text, it, key=(site, "exited"))


def _groups_of_others(machine: Any, chosen: Sequence[Any]) -> None:
    """Find waits that only threads without a group ever execute, next to owners of groups."""
    owners = {
        (warp, lane): groups
        for cta in chosen
        for warp in cta.warps
        for lane, groups in warp.bulk.items()
        if groups.ever_committed
    }
    for site, threads in machine.bulk_waits.items():
        ctas = {warp.cta for warp, _ in threads}
        others = [owner for owner in owners if owner[0].cta in ctas]
        if not others or any(thread in owners for thread in threads):
            continue
        (warp, lane), it = next(iter(threads.items()))
        owner, owner_lane = others[0]
        machine.add(
            "BULK_GROUP_MISUSE",
            f"wait_group executed by {warp.label}/lane{lane}, which committed nothing: it waits "
            f"for nothing; the groups belong to {owner.label}/lane{owner_lane}",
            key=(site, "other"),
            agents=(warp.label, owner.label),
            statements=(machine.place(warp, site, it),),
        )


def _registers(machine: Any, ctas: Sequence[Any]) -> None:
    for cta in ctas:
        for first in range(0, len(cta.warps), 4):
            group = cta.warps[first : first + 4]
            done = {tuple(w.setmaxnregs) for w in group if w.finished}
            if len(done) > 1:
                machine.add(
                    "SETMAXNREG_PARTIAL",
                    f"{group[0].label}: warps of one warp group execute different setmaxnreg: "
                    f"{sorted(done)}",
                    key=("partial", first),
                )
        targets = [w.num_registers for w in cta.warps]
        blocked = [w for w in cta.warps if w.blocked_on and w.blocked_on[0] == "registers"]
        if blocked:
            wanted = sum(
                (w.blocked_on[2] if w in blocked else r) * 32
                for w, r in zip(cta.warps, targets, strict=True)
            )
            total = machine.entry_registers * 32 * len(cta.warps)
            text = (
                f"pool of {machine.entry_registers} x {32 * len(cta.warps)} = {total} registers; "
                f"{wanted} are requested: the last warps block forever"
            )
            machine.at("SETMAXNREG_BUDGET", blocked[0], blocked[0].blocked_on[3], text)


def _unissued(machine: Any, ctas: Sequence[Any]) -> None:
    for cta in ctas:
        for group in cta.warp_groups:
            steps = {w.wgmma_steps for w in group.warps if w.finished}
            if len(steps) > 1:
                site, warp = group.sequence[-1]
                text = f"warps of one warp group execute {sorted(steps)} wgmma instructions"
                machine.at("WARP_CONVERGENCE", warp, site, text)
            for op in group.operations:
                if not op.issued:
                    missing = [w.label for w in group.warps if w not in op.members and w.finished]
                    if not missing:
                        continue
                    machine.add(
                        "WARP_CONVERGENCE",
                        f"wgmma executed by {len(op.members)} of 4 warps of a warp group; missing "
                        f"{', '.join(missing)}",
                        key=(op.site, "unissued"),
                        agents=tuple(missing),
                        statements=(machine.place(op.warp, op.site, op.it),),
                    )


def uncovered(
    name: str, place: TensorPlacement, written: np.ndarray, stored: bool = False
) -> dict[str, Any] | None:
    """Describe the elements of an output that were not written; None if all were.

    `written` has one flag for each byte of the memory that the output is a view of. `stored`: some
    statement stores to it; without one, an argument that stays unwritten is no output.
    """
    elements = place.bytes_among(written).all(axis=-1)
    if elements.all() or not (elements.any() or stored):
        return None
    holes = np.flatnonzero(place.bytes_among(~written).any(axis=-1))
    first, last = (np.unravel_index(hole, elements.shape) for hole in (holes[0], holes[-1]))
    steps = place.array.strides
    low, high = sorted(
        place.offset + int(sum(i * s for i, s in zip(index, steps, strict=True)))
        for index in (first, last)
    )
    return {
        "message": f"{name}: {len(holes)} of {elements.size} elements are never written",
        "buffer": name,
        "byte_range": (low, high + place.array.itemsize),
    }
