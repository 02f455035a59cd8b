"""A Hexagon of numpy: runs TIR statements, and copies by DMA as TVM's runtime queues them.

A copy may land when it is issued ("early") or when a wait demands it ("late"), and VTCM holds NaN
until something lands. What a program computes is right only if both agree with the plain one.
"""

import operator

import numpy as np
from tvm import tirx

BINARY = {
    tirx.Add: operator.add,
    tirx.Sub: operator.sub,
    tirx.Mul: operator.mul,
    tirx.FloorDiv: operator.floordiv,
    tirx.FloorMod: operator.mod,
    tirx.Min: min,
    tirx.Max: max,
    tirx.LT: operator.lt,
    tirx.LE: operator.le,
    tirx.GT: operator.gt,
    tirx.GE: operator.ge,
    tirx.EQ: operator.eq,
    tirx.NE: operator.ne,
    tirx.And: lambda a, b: a and b,
    tirx.Or: lambda a, b: a or b,
}


class Machine:
    """Runs one function; `trace` lists copies and waits as (name, numbers...)."""

    def __init__(self, policy):
        self.policy = policy
        self.buffers, self.variables = {}, {}
        self.groups, self.group = [], None  # in flight; the one that is open
        self.trace = []

    def run(self, func, arrays, **sizes):
        for param, array in zip(func.params, arrays, strict=True):
            self.buffers[param] = array.reshape(-1)
            for extent in param.shape:
                if isinstance(extent, tirx.Var):
                    self.variables[extent] = sizes[extent.name]
        self.statement(func.body)
        assert self.group is None, "a group stays open"
        assert not self.groups, "copies are in flight at the end"
        return arrays

    # -- statements

    def statement(self, stmt):
        getattr(self, "_" + type(stmt).__name__)(stmt)

    def _SeqStmt(self, stmt):
        for part in stmt.seq:
            self.statement(part)

    def _SBlockRealize(self, stmt):
        assert not stmt.iter_values
        if self.value(stmt.predicate):
            for buffer in stmt.block.alloc_buffers:
                self._allocate(buffer)
            self.statement(stmt.block.body)

    def _AttrStmt(self, stmt):
        self.statement(stmt.body)

    def _AllocBuffer(self, stmt):
        self._allocate(stmt.buffer)

    def _DeclBuffer(self, stmt):
        self.buffers[stmt.buffer] = self.buffers[stmt.data.args[0]]

    def _Bind(self, stmt):
        self.variables[stmt.var] = self.value(stmt.value)

    def _For(self, stmt):
        first = self.value(stmt.min)
        for n in range(first, first + self.value(stmt.extent)):
            self.variables[stmt.loop_var] = n
            self.statement(stmt.body)

    def _IfThenElse(self, stmt):
        if self.value(stmt.condition):
            self.statement(stmt.then_case)
        elif stmt.else_case is not None:
            self.statement(stmt.else_case)

    def _BufferStore(self, stmt):
        self.buffers[stmt.buffer][self._at(stmt.buffer, stmt.indices)] = self.value(stmt.value)

    def _Evaluate(self, stmt):
        if isinstance(stmt.value, tirx.IntImm):
            return
        name = stmt.value.op.name.removeprefix("tirx.")
        if name != "address_of":
            getattr(self, "_" + name)(*stmt.value.args)

    def _allocate(self, buffer):
        size = int(np.prod([self.value(x) for x in buffer.shape]))
        self.buffers[buffer] = np.full(size, np.nan, buffer.ty.dtype.dtype)

    # -- the queue

    def _dma_start_group(self, _queue):
        assert self.group is None, "a group in a group"
        self.group = []

    def _dma_end_group(self, _queue):
        assert self.group, "an empty group"
        self.groups.append(self.group)
        self.group = None

    def _dma_copy(self, _queue, tile, tensor, num_bytes, _bypass):
        (dst, to), (src, start) = map(self._pointer, (tile, tensor))
        count, rest = divmod(self.value(num_bytes), src.itemsize)
        assert rest == 0
        assert count > 0
        self.trace.append(("copy", to, start, count))

        def land():
            assert to + count <= len(dst), "past the tile"
            assert start + count <= len(src), "past the tensor"
            dst[to : to + count] = src[start : start + count]

        copies = [[land]] if self.policy == "late" else [[]]
        if self.policy == "early":
            land()
        if self.group is None:
            self.groups += copies
        else:
            self.group += copies[0] or [lambda: None]

    def _dma_wait(self, _queue, num_pending):
        assert self.group is None, "a wait while a group is open"
        most = self.value(num_pending)
        self.trace.append(("wait", most))
        while len(self.groups) > most:
            for land in self.groups.pop(0):
                land()

    def _pointer(self, address):
        load = address.args[0]
        return self.buffers[load.source], self._at(load.source, load.indices)

    # -- expressions

    def _at(self, buffer, indices):
        flat = 0
        for extent, index in zip(buffer.shape, indices, strict=True):
            flat = flat * self.value(extent) + self.value(index)
        return flat

    def value(self, expr):
        if isinstance(expr, (int, float, bool)):
            return expr
        if isinstance(expr, (tirx.IntImm, tirx.FloatImm)):
            return expr.value
        if type(expr).__name__ == "TensorLoad":
            return self.buffers[expr.source][self._at(expr.source, expr.indices)]
        if isinstance(expr, tirx.Var):
            return self.variables[expr]
        if isinstance(expr, tirx.Cast):
            return self.value(expr.value)
        return BINARY[type(expr)](self.value(expr.a), self.value(expr.b))
