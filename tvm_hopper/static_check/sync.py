"""Static check of a final device function's synchronisation, cheap enough for every compilation.

`check_sync` traces the synchronisation of one cluster (its role skeleton) and follows one schedule:
arrival counts, transaction bytes, parities, deadlock. It also checks each thread's program order:
wgmma fences and waits, bulk groups, setmaxnreg, barriers. What depends on data is left to the
simulator: that is reported as INCOMPLETE and is no error.
"""

from __future__ import annotations

from tvm import ir, tirx

from tvm_hopper.errors import VerifyError
from tvm_hopper.sim.findings import Finding
from tvm_hopper.sim.protocol.check import Skeleton, opaque_calls, run_skeleton
from tvm_hopper.sim.protocol.given import NOTHING_GIVEN, Given
from tvm_hopper.sim.protocol.trace import UnanalysableError
from tvm_hopper.sim.tir import CUDA, PTX, nodes_in, op_name
from tvm_hopper.static_check.streams import check_streams, finding

StaticFinding = Finding
SYNCHRONISING = ("mbarrier", "wgmma", "cp_async_bulk", "cp_reduce", "setmaxnreg", "bar")
MAX_ITERATIONS = 5


def check_sync(
    device_func: tirx.PrimFunc,
    host_func: tirx.PrimFunc | None = None,
    max_iterations: int = MAX_ITERATIONS,
    given: Given = NOTHING_GIVEN,
) -> list[StaticFinding]:
    """Return the broken rules that are visible without running the kernel.

    - `device_func`: final device function, as code generation prints it.
    - `host_func`: final host function. With it the bytes of each tensor copy are known and are
      compared with what the mbarriers expect.
    - `max_iterations`: loops around synchronisation are followed this far; one that deadlocks then
      is followed to its end before anything is said.
    - `given`: integers in memory, by parameter, from which loops and conditions may follow: what is
      found holds of these alone.
    """
    calls = _synchronising_calls(device_func)
    if not calls:
        return []
    found = list(_lone_try_waits(device_func, calls))
    if found:
        return found
    try:
        protocol, skeletons = run_skeleton(device_func, host_func, max_iterations, given)
    except UnanalysableError as error:
        return [finding("INCOMPLETE", f"left to the simulator: {error}")]
    found += protocol
    for skeleton in skeletons:
        found += _mixed_sites(skeleton)
        for trace in {id(trace): trace for trace in skeleton.traces}.values():
            found += check_streams(trace)
        found += [
            finding("INCOMPLETE", f"left to the simulator: what comes after the call of {name}")
            for name in opaque_calls(skeleton)
        ]
    unique = {(f.rule, f.message): f for f in found}
    return list(unique.values())


def require_sync(
    device_func: tirx.PrimFunc, host_func: tirx.PrimFunc | None = None
) -> tirx.PrimFunc:
    """Return the function, or raise with every broken rule.

    - raises VerifyError: `check_sync` found an error.
    """
    errors = [f for f in check_sync(device_func, host_func) if f.severity == "error"]
    if errors:
        name = str((device_func.attrs or {}).get("global_symbol", "kernel"))
        text = "\n".join(str(f) for f in errors)
        raise VerifyError(
            f"synchronisation of {name}: found {len(errors)} broken rule(s); need none\n{text}"
        )
    return device_func


def _synchronising_calls(func: tirx.PrimFunc) -> list[ir.Call]:
    kinds = (*(f"{PTX}{name}" for name in SYNCHRONISING), f"{CUDA}mbarrier_wait")
    return [call for call in nodes_in(func.body, ir.Call) if op_name(call).startswith(kinds)]


def _lone_try_waits(func: tirx.PrimFunc, calls: list[ir.Call]) -> list[Finding]:
    tries = [c for c in calls if op_name(c).startswith(f"{PTX}mbarrier_try_wait")]
    if not tries:
        return []
    looped = [x for loop in nodes_in(func.body, tirx.While) for x in nodes_in(loop, ir.Call)]
    return [
        finding("TRY_WAIT_NOT_LOOPED", f"one try_wait without a loop: {str(call)[:120]}")
        for call in tries
        if not any(call.same_as(other) for other in looped)
    ]


def _mixed_sites(skeleton: Skeleton) -> list[Finding]:
    """Find aligned barriers of which one generation is reached from several places."""
    aligned = {
        id(op.event.node): op.event
        for agent in skeleton.agents
        for op in agent.ops
        if op.kind == "bar" and op.event.values[3]
    }
    found: dict[object, Finding] = {}
    for (key, _), sites in skeleton.system.sites.items():
        events = [aligned[site] for site in sites if site in aligned]
        if len(sites) > 1 and events:
            found.setdefault(
                key,
                finding(
                    "NAMED_BAR_SITES",
                    f"barrier {key[2]} is reached from {len(sites)} places in one generation; "
                    "bar.sync is aligned, use barrier.sync",
                    events[0],
                ),
            )
    return list(found.values())
