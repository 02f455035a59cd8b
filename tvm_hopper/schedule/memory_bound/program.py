"""Parse a function as a row program: elementwise blocks and row reductions.

for i, k: S[i] += X[i, k] * X[i, k]            reduces rows of X
for i:    R[i] = rsqrt(S[i] / 4096)            one value a row
for i, j: Y[i, j] = X[i, j] * R[i] * W[j]      one value an element
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from tvm import s_tir, tirx
from tvm.tirx import IterVar

from tvm_hopper import ir
from tvm_hopper.errors import cannot_schedule
from tvm_hopper.facts.dtypes import DTYPES
from tvm_hopper.transforms.math.float_functions import find_impossible

from .reducers import check_reducer, is_plain_reduction

ROW, FULL, OTHER = "row", "full", "other"
SEPARATE = "compute it in a separate function"


@dataclass(frozen=True, eq=False)
class Part:
    """One block of the program, as it is in plain loops."""

    block: Any  # of the schedule
    node: Any
    loops: tuple[Any, ...]
    reduced: tuple[Any, ...]  # iteration variables that it reduces over

    @property
    def name(self) -> str:
        """Name of the block."""
        return str(self.node.name_hint)

    @property
    def store(self) -> Any:
        """Return the one statement of the block."""
        return self.node.body

    @cached_property
    def outputs(self) -> tuple[Any, ...]:
        """Buffers that it writes."""
        return tuple(x.source for x in self.node.writes)

    @cached_property
    def spatial(self) -> tuple[Any, ...]:
        """Iteration variables of its outputs, without those of extent one."""
        return tuple(
            x
            for x in self.node.iter_vars
            if x.iter_type != IterVar.CommReduce and not ir.is_const(x.dom.extent, 1)
        )

    @property
    def by_column(self) -> tuple[Any, ...]:
        """Iteration variables of a reduction of columns: rows that are longer than one first."""
        rows = [x for x in self.reduced if not ir.is_const(x.dom.extent, 1)]
        return (*rows, *self.spatial)

    @property
    def axes(self) -> tuple[Any, ...]:
        """Iteration variables in the order of the elements that it reads: rows, then columns."""
        if is_column_sum(self):
            return self.by_column
        return (*self.spatial, *self.reduced)

    @cached_property
    def loads(self) -> list[Any]:
        """Loads of other buffers than its own outputs."""
        own = self.outputs
        found = ir.find_all(self.node.body, ir.TensorLoad)
        return [x for x in found if not any(x.source.same_as(b) for b in own)]


def is_column_sum(part: Part) -> bool:
    """Tell a reduction of columns: over all dimensions of what it reads but the last ones."""
    variables = [x.var for x in part.by_column]
    return bool(part.reduced and part.spatial) and any(is_plain(x, variables) for x in part.loads)


@dataclass
class MemoryProgram:
    """The blocks of a function that are to be one kernel, as a schedule works on them.

    They are checked once, by `parse`; what becomes of them is only looked up again.
    """

    sch: s_tir.Schedule  # where they are
    helper: str  # names the schedule helper in an error message
    parts: list[Part]  # the blocks, in order
    other: frozenset[str] = frozenset()  # names of blocks that belong to other kernels

    @classmethod
    def parse(
        cls, sch: s_tir.Schedule, helper: str, other: frozenset[str] = frozenset()
    ) -> MemoryProgram:
        """Read the blocks of the function that a schedule works on; refuse scheduled ones.

        - `sch`: only read.
        - `helper`: names the schedule helper in an error message.
        - `other`: names of blocks that belong to other kernels of the function.
        - raises ScheduleError: the function is scheduled already, a block is no single store, or
          elements have no bytes of their own.
        """
        if sch.func_working_on is None:
            names = ", ".join(sorted(gv.name_hint for gv in sch.mod.get_global_vars()))
            fix = "say which one: sch.work_on(name)"
            raise cannot_schedule(helper, f"a module of several functions ({names})", "one", fix)
        body = sch.mod[sch.func_working_on].body
        realizes = {x.block: x for x in ir.find_all(body, ir.SBlockRealize)}
        blocks = [x for x in all_blocks(sch) if str(sch.get(x).name_hint) not in other]
        parts = [_part(sch, block, realizes) for block in blocks]
        if not parts:
            raise cannot_schedule(helper, _without_parts(sch), "a program in plain loops")
        _check_updates(parts)
        for part in parts if helper != "pointwise" else ():
            if part.reduced:
                check_reducer(f"block {part.name}", sch, part.block, part.node.body)
        used = [x.source for p in parts for x in (*p.node.reads, *p.node.writes)]
        for tensor in params(sch):
            if ir.dtype_of(tensor) not in DTYPES and any(tensor.same_as(x) for x in used):
                found = f"elements of type {ir.dtype_of(tensor)}"
                need = f"one of {', '.join(DTYPES)}"
                raise cannot_schedule(f"tensor {tensor.name}", found, need)
        return cls(sch, helper, parts, other)

    def on(self, sch: s_tir.Schedule) -> MemoryProgram:
        """Return the same blocks in another schedule of the same module."""
        names = {p.name for p in self.parts}
        blocks = [x for x in all_blocks(sch) if str(sch.get(x).name_hint) in names]
        parts = [replace(p, block=x) for p, x in zip(self.parts, blocks, strict=True)]
        return replace(self, sch=sch, parts=parts)

    def copy(self) -> MemoryProgram:
        """Return the program in a copy of its schedule, in which the same variables are valid."""
        return replace(self, sch=self.sch.copy(), parts=list(self.parts))

    def inline(self, part: Part) -> None:
        """Let what reads a part compute it."""
        self.sch.compute_inline(part.block)
        self.look_again([p for p in self.parts if p is not part])

    def look_again(self, parts: list[Part] | None = None) -> None:
        """Look up what primitives of the schedule have made of the blocks, or of those left."""
        self.parts = [
            _look_up(self.sch, p.block) for p in self.parts if parts is None or p in parts
        ]


def _without_parts(sch: s_tir.Schedule) -> str:
    """Say what a function is made of that has no block in it: TVM's scans and sorts have a name."""
    body = sch.mod[sch.func_working_on].body
    name = str(body.block.name_hint) if isinstance(body, ir.SBlockRealize) else "root"
    if name == "root":
        return "a function without blocks"
    return f"loops written out in block {name}, as those of cumulative sums and sorts"


