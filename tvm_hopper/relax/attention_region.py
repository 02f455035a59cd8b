"""Find written-out attention among a function's bindings, and outline it.

  q1 = R.multiply(q, 0.125); k1 = R.permute_dims(k); s = R.matmul(q1, k1)
  p = R.nn.softmax(R.where(mask, s, -inf)); o = R.matmul(p, v); y = R.permute_dims(o)
->
  AttentionRegion: from s to y, with q, k, v and what `mask` is made of as inputs
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import relax
from tvm.ir.expr import GenericConst

from tvm_hopper.facts.dtypes import HALF_DTYPES

TENSORS = (relax.TensorType, relax.TupleType)
OPERATORS = ("attention", "attention_bias")
IS_NAN = "relax.isnan"
RESHAPE, CAST, PRODUCT, SOFTMAX = "reshape", "astype", "matmul", "softmax"
# What an operand may go through in a kernel: it is read where it lies.
MOVES = {
    *(RESHAPE, CAST, "permute_dims", "expand_dims", "squeeze", "broadcast_to", "repeat"),
    "strided_slice",
}
LAYOUTS = (RESHAPE, "permute_dims")
SCALES = ("multiply", "divide")
MOST_SCALE = 64.0  # of an operand that is cast before it
# Operators that a mask may be computed with at each element; any other mask is read.
INDEX_ARITHMETIC = {
    *MOVES,
    *SCALES,
    *("arange", "full", "full_like", "zeros", "ones", "zeros_like", "ones_like", "where"),
    *("less", "less_equal", "greater", "greater_equal", "equal", "not_equal"),
    *("logical_and", "logical_or", "logical_not", "bitwise_and", "bitwise_or", "bitwise_not"),
    *("add", "subtract", "negative", "minimum", "maximum", "index_tensor", "tril", "triu"),
    *("abs", "tile", "isnan"),
}


@dataclass(frozen=True)
class OutlinedAttention:
    """A module whose function "main" is an attention, and what its parameters stand for.

    - `mod` (IRModule): with operators.
    - `inputs` (tuple of (Var, Expr, str)): each parameter, the caller's tensor, and the type to
      which that is cast before.
    - `result` (Var): the caller's result.
    """

    mod: Any
    inputs: tuple[tuple[Any, Any, str], ...]
    result: Any


class Bindings:
    """What the variables of a function are bound to, and who reads them."""

    def __init__(self, func: relax.Function) -> None:
        self.values: dict[Any, Any] = {}
        self.readers: dict[Any, list[Any]] = {}
        blocks = [x for x in getattr(func.body, "blocks", []) if isinstance(x, relax.DataflowBlock)]
        for binding in (x for block in blocks for x in block.bindings):
            self.values[binding.var] = binding.value
            for x in self.arguments(binding.value):
                self.readers.setdefault(x, []).append(binding.var)

    def arguments(self, value: Any) -> list[Any]:
        """Return the variables that a value is made of, each once."""
        found: dict[Any, None] = {}

        def look(node: Any) -> None:
            if isinstance(node, relax.Var) and isinstance(node.ty, TENSORS):  # not an extent
                found[node] = None

        relax.analysis.post_order_visit(value, look)
        return list(found)

    def op(self, var: Any) -> str:
        """Return the operator that computes a variable; empty for anything else."""
        value = self.values.get(var)
        name = str(getattr(value.op, "name", "")) if isinstance(value, relax.Call) else ""
        return name.removeprefix("relax.").removeprefix("nn.")

    def constant(self, x: Any) -> Any:
        """Return the constant without dimensions that an expression is; None for another one."""
        if isinstance(x, relax.Var) and self.op(x) == CAST:
            inner = self.constant(self.values[x].args[0])
            return None if inner is None else relax.const(inner.value.numpy(), str(x.ty.dtype))
        value = self.values.get(x, x) if isinstance(x, relax.Var) else x
        return value if isinstance(value, GenericConst) and value.ty.ndim == 0 else None


def find_attentions(func: relax.Function) -> Iterator[tuple[Any, list[OutlinedAttention], str]]:
    """Outline each attention operator, and each softmax along the last axis between products.

    An attention has several forms: the first one ends with all that moves or casts its result.
    The operator's or softmax's variable is in front; where there is no form, the last says why.
    """
    bindings = Bindings(func)
    for var in list(bindings.values):
        outliners = _outliners_at(bindings, var)
        halves = [x for x in outliners if x.half is not None or bindings.op(var) in OPERATORS]
        forms = [y for y in (x.outline() for x in halves) if y is not None]
        if outliners:
            why = "" if forms else "a shape is not known" if halves else outliners[0].types
            yield var, forms, why


def _outliners_at(bindings: Bindings, var: Any) -> list[_Outliner]:
    name = bindings.op(var)
    if name in OPERATORS:
        return [_Outliner(bindings, var, var, end) for end in _ends(bindings, var)]
    if name != SOFTMAX or int(bindings.values[var].attrs.axis) not in (-1, len(_shape(var)) - 1):
        return []
    after, before = _product_after(bindings, var), _product_before(bindings, var)
    if after is None or before is None:
        return []
    return [_Outliner(bindings, before, after, end) for end in _ends(bindings, after)]


def _ends(bindings: Bindings, after: Any) -> list[Any]:
    """Follow weighted values as long as they are moved or cast, the last first.

    Views stay outside.
    """
    var, found = after, [after]
    while True:
        readers = bindings.readers.get(var, [])
        is_inner = isinstance(var, relax.DataflowVar)
        if len(readers) != 1 or not is_inner or bindings.op(readers[0]) not in MOVES:
            return found[::-1]
        var = readers[0]
        if bindings.op(var) != RESHAPE:
            found.append(var)


def _product_after(bindings: Bindings, softmax: Any) -> Any:
    """Return the one product whose left operand is made of the weights."""
    found, todo, seen = [], [softmax], {softmax}
    while todo:
        x = todo.pop()
        for reader in (y for y in bindings.readers.get(x, []) if y not in seen):
            seen.add(reader)
            name = bindings.op(reader)
            if name == PRODUCT and bindings.values[reader].args[0].same_as(x):
                found.append(reader)
            elif name in INDEX_ARITHMETIC:
                todo.append(reader)
            else:
                return None
    return found[0] if len(found) == 1 else None


def _product_before(bindings: Bindings, softmax: Any) -> Any:
    """Return the one product of the scores, told by its last two dimensions."""
    size = _shape(softmax)[-2:]
    found, todo, seen = [], [softmax], {softmax}
    while todo:
        for x in bindings.arguments(bindings.values[todo.pop()]):
            if x in seen or x not in bindings.values:
                continue
            seen.add(x)
            if bindings.op(x) != PRODUCT:
                todo.append(x)
            elif tvm_ffi.structural_equal(_shape(x)[-2:], size):
                found.append(x)
    return found[0] if len(found) == 1 else None


def _shape(x: Any) -> list[Any]:
    return list(getattr(x.ty.shape, "values", []))


class _Outliner:
    """Copies the bindings of one attention into a function of its own."""

    def __init__(self, bindings: Bindings, before: Any, after: Any, result: Any) -> None:
        self.bindings, self.before, self.after, self.result = bindings, before, after, result
        self.operands = [x for y in {before: 0, after: 0} for x in self._operands_of(y)]
        self.half = self._operand_type()
        self.builder = relax.BlockBuilder()
        self.copies: dict[Any, Any] = {}
        self.inputs: list[tuple[Any, Any, str]] = []
        self.depends: dict[Any, bool] = {}
        self.moved: set[Any] = set()  # what operands go through

    def outline(self) -> OutlinedAttention | None:
        """Return the function, whose operands are those of the program.

        None where a tensor that it reads has no known shape.
        """
        self.moved = {y for x in self.operands for y in (x, *self._chain(x))}
        sources = {self._source(x) for x in self.operands}
        leaves = self._leaves()
        if not all(isinstance(getattr(x.ty, "shape", None), relax.ShapeExpr) for x in leaves):
            return None
        for x in leaves:
            dtype = str(x.ty.dtype)
            if x in sources and self.half is not None:
                dtype = self.half
            shape = relax.ShapeExpr(_shape(x))
            param = relax.Var(f"p{len(self.inputs)}", relax.TensorType(shape, dtype))
            self.inputs.append((param, x, dtype))
        with self.builder.function("main", [x[0] for x in self.inputs]):
            with self.builder.dataflow():
                for param, x, dtype in self.inputs:
                    wide = str(x.ty.dtype)
                    cast = param if wide == dtype else relax.op.astype(param, wide)
                    self.copies[x] = param if cast is param else self.builder.emit(cast)
                out = self.builder.emit_output(self._copy(self.result))
            self.builder.emit_func_output(out)
        return OutlinedAttention(self.builder.get(), tuple(self.inputs), self.result)

    def _operand_type(self) -> str | None:
        """Return the type of 16 bits that operands have or are cast to.

        None where there is no such type, or several.
        """
        chains = ([x, *self._chain(x)] for x in self.operands)
        found = {
            next((y for y in (str(x.ty.dtype) for x in chain) if y in HALF_DTYPES), "")
            for chain in chains
        }
        return found.pop() if len(found) == 1 and "" not in found else None

    @property
    def types(self) -> str:
        """Say what the operands' types are, where they are not of one of 16 bits."""
        found = sorted({str(x.ty.dtype) for x in self.operands})
        return f"operands of {' and '.join(found)}; need one type of 16 bits"

    def _chain(self, var: Any) -> list[Any]:
        """Return what an operand is made of by moves and scales, down to its source."""
        found = []
        while (inner := self._moved(var)) is not None:
            found.append(inner)
            var = inner
        return found

    def _moved(self, var: Any) -> Any:
        """Return the tensor that an operand moves or scales, None for a source."""
        name = self.bindings.op(var)
        value: Any = self.bindings.values.get(var)
        if name in MOVES:
            return value.args[0] if isinstance(value.args[0], relax.Var) else None
        if name in SCALES and self.bindings.constant(value.args[1]) is not None:
            return value.args[0]
        if name == SCALES[0] and self.bindings.constant(value.args[0]) is not None:
            return value.args[1]
        return None

    def _keeps_size(self, var: Any) -> bool:
        """Tell a move, or a scale near 1."""
        if self.bindings.op(var) in MOVES:
            return True
        numbers = [self.bindings.constant(x) for x in self.bindings.values[var].args]
        scales = [abs(float(x.value.numpy())) for x in numbers if x is not None]
        return len(scales) == 1 and 1 / MOST_SCALE <= scales[0] <= MOST_SCALE

    def _source(self, operand: Any) -> Any:
        """Return the tensor that an operand is read from: behind views, which are free.

        A cast to 16 bits is made before what only moves it, which is the same, and before a scale
        that is near 1: a scale that is no power of two then multiplies a rounded number, within the
        rounding of the type, and only numbers beyond the type's would differ more.
        """
        chain = [operand, *self._chain(operand)]
        halves = [n for n, x in enumerate(chain) if str(x.ty.dtype) in HALF_DTYPES]
        if halves:
            end = halves[-1]
            while end + 1 < len(chain) and self._keeps_size(chain[end]):
                end += 1
            chain = chain[: end + 1]
        while len(chain) > 1 and self.bindings.op(chain[-2]) == RESHAPE:
            chain.pop()
        return chain[-1]

    def _leaves(self) -> list[Any]:
        """Return the tensors that the function reads, operands first."""
        found: dict[Any, None] = dict.fromkeys(self._source(x) for x in self.operands)
        seen: set[Any] = set(found)

        def look(var: Any) -> None:
            if var in seen:
                return
            seen.add(var)
            if self._is_leaf(var):
                found[var] = None
                return
            for x in self.bindings.arguments(self.bindings.values[var]):
                look(x)

        look(self.result)
        return list(found)

    def _operands_of(self, var: Any) -> list[Any]:
        args = list(self.bindings.values[var].args)
        if self.bindings.op(var) in OPERATORS:
            return args[:3]
        return args[1:] if var.same_as(self.after) else args

    def _is_leaf(self, var: Any) -> bool:
        """Tell a tensor that the function reads: not a score, and not computed from indices.

        A bias of floats is read as it is laid out for the scores.
        """
        if var not in self.bindings.values:
            return True
        if self._depends_on_scores(var) or self.bindings.constant(var) is not None:
            return False
        if isinstance(self.bindings.values[var], relax.Tuple):
            return False
        if var in self.moved:
            return False
        name = self.bindings.op(var)
        is_moved_bias = name in LAYOUTS and "float" in str(var.ty.dtype)
        return name not in INDEX_ARITHMETIC or is_moved_bias

    def _depends_on_scores(self, var: Any) -> bool:
        if var not in self.depends:
            value = self.bindings.values.get(var)
            inner = [] if value is None else self.bindings.arguments(value)
            is_product = bool(var.same_as(self.before))
            self.depends[var] = is_product or any(map(self._depends_on_scores, inner))
        return self.depends[var]

    def _copy(self, var: Any) -> Any:
        """Copy what computes a variable, and return the copy's."""
        if var not in self.copies:
            constant = self.bindings.constant(var)
            self.copies[var] = (
                constant
                if constant is not None
                else self.builder.emit(self._copied(self.bindings.values[var]))
            )
        return self.copies[var]

    def _copied(self, value: Any) -> Any:
        if isinstance(value, relax.Var):
            return self._copy(value) if isinstance(value.ty, TENSORS) else value
        if isinstance(value, relax.Tuple):
            return relax.Tuple([self._copied(x) for x in value.fields])
        if not isinstance(value, relax.Call):
            return value
        if str(value.op.name) == IS_NAN and self.bindings.op(value.args[0]) == SOFTMAX:
            return self._without_key(self.bindings.values[value.args[0]].args[0])
        args = [self._copied(x) for x in value.args]
        return relax.Call(value.op, args, value.attrs, value.ty_args)

    def _without_key(self, scores: Any) -> Any:
        """Tell rows all of whose keys are masked, whose weights are NaN."""
        emit, op = self.builder.emit, relax.op
        masked = emit(op.equal(self._copy(scores), relax.const(float("-inf"), scores.ty.dtype)))
        some = emit(op.max(emit(op.astype(emit(op.logical_not(masked)), "int8")), -1, True))
        return op.logical_not(emit(op.astype(some, "bool")))
