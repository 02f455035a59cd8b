"""What can be changed in a function: each place by its number in a walk, each change by name.

One class walks a tree twice: without a target it lists what could be changed, with a target it
makes that one change. Places count occurrences, since TIR shares nodes between places.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm_ffi
from tvm import ir, tirx

from tvm_hopper.sim.tir import PTX, decode_ptx, op_name, short_name

# What an operand of an instruction is, by its name in PTX's table.
ROLES = {
    "count": "count",
    "tx_count": "bytes",
    "size": "bytes",
    "coords": "coordinate",
    "nreg": "registers",
    "group": "group",
    "phase": "parity",
    "parity": "parity",
    "cta_mask": "mask",
}
COMPARISONS = {
    tirx.LT: (tirx.LE, tirx.GE),
    tirx.LE: (tirx.LT, tirx.GT),
    tirx.GT: (tirx.GE, tirx.LE),
    tirx.GE: (tirx.GT, tirx.LT),
    tirx.EQ: (tirx.LE, tirx.NE),
    tirx.NE: (tirx.LE, tirx.EQ),
}
DEFINITIONS = (tirx.Bind, tirx.AllocBuffer, tirx.DeclBuffer)
LEAVES = (tirx.Evaluate, tirx.BufferStore)


@dataclass(frozen=True)
class Site:
    """One change: `kind` is its class in the table, `place` its number in the walk."""

    function: str
    kind: str
    place: int
    change: str
    where: str = ""

    def __str__(self) -> str:
        """Print what is changed."""
        return f"{self.function} {self.kind} #{self.place}: {self.change} in {self.where}"


class Walk:
    """A walk over one function; `target` is (place, change), None to list them."""

    def __init__(self, function: str, target: tuple[int, str] | None = None) -> None:
        self.function, self.target = function, target
        self.found: list[Site] = []
        self.place = 0
        self.role, self.where = "value", ""

    def offer(self, kind: str, node: Any, changes: dict[str, Callable[[], Any]]) -> Any:
        """Offer the changes of one place; return the node, or what the target makes of it."""
        place, self.place = self.place, self.place + 1
        if self.target is None:
            self.found += [Site(self.function, kind, place, x, self.where) for x in changes]
        elif place == self.target[0] and self.target[1] in changes:
            return changes[self.target[1]]()
        return node

    @contextmanager
    def inside(self, role: str, statement: Any = None) -> Iterator[None]:
        """Say what constants are called, and in which statement, until the end."""
        before = self.role, self.where
        self.role = role
        if statement is not None and self.target is None:
            self.where = text_of(statement)
        yield
        self.role, self.where = before

    # -- statements -------------------------------------------------------------------------------

    def run(self, root: Any) -> Any:
        """Walk a tree; return it, changed at the target."""
        return tvm_ffi.structural_mutate(root, self.rewrites())

    def rewrites(self) -> list[tuple[Any, Any]]:
        """Return what is done at each kind of node."""
        return [
            (tirx.SeqStmt, self.sequence),
            (tirx.For, self.loop),
            (tirx.IfThenElse, self.branch),
            (tirx.Evaluate, self.evaluate),
            (tirx.BufferStore, self.store),
            (tirx.Bind, self.bind),
            (tirx.AttrStmt, self.attribute),
            (tirx.AllocBuffer, lambda node, mutator: node),
            (tirx.DeclBuffer, lambda node, mutator: node),
            (ir.Call, self.call),
            (ir.TensorLoad, self.load),
            (tirx.And, self.conjunction),
            (tirx.IntImm, self.constant),
            *((kind, self.comparison) for kind in COMPARISONS),
        ]

    def sequence(self, node: Any, mutator: Any) -> Any:
        """Swap neighbours; each is a statement of its own besides."""
        items = list(node.seq)
        for i in range(len(items) - 1):
            if any(isinstance(x, DEFINITIONS) for x in items[i : i + 2]):
                continue
            swapped = [*items[:i], items[i + 1], items[i], *items[i + 2 :]]
            with self.inside(self.role, items[i]):
                chosen = self.offer("swap", node, {"swap with the next": lambda s=swapped: s})
            if chosen is not node:
                return tirx.SeqStmt(chosen)
        new = [self.statement(item, mutator) for item in items]
        return node if all(map(same, new, items)) else tirx.SeqStmt(new)

    def statement(self, node: Any, mutator: Any) -> Any:
        """Delete or duplicate a statement, or change what is inside."""
        if isinstance(node, DEFINITIONS) or is_nothing(node):
            return mutator.mutate(node)
        if isinstance(node, (*LEAVES, tirx.For, tirx.IfThenElse, tirx.While)):
            changes: dict[str, Callable[[], Any]] = {"delete": lambda: tirx.Evaluate(0)}
            with self.inside(self.role, node):
                chosen = self.offer("delete", node, changes)
                if chosen is node and isinstance(node, LEAVES):
                    twice = {"duplicate": lambda: tirx.SeqStmt([node, node])}
                    chosen = self.offer("duplicate", node, twice)
            if chosen is not node:
                return chosen
        return mutator.mutate(node)

    def loop(self, node: Any, mutator: Any) -> Any:
        """Change a loop's extent, then its body."""
        with self.inside("extent", node):
            changes: dict[str, Callable[[], Any]] = {
                "one more": lambda: node.extent + 1,
                "one less": lambda: node.extent - 1,
            }
            extent = self.offer("extent", node.extent, changes)
            start = mutator.mutate(node.min)
        body = self.statement(node.body, mutator)
        if same(body, node.body) and same(extent, node.extent) and same(start, node.min):
            return node
        return tirx.For(
            *(node.loop_var, start, extent, node.kind, body, node.thread_binding),
            node.annotations,
        )

    def branch(self, node: Any, mutator: Any) -> Any:
        """Change a condition: always, never, its opposite, or inside of it."""
        with self.inside("condition", node):
            changes: dict[str, Callable[[], Any]] = {
                "always": lambda: tirx.const(True, "bool"),
                "negate": lambda: tirx.Not(node.condition),
            }
            condition = self.offer("condition", node.condition, changes)
            if same(condition, node.condition):
                condition = mutator.mutate(condition)
        then_case = self.statement(node.then_case, mutator)
        else_case = node.else_case
        if else_case is not None:
            else_case = self.statement(else_case, mutator)
        parts = ((condition, node.condition), (then_case, node.then_case))
        if all(same(*x) for x in parts) and same(else_case, node.else_case):
            return node
        return tirx.IfThenElse(condition, then_case, else_case)

    def evaluate(self, node: Any, mutator: Any) -> Any:
        """Change an instruction's operands."""
        if is_nothing(node):
            return node
        with self.inside("operand", node):
            value = mutator.mutate(node.value)
        return node if same(value, node.value) else tirx.Evaluate(value)

    def store(self, node: Any, mutator: Any) -> Any:
        """Change where a value is stored, and the value."""
        with self.inside("index", node):
            indices = [mutator.mutate(x) for x in node.indices]
        with self.inside("value", node):
            value = mutator.mutate(node.value)
        if same(value, node.value) and all(map(same, indices, node.indices)):
            return node
        return tirx.BufferStore(node.buffer, value, indices)

    def bind(self, node: Any, mutator: Any) -> Any:
        """Change a value that has a name; descriptors are such."""
        role = "descriptor" if str(node.var.ty) == "T.uint64" else "value"
        with self.inside(role, node):
            value = mutator.mutate(node.value)
        return node if same(value, node.value) else tirx.Bind(node.var, value)

    def attribute(self, node: Any, mutator: Any) -> Any:
        """Change what an attribute is about, but not the attribute: the grid is the host's."""
        body = self.statement(node.body, mutator)
        if same(body, node.body):
            return node
        return tirx.AttrStmt(node.node, node.attr_key, node.value, body)

    # -- expressions ------------------------------------------------------------------------------

    def call(self, node: Any, mutator: Any) -> Any:
        """Change operands, each by what it is."""
        args = []
        roles = self.roles_of(node)
        for arg, role in zip(node.args, roles, strict=True):
            with self.inside(role):
                args.append(self.operand(role, arg, mutator))
        if all(map(same, args, node.args)):
            return node
        return ir.Call(node.op, args, ret_ty=node.ty, attrs=node.attrs)

    def operand(self, role: str, arg: Any, mutator: Any) -> Any:
        """Change one operand: a parity as a whole, everything else by its constants."""
        if role == "parity":
            dtype = str(arg.ty.dtype)
            flipped = {"flip": lambda: tirx.bitwise_xor(arg, tirx.const(1, dtype))}
            if not same(chosen := self.offer("parity", arg, flipped), arg):
                return chosen
        return mutator.mutate(arg)

    def roles_of(self, node: Any) -> list[str]:
        """Return what each operand is."""
        name = short_name(node)
        if op_name(node).startswith(PTX) and (ptx := decode_ptx(node)) is not None:
            known = [(v, key) for key, values in ptx.operands.items() for v in values]
            return [
                next((ROLES.get(key, "operand") for v, key in known if same(v, arg)), "operand")
                for arg in node.args
            ]
        if name == "cuda.mbarrier_wait":
            return ["operand", "parity", *(["operand"] * (len(node.args) - 2))]
        if name == "address_of":
            return ["pointer"]
        return [self.role] * len(node.args)

    def load(self, node: Any, mutator: Any) -> Any:
        """Change what is read; behind `address_of` it is a pointer."""
        with self.inside("pointer" if self.role == "pointer" else "index"):
            indices = [mutator.mutate(x) for x in node.indices]
        if all(map(same, indices, node.indices)):
            return node
        return tirx.BufferLoad(node.source, indices)

    def comparison(self, node: Any, mutator: Any) -> Any:
        """Weaken or turn a comparison, then its sides."""
        weak, turned = COMPARISONS[type(node)]
        changes: dict[str, Callable[[], Any]] = {
            f"as {weak.__name__}": lambda: weak(node.a, node.b),
            f"as {turned.__name__}": lambda: turned(node.a, node.b),
        }
        chosen = self.offer("condition", node, changes)
        return mutator.default_mutate(node) if chosen is node else chosen

    def conjunction(self, node: Any, mutator: Any) -> Any:
        """Drop one side of `and`."""
        changes: dict[str, Callable[[], Any]] = {
            "left alone": lambda: node.a,
            "right alone": lambda: node.b,
        }
        chosen = self.offer("condition", node, changes)
        return mutator.default_mutate(node) if chosen is node else chosen

    def constant(self, node: Any, mutator: Any) -> Any:
        """Change a number by one, to twice itself, to zero."""
        dtype, old = str(node.ty.dtype), int(node)
        new = {"plus one": old + 1, "minus one": old - 1, "twice": 2 * old, "zero": 0}
        if dtype == "bool":
            new = {"flip": 1 - old}
        legal = {
            name: value
            for name, value in new.items()
            if value != old and (dtype == "bool" or fits(value, dtype))
        }
        kind = f"{self.role} constant" if self.role == "condition" else self.role
        make = {name: lambda v=v: tirx.IntImm(dtype, v) for name, v in legal.items()}
        return self.offer(kind, node, make)


def same(one: Any, other: Any) -> bool:
    """Tell whether two nodes are one."""
    if one is None or other is None:
        return one is other
    return bool(one.same_as(other)) if hasattr(one, "same_as") else one is other


def fits(value: int, dtype: str) -> bool:
    """Tell whether a type holds a number."""
    info = np.iinfo(dtype)
    return bool(info.min <= value <= info.max)


def is_nothing(node: Any) -> bool:
    """Tell whether a statement is the empty one."""
    return isinstance(node, tirx.Evaluate) and isinstance(node.value, tirx.IntImm)


def text_of(node: Any) -> str:
    """Return a statement's first line."""
    lines = [x for x in str(node).splitlines() if x and not x.startswith(("#", "from"))]
    code = [x for x in lines if " = T.Buffer(" not in x]
    return code[0].strip()[:200] if code else ""


def device_sites(func: Any) -> list[Site]:
    """List every change of a device function."""
    walk = Walk("device")
    walk.run(func.body)
    return walk.found


def changed_device(func: Any, site: Site) -> Any:
    """Return a device function with one change."""
    return func.with_body(Walk("device", (site.place, site.change)).run(func.body))