def all_blocks(sch: s_tir.Schedule) -> list[Any]:
    """Return the blocks of the function that are in no other one, in order."""
    body = sch.mod[sch.func_working_on].body
    if not isinstance(body, ir.SBlockRealize):
        return []
    return list(sch.get_child_blocks(sch.get_sblock(str(body.block.name_hint))))


def _look_up(sch: s_tir.Schedule, block: Any) -> Part:
    node = sch.get(block)
    reduced = tuple(x for x in node.iter_vars if x.iter_type == IterVar.CommReduce)
    return Part(block, node, tuple(_around(sch, block)), reduced)


def _part(sch: s_tir.Schedule, block: Any, realizes: dict[Any, Any]) -> Part:
    part = _look_up(sch, block)
    node, loops, where = part.node, part.loops, f"block {part.name}"
    for loop in loops:
        if loop.kind != ir.ForKind.SERIAL or loop.annotations:
            found = f"loop {loop.loop_var.name} that is scheduled already"
            raise cannot_schedule(where, found, "plain serial loops")
    if ir.find_all(node.body, ir.SBlock):
        raise cannot_schedule(where, "blocks inside of it", "plain serial loops")
    if any(ir.is_const(loop.extent, 0) for loop in loops):
        need = "one or more along each dimension"
        raise cannot_schedule(where, "no elements", need, "leave it out: nothing is computed")
    _check_recurrence(where, part)
    _check_statement(where, part)
    _check_bindings(where, realizes[node], part)
    return part


def _around(sch: s_tir.Schedule, block: Any) -> list[Any]:
    loops, place = [], sch.get_sref(block).parent
    while place is not None and isinstance(place.stmt, ir.For):
        loops.append(place.stmt)
        place = place.parent
    return loops[::-1]


