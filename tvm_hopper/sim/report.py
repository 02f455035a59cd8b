"""Make `Finding`s of the machine's errors: classify, describe, remove duplicates."""

from __future__ import annotations

from typing import Any

import numpy as np

from tvm_hopper.sim.findings import RULES, Finding, finding
from tvm_hopper.sim.races.shadow import ASYNC, TENSORMAP, MemoryAccess, clock_for
from tvm_hopper.sim.timeline.events import Recorder
from tvm_hopper.sim.tir import index_sources, shared_buffer, statement_text

_MISSING = {
    "RACE_READ_INFLIGHT": "completion of the write -> this read",
    "RACE_OVERWRITE_BUSY": "end of the read (or write) -> this overwrite",
    "RACE_WRITE_WRITE": "any order between the two writes",
    "PROXY_FENCE_MISSING": "fence.proxy.async between the write and this access",
    "PROXY_FENCE_MISSING_WAR": "fence.proxy.async between the read and this write",
    "TENSORMAP_PROXY": "fence.proxy.tensormap::generic.release after the write, then .acquire",
    "GLOBAL_NOT_VISIBLE": "full wait_group in the issuing thread before the release",
    "MBAR_SCOPE_TOO_NARROW": "release and acquire at cluster scope",
}
MAX_FINDINGS = 200


