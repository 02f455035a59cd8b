"""Origins of address operands: own tensors, shared memory, or pointers from memory.

A kernel may read an address from global memory (a table of pointers, one a group). The memory
there is unknown here: a number in the table may even be an address that the machine uses for
something else. Such an access is reported as not modelled; its effects are not checked.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

from tvm import ir, tirx

from tvm_hopper.sim.tir import PTX, PtxCall, decode_ptx, dtype_of, nodes_in, op_name, short_name
from tvm_hopper.sim.walk import walk_nodes

_PLACES = ("address_of", "tvm_access_ptr", "buffer_data")
_LOADS = ("ld", "atom")


class AddressSources:
    """Sources of the values of one function's registers, in any order."""

    def __init__(self, func: tirx.PrimFunc) -> None:
        self.func = func

    @cached_property
    def values(self) -> dict[Any, list[Any]]:
        """Expressions and instructions whose values each register array and variable stores."""
        found: dict[Any, list[Any]] = {}
        views: list[tuple[Any, Any]] = []

        def store(node: tirx.BufferStore) -> None:
            found.setdefault(node.buffer, []).append(node.value)

        def bind(node: tirx.Bind) -> None:
            found.setdefault(node.var, []).append(node.value)

        def declare(node: tirx.DeclBuffer) -> None:
            if node.buffer.scope().startswith("local"):
                views.append((node.buffer, node.data))

        def call(node: ir.Call) -> None:
            ptx = decode_ptx(node)
            for target in ptx.results if ptx is not None else ():
                found.setdefault(target.source, []).append(node)

        visits = [(tirx.BufferStore, store), (tirx.Bind, bind), (tirx.DeclBuffer, declare)]
        walk_nodes(self.func.body, [*visits, (ir.Call, call)])
        for view, data in views:  # two names of the same registers
            for var in nodes_in(data, ir.Var):
                both = found.setdefault(var, [])
                both += found.get(view, [])
                found[view] = both
        return found

    def from_memory(self, address: Any) -> bool:
        """Return whether an address is read from global memory, not computed from a known one."""
        known, read = self._sources(address, set())
        return read and not known

    def _sources(self, expr: Any, seen: set[Any]) -> tuple[bool, bool]:
        """Return whether an expression combines a known place with data of global memory."""
        if isinstance(expr, ir.Call):
            name = op_name(expr)
            if short_name(expr) in _PLACES:
                return True, False
            if short_name(expr) == "cuda.ldg":
                return False, True
            if name.startswith(PTX):
                return self._of_instruction(expr, seen)
            return self._all(expr.args, seen)
        if isinstance(expr, ir.TensorLoad):
            scope = expr.source.scope()
            if scope.startswith("local"):
                return self._of_variable(expr.source, seen)
            known = scope.startswith("shared")  # stored there by the kernel itself
            return known, not known
        if isinstance(expr, ir.Var):
            if expr in self.values:
                return self._of_variable(expr, seen)
            return dtype_of(expr) == "handle", False
        parts = [getattr(expr, name, None) for name in ("a", "b", "value", "true_value")]
        return self._all([part for part in parts if isinstance(part, ir.Expr)], seen)

    def _all(self, parts: Any, seen: set[Any]) -> tuple[bool, bool]:
        found = [self._sources(part, seen) for part in parts]
        return any(known for known, _ in found), any(read for _, read in found)

    def _of_variable(self, var: Any, seen: set[Any]) -> tuple[bool, bool]:
        if var in seen:
            return False, False
        seen.add(var)
        return self._all(self.values.get(var, []), seen)

    def _of_instruction(self, call: ir.Call, seen: set[Any]) -> tuple[bool, bool]:
        ptx = decode_ptx(call)
        if ptx is None:
            return True, False
        if ptx.name.startswith(_LOADS):
            known = "shared" in ptx.mods.get("space", "")
            return known, not known
        return self._all(ptx.sources, seen)


_OWN = ("shared", "shared::cta")
_OPERANDS = {"space": ("addr", "p"), "dst": ("dst_mem",), "src": ("src_mem",)}  # by modifier
_SAME_PLACE = ("reinterpret", "cuda.cvta_generic_to_shared", "buffer_data")


def operands_in_own_window(ptx: PtxCall) -> list[Any]:
    """Return the addresses that an instruction takes for the executing CTA's, unless they are so.

    The address of an element of a buffer is, since a buffer belongs to this CTA.
    """
    return [
        value
        for modifier, names in _OPERANDS.items()
        if ptx.mods.get(modifier) in _OWN
        for name in names
        for value in ptx.operands.get(name, ())
        if value is not None and not _of_buffer(value)
    ]


def _of_buffer(value: Any) -> bool:
    while isinstance(value, ir.Call):
        name = short_name(value)
        if name == "address_of":
            return True
        if name not in _SAME_PLACE or not value.args:
            return False
        value = value.args[0]
    return False