def _check_updates(parts: list[Part]) -> None:
    """Refuse a tensor that a block writes when it, or one before it, has read it.

    Loads and stores of a kernel move: what is read would be what the kernel has written.
    """
    for number, part in enumerate(parts):
        own = [] if part.reduced else ir.find_all(part.node.body, ir.TensorLoad)
        for buffer in part.outputs:
            before = [p for p in parts[:number] if any(x.source.same_as(buffer) for x in p.loads)]
            if any(x.source.same_as(buffer) for x in own):
                before.append(part)
            if before:
                raise cannot_schedule(
                    f"block {part.name}, tensor {buffer.name}",
                    f"an update in place: block {before[0].name} reads what it replaces",
                    "a result in a separate tensor",
                    "write to another argument; a call may pass one tensor for both where "
                    'docs/support_matrix.md, "One tensor twice in a call", allows it',
                )


def _check_recurrence(where: str, part: Part) -> None:
    """Refuse what computes an element from one before it: cumulative sums."""
    for store in ir.find_all(part.node.body, ir.BufferStore):
        for load in ir.find_all(store.value, ir.TensorLoad):
            same = load.source.same_as(store.buffer)
            if same and not _same(list(load.indices), list(store.indices)):
                raise cannot_schedule(
                    where,
                    f"a cumulative sum or another recurrence: {store.buffer.name}"
                    f"[{_text(store.indices)}] computed from {load.source.name}"
                    f"[{_text(load.indices)}]",
                    "elements that do not depend on one another, or a reduction of whole rows",
                    SEPARATE,
                )
    if part.reduced and any(
        ir.depends_on(x, [v.var for v in part.node.iter_vars]) for x in _extents(part)
    ):
        raise cannot_schedule(where, "a cumulative sum", "a reduction of whole rows", SEPARATE)


def _extents(part: Part) -> list[Any]:
    return [loop.extent for loop in part.loops] + [x.dom.extent for x in part.node.iter_vars]


def _check_statement(where: str, part: Part) -> None:
    body = part.node.body
    if impossible := find_impossible(body):
        need, fix = "operations that CUDA has", "cast the operands to float32"
        raise cannot_schedule(where, impossible, need, fix)
    if not isinstance(body, ir.BufferStore) and not (part.reduced and _is_tuple(body)):
        found = f"{type(body).__name__} in it"
        need = "a block that stores one element, or reduces pairs and the like"
        raise cannot_schedule(where, found, need, SEPARATE)
    if bool(part.reduced) != (part.node.init is not None):
        found = "no initial value" if part.reduced else "an initial value without a reduction"
        raise cannot_schedule(where, found, "T.init in a block with a reduction axis, and nowhere")
    if part.reduced and isinstance(body, ir.BufferStore):
        _check_initial(where, part.node.init, body)


def _check_initial(where: str, init: Any, body: ir.BufferStore) -> None:
    """Refuse a start that is not what TVM knows the operation's neutral element by."""
    identity = _IDENTITIES.get(type(body.value)) if is_plain_reduction(body) else None
    if identity is None or not isinstance(init, ir.BufferStore):
        return
    wanted, value = identity(ir.dtype_of(body.buffer)), ir.simplify(init.value)
    if not ir.is_const(ir.simplify(value.equal(wanted)), 1):
        need = f"{wanted}, which changes no {_RESULTS[type(body.value)]}"
        fix = "combine another one with the result, in a block after"
        raise cannot_schedule(where, f"the initial value {value}", need, fix)


_IDENTITIES: dict[type, Callable[[str], Any]] = {
    tirx.Add: lambda dtype: tirx.const(0, dtype),
    tirx.Mul: lambda dtype: tirx.const(1, dtype),
    tirx.Max: tirx.min_value,
    tirx.Min: tirx.max_value,
}
_RESULTS = {tirx.Add: "sum", tirx.Mul: "product", tirx.Max: "maximum", tirx.Min: "minimum"}


def _is_tuple(body: Any) -> bool:
    """Tell what te makes of a reduction of tuples: values that are named, then stored."""
    return isinstance(body, tirx.SeqStmt) and all(
        isinstance(x, tirx.Bind | ir.BufferStore) for x in body.seq
    )


