"""Count the work of a function from its TIR: FLOPs, bytes, and which rule of ours fits its kind.

    C[i, j] += A[i, k] * W[j, k]      a product: 2 * rows * n * k FLOPs; A, W and C once each
    Y[i, j] = W[tokens[i], j]         pointwise: no FLOPs; rows * n elements of W, not all of it

Numbers are text in the function's symbols, so that each call fills in its own sizes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import s_tir, sym, tirx
from tvm.ir import Range
from tvm.tirx import IterVar

from tvm_hopper import ir
from tvm_hopper.dlight.product import products
from tvm_hopper.dlight.reshapes import is_reshape

# What a function computes, and the rule of ours for such functions.
PRODUCT, ROW_REDUCTION, COLUMN_REDUCTION, POINTWISE, RESHAPE = (
    "product",
    "row reduction",
    "column reduction",
    "pointwise",
    "reshape",
)
RULE_OF_KIND = {
    PRODUCT: "Matmul",
    ROW_REDUCTION: "RowReduction",
    COLUMN_REDUCTION: "ColumnReduction",
    POINTWISE: "Pointwise",
}
LONGEST = 1 << 30  # of a symbolic extent, to compare sizes
_ARITHMETIC = (
    *(tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Mod),
    *(tirx.FloorDiv, tirx.FloorMod, tirx.Min, tirx.Max),
)
_NO_ARITHMETIC = ("if_then_else", "likely", "reinterpret")  # of calls


@dataclass(frozen=True)
class FunctionWork:
    """Work of one call of a function, as text in its symbols.

    - `kind`: a key of `RULE_OF_KIND`, or "reshape".
    - `flops`: arithmetic operations on elements; empty where they depend on data.
    - `num_bytes`: each element of a parameter that is read or written, once.
    """

    kind: str
    flops: str
    num_bytes: str


def count_work(func: tirx.PrimFunc) -> FunctionWork:
    """Count the work of a function in loops, plain or scheduled."""
    counter = _Counter(func)
    return FunctionWork(kind_of(func), counter.flops(), counter.num_bytes())


def kind_of(func: tirx.PrimFunc) -> str:
    """Tell what a function computes, by the blocks that reduce."""
    summed: list[tuple[Any, list[Any]]] = []
    for block in ir.find_all(func.body, ir.SBlock):
        over = [x.var for x in block.iter_vars if x.iter_type == IterVar.CommReduce]
        if over and block.reads:
            summed.append((block, over))
    if not summed:
        is_plain = isinstance(func.body, ir.SBlockRealize)
        return RESHAPE if is_plain and is_reshape(func) else POINTWISE
    if products(s_tir.Schedule(func.with_attr("global_symbol", "main"))):
        return PRODUCT
    rows = any(
        read.region and ir.depends_on(read.region[-1].min, over)
        for block, over in summed
        for read in block.reads
    )
    return ROW_REDUCTION if rows else COLUMN_REDUCTION


def extent_text(extent: Any) -> str:
    """Write an extent as Python would."""
    static = ir.static_int(extent)
    return str(static) if static is not None else plain_text(str(extent))


def plain_text(text: str) -> str:
    """Write integers without their type, and functions without TVM's name."""
    return re.sub(r"T\.(min|max)\(", r"\1(", re.sub(r"T\.int\d+\((-?\d+)\)", r"\1", text))