class Reporter:
    """Collects findings; the same rule at the same two statements is reported once."""

    def __init__(self, program: Any, policy: str, seed: int) -> None:
        self.program, self.policy, self.seed = program, policy, seed
        self.findings: list[Finding] = []
        self.seen: set[Any] = set()
        self.texts: dict[int, str] = {}
        self.buffers: dict[int, str] = {}
        self.recorder = Recorder(self)
        self.unknown = False  # an operation that nothing models has run
        self.time = 0
        self.steps = 0

    def statement(self, site: int) -> str:
        """Return the TIR (or PTX) text of a statement, shortened."""
        node = self.program.statements[site] if site else None
        if site not in self.texts:
            self.texts[site] = statement_text(node) if node is not None else ""
        return self.texts[site]

    def buffer_of(self, site: int) -> str:
        """Return the name of the shared buffer that a statement mentions, or an empty string."""
        if site not in self.buffers:
            node = self.program.statements[site] if site else None
            self.buffers[site] = shared_buffer(node) if node is not None else ""
        return self.buffers[site]

    def index_text(self, site: int) -> str:
        """Name the tensors that the indices of a statement are loaded from, if any."""
        node = self.program.statements[site] if site else None
        names = index_sources(node, self.program.statements) if node is not None else []
        return f"; its index is read from {', '.join(names)}" if names else ""

    def place(self, warp: Any, site: int, it: tuple[int, ...]) -> str:
        """Describe the agent, the place and the iteration."""
        loops = f" at iteration {', '.join(map(str, it))}" if it else ""
        return f"{warp.label}{loops}: {self.statement(site)}"

    def add(
        self,
        rule: str,
        message: str,
        *,
        key: Any = None,
        agents: tuple[str, ...] = (),
        hint: str = "",
        **places: Any,
    ) -> None:
        """Report a broken rule, unless it was reported for the same `key`.

        `places` are further attributes of the finding: buffer, byte_range, statements, missing.
        After an operation that is not modelled, later errors may only be its consequences:
        the verdict is `incomplete`, which never counts as success.
        """
        if self.unknown and RULES[rule].severity != "incomplete":
            return
        identity = (rule, key if key is not None else message)
        if identity in self.seen or len(self.findings) >= MAX_FINDINGS:
            return
        self.seen.add(identity)
        if self.recorder.on:
            self.recorder.finding(rule, agents[0] if agents else "", len(self.findings))
        places |= {"hint": hint} if hint else {}
        self.findings.append(
            finding(rule, message, agents=agents, policy=self.policy, seed=self.seed, **places)
        )

    def at(
        self, rule: str, warp: Any, site: int, message: str, it: Any = None, **more: Any
    ) -> None:
        """Report a rule broken by one statement of one warp, in an iteration (None: this one)."""
        more.setdefault("key", (site, more.get("buffer", "")))
        place = self.place(warp, site, warp.it if it is None else it)
        self.add(rule, message, agents=(warp.label,), statements=(place,), **more)

    def of_op(self, rule: str, op: Any, message: str, key: str, **more: Any) -> None:
        """Report a rule broken by an asynchronous operation, at the statement that issued it."""
        self.at(rule, op.warp, op.site, message, op.it, key=(op.site, key), **more)

    # -- conflicts --------------------------------------------------------------------------------

    def classify(self, region: Any, other: MemoryAccess, access: MemoryAccess, bundle: Any) -> str:
        """Name the rule that two unordered accesses break."""
        of_lanes = self._of_lanes(region, other, access, bundle)
        if not of_lanes and other.known_to(bundle.generic):
            if access.kind == TENSORMAP:
                return "TENSORMAP_PROXY"
            if access.kind == ASYNC:
                return "PROXY_FENCE_MISSING" if other.writes else "PROXY_FENCE_MISSING_WAR"
        if (access.rmw and other.rmw) or (not of_lanes and other.known_to(bundle.narrow)):
            return "MBAR_SCOPE_TOO_NARROW"
        if not region.shared and other.writes and other.op is not None:
            issued_before = bundle.generic.epochs[other.warp.index] >= other.epoch
            if issued_before or not access.writes:
                return "GLOBAL_NOT_VISIBLE"
        if not access.writes:
            return "RACE_READ_INFLIGHT"
        if not other.writes:
            return "RACE_OVERWRITE_BUSY"
        generic = other.op is None and access.op is None
        return "RACE_WRITE_WRITE" if generic or not region.shared else "RACE_OVERWRITE_BUSY"

    def _of_lanes(
        self, region: Any, other: MemoryAccess, access: MemoryAccess, bundle: Any
    ) -> bool:
        """Return whether a copy lacks nothing but a meeting of lanes in its issuing warp."""
        return (
            access.kind == ASYNC
            and other.warp is access.warp
            and other.known_to(clock_for(bundle, access.kind, region.shared))
        )

    def conflict(
        self,
        region: Any,
        cells: Any,
        other: MemoryAccess,
        access: MemoryAccess,
        bundle: Any,
        values: np.ndarray,
        number: int,
    ) -> None:
        """Report two accesses that overlap without order."""
        if other.warp is None:
            self.too_early(region, other, access.warp, access.site, access.writes)
            return
        rule = self.classify(region, other, access, bundle)
        if isinstance(cells, slice):
            hit = np.nonzero(values == number)[0] + cells.start
        else:
            hit = cells[values == number]
        granule = region.shadow.granule
        low, high = int(hit.min()) * granule, (int(hit.max()) + 1) * granule
        name, inside = region.name_of(low)
        if region.shared:
            name = self.buffer_of(access.site) or self.buffer_of(other.site) or name
        verb = "writes" if access.writes else "reads"
        own_kind = f"{access.op.kind} " if access.op is not None else ""
        other_verb = "written" if other.writes else "read"
        other_kind = f"{other.op.kind} of " if other.op is not None else ""
        message = (
            f"{own_kind}of {access.warp.label} {verb} bytes that are {other_verb} by "
            f"{other_kind}{other.warp.label}, and nothing orders the two"
        )
        if "PROXY" in rule:
            message = (
                f"{own_kind}of {access.warp.label} {verb} bytes {other_verb} by {other_kind}"
                f"{other.warp.label} through the generic proxy; execution is ordered, the "
                "proxies are not"
            )
        missing = _MISSING[rule]
        if self._of_lanes(region, other, access, bundle):
            missing = f"bar.warp.sync between the lanes of {other.warp.label}"
        if access.rmw and other.rmw:
            message += f" in scope {access.scope} of the one and {other.scope} of the other"
            missing = "a scope of both accesses that holds both threads (.cluster, .gpu)"
        if other.warp.lane_order.left_out(other):
            missing = f"bar.warp.sync between the lanes of {other.warp.label}; or {missing}"
            message += "; the release (or fence) after it is of lanes that had not met the others"
        self.add(
            rule,
            message,
            key=(other.site, access.site, name),
            buffer=name,
            byte_range=(inside, inside + high - low),
            agents=(access.warp.label, other.warp.label),
            statements=(
                self.place(access.warp, access.site, access.it),
                self.place(other.warp, other.site, other.it),
            ),
            missing=missing,
        )
        if rule == "RACE_READ_INFLIGHT":
            self.stale_wait(other, access)

    def too_early(
        self, region: Any, other: MemoryAccess, warp: Any, site: int, writes: bool
    ) -> None:
        """Report an access to memory that an earlier launch may still use."""
        verb, may = ("writes", "read or write") if writes else ("reads", "write")
        text = f"{warp.label} {verb} {region.name}, which {other.op.kernel} may still {may}"
        reason = "this launch may begin before that one has ended, and nothing has waited for it"
        missing = "griddepcontrol.wait before this access"
        if other.op.lasts:
            reason = "no thread of the launch between the two waits for it"
            missing = "griddepcontrol.wait in the kernel that is launched between"
        self.at(
            "GRID_DEPENDENCY",
            warp,
            site,
            f"{text}: {reason}",
            key=(site, region.name, other.op.kernel),
            buffer=region.name,
            missing=missing,
        )

    def stale_wait(self, other: MemoryAccess, access: MemoryAccess) -> None:
        """Blame a wait that passed on an old phase for a read in flight."""
        barrier = getattr(other.op, "barrier", None)
        barriers = [barrier, *getattr(other.op, "targets", [])]
        for warp in getattr(access.op, "members", None) or [access.warp]:
            for candidate in barriers:
                seen = warp.observed.get(id(candidate)) if candidate is not None else None
                if seen is not None and seen.stale:
                    text = (
                        f"{candidate.name}: wait for parity {seen.parity} passed on phase "
                        f"{seen.phase}, before the copy it should have waited for"
                    )
                    name = candidate.name
                    self.at("MBAR_PHASE_ALIAS", warp, seen.site, text, seen.it, buffer=name)

    # -- deadlock ---------------------------------------------------------------------------------

    def deadlock(self, blocked: list[Any]) -> None:
        """Report that no warp can advance, and the event that each waits for."""
        alike: dict[Any, list[Any]] = {}
        for warp in blocked:
            alike.setdefault((warp.cta, warp.group, warp.why()), []).append(warp)
            warp.blame()
        alike = dict(sorted(alike.items(), key=lambda item: item[1][0].suspicion()))
        lines = [
            f"{warps[0].label}{f' (and {len(warps) - 1} more)' if len(warps) > 1 else ''} {text}"
            for (_, _, text), warps in alike.items()
        ]
        first = next(iter(alike.values()))[0]
        self.add(
            "DEADLOCK",
            "no agent can progress: " + "; ".join(lines),
            key="deadlock",
            agents=tuple(w.label for w in blocked),
            statements=tuple(dict.fromkeys(self.place(w, w.site, w.it) for w in blocked))[:6],
            missing="the arrival or copy that the first wait needs",
            hint=first.way_out(),
        )

    def finish(self) -> None:
        """Report unfinished work when the kernel has ended; `KernelMachine` extends it."""
