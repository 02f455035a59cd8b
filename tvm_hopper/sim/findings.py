"""Rules that the simulator checks, and `Finding`, one per broken rule.

A rule's name, severity and section are data, so that a caller may request the list and a test may
compare findings by rule.  Severities and verdicts share one order: clean < review < incomplete <
error.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

VERDICTS = ("clean", "review", "incomplete", "error")
MAX_LISTED_BLOCKS = 16  # blocks in the call that replays a finding
# policies of findings that no schedule made -> the stage of `verify` that made them
NOT_RUN = {
    "": "",
    "static": "  # its static check",
    "skeleton": "  # its exploration of interleavings",
}


@dataclass(frozen=True)
class Rule:
    """One diagnostic: `ptx_section` names the section of the PTX ISA 9.1 that it follows from."""

    name: str
    severity: str
    ptx_section: str
    hint: str


def _rules(*rules: Rule) -> dict[str, Rule]:
    return {rule.name: rule for rule in rules}


_MBAR = "9.7.13.15 mbarrier"
_ASYNC = "8.9.1.1 asynchronous operations"
_PROXY = "8.6 proxies"
_WGMMA = "9.7.15 wgmma"
_BULK = "9.7.9.25 cp.async.bulk"
_ALIGNED = "9.7.13.1 barrier, 9.7.15 wgmma, 9.7.9.6 shfl.sync"

RULES = _rules(
    Rule("MBAR_USE_BEFORE_INIT", "error", _MBAR, "initialise the mbarrier before its first use"),
    Rule(
        "MBAR_INIT_UNPUBLISHED",
        "error",
        _MBAR,
        "put __syncthreads (cluster: fence.mbarrier_init + cluster barrier) after mbarrier.init",
    ),
    Rule("MBAR_REINIT_LIVE", "error", _MBAR, "mbarrier.inval first, or carry the phase on"),
    Rule("MBAR_ARRIVE_OVERFLOW", "error", _MBAR, "make the init count equal the real arrivals"),
    Rule("MBAR_TX_MISMATCH", "error", _MBAR, "expect exactly the bytes that the copies deliver"),
    Rule("MBAR_MISSING_WAIT", "error", _MBAR, "wait for each phase before arriving on the next"),
    Rule("MBAR_PHASE_ALIAS", "error", _MBAR, "flip the parity once per use of the slot"),
    Rule(
        "MBAR_SCOPE_TOO_NARROW",
        "error",
        "8.7 morally strong operations",
        "use a scope that holds both threads: .cluster within one, else .gpu",
    ),
    Rule("DEADLOCK", "error", "9.7.13 synchronisation", "complete the cycle's missing arrival"),
    Rule("RACE_READ_INFLIGHT", "error", _ASYNC, "wait for the completion of the write first"),
    Rule("RACE_OVERWRITE_BUSY", "error", _ASYNC, "release the slot after its reads are complete"),
    Rule("RACE_WRITE_WRITE", "error", "8.7.1 data races", "order the two writes"),
    Rule("PROXY_FENCE_MISSING", "error", _PROXY, "fence.proxy.async after the generic write"),
    Rule(
        "PROXY_FENCE_MISSING_WAR",
        "error",
        _PROXY,
        "fence.proxy.async between the generic read and the release",
    ),
    Rule(
        "TENSORMAP_PROXY",
        "error",
        _PROXY,
        "fence.proxy.tensormap::generic.release (or tensormap.cp_fenceproxy) after the change, and "
        ".acquire of the map, after that, before the copy that uses it",
    ),
    Rule("GLOBAL_NOT_VISIBLE", "error", _BULK, "use cp.async.bulk.wait_group (not .read)"),
    Rule("BULK_GROUP_MISUSE", "error", _BULK, "commit and wait in the thread that issued"),
    Rule("WGMMA_FENCE_MISSING", "error", _WGMMA, "put wgmma.fence before the wgmma.mma_async"),
    Rule("WGMMA_REG_INFLIGHT", "error", _WGMMA, "wgmma.wait_group before touching the registers"),
    Rule("WARP_CONVERGENCE", "error", _ALIGNED, "let all threads of the warp (group) execute it"),
    Rule("NAMED_BAR_MISMATCH", "error", "9.7.13.1 barrier", "use one count per barrier"),
    Rule("SETMAXNREG_BUDGET", "error", "9.7.19.5 setmaxnreg", "lower the consumers' registers"),
    Rule("SETMAXNREG_DIRECTION", "error", "9.7.19.5 setmaxnreg", "dec down, inc up"),
    Rule("SETMAXNREG_PARTIAL", "error", "9.7.19.5 setmaxnreg", "execute it in the whole group"),
    Rule("SETMAXNREG_IGNORED", "review", "9.7.19.5 setmaxnreg", "give the kernel launch bounds"),
    Rule(
        "CLUSTER_TARGET_EXITED",
        "error",
        "9.7.13.3 barrier.cluster",
        "end with a cluster barrier or wait for the last releases",
    ),
    Rule(
        "CLUSTER_TARGET_NOT_STARTED",
        "error",
        "9.7.13.3 barrier.cluster",
        "put a cluster barrier before the first access to another CTA's shared memory",
    ),
    Rule("EXIT_PENDING_ASYNC", "error", _BULK, "wait for the asynchronous operation before exit"),
    Rule("UNINIT_READ", "error", "5 state spaces", "write the bytes before reading them"),
    Rule("OOB_ACCESS", "error", "5 state spaces", "keep the access inside the buffer"),
    Rule("OUT_OF_VIEW", "error", "5 state spaces", "stay inside the tensor's own elements"),
    Rule("MISALIGNED", "error", "5.4.5 alignment", "align the address"),
    Rule(
        "OUTPUT_COVERAGE",
        "error",
        "specification of the kernel",
        "write each element; if a part keeps its contents, give the tensor in `inputs`",
    ),
    Rule(
        "WRONG_VALUE",
        "error",
        "specification of the kernel",
        "compare the indices and operands of this statement with the plain program's",
    ),
    Rule(
        "COOPERATIVE_LAUNCH",
        "error",
        "CUDA Programming Guide, grid synchronisation",
        'name "tirx.use_cooperative_launch" among the tags of tirx.kernel_launch_params',
    ),
    Rule(
        "GRID_DEPENDENCY",
        "error",
        "9.7.13.13 griddepcontrol",
        "griddepcontrol.wait before the first access to memory that an earlier launch uses",
    ),
    Rule("LAUNCH_LIMITS", "error", "2.2 thread hierarchy", "change the launch"),
    Rule(
        "TARGET_ARCH",
        "error",
        "9.7 Target ISA Notes",
        "build for an architecture that has the instruction, or use one that the target has",
    ),
    Rule("TENSOR_MAP", "error", "5.5.8 tensor-map", "change the tensor map"),
    Rule("TRAP", "error", "9.7.19.4 trap", "find out why the condition does not hold"),
    Rule("TRY_WAIT_NOT_LOOPED", "error", _MBAR, "repeat try_wait until it returns true"),
    Rule("ILLEGAL_OPERAND", "error", "9.7 instructions", "use a value that the instruction allows"),
    Rule("INCOMPLETE", "incomplete", "not modelled", "nothing is certified for this kernel"),
    Rule(
        "NAMED_BAR_SITES",
        "review",
        "9.7.13.1 barrier",
        "use one statement, or barrier.sync without .aligned",
    ),
    Rule(
        "CLUSTER_NOT_PORTABLE",
        "review",
        "2.2.2 cluster of CTAs",
        "use at most 8 thread blocks, or give the device's SM count: verify(num_sms=...)",
    ),
    Rule("MBAR_INIT_FENCE", "review", _MBAR, "put fence.mbarrier_init after mbarrier.init"),
)


@dataclass(frozen=True)
class Finding:
    """One broken rule, with both places, the missing edge and the seed that replays it.

    Attributes
    ----------
    rule : str
        Key of `RULES`.
    severity : str
        One of `VERDICTS[1:]`.
    message : str
        The error, with agents, iteration and statements.
    buffer : str
        Name of the buffer or mbarrier, or an empty string.
    byte_range : tuple[int, int]
        Half-open range of bytes inside the buffer's memory; (0, 0) if none.
    agents : tuple[str, ...]
        The one or two agents, `cta/role/warp` form.
    statements : tuple[str, ...]
        TIR text of the one or two statements.
    missing : str
        The synchronisation edge that would have made it legal.
    hint : str
        A one-line fix.
    policy, seed : str, int
        They replay the finding. The policy is "static" or "skeleton" if the static check or the
        exploration of interleavings made it, empty if it is of no schedule.
    ptx_section : str
        Section of the PTX ISA 9.1.
    blocks : tuple[tuple[int, ...], ...]
        The CTAs of the run; empty if they were all.
    """

    rule: str
    severity: str
    message: str
    buffer: str = ""
    byte_range: tuple[int, int] = (0, 0)
    agents: tuple[str, ...] = ()
    statements: tuple[str, ...] = ()
    missing: str = ""
    hint: str = ""
    policy: str = ""
    seed: int = 0
    ptx_section: str = ""
    blocks: tuple[tuple[int, ...], ...] = ()

    @property
    def replay(self) -> str:
        """The call that makes this finding again, of a kernel `ex` and its `inputs`."""
        if self.policy in NOT_RUN:
            return "verify(ex)" + NOT_RUN[self.policy]
        call = f"simulate(ex, inputs, policy={self.policy!r}, seed={self.seed}"
        if not self.blocks:
            return call + ")"
        listed = list(self.blocks) if len(self.blocks) <= MAX_LISTED_BLOCKS else "finding.blocks"
        return f"{call}, blocks={listed})"

    def __str__(self) -> str:
        """Format the finding on a few lines, most important first."""
        where = f" {self.buffer}" if self.buffer else ""
        if self.byte_range != (0, 0):
            where += f"[{self.byte_range[0]}:{self.byte_range[1]})"
        lines = [f"{self.severity}: {self.rule}{where}: {self.message}"]
        lines += [f"    at {text}" for text in self.statements]
        if self.missing:
            lines.append(f"    missing: {self.missing}")
        lines.append(f"    fix: {self.hint}  (PTX {self.ptx_section})")
        lines.append(f"    replay: {self.replay}")
        return "\n".join(lines)


def finding(rule: str, message: str, **more: Any) -> Finding:
    """Make a finding of a rule, with the rule's severity, section and hint."""
    facts = RULES[rule]
    more.setdefault("hint", facts.hint)
    return Finding(rule, facts.severity, message, ptx_section=facts.ptx_section, **more)


def worst(findings: Iterable[Finding]) -> str:
    """Return the verdict of some findings: the worst severity among them."""
    return max((f.severity for f in findings), key=VERDICTS.index, default="clean")