def _check_bindings(where: str, realize: Any, part: Part) -> None:
    """Each variable of the block is a separate loop, from 0, in the same order."""
    if not ir.is_const(realize.predicate, 1):
        raise cannot_schedule(where, f"the predicate {realize.predicate}", "none")
    loops = [
        x.loop_var
        for x in part.loops
        if not ir.is_const(x.extent, 1) or any(x.loop_var.same_as(v) for v in realize.iter_values)
    ]
    values = [
        v
        for v, x in zip(realize.iter_values, part.node.iter_vars, strict=True)
        if not (ir.is_const(x.dom.extent, 1) and not any(v.same_as(w) for w in loops))
    ]
    plain = len(values) == len(loops) and all(
        v.same_as(w) for v, w in zip(values, loops, strict=True)
    )
    if not plain or not all(ir.is_const(x.min, 0) for x in part.loops):
        need = "one loop from 0 for each of its dimensions, in their order"
        raise cannot_schedule(where, f"it bound to {_text(realize.iter_values)}", need)


def _same(one: list[Any], other: list[Any]) -> bool:
    return len(one) == len(other) and all(
        x.same_as(y) or ir.is_const(ir.simplify(x - y), 0) for x, y in zip(one, other, strict=True)
    )


def _text(indices: Any) -> str:
    return ", ".join(str(x) for x in indices)


def equal(one: Any, other: Any) -> bool:
    """Tell whether two extents are known to be the same."""
    return ir.is_const(ir.simplify(one - ir.cast_like(other, one)), 0)


def same_extents(one: Any, other: Any) -> bool:
    """Tell whether extents are known to be the same, each for each."""
    return len(one) == len(other) and all(equal(x, y) for x, y in zip(one, other, strict=True))


def times(extents: Any) -> str:
    """Write extents for an error message."""
    return " x ".join(str(ir.static_int(x) or x) for x in extents) or "1"


def plain_index(load: Any, variables: list[Any]) -> list[Any] | None:
    """Return which of the variables an access is indexed by, in order; None if it computes.

    Dimensions of extent one are left out.
    """
    found = []
    for index, extent in zip(load.indices, load_shape(load), strict=True):
        if ir.is_const(extent, 1) or ir.is_const(index, 0):
            continue
        if not any(index.same_as(v) for v in variables):
            return None
        found.append(index)
    return found


def is_plain(load: Any, variables: list[Any]) -> bool:
    """Tell whether an access is by all the variables, in their order."""
    index = plain_index(load, variables)
    return (
        index is not None
        and len(index) == len(variables)
        and all(x.same_as(v) for x, v in zip(index, variables, strict=True))
    )


def load_shape(load: Any) -> Any:
    """Return the shape of the buffer that a load or a store touches."""
    buffer = load.buffer if isinstance(load, ir.BufferStore) else load.source
    return buffer.shape


def params(sch: s_tir.Schedule) -> Iterator[Any]:
    """Yield the tensors that are arguments of the function."""
    func = sch.mod[sch.func_working_on]
    for param in func.params:
        if hasattr(param.ty, "shape"):
            yield param


def block_names(sch: s_tir.Schedule) -> frozenset[str]:
    """Return the names of a function's outermost blocks."""
    return frozenset(str(sch.get(x).name_hint) for x in all_blocks(sch))


def results(sch: s_tir.Schedule, parts: list[Part]) -> list[Any]:
    """Return what blocks of a kernel leave in memory: arguments, and what other kernels read."""
    own = {p.name for p in parts}
    blocks = ir.find_all(sch.mod[sch.func_working_on].body.block.body, ir.SBlock)
    others = [x for x in blocks if str(x.name_hint) not in own]
    read = [x.source for node in others for x in ir.find_all(node.body, ir.TensorLoad)]
    made = [x for p in parts for x in p.outputs]
    return [*params(sch), *(x for x in made if any(x.same_as(y) for y in read))]


def tensors_read(sch: s_tir.Schedule, parts: list[Part]) -> list[Any]:
    """Return the tensors that blocks read and do not make: arguments, then others' results."""
    made = [x for p in parts for x in p.outputs]
    arguments = list(params(sch))
    found = list(arguments)
    for source in (x.source for p in parts for x in p.loads):
        if not any(source.same_as(x) for x in (*found, *made)):
            found.append(source)
    return found
