"""What each tensor of a plain program is: an elementwise expression, or a reduction.

  T[i, j] = S[i, j] * 0.125                       elementwise: replaced where it is read
  M[i] = max(M[i], T[i, k])                       a reduction: `Definition`, and stays a load
->
  read `M[v]`: max over k of S[v, k] * 0.125
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import ir as tvm_ir, sym, tirx
from tvm.tirx import IterVar

from tvm_hopper import ir
from tvm_hopper.analysis.updates import find_update
from tvm_hopper.errors import cannot_schedule
from tvm_hopper.schedule.products.recognize import check_plain_loops

from .conditions import as_condition, choice, same
from .scores import number


@dataclass(frozen=True)
class Definition:
    """One tensor as its only block computes it.

    - `block`: name of the block.
    - `buffer` (Var): the tensor.
    - `indices` (tuple of Expr): of the element that is stored: variables of `domains`, or constants
      of extent one.
    - `domains` (dict of Var to Range): the block's variables and their values.
    - `reduced` (tuple of Var): those that it reduces over; empty: elementwise.
    - `operation`: "add", "max" and so on; empty: elementwise.
    - `value` (Expr): the stored value, or what a reduction combines the element with.
    """

    block: str
    buffer: Any
    indices: tuple[Any, ...]
    domains: dict[Any, Any]
    reduced: tuple[Any, ...]
    operation: str
    value: Any

    def at(self, indices: Sequence[Any], reduced: Sequence[Any] = ()) -> Any:
        """Return the value for one element, with other variables for the reduction."""
        pairs = zip(self.indices, indices, strict=True)
        values = {old: new for old, new in pairs if isinstance(old, ir.Var)}
        values.update(zip(self.reduced, reduced, strict=False))
        return ir.substitute(self.value, values)

    def extents(self) -> list[Any]:
        """Return the extents of the reduced axes."""
        return [self.domains[x].extent for x in self.reduced]


class PlainTensors:
    """The tensors of a plain program, and expressions in terms of arguments and reductions."""

    def __init__(self, func: tirx.PrimFunc) -> None:
        root = func.body
        if not isinstance(root, ir.SBlockRealize) or root.block.iter_vars:
            raise cannot_schedule(
                "function", "a body without a root block", "plain loops, as te and Relax make them"
            )
        self.func = func
        self.definitions: dict[Any, Definition] = {}
        for nest in ir.statements(root.block.body):
            found = _define(nest)
            if found.buffer in self.definitions:
                need = "one block for each tensor"
                raise cannot_schedule(
                    f"block {found.block}", f"another store to {found.buffer.name}", need
                )
            self.definitions[found.buffer] = found
        self.analyzer = sym.Analyzer()

    def bind(self, var: Any, extent: Any) -> Any:
        """Let simplifications know the values of a variable."""
        zero = tirx.IntImm(ir.dtype_of(var), 0)
        self.analyzer.bind(var, tvm_ir.Range.from_min_extent(zero, ir.cast_like(extent, var)))
        return var

    def bind_all(self, definition: Definition) -> None:
        """Let simplifications know the values of all variables of a block."""
        for var, domain in definition.domains.items():
            self.bind(var, domain.extent)

    def value_of(self, definition: Definition) -> Any:
        """Return a tensor's element in the variables of its own block."""
        self.bind_all(definition)
        if definition.operation:
            return tirx.BufferLoad(definition.buffer, list(definition.indices))
        return self.expand(definition.value)

    @property
    def outputs(self) -> list[Definition]:
        """The arguments that the program writes, in order."""
        params = self.func.params
        return [self.definitions[x] for x in params if x in self.definitions]

    def reduction(self, load: Any) -> Definition | None:
        """Return the reduction whose result a load reads, None for any other load."""
        found = self.definitions.get(load.source)
        return found if found is not None and found.operation else None

    def expand(self, expr: Any) -> Any:
        """Replace elementwise tensors by what they are, and simplify indices."""

        def load(node: Any, mutator: Any) -> Any:
            node = mutator.default_mutate(node)
            found = self.definitions.get(node.source)
            if found is None or found.operation:
                return node
            return self.expand(found.at(list(node.indices)))

        return self.simplify(ir.mutate(expr, [(ir.TensorLoad, load)]))

    def simplify(self, expr: Any) -> Any:
        """Simplify indices and conditions, not the arithmetic of floats."""

        def load(node: Any, mutator: Any) -> Any:
            node = mutator.default_mutate(node)
            return tirx.BufferLoad(node.source, [self.analyzer.simplify(x) for x in node.indices])

        def choose(node: Any, mutator: Any) -> Any:
            parts = choice(node)
            if parts is None:
                return mutator.default_mutate(node)
            condition, yes, no = parts
            condition = as_condition(self.analyzer.simplify(mutator.mutate(condition)))
            if ir.is_const(condition, 1) or ir.is_const(condition, 0):
                return mutator.mutate(yes if ir.is_const(condition, 1) else no)
            if isinstance(node, tirx.Select):
                return tirx.Select(condition, mutator.mutate(yes), mutator.mutate(no))
            args = [condition, mutator.mutate(yes), mutator.mutate(no)]
            return ir.Call(node.op, args, ret_ty=node.ty)

        kinds = (ir.Call, choose), (tirx.Select, choose)
        return ir.mutate(expr, [(ir.TensorLoad, load), *kinds])

    def replace_load(self, expr: Any, new: Callable[[Any], Any]) -> Any:
        """Replace loads by what `new` returns for them; None keeps one."""

        def load(node: Any, mutator: Any) -> Any:
            found = new(node)
            return mutator.default_mutate(node) if found is None else found

        return ir.mutate(expr, [(ir.TensorLoad, load)])

    def loads(self, expr: Any, operation: str = "") -> list[Any]:
        """Return the different loads of reductions by one operation in an expression."""
        found: list[Any] = []
        for node in ir.find_all(expr, ir.TensorLoad):
            definition = self.reduction(node)
            if definition is None or (operation and definition.operation != operation):
                continue
            if not any(same(node, x) for x in found):
                found.append(node)
        return found


