"""Queries of translation: registers of wgmma, variables whose address is taken."""

from __future__ import annotations

from typing import Any

from tvm import ir, tirx

from tvm_hopper.sim.tir import CUDA, PTX, decode_ptx, nodes_in, op_name, short_name
from tvm_hopper.sim.translate.scope import Scope
from tvm_hopper.sim.walk import walk_nodes

WAITS = (f"{CUDA}mbarrier_wait", f"{PTX}mbarrier_try_wait", f"{PTX}mbarrier_test_wait")
GATHERS = (f"{PTX}barrier_", f"{PTX}bar_warp_sync", f"{CUDA}warp_sync")
LOADS = ("ld", "ld_vec", "ld_vec256", "nanosleep")
COMPUTES = (
    *("likely", "tvm_thread_invariant", "reinterpret", "if_then_else", "bitwise_", "shift_"),
    *("address_of", "cvta_"),
)
TELLS = (f"{PTX}mbarrier_arrive", f"{PTX}mbarrier_complete", f"{PTX}cp_async")


def viewed(data: Any) -> Any:
    """Return the buffer variable that a `DeclBuffer` looks at, if it is plain."""
    if isinstance(data, ir.Call) and short_name(data) == "buffer_data":
        return data.args[0]
    return data if isinstance(data, ir.Var) else None


def of_registers(condition: Any) -> bool:
    """Return whether a condition computes with registers alone: nothing else can change it."""
    return not nodes_in(condition, ir.Call) and all(
        load.source.scope().startswith("local") for load in nodes_in(condition, ir.TensorLoad)
    )


def loads_only(loop: tirx.While) -> bool:
    """Return whether the iterations of a loop load and compute, and touch nothing but registers."""
    other: list[Any] = []

    def call(node: ir.Call) -> None:
        ptx = decode_ptx(node)
        known = ptx.name in LOADS if ptx is not None else short_name(node).startswith(COMPUTES)
        if not known:
            other.append(node)

    def store(node: tirx.BufferStore) -> None:
        if not node.buffer.scope().startswith("local"):
            other.append(node)

    visits = [(ir.Call, call), (tirx.BufferStore, store), (tirx.While, other.append)]
    walk_nodes(loop, visits)
    return other == [loop]


def reads_registers(expr: Any) -> bool:
    """Return whether an expression loads from registers, which may change after it."""
    loads = nodes_in(expr, ir.TensorLoad)
    return any(load.source.scope().startswith("local") for load in loads)


class Questions:
    """A part of `StmtEmitter` that looks and writes nothing."""

    func: tirx.PrimFunc
    scope: Scope
    pointers: dict[Any, set[str]]

    def wgmma_registers(self) -> set[Any]:
        """Find the register allocations that wgmma uses as accumulator or as A."""
        used: set[Any] = set()
        for call in nodes_in(self.func.body, ir.Call):
            name = op_name(call)
            if name.startswith(PTX + "wgmma_") and (ptx := decode_ptx(call)) is not None:
                values = (*ptx.operands.get("d", []), *ptx.operands.get("a", []))
                used |= {x.source for x in values if isinstance(x, ir.TensorLoad)}
        declared = nodes_in(self.func.body, tirx.DeclBuffer)
        views = {x.buffer: y for x in declared if (y := viewed(x.data)) is not None}
        roots = set()
        for var in used:
            while var in views:
                var = views[var]
            roots.add(var)
        return roots

    def sides_exchange(self, node: Any) -> bool:
        """Return whether one side of a branch may wait for the other."""
        if node.else_case is None:
            return False
        names: list[set[str]] = []
        for side in (node.then_case, node.else_case):
            found = nodes_in(side, ir.Call)
            names.append({op_name(call) for call in found})
        if all(any(n.startswith(GATHERS) for n in side) for side in names):
            return True
        one, other = (any(n.startswith(WAITS) for n in side) for side in names)
        return (one and any(n.startswith(TELLS) for n in names[1])) or (
            other and any(n.startswith(TELLS) for n in names[0])
        )

    def params_of(self, expr: Any) -> set[str]:
        """Return the parameters that an address may point into."""
        found: set[str] = set()
        for var in nodes_in(expr, ir.Var):
            info = self.scope.buffers.get(var)
            if info is not None and info.kind == "global":
                found.add(info.root)
            found |= self.pointers.get(var, set())
        return found
