"""Read a plain program: loops, stores and conditions, without blocks, threads and memory scopes.

    for i, j, k in T.grid(...):              PlainLoop(i) > PlainLoop(j) > PlainLoop(k)
        with T.sblock("C"): init; update  ->     PlainBranch(k == 0) > PlainStore(C, 0)
                                                 PlainStore(C, C + a * b)

TVM's own passes take the blocks apart.  A loop that is bound to threads becomes a serial one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, tirx

from tvm_hopper.errors import HopperError

THREAD_EXTENTS = ("thread_extent", "virtual_thread")


@tvm_ffi.register_error("tvm_hopper.ReferenceError")
class PlainProgramError(HopperError):
    """A plain program that the evaluator cannot follow, with the statement's name."""


@dataclass(eq=False)
class PlainLoop:
    """A loop over integers; of threads, too."""

    var: Any
    low: Any
    extent: Any
    body: list[Node]


@dataclass(eq=False)
class PlainBranch:
    """A condition around statements."""

    condition: Any
    then: list[Node]
    otherwise: list[Node]


@dataclass(eq=False)
class PlainLet:
    """A name for a value, up to the end of the statements that it is among."""

    var: Any
    value: Any


@dataclass(eq=False)
class PlainStore:
    """A store of one element.

    - `block`: name of the block that it is in, for messages.
    """

    buffer: Any
    value: Any
    indices: list[Any]
    block: str = ""


Node = PlainLoop | PlainBranch | PlainLet | PlainStore


@dataclass(eq=False)
class StorePlace:
    """A store with all that is around it, outermost first: loops, conditions, names."""

    store: PlainStore
    loops: list[PlainLoop]
    conditions: list[tuple[Any, bool]]
    lets: list[PlainLet]


@dataclass(eq=False)
class PlainProgram:
    """One function: parameters in order, buffers of its own, statements."""

    name: str
    params: list[Any]
    allocated: list[Any]
    body: list[Node]
    places: list[StorePlace] = field(default_factory=list)

    @property
    def buffers(self) -> list[Any]:
        """Parameters that are tensors, then the function's own."""
        return [*(p for p in self.params if tirx.is_buffer_var(p)), *self.allocated]

    @property
    def outputs(self) -> list[Any]:
        """Tensors among the parameters that some statement stores to, in order."""
        stored = {place.store.buffer for place in self.places}
        return [p for p in self.params if p in stored]


def dtype_of(node: Any) -> str:
    """Return the scalar type of an expression, or of a buffer's element, as text."""
    inner = node.ty.dtype
    return str(getattr(inner, "dtype", inner))


def nodes_in(kind: type, *roots: Any, order: str = "pre") -> list[Any]:
    """Return the nodes of a class in expressions or statements, some of which may be ints."""
    found: list[Any] = []
    for root in roots:
        if not isinstance(root, int):
            tvm_ffi.structural_walk(root, [(kind, found.append)], order=order)
    return found


def variables(*exprs: Any) -> list[Any]:
    """Return the variables that expressions mention, buffers among them."""
    return nodes_in(ir.Var, *exprs)


def op_name(call: Any) -> str:
    """Return the name of what is called, without a dialect."""
    name = str(getattr(call.op, "name", None) or getattr(call.op, "name_hint", call.op))
    return name.rpartition(".")[2]


def pick_function(plain: Any, name: str | None = None) -> Any:
    """Return the one function of a module, or that with a name ("main", if there are several).

    - raises ValueError: it holds none, or several of which none is meant.
    """
    if isinstance(plain, tirx.PrimFunc):
        return plain
    plain = getattr(plain, "mod", plain)  # of a schedule
    if not isinstance(plain, tvm.IRModule):
        raise ValueError(
            f"against: found a {type(plain).__name__}; need the plain program, an IRModule or a "
            "PrimFunc"
        )
    functions = {
        gv.name_hint: func
        for gv, func in plain.functions.items()
        if isinstance(func, tirx.PrimFunc)
    }
    wanted = name if name in functions else "main"
    if len(functions) == 1:
        return next(iter(functions.values()))
    if wanted not in functions:
        raise ValueError(
            f"against: found functions {sorted(functions)}; need one, or one of the name {wanted!r}"
        )
    return functions[wanted]


def read(func: Any) -> PlainProgram:
    """Read one function.

    - raises PlainProgramError: a statement is none of loops, conditions, names and stores of single
      elements.
    """
    name = str((func.attrs or {}).get("global_symbol", "main"))
    if "calling_conv" in (func.attrs or {}):
        raise PlainProgramError(
            f"against: found function {name}, which is lowered already; need the program before"
        )
    _refuse_opaque(func, name)
    blocks = _name_stores(func)
    lowered = _without_blocks(func, name)
    program = PlainProgram(name, list(func.params), [], [])
    _Reader(program, blocks).statements(lowered.body, program.body)
    program.body = _write_out(program.body)
    program.places = list(_places(program.body, [], [], []))
    return program


def _without_blocks(func: Any, name: str) -> Any:
    from tvm.s_tir import transform

    passes = [
        transform.LowerInitBlock(),
        transform.ConvertBlocksToOpaque(),
        transform.LowerMatchBuffer(),
        transform.LowerOpaqueBlock(),
    ]
    plain = func.without_attr("target") if "target" in (func.attrs or {}) else func
    with tvm.transform.PassContext(config={}):
        return tvm.transform.Sequential(passes)(tvm.IRModule({name: plain}))[name]


def _name_stores(func: Any) -> dict[Any, str]:
    """Map each buffer to the block that writes it last, for messages."""
    names: dict[Any, str] = {}

    def visit(block: Any) -> None:
        for region in block.writes:
            names[region.source] = str(block.name_hint)

    tvm_ffi.structural_walk(func.body, [(tvm.s_tir.stmt.SBlock, visit)], order="pre")
    return names