def _define(nest: Any) -> Definition:
    loops, realize = ir.loop_nest(nest)
    if not isinstance(realize, ir.SBlockRealize):
        raise cannot_schedule(
            "function", "a statement outside of blocks", "plain loops around one block each"
        )
    node = realize.block
    where = f"block {node.name_hint}"
    if loops or not all(ir.is_const(x.dom.extent, 1) for x in node.iter_vars):
        check_plain_loops(where, loops, node)  # else it is of one element
    if not isinstance(node.body, ir.BufferStore):
        raise cannot_schedule(where, "several statements", "one store, as te makes it")
    store = node.body
    domains = {x.var: x.dom for x in node.iter_vars}
    _check_index(where, list(store.indices), domains)
    reduced = tuple(x.var for x in node.iter_vars if x.iter_type == IterVar.CommReduce)
    value, operation = store.value, ""
    if reduced or node.init is not None:
        update = find_update(store)
        if update is None or node.init is None:
            need = "a sum or a maximum with an initial value"
            raise cannot_schedule(where, f"the update {store.value}", need)
        value, operation = update.value, update.operation
        if not _begins_from_nothing(node.init, operation):
            found = f"the initial value {getattr(node.init, 'value', node.init)}"
            raise cannot_schedule(where, found, "0 for a sum, the type's least for a maximum")
    name = str(node.name_hint)
    return Definition(name, store.buffer, tuple(store.indices), domains, reduced, operation, value)


def _begins_from_nothing(init: Any, operation: str) -> bool:
    """Tell an initial value that changes no result of a reduction."""
    if not isinstance(init, ir.BufferStore):
        return False
    if operation == "add":
        return bool(ir.is_zero(init.value))
    value, dtype = number(init.value), ir.dtype_of(init.buffer)
    if value is None or operation != "max":
        return value is not None
    return value <= (0 if dtype == "bool" else float(tirx.min_value(dtype).value))


def _check_index(where: str, indices: list[Any], domains: dict[Any, Any]) -> None:
    """Refuse a store to anything but one variable of the block along each dimension."""
    moving = [x for x in indices if isinstance(x, ir.Var)]
    known = all(x in domains or ir.is_const(x, 0) for x in indices)
    if not known or len(ir.once(moving)) != len(moving):
        found = f"the index [{', '.join(map(str, indices))}]"
        raise cannot_schedule(where, found, "one variable of the block for each dimension")
