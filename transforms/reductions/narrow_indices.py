"""Keep the indices that a reduction chooses among in 32 bits.

    where[0] = Select(x > most[0], T.int64(tx) * 8 + v, where[0])               registers of int64
    tvm_thread_allreduce(2, where[0], most[0], True, first[0], greatest[0], tx)
    Y[row] = first[0]
  ->
    where[0] = Select(x > most[0], tx * 8 + v, where[0])                        registers of int32
    tvm_thread_allreduce(2, where[0], most[0], True, first[0], greatest[0], tx)
    Y[row] = T.Cast("int64", first[0])

Relax returns the place of a maximum in 64 bits. A comparison of those is two instructions, and so
are a choice and a shuffle; rows are shorter than 2^31.

Before: reductions across threads are TVM's calls.  After: registers of int64 that hold nothing but
such places, constants, and what is chosen of them, are of int32, in kernels bound by memory.
"""

from __future__ import annotations

from typing import Any

from tvm import sym, tirx

from tvm_hopper import ir
from tvm_hopper.requests.bodies import is_memory_bound
from tvm_hopper.transforms.kernel_pass import kernel_step

ALLREDUCE = "tirx.tvm_thread_allreduce"
WIDE, NARROW = "int64", "int32"
_COMPARISONS = (tirx.EQ, tirx.NE, tirx.LT, tirx.LE, tirx.GT, tirx.GE)
_CHOICES = (tirx.Max, tirx.Min)


def plan_indices(kernel: ir.For) -> dict[ir.Var, ir.Var]:
    """Return the registers that may be of 32 bits, and those that stand for them."""
    blocks = ir.find_all(kernel, ir.SBlock)
    found = {
        x: ir.new_buffer(x.name, tuple(x.shape), NARROW, "local", int(x.ty.data_alignment))
        for block in blocks
        for x in block.alloc_buffers
        if ir.dtype_of(x) == WIDE and str(x.scope()) == "local"
    }
    while found:
        narrower = _Narrower(kernel, found)
        narrower.rewrite(kernel)
        if not narrower.wide:
            return found
        found = {k: v for k, v in found.items() if k not in narrower.wide}
    return found


def rewrite_indices(kernel: ir.For, plan: dict[ir.Var, ir.Var]) -> Any:
    """Compute in 32 bits, and widen what goes elsewhere."""
    return _Narrower(kernel, plan).rewrite(kernel)


