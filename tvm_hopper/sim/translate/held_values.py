"""Registers that an expression needs initialised.

    v[1] = v[0] + 1        ->   if U_v.left: U_v.write(1, 1, 4, m0, U_v.holds(0, 1, 4))
    Y[tx] = v[1]           ->   if U_v.left: w.needs(7, m0, U_v.holds(1, 1, 4), 'v')

A copy hands on that its source holds nothing; a store, a condition, a loop's extent, an index of a
store and an operand of an instruction that acts on memory or synchronises are uses.  Registers
whose address is taken are taken to hold something, as is what a lane gets by a shuffle.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import ir, tirx

from tvm_hopper.sim.tir import PtxCall, nodes_in, numpy_dtype, short_name
from tvm_hopper.sim.translate.questions import viewed
from tvm_hopper.sim.translate.scope import BufferInfo

_ADDRESSES = ("address_of", "buffer_data", "tvm_access_ptr")
_BY_LANES = ("shuffle", "shfl")  # they return another lane's value
_PURE = ("likely", "tvm_thread_invariant", "reinterpret", "if_then_else", "bitwise_", "shift_")
_HANDS_ON = ("shfl_sync", "movmatrix")
_COMPUTES = ("cvta", "mapa", "isspacep", "getctarank")  # addresses from addresses


@dataclass(frozen=True)
class HeldNeed:
    """Part of a value that may hold nothing.

    - `guard`: Python text that is false if no check is needed.
    - `text`: Python text of the check: True or a bool for each lane, see `HeldRegisters.holds`.
    """

    guard: str
    text: str
    name: str


Needs = tuple[HeldNeed, ...]


def held_check(needs: Needs, how: str = "all_held") -> str:
    """Return the text that requests all of them."""
    return f"{how}({', '.join(need.text for need in needs)})"


def guarded(needs: Needs) -> str:
    """Return a condition that is false where all of them hold a value without asking."""
    return " or ".join(dict.fromkeys(need.guard for need in needs))


def escaped_registers(func: tirx.PrimFunc) -> set[Any]:
    """Return the register arrays that something may write by their address."""
    taken: list[Any] = []
    for call in nodes_in(func.body, ir.Call):
        if short_name(call) in _ADDRESSES:
            target = call.args[1] if short_name(call) == "tvm_access_ptr" else call.args[0]
            source = target.source if isinstance(target, ir.TensorLoad) else viewed(target)
            if source is not None:
                taken.append(source)
    views = [(x.buffer, viewed(x.data)) for x in nodes_in(func.body, tirx.DeclBuffer)]
    declared = [x for x in views if x[1] is not None]
    for _, source in declared:  # a view takes the address only in the text
        for position, other in enumerate(taken):
            if other.same_as(source):
                del taken[position]
                break
    roots = set(taken)
    for view, source in reversed(declared):
        if view in roots:
            roots.add(source)
    return roots


class HeldValueEmitter:
    """Mixin of `StmtEmitter`."""

    scope: Any
    site: int

    def __init__(self) -> None:
        super().__init__()
        self.held_roots: dict[str, str] = {}  # registers that are watched, with their name
        self.held_vars: dict[Any, Needs] = {}
        self.let_values: dict[Any, Any] = {}  # values of names inside of an expression
        self.escaped: set[Any] = set()

    def watch_registers(self, var: Any, root: str, size: int) -> str:
        """Emit the state of a register array that has just been allocated; return its name."""
        if var in self.escaped:
            return "None"
        self.held_roots[root] = var.name
        self.emit(f"U_{root} = w.held({size})")
        return f"U_{root}"

    # -- needs of a value -------------------------------------------------------------------------

    def needs_of(self, *nodes: Any) -> Needs:
        """Return the needs of some expressions, without duplicates."""
        if not self.held_roots:
            return ()
        found: dict[str, HeldNeed] = {}
        for node in nodes:
            for need in self._needs(node) if isinstance(node, ir.Expr) else ():
                found.setdefault(need.text, need)
        return tuple(found.values())

    def _needs(self, node: Any) -> Iterable[HeldNeed]:
        if isinstance(node, ir.Var):
            return self.held_vars.get(node, ())
        if isinstance(node, tirx.IntImm | tirx.FloatImm):
            return ()
        if isinstance(node, ir.TensorLoad):
            return self._of_load(node)
        if isinstance(node, tirx.Cast):
            return self._needs(node.value)
        if isinstance(node, tirx.Select):
            return self._of_choice(node.condition, node.true_value, node.false_value)
        if isinstance(node, tirx.And):
            return self._of_choice(node.a, node.b, None)
        if isinstance(node, tirx.Or):
            return self._of_choice(node.a, None, node.b)
        if isinstance(node, tirx.Let):
            self.held_vars[node.var] = self.needs_of(node.value)
            self.let_values[node.var] = self._without_lets(node.value)
            needs = self.needs_of(node.body)
            del self.let_values[node.var]
            return needs
        if isinstance(node, ir.Call):
            return self._of_call(node)
        parts = (getattr(node, name, None) for name in ("a", "b", "base", "stride", "value"))
        return self.needs_of(*(part for part in parts if part is not None))

    def _of_call(self, node: ir.Call) -> Needs:
        short = short_name(node)
        if short == "if_then_else":
            return self._of_choice(*node.args[:3])
        if any(word in short for word in _BY_LANES):
            return ()
        if short in _ADDRESSES and isinstance(node.args[0], ir.TensorLoad):
            return self.needs_of(*node.args[0].indices)
        return self.needs_of(*node.args)

    def _of_load(self, node: ir.TensorLoad) -> Needs:
        inner = self.needs_of(*node.indices)
        info = self.scope.buffers.get(node.source)
        if info is None or info.kind != "local" or info.root not in self.held_roots:
            return inner
        if not all(_pure(index) for index in node.indices):
            return inner
        ramp, index, _ = self.index(info, node.indices)
        count = int(ramp.lanes) if ramp is not None else 1
        size = numpy_dtype(info.dtype).itemsize
        text = f"U_{info.root}.holds({index}, {count}, {size})"
        return (*inner, HeldNeed(f"U_{info.root}.left", text, self.held_roots[info.root]))

    def _of_choice(self, condition: Any, yes: Any, no: Any) -> Needs:
        """Return the needs of a value whose source a condition chooses; None: it needs nothing."""
        first = self.needs_of(condition)
        sides = [self.needs_of(side) if side is not None else () for side in (yes, no)]
        both = (*sides[0], *sides[1])
        condition = self._without_lets(condition)  # it is evaluated next to the expression
        if not both or not _pure(condition):
            return first
        texts = ", ".join(f"lambda mm: {held_check(side, 'held_lanes')}" for side in sides)
        text = f"ite({self.code(condition)}, {self.scope.mask}, {texts})"
        return (*first, HeldNeed(guarded(both), text, both[0].name))

    def _without_lets(self, node: Any) -> Any:
        """Return an expression that names nothing which an expression around it defines."""
        values = self.let_values
        if not values:
            return node
        return tvm_ffi.structural_map(node, [(ir.Var, lambda var: values.get(var, var))])

    # -- uses and copies --------------------------------------------------------------------------

    def use(self, *nodes: Any, mask: str = "") -> None:
        """Emit the check that used registers hold a value."""
        self.use_needs(self.needs_of(*nodes), mask)

    def use_needs(self, needs: Needs, mask: str = "") -> None:
        """Emit the check of the needs of some values."""
        if needs:
            names = ", ".join(dict.fromkeys(need.name for need in needs))
            text = (
                f"w.needs({self.site}, {mask or self.scope.mask}, {held_check(needs)}, {names!r})"
            )
            self.emit(f"if {guarded(needs)}: {text}")

    def bind_needs(self, var: Any, node: Any) -> None:
        """Emit the needs of a variable's value, which its uses check."""
        needs = self.needs_of(node)
        if needs:
            name = self.scope.name("held")
            self.emit(f"{name} = {held_check(needs)} if {guarded(needs)} else True")
            names = ", ".join(dict.fromkeys(need.name for need in needs))
            self.held_vars[var] = (HeldNeed(f"{name} is not True", name, names),)

    def note_write(self, info: BufferInfo, index: str, count: int, needs: Needs = ()) -> None:
        """Emit that registers were written with a value that needs something."""
        if info.root not in self.held_roots:
            return
        root, size = f"U_{info.root}", numpy_dtype(info.dtype).itemsize
        guard = " or ".join(dict.fromkeys([f"{root}.left", *(need.guard for need in needs)]))
        value = f", {held_check(needs)}" if needs else ""
        self.emit(f"if {guard}: {root}.write({index}, {count}, {size}, {self.scope.mask}{value})")

    def needs_of_result(self, ptx: PtxCall, position: int) -> Needs:
        """Return the needs of a result of an instruction that computes."""
        if ptx.name == "selp":
            yes, no, which = (ptx.operands[name][0] for name in "abc")
            return self._of_choice(which, yes, no)
        if ptx.name == "slct":
            return self.needs_of(*ptx.operands["c"])
        if not ptx.name.startswith("mma"):
            return self.needs_of(*ptx.sources)
        added = ptx.operands["c"]
        one_each = len(added) == len(ptx.operands["d"])
        results = self.needs_of(*([added[position]] if one_each else added))
        mixed = self.needs_of(*ptx.operands["a"], *ptx.operands["b"], *ptx.operands.get("e", []))
        if not mixed:
            return results
        return (
            *results,
            HeldNeed(guarded(mixed), held_check(mixed, "held_by_warp"), mixed[0].name),
        )

    def use_operands(self, ptx: PtxCall) -> None:
        """Emit the check of the operands that an instruction uses by itself."""
        if ptx.name.startswith(_HANDS_ON) or self.computes(ptx):
            return
        registers = ("d", "a") if ptx.name.startswith("wgmma") else ()
        self.use(
            *(
                value
                for name, values in ptx.operands.items()
                if name not in ptx.writes and name not in registers
                for value in values
                if value is not None
            )
        )

    def computes(self, ptx: PtxCall) -> bool:
        """Return whether an instruction's results have the needs of its operands."""
        return ptx.name.startswith(("mma", *_COMPUTES))


def _pure(node: Any) -> bool:
    """Return whether an expression may be evaluated twice: it reads no memory, and does nothing."""
    return all(
        load.source.scope().startswith("local") for load in nodes_in(node, ir.TensorLoad)
    ) and all(short_name(call).startswith(_PURE) for call in nodes_in(node, ir.Call))