def element_bytes(dtype: Any) -> int:
    """Return the size of an element of any type of TVM's; a bool has a byte."""
    return -(-int(tvm_ffi.dtype(str(dtype)).bits) // 8)


class _Counter:
    """Walks a function once; keeps the loops around each statement."""

    def __init__(self, func: tirx.PrimFunc) -> None:
        self.params = [x for x in func.params if tirx.is_buffer_var(x)]
        self.analyzer = sym.Analyzer()
        for var in ir.find_all([list(x.ty.shape) for x in self.params], tirx.Var):
            one, most = (tirx.const(x, ir.dtype_of(var)) for x in (1, LONGEST))
            self.analyzer.bind(var, Range.from_min_extent(one, most), allow_override=True)
        self.loops: list[tuple[Any, Any]] = []  # variable and extent, outermost first
        self.axes: list[tuple[Any, Any]] = []  # of blocks
        self.total: Any = tirx.const(0, "int64")
        self.touched: dict[Any, Any] = {}
        self.is_known = True
        callbacks = [
            (ir.For, self._loop),
            (ir.SBlock, self._block),
            (tirx.AttrStmt, self._threads),
            (tirx.While, self._by_data),
            (ir.BufferStore, self._store),
            (ir.TensorLoad, self._load),
        ]
        tvm_ffi.structural_visit(func.body, callbacks)

    def flops(self) -> str:
        """Return the number of operations; empty where it is not known."""
        return extent_text(self.analyzer.simplify(self.total)) if self.is_known else ""

    def num_bytes(self) -> str:
        """Return the bytes of parameters: of each no more than it has."""
        total: Any = tirx.const(0, "int64")
        for param, touched in self.touched.items():
            size = _product(param.ty.shape)
            if not self.analyzer.can_prove(touched >= size):
                size = tirx.min(size, touched)
            total = total + size * element_bytes(ir.dtype_of(param))
        return extent_text(self.analyzer.simplify(total))

    def _inside(self, scope: list[Any], added: list[Any], node: Any, visitor: Any) -> Any:
        scope += added
        found = visitor.default_visit(node)
        del scope[len(scope) - len(added) :]
        return found

    def _loop(self, loop: Any, visitor: Any) -> Any:
        return self._inside(self.loops, [(loop.loop_var, loop.extent)], loop, visitor)

    def _block(self, block: Any, visitor: Any) -> Any:
        axes = [(x.var, x.dom.extent) for x in block.iter_vars]
        return self._inside(self.axes, axes, block, visitor)

    def _threads(self, node: Any, visitor: Any) -> Any:
        is_axis = node.attr_key == "thread_extent"
        return self._inside(
            self.loops, [(node.node.var, node.value)] if is_axis else [], node, visitor
        )

    def _by_data(self, node: Any, visitor: Any) -> Any:
        self.is_known = False
        return visitor.default_visit(node)

    def _store(self, store: Any, visitor: Any) -> Any:
        self.total = self.total + _operations(store.value) * _product(x for _, x in self.loops)
        self._touch(store.buffer, store.indices)
        return visitor.default_visit(store)

    def _load(self, load: Any, visitor: Any) -> Any:
        self._touch(load.source, load.indices)
        return visitor.default_visit(load)

    def _touch(self, buffer: Any, indices: Any) -> None:
        if not any(buffer.same_as(x) for x in self.params):
            return
        known = [*self.axes, *self.loops]
        used = [extent for var, extent in known if any(ir.uses(x, var) for x in indices)]
        self.touched[buffer] = self.touched.get(buffer, 0) + _product(used)


def _product(extents: Iterable[Any]) -> Any:
    total: Any = tirx.const(1, "int64")
    for extent in extents:
        total = total * (extent if ir.dtype_of(extent) == "int64" else extent.astype("int64"))
    return total


def _operations(value: Any) -> int:
    """Count arithmetic on elements: what indices and conditions of loops compute is none."""
    count = 0

    def arithmetic(node: Any) -> None:
        nonlocal count
        is_float = "float" in ir.dtype_of(node)
        count += is_float or ir.has_any(node, ir.TensorLoad, lambda _: True)

    def call(node: Any) -> None:
        nonlocal count
        name = str(getattr(node.op, "name", "")).rpartition(".")[2]
        count += "float" in ir.dtype_of(node) and name not in _NO_ARITHMETIC

    skip = tvm_ffi.WalkResult.SKIP
    callbacks: list[Any] = [(kind, arithmetic) for kind in _ARITHMETIC]
    ir.visit(value, [(ir.TensorLoad, lambda _: skip), (ir.Call, call), *callbacks])
    return count