class _Narrower:
    """Rewrites a kernel so that some of its registers are of 32 bits.

    A narrow value is a cast of it to 64 bits, which whatever takes two of them looks into.
    """

    def __init__(self, kernel: ir.For, registers: dict[ir.Var, ir.Var]) -> None:
        self.registers = registers
        self.named: dict[ir.Var, Any] = {}
        self.wide: set[ir.Var] = set()  # registers that are given something wider
        self.analyzer = sym.Analyzer()
        for loop in ir.find_all(kernel, ir.For):
            self.analyzer.bind(loop.loop_var, ir.range_of(loop))

    def rewrite(self, root: Any) -> Any:
        """Return the root with narrow registers."""
        return ir.mutate(
            root,
            [
                *((kind, self._compare) for kind in (*_COMPARISONS, *_CHOICES)),
                (tirx.Select, self._select),
                (tirx.Bind, self._bind),
                (ir.Var, lambda node, _: self.named.get(node, node)),
                (ir.TensorLoad, self._load),
                (ir.BufferStore, self._store),
                (ir.TensorRegion, self._region),
                (ir.SBlock, self._block),
                (tirx.AttrStmt, self._reduce),
            ],
        )

    def _narrow(self, value: Any) -> Any | None:
        """Return a value of 64 bits in 32; None if it may need more."""
        if isinstance(value, tirx.Cast) and ir.dtype_of(value.value) == NARROW:
            return value.value
        bound = self.analyzer.const_int_bound(value)
        if not -(2**31) < int(bound.min_value) <= int(bound.max_value) < 2**31:
            return None
        return tirx.Cast(NARROW, value) if ir.static_int(value) is None else self._constant(value)

    @staticmethod
    def _constant(value: Any) -> Any:
        return tirx.IntImm(NARROW, ir.static_int(value))

    def _both(self, one: Any, other: Any) -> tuple[Any, Any] | None:
        """Return two values in 32 bits, if one of them is narrow already and the other can be."""
        if WIDE not in (ir.dtype_of(one), ir.dtype_of(other)):
            return None
        known = any(
            isinstance(x, tirx.Cast) and ir.dtype_of(x.value) == NARROW for x in (one, other)
        )
        a, b = self._narrow(one), self._narrow(other)
        return (a, b) if known and a is not None and b is not None else None

    def _compare(self, node: Any, mutator: Any) -> Any:
        a, b = mutator.mutate(node.a), mutator.mutate(node.b)
        if (narrow := self._both(a, b)) is None:  # TVM itself leaves some of two types
            same = a.same_as(node.a) and b.same_as(node.b)
            return node if same else type(node)(a, b)
        value = type(node)(*narrow)
        return tirx.Cast(WIDE, value) if isinstance(node, _CHOICES) else value

    def _select(self, node: Any, mutator: Any) -> Any:
        condition, *values = map(
            mutator.mutate, (node.condition, node.true_value, node.false_value)
        )
        narrow = self._both(*values)
        if narrow is None:
            return tirx.Select(condition, *values)
        return tirx.Cast(WIDE, tirx.Select(condition, *narrow))

    def _bind(self, node: Any, mutator: Any) -> Any:
        value = mutator.mutate(node.value)
        is_narrow = isinstance(value, tirx.Cast) and ir.dtype_of(value.value) == NARROW
        if ir.dtype_of(node.var) != WIDE or not is_narrow:
            return tirx.Bind(node.var, value)
        var = ir.Var(node.var.name, NARROW)
        self.named[node.var] = tirx.Cast(WIDE, var)
        return tirx.Bind(var, value.value)

    def _load(self, node: Any, mutator: Any) -> Any:
        indices = [mutator.mutate(x) for x in node.indices]
        new = self.registers.get(node.source)
        if new is None:
            return tirx.BufferLoad(node.source, indices)
        return tirx.Cast(WIDE, tirx.BufferLoad(new, indices))

    def _store(self, node: Any, mutator: Any) -> Any:
        value, indices = mutator.mutate(node.value), [mutator.mutate(x) for x in node.indices]
        new = self.registers.get(node.buffer)
        if new is None:
            return ir.BufferStore(node.buffer, value, indices)
        narrow = self._narrow(value)
        if narrow is None:
            self.wide.add(node.buffer)
            return node
        return ir.BufferStore(new, narrow, indices)

    def _region(self, node: Any, _mutator: Any) -> Any:
        return tirx.BufferRegion(self.registers.get(node.source, node.source), list(node.region))

    def _block(self, node: Any, mutator: Any) -> Any:
        block = mutator.default_mutate(node)
        buffers = [self.registers.get(x, x) for x in node.alloc_buffers]
        return ir.with_block(block, alloc_buffers=buffers)

    def _reduce(self, node: Any, mutator: Any) -> Any:
        call: Any = node.body.value if isinstance(node.body, ir.Evaluate) else None
        if node.attr_key != "reduce_scope" or getattr(call.op, "name", "") != ALLREDUCE:
            return mutator.default_mutate(node)
        count, (_, *args) = int(call.args[0]), call.args
        places = [*args[:count], *args[count + 1 : 2 * count + 1]]
        for own, other in zip(places[:count], places[count:], strict=True):
            if (own.source in self.registers) != (other.source in self.registers):
                self.wide |= {own.source, other.source}
        if self.wide:
            return node
        given = [mutator.mutate(x) for x in args]
        given = [x.value if ir.dtype_of(x) == WIDE and self._is_register(x) else x for x in given]
        chosen = [x.source in self.registers for x in places[:count]]
        body = ir.Evaluate(ir.Call(call.op, [call.args[0], *given], ret_ty=call.ty))
        return tirx.AttrStmt(self._reducer(node.node, chosen), node.attr_key, node.value, body)

    @staticmethod
    def _is_register(value: Any) -> bool:
        return isinstance(value, tirx.Cast) and isinstance(value.value, ir.TensorLoad)

    def _reducer(self, old: Any, chosen: list[bool]) -> Any:
        sides = []
        for side in (old.lhs, old.rhs):
            own = [ir.Var(x.name, NARROW) if y else x for x, y in zip(side, chosen, strict=True)]
            pairs = zip(side, own, chosen, strict=True)
            self.named |= {x: tirx.Cast(WIDE, z) for x, z, y in pairs if y}
            sides.append(own)
        results = [self.rewrite(x) for x in old.result]
        narrow = zip(results, old.identity_element, chosen, strict=True)
        both = [(self._narrow(x), self._narrow(i)) if y else (x, i) for x, i, y in narrow]
        return tirx.CommReducer(*sides, [x for x, _ in both], [i for _, i in both])


narrow_indices = kernel_step(plan_indices, rewrite_indices, when=is_memory_bound)
