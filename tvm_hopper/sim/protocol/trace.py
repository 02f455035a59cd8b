"""Trace the synchronisation of a CTA's threads in program order: the role skeleton.

The control flow of GEMM-like kernels does not depend on data, so the function is walked once with
all threads side by side: a condition splits the mask, a loop runs with integer values, and every
synchronising instruction becomes a `SyncEvent` with the mask of the threads that execute it.  Loops
without synchronisation are not run; their effects on registers and shared memory are summarised.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

import numpy as np
from tvm import ir, tirx

from tvm_hopper.facts.arch import DEFAULT_ARCH, Arch
from tvm_hopper.sim.protocol.exits import any_opaque, opaque_call, opaque_step, ways_to_leave
from tvm_hopper.sim.protocol.expr import (
    UNKNOWN,
    Address,
    Closure,
    Env,
    bounds_of,
    compile_expr,
    register_key,
)
from tvm_hopper.sim.protocol.given import NOTHING_GIVEN, Given, as_environment, asking, pass_on
from tvm_hopper.sim.protocol.ops import (
    BARRIER_KINDS,
    COPY_KINDS,
    Emitter,
    SpunWait,
    emitter_of,
    is_unknown,
    multiplies,
    spun_wait,
)
from tvm_hopper.sim.tir import arch_of_kernel, nodes_in, numpy_dtype, short_name, thread_extents

Step = Callable[["Trace", np.ndarray], None]
WHOLE = 1 << 30  # value of `max_iterations` that cuts no loop
MAX_NESTED_ITERATIONS = 2  # tiles of a persistent kernel
ASSUMED_SCALAR = 512  # value of symbolic extents: enough for several iterations of any tile


class UnanalysableError(Exception):
    """Synchronisation depends on something that the skeleton cannot know; the text names it."""


@dataclass(frozen=True)
class SyncEvent:
    """One synchronising instruction: `mask` (threads,) bool: the threads that execute it.

    `loops` holds the values of the loops around it, outermost first.
    """

    kind: str
    mask: np.ndarray
    values: tuple[Any, ...]
    node: Any
    loops: tuple[int, ...] = ()


@dataclass
class Trace:
    """Events of one CTA, and the parts left out."""

    num_threads: int
    env: Env
    max_iterations: int
    max_events: int
    events: list[SyncEvent] = field(default_factory=list)
    truncated: bool = False
    cut_inner: bool = False
    cut_inside: bool = False  # an inner loop was cut in this pass of the outermost one
    loops: list[int] = field(default_factory=list)
    of_several: bool = False  # events of CTAs at different positions
    launch_bounds: int = 0  # blocks that must fit on an SM; 0: not stated
    arch: Arch = DEFAULT_ARCH

    def add(self, kind: str, mask: np.ndarray, values: tuple[Any, ...], node: Any) -> None:
        """Append one event."""
        if len(self.events) >= self.max_events:
            raise UnanalysableError(f"more than {self.max_events} synchronising instructions")
        if kind != "register" and any(value is UNKNOWN or value is None for value in values):
            self.leave_open()
        self.events.append(SyncEvent(kind, mask, values, node, tuple(self.loops)))

    def leave_open(self) -> None:
        """Go on without something that is not known, if it may not differ from block to block."""
        if self.of_several:
            raise UnanalysableError("a value that the block index may steer")


def trace_cta(
    func: tirx.PrimFunc,
    block: Mapping[str, Any] | None = None,
    max_iterations: int = WHOLE,
    max_events: int = 20000,
    cut_inner: bool = False,
    given: Given = NOTHING_GIVEN,
) -> Trace:
    """Trace one CTA.

    - `func`: final device function.
    - `block` (dict): position by thread tag ("blockIdx.x", "clusterCtaIdx.x"); 0 where absent.
      `UNKNOWN` where the trace is to hold of CTAs at several positions.
    - `max_iterations`: an outermost loop around synchronisation runs at most so often, one around
      another such loop at most twice; inner loops run in full, since phases count through them.
      `Trace.truncated` tells whether one was cut.
    - `cut_inner`: cut inner loops too; then the outermost loop runs once, so that phases still
      count on.
    - `given`: integers in memory, by parameter: see `given_integers`.
    - raises UnanalysableError: a condition, extent or barrier address around synchronisation
      depends on data; or something that is followed may depend on a position that is not known.
    """
    compiled = _compiled(func)
    extents = thread_extents(func)
    sizes = [int(extents[f"threadIdx.{a}"][1]) if f"threadIdx.{a}" in extents else 1 for a in "xyz"]
    threads = np.arange(int(np.prod(sizes)))
    env: Env = {"thread": threads, "lane": threads % 32, **as_environment(given)}
    for tag, (var, extent) in extents.items():
        size = int(extent) if isinstance(extent, tirx.IntImm) else ASSUMED_SCALAR
        if tag.startswith("threadIdx"):
            axis = "xyz".index(tag[-1])
            env[var] = threads // int(np.prod(sizes[:axis])) % size
        else:
            env[var] = (block or {}).get(tag, 0)
    for param in func.params:
        if str(param.ty) in ("T.int32", "T.int64", "int32", "int64") and param not in env:
            env[param] = ASSUMED_SCALAR
    trace = Trace(len(threads), env, max_iterations, max_events, cut_inner=cut_inner)
    trace.of_several = UNKNOWN in (block or {}).values()
    stated = (func.attrs or {}).get("tirx.launch_bounds_min_blocks_per_sm", 0)
    trace.launch_bounds = int(stated) or int(compiled.bounds)
    trace.arch = arch_of_kernel(func)
    if compiled.returns and compiled.level != NONE:
        raise UnanalysableError("a return before the function's end")
    compiled.step(trace, np.ones(len(threads), bool))
    return trace


# -- compilation: one closure per statement ------------------------------------------------------


@dataclass
class _Compiled:
    step: Step
    level: int
    bounds: bool
    returns: bool  # some threads may leave early


_CACHE: list[tuple[Any, _Compiled]] = []


def _compiled(func: tirx.PrimFunc) -> _Compiled:
    for known, compiled in _CACHE:
        if known.same_as(func):
            return compiled
    builder = _Builder(any_opaque(func.body), multiplies(func.body))
    step, level = builder.stmt(func.body)
    returns = "return" in ways_to_leave(func.body)
    compiled = _Compiled(step, level, builder.bounds, returns)
    _CACHE.append((func, compiled))
    del _CACHE[:-4]
    return compiled


def _nothing(trace: Trace, mask: np.ndarray) -> None:
    """Do nothing."""


NONE, OPAQUE, LOCAL, COPIES, BARRIERS = range(5)


class _Builder:
    """Compiles statements; `stmt` returns the closure and how it synchronises.

    `NONE`: not at all; `OPAQUE`: an unknown body may; `LOCAL`: within a warp group;
    `COPIES`: copies complete on a barrier; `BARRIERS`: it waits or arrives.
    """

    def __init__(self, opaque: bool, registers: bool) -> None:
        self.opaque, self.registers, self.bounds = opaque, registers, False
        self.nested = False  # a loop with synchronisation is inside the one being compiled
        self.loops: list[tuple[Any, Any]] = []

    def stmt(self, node: Any) -> tuple[Step, int]:
        method = getattr(self, f"_{type(node).__name__.lower()}", None)
        step, level = method(node) if method else (_nothing, NONE)
        if self.opaque and (name := opaque_call(node)) is not None:
            return _chain([opaque_step(node, name), step]), max(level, OPAQUE)
        return step, level

    def _seqstmt(self, node: Any) -> tuple[Step, int]:
        parts = [self.stmt(inner) for inner in node.seq]
        steps = [step for step, _ in parts if step is not _nothing]
        return _chain(steps), max((level for _, level in parts), default=NONE) if steps else NONE

    def _attrstmt(self, node: Any) -> tuple[Step, int]:
        if node.attr_key == "tirx.max_registers":
            self.bounds = True
        return self.stmt(node.body)

    def _bind(self, node: Any) -> tuple[Step, int]:
        value, var = compile_expr(node.value), node.var

        def run(trace: Trace, mask: np.ndarray) -> None:
            trace.env[var] = value(trace.env)

        return run, NONE

    def _allocbuffer(self, node: Any) -> tuple[Step, int]:
        buffer, scope = node.buffer, node.buffer.scope()
        if scope.startswith("shared"):
            space = f"{buffer.name}#{len(self.loops)}"

            def run(trace: Trace, mask: np.ndarray) -> None:
                trace.env["space", buffer] = Address(space, 0)

            return run, NONE
        return _nothing, NONE

    def _declbuffer(self, node: Any) -> tuple[Step, int]:
        if node.buffer.scope().startswith("local"):
            return _nothing, NONE
        data, buffer = compile_expr(node.data), node.buffer

        def run(trace: Trace, mask: np.ndarray) -> None:
            base = data(trace.env)
            pass_on(trace.env, buffer, node.data)
            if isinstance(base, Address):
                trace.env["space", buffer] = base

        return run, NONE

    def _for(self, node: Any) -> tuple[Step, int]:
        self.loops.append((node.loop_var, node.extent))
        before, self.nested = self.nested, False
        body, sync = self.stmt(node.body)
        nested, self.nested = self.nested, before or sync == BARRIERS
        self.loops.pop()
        start, extent, var = compile_expr(node.min), compile_expr(node.extent), node.loop_var
        if body is _nothing:
            return _nothing, NONE
        left_early = sync != NONE and bool(ways_to_leave(node.body) - {"return"})

        def run(trace: Trace, mask: np.ndarray) -> None:
            first, count = start(trace.env), extent(trace.env)
            if left_early:
                raise UnanalysableError(f"loop {var.name} around synchronisation is left early")
            if not isinstance(first, int) or not isinstance(count, int):
                trace.leave_open()
                if sync <= OPAQUE:
                    return body(trace, mask) if sync == OPAQUE else None
                text = f"extent of loop {var.name}: {node.extent}{asking(node.extent)}"
                raise UnanalysableError(text)
            if sync <= OPAQUE:  # its effects are summarised: once is enough
                trace.env[var] = first
                if count > 0:
                    body(trace, mask)
                return
            most = _iteration_limit(trace, nested, count) if sync == BARRIERS else count
            trace.loops.append(0)
            for iteration in range(count):
                if iteration == most or (iteration and trace.cut_inside):
                    trace.truncated = True
                    break
                trace.env[var] = first + iteration
                trace.loops[-1] = iteration
                body(trace, mask)
            if most < count and trace.cut_inner and len(trace.loops) > 1:
                trace.cut_inside = True
            elif len(trace.loops) == 1:
                trace.cut_inside = False
            trace.loops.pop()

        return run, sync

    def _while(self, node: Any) -> tuple[Step, int]:
        if (wait := spun_wait(node)) is not None:
            return self._spun(node, wait), BARRIERS
        body, sync = self.stmt(node.body)

        def run(trace: Trace, mask: np.ndarray) -> None:
            if sync > OPAQUE:
                raise UnanalysableError(f"while loop around synchronisation: {node.condition}")
            body(trace, mask)

        return run, sync

    def _spun(self, node: Any, wait: SpunWait) -> Step:
        """Follow a loop that tries one wait until it passes: a wait."""
        address, parity = compile_expr(wait.address), compile_expr(wait.parity)
        condition, key = compile_expr(node.condition), wait.key

        def run(trace: Trace, mask: np.ndarray) -> None:
            holds = [bool(condition({**trace.env, key: value})) for value in (0, 1)]
            now = condition(trace.env)
            if holds != [True, False] or not isinstance(now, (bool, int)):
                raise UnanalysableError(f"while loop around synchronisation: {node.condition}")
            if now:
                trace.add("wait", mask, (address(trace.env), parity(trace.env)), wait.call)
                trace.env[key] = 1

        return run

    def _ifthenelse(self, node: Any) -> tuple[Step, int]:
        condition = compile_expr(node.condition)
        then, then_sync = self.stmt(node.then_case)
        other, other_sync = self.stmt(node.else_case) if node.else_case is not None else (
            _nothing, NONE,
        )  # fmt: skip
        sync = max(then_sync, other_sync)
        if then is _nothing and other is _nothing:
            return _nothing, NONE

        def run(trace: Trace, mask: np.ndarray) -> None:
            which = condition(trace.env)
            if which is UNKNOWN:
                if sync > OPAQUE:
                    text = f"{node.condition}{asking(node.condition)}"
                    raise UnanalysableError(f"condition around synchronisation: {text}")
                trace.leave_open()
                then(trace, mask)
                other(trace, mask)
            elif isinstance(which, np.ndarray):
                yes, no = mask & which, mask & ~which
                if yes.any():
                    then(trace, yes)
                if no.any():
                    other(trace, no)
            else:
                (then if which else other)(trace, mask)

        return run, sync

    def _bufferstore(self, node: Any) -> tuple[Step, int]:
        reads = self.accesses(node.value)
        steps: list[Step] = [self._access(node, *read, False) for read in reads]
        scope = node.buffer.scope()
        if scope.startswith("local"):
            if self.registers:
                bounds = self.bounds_of(node.indices)
                steps.append(self._access(node, node.buffer, bounds, True))
            key = register_key(node.buffer, node.indices)
            if key is not None and str(node.value.ty).startswith(
                ("T.int", "T.uint", "int", "uint")
            ):
                value = compile_expr(node.value)

                def keep(trace: Trace, mask: np.ndarray) -> None:
                    trace.env[key] = value(trace.env)

                steps.append(keep)
        elif scope.startswith("shared"):
            steps.append(self.shared(node, node.buffer, node.indices, True))
        return _chain(steps), NONE

    def _evaluate(self, node: Any) -> tuple[Step, int]:
        call = node.value
        if not isinstance(call, ir.Call):
            return _nothing, NONE
        emitter = emitter_of(call)
        if emitter is None:
            name = short_name(call)
            if is_unknown(call):

                def refuse(trace: Trace, mask: np.ndarray) -> None:
                    raise UnanalysableError(f"instruction {name}")

                return refuse, BARRIERS
            if name == "call_pure_extern" or (self.opaque and opaque_call(node)):
                return _nothing, NONE  # its effects on registers are unknown
            steps = [self._access(call, *read, False) for read in self.accesses(call)]
            return _chain(steps), NONE
        level = LOCAL if emitter.sync else NONE
        if emitter.kind in BARRIER_KINDS:
            level = COPIES if emitter.kind in COPY_KINDS else BARRIERS
        return self._instruction(emitter, call), level

    def _instruction(self, emitter: Emitter, call: ir.Call) -> Step:
        closures: list[Closure] = [
            v if isinstance(v, FunctionType) else compile_expr(v) for v in emitter.operands
        ]
        steps: list[Step] = [
            self._access(call, load.source, self.bounds_of(load.indices, width), write)
            for load, width, write in (emitter.registers if self.registers else ())
        ]
        kind, constants, node = emitter.kind, emitter.constants, call

        def run(trace: Trace, mask: np.ndarray) -> None:
            for step in steps:
                step(trace, mask)
            values = tuple(closure(trace.env) for closure in closures)
            if emitter.effect is not None:
                emitter.effect(trace.env, values)
            if kind:
                trace.add(kind, mask, (*values, *constants), node)

        return run

    # -- registers and shared memory --------------------------------------------------------------

    def accesses(self, root: Any) -> list[tuple[Any, tuple[int, int] | None]]:
        """Local buffers that an expression reads, with bounds of the indices, if these matter."""
        loads = nodes_in(root, ir.TensorLoad) if self.registers else []
        local = [x for x in loads if x.source.scope().startswith("local")]
        return [(x.source, self.bounds_of(x.indices)) for x in local]

    def bounds_of(self, indices: Sequence[Any], width: int = 1) -> tuple[int, int] | None:
        """Half-open range of a register index over the loops around it; None if not known."""
        return bounds_of(indices, width, self.loops)

    def _access(self, node: Any, buffer: Any, bounds: tuple[int, int] | None, write: bool) -> Step:
        def run(trace: Trace, mask: np.ndarray) -> None:
            trace.add("register", mask, (buffer, bounds, write), node)

        return run

    def shared(self, node: Any, buffer: Any, indices: Sequence[Any], write: bool) -> Step:
        """Record a generic access of shared memory with the range of its first and last byte."""
        index = indices[0] if len(indices) == 1 else None
        if isinstance(index, tirx.Ramp):
            index = index.base
        evaluate = compile_expr(index) if index is not None else (lambda env: UNKNOWN)
        size = numpy_dtype(str(buffer.ty.dtype.dtype)).itemsize
        loops = list(self.loops)

        def run(trace: Trace, mask: np.ndarray) -> None:
            base = trace.env.get(("space", buffer), UNKNOWN)
            if base is UNKNOWN:
                trace.leave_open()
                return
            low, high = None, None
            saved = {var: trace.env[var] for var, _ in loops[-4:] if var in trace.env}
            for corner in (0, 1):
                for var, extent in loops[-4:]:
                    if isinstance(extent, tirx.IntImm) and var in saved:
                        trace.env[var] = (int(extent) - 1) * corner
                value: Any = evaluate(trace.env)
                if value is UNKNOWN or isinstance(value, Address):
                    low = None
                    break
                offsets = np.broadcast_to(value, mask.shape)[mask] * size + base.offset
                low = int(offsets.min()) if low is None else min(low, int(offsets.min()))
                high = max(high or 0, int(offsets.max()) + size)
            trace.env.update(saved)
            trace.add("shared", mask, (base.space, low, high, write), node)

        return run


def _chain(steps: list[Step]) -> Step:
    if not steps:
        return _nothing

    def run(trace: Trace, mask: np.ndarray) -> None:
        for step in steps:
            step(trace, mask)

    return run


def _iteration_limit(trace: Trace, nested: bool, count: int) -> int:
    """Return how many iterations to follow of a loop with barriers."""
    if trace.max_iterations >= WHOLE or any(trace.loops) or (trace.loops and not trace.cut_inner):
        return count
    return min(count, trace.max_iterations, MAX_NESTED_ITERATIONS if nested else WHOLE)
