"""Kernel launches of a host function, their conditions, and the bounds that follow.

if m <= 256:
    if m > 64:
        for bx in thread_binding(...)                        64 < m, m <= 256
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import sym, tirx

from tvm_hopper import ir

LAUNCH = "tirx.call_ffi_kernel"
WITH_A_VALUE = ("blockIdx.", "threadIdx.", "clusterCtaIdx.", "tirx.use_dyn_shared_memory")
PLAIN_CALLS = ("tirx.shift_right", "tirx.shift_left", "tirx.bitwise_and")
_STOP = tvm_ffi.VisitInterrupt(None)
_OPPOSITE = {tirx.LT: tirx.GE, tirx.GE: tirx.LT, tirx.LE: tirx.GT, tirx.GT: tirx.LE}


@dataclass(frozen=True)
class KernelLaunch:
    """A launch in a packed host function: the kernel's name and arguments, and its extents by tag.

    A tag is `blockIdx.x` or another axis, or `tirx.use_dyn_shared_memory`, in bytes.
    """

    stmt: ir.Evaluate
    kernel: str
    args: tuple[Any, ...]
    extents: dict[str, Any]


def find_launches(func: tirx.PrimFunc) -> list[KernelLaunch]:
    """Return the launches of a packed host function, in order."""
    launches = []
    for stmt in ir.find_all(func.body, ir.Evaluate):
        call = stmt.value
        if not isinstance(call, ir.Call) or call.op.name != LAUNCH:
            continue
        tags = [tag for tag in map(str, call.attrs.launch_params) if tag.startswith(WITH_A_VALUE)]
        name, *args = call.args
        split = len(args) - len(tags)
        extents = dict(zip(tags, args[split:], strict=True))
        launches.append(KernelLaunch(stmt, str(name.value), tuple(args[:split]), extents))
    return launches


def written_out(expr: Any, named: Mapping[ir.Var, Any]) -> Any:
    """Put in what TVM gave names to, `cse_v1 = (m + 63) // 64`; not what is read of an argument."""
    used = [x for x in ir.find_all(expr, ir.Var) if x in named and _is_arithmetic(named[x])]
    return written_out(ir.substitute(expr, {x: named[x] for x in used}), named) if used else expr


def _is_arithmetic(value: Any) -> bool:
    return not ir.find_all(value, ir.Call, lambda x: x.op.name not in PLAIN_CALLS)


@dataclass(frozen=True)
class HostCondition:
    """A condition around a launch, and whether it has to hold or not to hold."""

    condition: Any
    holds: bool

    @property
    def term(self) -> Any:
        """Return an expression that is true wherever the kernel runs."""
        if self.holds:
            return self.condition
        opposite = _OPPOSITE.get(type(self.condition))
        if opposite is None:
            return tirx.Not(self.condition)
        return opposite(self.condition.a, self.condition.b)


def conditions_around(root: Any, node: Any) -> tuple[HostCondition, ...]:
    """Return the conditions of the statements around a node of a function, outermost first.

    - `root` (Stmt): where to look.
    - `node` (Stmt or Expr): a kernel, or what names one, found by identity.
    """
    around: list[HostCondition] = []

    def enter(branch: ir.IfThenElse, visitor: Any) -> Any:
        if branch.same_as(node) or ir.uses_node(branch.condition, node):
            return _STOP
        for arm, holds in ((branch.then_case, True), (branch.else_case, False)):
            if arm is None:
                continue
            around.append(HostCondition(branch.condition, holds))
            if visitor.visit(arm) is not None:
                return _STOP
            around.pop()
        return None

    def look(other: Any, visitor: Any) -> Any:
        return _STOP if other.same_as(node) else visitor.default_visit(other)

    callbacks: list[Any] = [(ir.IfThenElse, enter)]
    if not isinstance(node, ir.IfThenElse):
        callbacks.append((type(node), look))
    result = tvm_ffi.structural_visit(root, callbacks)
    return tuple(around) if result is not None else ()


@contextlib.contextmanager
def known_at(conditions: Sequence[HostCondition]) -> Iterator[sym.Analyzer]:
    """Give an analyzer that knows some conditions."""
    analyzer = sym.Analyzer()
    with contextlib.ExitStack() as scopes:
        for each in conditions:
            scopes.enter_context(analyzer.constraint_scope(each.term))
        yield analyzer


@contextlib.contextmanager
def known_around(
    root: ir.Stmt, launch: KernelLaunch
) -> Iterator[tuple[sym.Analyzer, Callable[..., Any]]]:
    """Give an analyzer that knows the conditions around a launch, and what writes names out."""
    named = {bind.var: bind.value for bind in ir.find_all(root, tirx.Bind)}

    def write(expr: Any) -> Any:
        return written_out(expr, named)

    around = conditions_around(root, launch.stmt)
    with known_at([HostCondition(write(x.condition), x.holds) for x in around]) as analyzer:
        yield analyzer, write


def most(extent: Any, analyzer: sym.Analyzer) -> int | None:
    """Return the largest value that an extent can have, None if nothing of it is known."""
    static = ir.static_int(extent)
    if static is not None:
        return static
    bound = int(analyzer.const_int_bound(extent).max_value)
    return None if bound >= (1 << 31) - 1 else bound  # the type's own limit, or TVM's infinity


def as_text(conditions: Sequence[HostCondition]) -> str:
    """Write conditions for people: ranges of integers together, others one by one."""
    known: dict[str, Ranges] = {}
    others: list[str] = []
    for each in conditions:
        allocator = ir.answers_for_allocator(each.condition)
        if allocator is not None:
            has = allocator == each.holds
            others.append("calls " + ("with" if has else "without") + " an allocator of their own")
            continue
        found = _ranges_of(each.condition)
        if found is None:
            others.append(as_plain_text(each.term))
            continue
        name, ranges = found
        ranges = ranges if each.holds else _others(ranges)
        known[name] = _both(known[name], ranges) if name in known else ranges
    texts = [_as_words(name, ranges) for name, ranges in known.items()]
    if len(texts) + len(others) > 1:
        texts = [f"({x})" if " or " in x else x for x in texts]
    return " and ".join([*texts, *others])


Ranges = list[tuple[float, float]]  # of integers, from the first to the last, ascending
EVERY = (-math.inf, math.inf)


def _ranges_of(condition: Any) -> tuple[str, Ranges] | None:
    """Return what a condition compares with constants, and where it holds; None: it does more."""
    if isinstance(condition, tirx.Not):
        inner = _ranges_of(condition.a)
        return None if inner is None else (inner[0], _others(inner[1]))
    if isinstance(condition, (tirx.And, tirx.Or)):
        left, right = _ranges_of(condition.a), _ranges_of(condition.b)
        if left is None or right is None or left[0] != right[0]:
            return None
        if isinstance(condition, tirx.And):
            return left[0], _both(left[1], right[1])
        return left[0], _others(_both(_others(left[1]), _others(right[1])))
    if type(condition) not in (tirx.EQ, *_OPPOSITE):
        return None
    left_value, right_value = ir.static_int(condition.a), ir.static_int(condition.b)
    if isinstance(condition, tirx.EQ):
        if right_value is None:
            return None
        return as_plain_text(condition.a), [(right_value, right_value)]
    ascends = isinstance(condition, (tirx.LT, tirx.LE))
    step = int(isinstance(condition, (tirx.LT, tirx.GT)))
    if right_value is not None:
        name, value, is_most = as_plain_text(condition.a), right_value, ascends
    elif left_value is not None:
        name, value, is_most = as_plain_text(condition.b), left_value, not ascends
    else:
        return None
    return name, [(EVERY[0], value - step)] if is_most else [(value + step, EVERY[1])]


def _both(first: Ranges, second: Ranges) -> Ranges:
    """Return what is in one range of each."""
    pairs = [(max(a, c), min(b, d)) for a, b in first for c, d in second]
    return sorted((low, high) for low, high in pairs if low <= high)


def _others(ranges: Ranges) -> Ranges:
    """Return what is in none of some ranges."""
    left = [EVERY]
    for low, high in ranges:
        below = [(EVERY[0], low - 1)] if low > EVERY[0] else []
        above = [(high + 1, EVERY[1])] if high < EVERY[1] else []
        left = _both(left, below + above)
    return left


def _as_words(name: str, ranges: Ranges) -> str:
    return " or ".join(_range(name, *x) for x in ranges) or f"no {name}"


def _range(name: str, low: float, high: float) -> str:
    if low == -math.inf or high == math.inf:
        return f"{name} <= {high}" if low == -math.inf else f"{name} >= {low}"
    return f"{name} == {low}" if low == high else f"{low} <= {name} <= {high}"


def as_plain_text(expr: Any) -> str:
    """Print an expression without the types of its constants."""
    return re.sub(r"T\.int\d+\((-?\d+)\)", r"\1", str(expr))