class _Reader:
    """Turns TIR statements into nodes; keeps what the function allocates."""

    def __init__(self, program: PlainProgram, blocks: dict[Any, str]) -> None:
        self.program, self.blocks = program, blocks

    def statements(self, stmt: Any, into: list[Node]) -> None:
        """Append the nodes of a statement."""
        if isinstance(stmt, tirx.SeqStmt):
            for part in stmt.seq:
                self.statements(part, into)
        elif isinstance(stmt, tirx.For):
            loop = PlainLoop(stmt.loop_var, stmt.min, stmt.extent, [])
            self.statements(stmt.body, loop.body)
            into.append(loop)
        elif isinstance(stmt, tirx.AttrStmt):
            self._attribute(stmt, into)
        elif isinstance(stmt, tirx.IfThenElse):
            branch = PlainBranch(stmt.condition, [], [])
            self.statements(stmt.then_case, branch.then)
            if stmt.else_case is not None:
                self.statements(stmt.else_case, branch.otherwise)
            into.append(branch)
        elif isinstance(stmt, tirx.BufferStore):
            block = self.blocks.get(stmt.buffer, str(stmt.buffer.name))
            into.append(PlainStore(stmt.buffer, stmt.value, list(stmt.indices), block))
        elif isinstance(stmt, tirx.Bind):
            into.append(PlainLet(stmt.var, stmt.value))
        elif isinstance(stmt, tirx.AllocBuffer):
            self.program.allocated.append(stmt.buffer)
        elif isinstance(stmt, tirx.AssertStmt) or _does_nothing(stmt):
            pass
        else:
            raise self._refuse(stmt)

    def _attribute(self, stmt: Any, into: list[Node]) -> None:
        if str(stmt.attr_key) not in THREAD_EXTENTS:
            self.statements(stmt.body, into)
            return
        var = stmt.node.var
        low = tirx.IntImm(dtype_of(var), 0)
        loop = PlainLoop(var, low, stmt.value, [])
        self.statements(stmt.body, loop.body)
        into.append(loop)

    def _refuse(self, stmt: Any) -> PlainProgramError:
        text = " ".join(str(stmt).split())
        found = text if len(text) <= 100 else f"{text[:97]}..."
        return PlainProgramError(
            f"against: function {self.program.name}: found {found}, a statement whose meaning is "
            "unknown here; need loops, conditions and stores, as before scheduling"
        )


def _write_out(nodes: list[Node]) -> list[Node]:
    """Put values that have a name for one store into it: two sums as one reduction are sums.

    s = S[i] + a; q = Q[i] + b; S[i] = s; Q[i] = q  ->  S[i] = S[i] + a; Q[i] = Q[i] + b
    """
    for node in nodes:
        if isinstance(node, PlainLoop):
            node.body = _write_out(node.body)
        elif isinstance(node, PlainBranch):
            node.then, node.otherwise = _write_out(node.then), _write_out(node.otherwise)
    gone: list[Any] = []
    for first, let in enumerate(nodes):
        if not isinstance(let, PlainLet):
            continue
        users = [x for x in nodes if let.var in _mentioned(x)]
        if len(users) != 1 or not isinstance(users[0], PlainStore) or users[0].value != let.var:
            continue
        between = nodes[first + 1 : nodes.index(users[0])]
        stored = [x.buffer for x in between if isinstance(x, PlainStore)]
        is_plain = all(isinstance(x, (PlainLet, PlainStore)) for x in between)
        if is_plain and not any(x in stored for x in variables(let.value)):
            users[0].value = let.value
            gone.append(let)
    return [x for x in nodes if x not in gone]


def _mentioned(node: Node) -> list[Any]:
    """Return the variables that a node mentions, its name for a value not."""
    if isinstance(node, PlainLet):
        return variables(node.value)
    if isinstance(node, PlainStore):
        return variables(node.value, *node.indices)
    if isinstance(node, PlainLoop):
        return [*variables(node.low, node.extent), *(v for x in node.body for v in _mentioned(x))]
    inner = [*node.then, *node.otherwise]
    return [*variables(node.condition), *(v for x in inner for v in _mentioned(x))]


def _refuse_opaque(func: Any, name: str) -> None:
    """Refuse calls that are as statements, by the block that they are in."""
    inside: dict[Any, str] = {}

    for block in nodes_in(tvm.s_tir.stmt.SBlock, func.body):  # inner blocks come later, and stay
        calls = nodes_in(tirx.Evaluate, block.body)
        inside.update((call, str(block.name_hint)) for call in calls if not _does_nothing(call))
    for call, block in inside.items():
        raise PlainProgramError(
            f"against: function {name}, block {block}: found the opaque call "
            f"{op_name(call.value)}; need stores, whose meaning is known "
            "(without this program verify says nothing of values)"
        )


def _does_nothing(stmt: Any) -> bool:
    return isinstance(stmt, tirx.Evaluate) and isinstance(stmt.value, tirx.IntImm)


def _places(
    nodes: list[Node],
    loops: list[PlainLoop],
    conditions: list[tuple[Any, bool]],
    lets: list[PlainLet],
) -> Iterator[StorePlace]:
    lets = list(lets)
    for node in nodes:
        if isinstance(node, PlainLet):
            lets.append(node)
        elif isinstance(node, PlainStore):
            yield StorePlace(node, loops, conditions, list(lets))
        elif isinstance(node, PlainLoop):
            yield from _places(node.body, [*loops, node], conditions, lets)
        else:
            yield from _places(node.then, loops, [*conditions, (node.condition, True)], lets)
            yield from _places(node.otherwise, loops, [*conditions, (node.condition, False)], lets)
