"""Generate one CPU function for a plain program, with loop ranges and boxes as arguments.

    for i in [i_low, i_low + i_count):            numbers of `meta`, one for each loop
        if inside(box of C):                      where the loops reach further than the box
            C[(i - C_low) * C_step] = value       only the box of C is stored at all
            C.error[...] = error                  where rounding may touch C
            C.terms[...] += |term|                where C is a sum: the magnitude of what was added

One build serves every part of the outputs, and every size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tvm
from tvm import ir, tirx
from tvm.script import tirx as T

from .float8_sums import bound_of_cuts, cut_term, float8_sums, no_cuts
from .lift import Lifter, Number, plus
from .plain import (
    Node,
    PlainBranch,
    PlainLet,
    PlainLoop,
    PlainProgram,
    PlainStore,
    dtype_of,
    nodes_in,
    variables,
)
from .reductions import added_term
from .regions import is_exact
from .rounding import F64, FORMATS, const, magnitude, overflows

I64 = "int64"


@dataclass
class Carrier:
    """The arrays that stand for one buffer of the program.

    - `value`, `error`, `terms` (Var): one-dimensional; None where the buffer has no error, or is no
      sum.
    - `fast`: the axis along which neighbors lie side by side; -1: the buffer has no axis.
    - `low`, `size`, `step` (list of Expr): of each axis: first element of the box, elements, and
      elements from one to the next.
    - `scale`, `limit` (Expr): of a sum: the error is `scale` times the terms, where these are above
      `limit`.
    - `cuts` (Var): what cutting a sum of float8 products may take away (`float8_sums`), four
      numbers an element; None for other sums.
    """

    value: Any
    error: Any
    terms: Any
    fast: int
    low: list[Any]
    size: list[Any]
    step: list[Any]
    scale: Any = None
    limit: Any = None
    cuts: Any = None


def carrier_dtype(dtype: str) -> str:
    """Return the type in which elements of a type are held."""
    if dtype in FORMATS:
        return F64
    return "int8" if dtype == "bool" else dtype


def fast_axis(program: PlainProgram, buffer: Any) -> int:
    """Return the axis of a buffer along which it is read by the innermost loops, else the last."""
    last = len(buffer.shape) - 1
    if buffer in program.outputs or buffer in program.allocated:
        return last
    for place in program.places:
        for load in nodes_in(ir.TensorLoad, place.store.value):
            if load.source.same_as(buffer) and place.loops:
                inner = place.loops[-1].var
                axes = [i for i, index in enumerate(load.indices) if inner in variables(index)]
                return axes[0] if len(axes) == 1 else last
    return last


def sequence(parts: list[Any]) -> Any:
    """Join statements, of which there may be none."""
    if not parts:
        return tirx.Evaluate(tirx.const(0, "int32"))
    return parts[0] if len(parts) == 1 else tirx.SeqStmt(parts)


class ReferenceEmitter:
    """Builds the function; afterwards says where its numbers go.

    - `meta`, `reals` (dict): (thing, what) -> place in the arrays of integers and of floats.
    - `carriers` (dict): of each buffer.
    - `checks` (list of (load, axis)): loads by an index that follows from memory; of each,
      `outside` has whether it lay outside of the tensor, and the index.
    - `function` (PrimFunc): takes `meta`, `reals`, `outside`, then value, error and terms of each
      buffer, as far as it has them.
    """

    def __init__(
        self,
        program: PlainProgram,
        cuts_factors: bool = False,
        cuts_float8: bool = False,
        moves_roundings: bool = False,
    ) -> None:
        self.program, self.cuts_factors = program, cuts_factors
        self.moves_roundings = moves_roundings
        self.cut_sums = float8_sums(program) if cuts_float8 else set()
        self.meta: dict[Any, int] = {}
        self.reals: dict[Any, int] = {}
        self.meta_array = _array("meta", I64)
        self.reals_array = _array("reals", F64)
        self.outside = _array("outside", I64)
        self.sums = {p.store.buffer for p in program.places if added_term(p.store) is not None}
        self.with_error: set[Any] = set()
        self.exact = {p.store: is_exact(p, program.places) for p in program.places}
        while True:  # an error spreads to what reads it
            self.top: list[Any] = []
            self.checks: list[tuple[Any, int]] = []
            self.registers: list[Any] = []
            self.names = {
                p: Number(self._scalar(p), None, dtype_of(p))
                for p in program.params
                if not tirx.is_buffer_var(p)
            }
            self.sizes: dict[Any, Any] = {}
            self.carriers = {b: self._carrier(b) for b in program.buffers}
            before = len(self.with_error)
            body = self._statements(program.body, self.names)
            if len(self.with_error) == before:
                break
        self.function = self._function(body)

    def _function(self, body: list[Any]) -> Any:
        params = [self.meta_array, self.reals_array, self.outside]
        for carrier in self.carriers.values():
            parts = (carrier.value, carrier.error, carrier.terms, carrier.cuts)
            params += [x for x in parts if x is not None]
        registers = [tirx.AllocBuffer(register) for register in self.registers]
        whole = sequence([*registers, *self.top, *body])
        attrs = {"global_symbol": "reference", "tirx.noalias": True}
        return tirx.PrimFunc(params, whole).with_attr(attrs)

    # -- numbers that are told at run time --------------------------------------------------------

    def _integer(self, thing: Any, what: Any, dtype: str = I64) -> Any:
        place = self.meta.setdefault((thing, what), len(self.meta))
        return self._bind(self.top, tirx.Cast(dtype, self.meta_array[place]))

    def _real(self, thing: Any, what: str) -> Any:
        place = self.reals.setdefault((thing, what), len(self.reals))
        return self._bind(self.top, self.reals_array[place])

    def _scalar(self, param: Any) -> Any:
        dtype = dtype_of(param)
        return self._real(param, "is") if dtype in FORMATS else self._integer(param, "is", dtype)

    def _size(self, var: Any) -> Number:
        """Return a variable of a shape."""
        if var not in self.sizes:
            self.sizes[var] = Number(self._integer(var, "is", dtype_of(var)), None, dtype_of(var))
        return self.sizes[var]

    def _carrier(self, buffer: Any) -> Carrier:
        axes = range(len(buffer.shape))
        name, dtype = str(buffer.name), carrier_dtype(dtype_of(buffer))
        summed = buffer in self.sums
        fast = fast_axis(self.program, buffer)
        return Carrier(
            _array(name, dtype),
            _array(f"{name}_error", F64) if buffer in self.with_error else None,
            _array(f"{name}_terms", F64) if summed else None,
            fast,
            [self._integer(buffer, ("low", axis)) for axis in axes],
            [self._integer(buffer, ("size", axis)) for axis in axes],
            [
                self._integer(buffer, ("step", axis)) if axis != fast else tirx.const(1, I64)
                for axis in axes
            ],
            self._real(buffer, "scale") if summed else None,
            self._real(buffer, "limit") if summed else None,
            _array(f"{name}_cuts", F64) if buffer in self.cut_sums else None,
        )

    # -- statements -------------------------------------------------------------------------------

    def _bind(self, into: list[Any], value: Any) -> Any:
        """Give a value a name: a float, a register that no pass looks through.

        TVM's passes write out what a variable is bound to: chains of names that use names twice
        then grow exponentially.
        """
        if isinstance(value, (ir.Var, tirx.IntImm, tirx.FloatImm)):
            return value
        dtype = dtype_of(value)
        if dtype == F64 and into is not self.top:
            register = tirx.decl_buffer(
                (1,), F64, f"r{len(self.registers)}", scope="local", layout=None
            )
            self.registers.append(register)
            into.append(tirx.BufferStore(register, value, [0]))
            return register[0]
        var = tirx.Var(f"v{len(into)}", dtype)
        into.append(tirx.Bind(var, value))
        return var

    def _lifter(self, into: list[Any], names: dict[Any, Number], where: str) -> Lifter:
        def bind(value: Any) -> Any:
            return self._bind(into, value)

        def check(outside: Any, load: Any, axis: int, index: Any) -> None:
            place = 2 * len(self.checks)
            self.checks.append((load, axis))
            note = [
                tirx.BufferStore(self.outside, value, [tirx.const(place + i, I64)])
                for i, value in enumerate((tirx.const(1, I64), tirx.Cast(I64, index)))
            ]
            into.append(tirx.IfThenElse(outside, sequence(note), None))

        def load(*element: Any) -> Number:
            return self._load(bind, *element)

        return Lifter(load, bind, _Names(self, names), where, check)

    def _statements(self, nodes: list[Node], names: dict[Any, Number]) -> list[Any]:
        out: list[Any] = []
        names = dict(names)
        for node in nodes:
            if isinstance(node, PlainStore):
                self._store(node, names, out)
            elif isinstance(node, PlainLoop):
                out.append(self._loop(node, names))
            elif isinstance(node, PlainLet):
                lifter = self._lifter(out, names, f"name {node.var.name}")
                lifter.clamped = 1  # it may be computed where nothing needs it
                found = lifter.lift(node.value)
                value = self._bind(out, found.value)
                from_memory = lifter.reads_memory(node.value)
                names[node.var] = Number(value, found.error, found.dtype, found.bits, from_memory)
            else:
                out.append(self._branch(node, names, out))
        return out

    def _branch(self, node: PlainBranch, names: dict[Any, Number], out: list[Any]) -> Any:
        lifter = self._lifter(out, names, f"condition {node.condition}")
        lifter.clamped = 1
        condition = lifter.index(node.condition)
        then, otherwise = (self._statements(x, names) for x in (node.then, node.otherwise))
        return tirx.IfThenElse(
            condition, sequence(then), sequence(otherwise) if otherwise else None
        )

    def _loop(self, loop: PlainLoop, names: dict[Any, Number]) -> Any:
        dtype = dtype_of(loop.var)
        low, count = (self._integer(loop, what, dtype) for what in ("low", "count"))
        body = self._statements(loop.body, names)
        if names.keys() & set(variables(loop.low, loop.extent)) or self._inner(loop):
            # the range is that of all iterations around it; this one's may be a part of it
            before: list[Any] = []
            lifter = self._lifter(before, names, f"loop {loop.var.name}")
            lifter.clamped = 1
            first, extent = lifter.index(loop.low), lifter.index(loop.extent)
            inside = tirx.And(loop.var >= first, loop.var < first + extent)
            body = [*before, tirx.IfThenElse(inside, sequence(body), None)]
        return tirx.For(loop.var, low, count, tirx.ForKind.SERIAL, sequence(body))

    def _inner(self, loop: PlainLoop) -> bool:
        """Tell whether a loop's range depends on loops around it."""
        others = {other.var for place in self.program.places for other in place.loops}
        return bool(others & set(variables(loop.low, loop.extent)))

    def _store(self, store: PlainStore, names: dict[Any, Number], out: list[Any]) -> None:
        inner: list[Any] = []
        outer = self._lifter(out, names, f"block {store.block}")
        outer.clamped = 1
        indices = [outer.index(index) for index in store.indices]
        carrier = self.carriers[store.buffer]
        lifter = self._lifter(inner, outer.names, f"block {store.block}")
        lifter.moves_roundings = self.moves_roundings and store.buffer not in self.program.outputs
        at = self._flat(carrier, indices)
        added = added_term(store)
        if added is not None:
            lifter.cuts_factors = self.cuts_factors
            term = lifter.lift(added[0])
            element = carrier.value[at]
            value = element + term.value if added[1] > 0 else element - term.value
            inner.append(
                tirx.BufferStore(carrier.terms, carrier.terms[at] + magnitude(term.value), [at])
            )
            if carrier.cuts is not None:
                inner += cut_term(carrier.cuts, at, self._bind(inner, element), term.value, value)
            error = plus(carrier.error[at], term.error) if carrier.error is not None else term.error
        else:
            found = lifter.lift(store.value)
            value, error = found.value, found.error
            if found.dtype == "bool":
                value = tirx.Cast("int8", value)
                error = None if error is None else tirx.Select(error, const(1), const(0))
            if error is not None and found.is_float:  # nothing is known of what comes of infinity
                error = tirx.Select(overflows(value, found.dtype), const(float("inf")), error)
            if carrier.terms is not None:
                inner.append(tirx.BufferStore(carrier.terms, magnitude(value), [at]))
            if carrier.cuts is not None:
                inner += no_cuts(carrier.cuts, at)
        if error is not None:
            self.with_error.add(store.buffer)
        if carrier.error is not None:
            inner.append(
                tirx.BufferStore(carrier.error, const(0) if error is None else error, [at])
            )
        inner.append(tirx.BufferStore(carrier.value, value, [at]))
        if self.exact[store]:
            out += inner
            return
        inside = tirx.const(True, "bool")
        for index, low, size in zip(indices, carrier.low, carrier.size, strict=True):
            wide = tirx.Cast(I64, index)
            inside = tirx.And(inside, tirx.And(wide >= low, wide < low + size))
        out.append(tirx.IfThenElse(inside, sequence(inner), None))

    # -- elements ---------------------------------------------------------------------------------

    @staticmethod
    def _flat(carrier: Carrier, indices: list[Any], clamped: bool = False) -> Any:
        at: Any = tirx.const(0, I64)
        for index, low, size, step in zip(
            indices, carrier.low, carrier.size, carrier.step, strict=True
        ):
            offset = tirx.Cast(I64, index) - low
            if clamped:
                offset = T.max(T.min(offset, size - 1), tirx.const(0, I64))
            at = at + offset * step
        return at

    def _load(self, bind: Any, buffer: Any, indices: list[Any], clamped: bool) -> Number:
        carrier, dtype = self.carriers[buffer], dtype_of(buffer)
        at = bind(self._flat(carrier, indices, clamped))
        value = bind(carrier.value[at])
        error = None if carrier.error is None else bind(carrier.error[at])
        if carrier.terms is not None:
            terms = bind(carrier.terms[at])
            own = terms * carrier.scale
            if carrier.cuts is not None:
                own = own + bound_of_cuts(carrier.cuts, at)
            own = tirx.Select(terms > carrier.limit, own, const(0))
            own = tirx.Select(overflows(terms, dtype), const(float("inf")), own)
            error = bind(plus(error, own))
        if dtype == "bool":
            error = None if error is None else error > const(0)
            return Number(bind(tirx.Cast("bool", value)), error, dtype)
        bits = FORMATS[dtype].precision if dtype in FORMATS else 53
        return Number(value, error, dtype, bits)


class _Names(dict[Any, Number]):
    """Known names, and shape variables that become run-time arguments."""

    def __init__(self, emitter: ReferenceEmitter, names: dict[Any, Number]) -> None:
        super().__init__(names)
        for buffer in emitter.program.buffers:
            for var in variables(*buffer.shape):
                if var not in self:
                    self[var] = emitter._size(var)


def _array(name: str, dtype: str) -> Any:
    size = tirx.Var(f"{name}_size", I64)
    return tirx.decl_buffer((size,), dtype, name=name, layout=None)


def build(function: Any) -> Any:
    """Compile the function for this machine's CPU."""
    # -O3 of the wheel's LLVM does not come back from some loops
    target = tvm.target.Target({"kind": "llvm", "opt-level": 2})
    return tvm.compile(tvm.IRModule({"reference": function}), target=target)["reference"]
