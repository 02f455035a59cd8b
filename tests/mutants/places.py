"""Changes at one place only: a lane, a warp, a CTA, an iteration; and memory beside a region.

The operators of `sites.py` change a statement or a number wherever it is met. These change it in
one place of many, which a judge that looks at a sample could miss.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from tvm import ir, tirx

from tvm_hopper.sim.tir import op_name, short_name

from .sites import DEFINITIONS, LEAVES, Site, Walk, is_nothing, same

Changes = dict[str, Callable[[], Any]]
MOVED = ("wait", "fence", "sync", "commit", "arrive", "init")
NUMBERS = ("bytes", "count", "coordinate", "group")


class PlaceWalk(Walk):
    """The second set of operators over one function."""

    def __init__(self, function: str, target: tuple[int, str] | None = None) -> None:
        super().__init__(function, target)
        self.threads: dict[str, tuple[Any, int]] = {}
        self.loops: list[Any] = []

    # -- places -----------------------------------------------------------------------------------

    def conditions(self) -> dict[str, Any]:
        """Return what holds at one place alone, by its name."""
        found: dict[str, Any] = {}
        if "threadIdx.x" in self.threads:
            thread, count = self.threads["threadIdx.x"]
            lane, warp = tirx.bitwise_and(thread, 31), tirx.shift_right(thread, 5)
            found |= {f"lane {i}": tirx.EQ(lane, tirx.const(i, "int32")) for i in (0, 31)}
            if count > 32:
                found["first warp"] = tirx.EQ(warp, tirx.const(0, "int32"))
                found["last warp"] = tirx.EQ(warp, tirx.const((count - 1) // 32, "int32"))
        blocks = [x for tag, x in self.threads.items() if tag != "threadIdx.x" and x[1] > 1]
        for name, at in (("first CTA", lambda n: 0), ("last CTA", lambda n: n - 1)):
            parts = [tirx.EQ(var, tirx.const(at(n), "int32")) for var, n in blocks]
            if parts:
                found[name] = parts[0] if len(parts) == 1 else tirx.And(*parts[:2])
        if self.loops:
            loop = self.loops[-1]
            last = loop.min + loop.extent - 1
            found["first iteration"] = tirx.EQ(loop.loop_var, loop.min)
            found["middle iteration"] = tirx.EQ(loop.loop_var, (loop.min + last) // 2)
            found["last iteration"] = tirx.EQ(loop.loop_var, last)
        return found

    def at_places(self, what: str, node: Any, change: Callable[[Any], Any]) -> Any:
        """Offer one change at each place alone; `change` makes it from the condition."""
        for name, condition in self.conditions().items():
            kind = f"{what}, one {name.split()[-1]}" if " " in name else what
            if name.startswith("lane"):
                kind = f"{what}, one lane"
            changes: Changes = {f"in {name}": lambda c=condition: change(c)}
            if not same(chosen := self.offer(kind, node, changes), node):
                return chosen
        return node

    def number(self, what: str, node: Any, size: int = 0) -> Any:
        """Offer a number one more at one place, and as far below and above as a region is long."""
        if isinstance(node, tirx.Ramp):
            base = self.number(what, node.base, size)
            return node if same(base, node.base) else tirx.Ramp(base, node.stride, node.lanes)
        dtype = str(node.ty.dtype)
        if "int" not in dtype or "x" in dtype:
            return node
        one = tirx.const(1, dtype)
        chosen = self.at_places(what, node, lambda c: tirx.Select(c, node + one, node))
        if same(chosen, node) and size:
            beside: Changes = {
                "below": lambda: node - tirx.const(size, dtype),
                "above": lambda: node + tirx.const(size, dtype),
            }
            chosen = self.offer("beside the region", node, beside)
        return chosen

    # -- statements -------------------------------------------------------------------------------

    def sequence(self, node: Any, mutator: Any) -> Any:
        """Move what orders others to either end, or let one lane do the next statement early."""
        items = list(node.seq)
        for i, item in enumerate(items):
            with self.inside(self.role, item):
                chosen = self.offer("moved", node, self.moves(items, i))
                if same(chosen, node):
                    chosen = self.offer("early lane", node, self.early(items, i))
            if not same(chosen, node):
                return chosen
        new = [self.statement(item, mutator) for item in items]
        return node if all(map(same, new, items)) else tirx.SeqStmt(new)

    def moves(self, items: list[Any], i: int) -> Changes:
        """Return the moves of one statement over what is not a definition."""
        if not (isinstance(items[i], tirx.Evaluate) and orders(items[i])):
            return {}
        first, last = i, i
        while first and not isinstance(items[first - 1], DEFINITIONS):
            first -= 1
        while last + 1 < len(items) and not isinstance(items[last + 1], DEFINITIONS):
            last += 1
        rest = [*items[:i], *items[i + 1 :]]
        ends = {"to the start": first, "to the end": last}
        return {
            name: lambda j=j: tirx.SeqStmt([*rest[:j], items[i], *rest[j:]])
            for name, j in ends.items()
            if abs(j - i) > 1
        }

    def early(self, items: list[Any], i: int) -> Changes:
        """Return the change that lets one lane do the next statement before this one."""
        if i + 1 == len(items) or any(isinstance(x, DEFINITIONS) for x in items[i : i + 2]):
            return {}
        one, two = items[i : i + 2]
        return {
            f"next first in {name}": lambda c=c: tirx.SeqStmt(
                [
                    *items[:i],
                    tirx.IfThenElse(c, two, None),
                    one,
                    tirx.IfThenElse(tirx.Not(c), two, None),
                    *items[i + 2 :],
                ]
            )
            for name, c in self.conditions().items()
            if name.startswith("lane")
        }

    def statement(self, node: Any, mutator: Any) -> Any:
        """Leave a statement out at one place, or let one place alone do it."""
        if isinstance(node, (*LEAVES, tirx.For)) and not is_nothing(node):
            with self.inside(self.role, node):
                chosen = self.at_places(
                    "left out", node, lambda c: tirx.IfThenElse(tirx.Not(c), node, None)
                )
            if not same(chosen, node):
                return chosen
        return mutator.mutate(node)

    def loop(self, node: Any, mutator: Any) -> Any:
        """Run a loop once less or more at one place, then its body."""
        with self.inside("extent", node):
            one = tirx.const(1, str(node.extent.ty.dtype))
            extent = self.at_places(
                "extent", node.extent, lambda c: node.extent - tirx.Select(c, one, one * 0)
            )
        with self.loop_of(node):
            body = self.statement(node.body, mutator)
        if same(body, node.body) and same(extent, node.extent):
            return node
        return tirx.For(
            *(node.loop_var, node.min, extent, node.kind, body, node.thread_binding),
            node.annotations,
        )

    @contextmanager
    def loop_of(self, node: Any) -> Iterator[None]:
        """Let a loop's iterations be places while its body is walked."""
        self.loops.append(node)
        yield
        self.loops.pop()

    def branch(self, node: Any, mutator: Any) -> Any:
        """Let a branch be taken, or not, at one place against its condition."""
        with self.inside("condition", node):
            old = node.condition
            condition = self.at_places(
                "condition", old, lambda c: tirx.Select(c, tirx.Not(old), old)
            )
            if same(condition, old):
                condition = mutator.mutate(old)
        then_case, else_case = self.statement(node.then_case, mutator), node.else_case
        if else_case is not None:
            else_case = self.statement(else_case, mutator)
        pairs = ((condition, old), (then_case, node.then_case), (else_case, node.else_case))
        if all(same(*x) for x in pairs):
            return node
        return tirx.IfThenElse(condition, then_case, else_case)

    def attribute(self, node: Any, mutator: Any) -> Any:
        """Note the threads and CTAs that there are."""
        if node.attr_key == "thread_extent":
            self.threads[str(node.node.thread_tag)] = (node.node.var, int(node.value))
        return super().attribute(node, mutator)

    def store(self, node: Any, mutator: Any) -> Any:
        """Store beside the region, or one element off at one place."""
        with self.inside("index", node):
            indices = self.indices("store index", node.buffer, node.indices)
        with self.inside("value", node):
            value = mutator.mutate(node.value)
        if same(value, node.value) and all(map(same, indices, node.indices)):
            return node
        return tirx.BufferStore(node.buffer, value, indices)

    def load(self, node: Any, mutator: Any) -> Any:
        """Read beside the region, or one element off at one place."""
        what = "pointer" if self.role == "pointer" else "load index"
        indices = self.indices(what, node.source, node.indices)
        if all(map(same, indices, node.indices)):
            return node
        return tirx.BufferLoad(node.source, indices)

    def indices(self, what: str, buffer: Any, old: Any) -> list[Any]:
        """Offer changes of each index."""
        shape = [int(x) for x in buffer.shape if isinstance(x, tirx.IntImm)]
        return [self.number(what, x, math.prod(shape)) for x in old]

    # -- expressions ------------------------------------------------------------------------------

    def call(self, node: Any, mutator: Any) -> Any:
        """Exchange two coordinates, or change an operand at one place."""
        roles = self.roles_of(node)
        places = [i for i, role in enumerate(roles) if role == "coordinate"]
        if len(places) > 1:
            i, j = places[:2]
            args = list(node.args)
            args[i], args[j] = args[j], args[i]
            swapped: Changes = {
                "exchange": lambda: ir.Call(node.op, args, ret_ty=node.ty, attrs=node.attrs)
            }
            if not same(chosen := self.offer("exchanged coordinates", node, swapped), node):
                return chosen
        return super().call(node, mutator)

    def operand(self, role: str, arg: Any, mutator: Any) -> Any:
        """Change a parity, a coordinate or a number of bytes at one place."""
        if role == "parity":
            one = tirx.const(1, str(arg.ty.dtype))
            flipped = self.at_places(
                "parity", arg, lambda c: tirx.Select(c, tirx.bitwise_xor(arg, one), arg)
            )
            if not same(flipped, arg):
                return flipped
        if role in NUMBERS and not same(chosen := self.number(role, arg), arg):
            return chosen
        return mutator.mutate(arg)

    def comparison(self, node: Any, mutator: Any) -> Any:
        """Move a bound by one at one place."""
        if type(node) in (tirx.LT, tirx.LE, tirx.GT, tirx.GE):
            bound = self.number("bound", node.b)
            if not same(bound, node.b):
                return type(node)(node.a, bound)
        return mutator.default_mutate(node)

    def conjunction(self, node: Any, mutator: Any) -> Any:
        """Nothing of its own: its sides are walked."""
        return mutator.default_mutate(node)

    def constant(self, node: Any, mutator: Any) -> Any:
        """Leave whole numbers to the first set."""
        return node

    def rewrites(self) -> list[tuple[Any, Any]]:
        """Add floating-point constants."""
        return [*super().rewrites(), (tirx.FloatImm, self.float_constant)]

    def float_constant(self, node: Any, mutator: Any) -> Any:
        """Change an initial value, an epsilon or a scale: to zero, one, its opposite, its next."""
        dtype, old = str(node.ty.dtype), float(node.value)
        new = {"zero": 0.0, "one": 1.0, "opposite": -old, "twice": 2 * old}
        if dtype == "float32":
            new["next"] = float(np.nextafter(np.float32(old), np.float32(np.inf)))
        changes: Changes = {
            name: lambda v=v: tirx.FloatImm(dtype, v)
            for name, v in new.items()
            if v != old and math.isfinite(v)
        }
        return self.offer("float constant", node, changes)


def orders(statement: Any) -> bool:
    """Tell whether a statement orders others."""
    call = statement.value
    if not isinstance(call, ir.Call):
        return False
    words = [op_name(call), short_name(call)]
    words += [str(x.value) for x in call.args if isinstance(x, ir.StringImm)]
    return any(part in word for word in words for part in MOVED)


def place_sites(func: Any) -> list[Site]:
    """List every change of a device function."""
    walk = PlaceWalk("places")
    walk.run(func.body)
    return walk.found


def changed_place(func: Any, site: Site) -> Any:
    """Return a device function with one change."""
    return func.with_body(PlaceWalk("places", (site.place, site.change)).run(func.body))
