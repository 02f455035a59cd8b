"""Find calls whose rows another call reduces: a residual's sum before a norm."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.tirx import IterVar

from tvm_hopper import ir

from .flatten_batch import is_plain

CALL_TIR = tvm.ir.Op.get("relax.call_tir")


@dataclass(frozen=True)
class Pair:
    """Two calls that become one.

    Attributes
    ----------
    first, second : VarBinding
        What computes the elements, and what reduces them.
    both : bool
        Whether another call reads the elements.
    """

    first: Any
    second: Any
    both: bool

    @property
    def place(self) -> int:
        """Argument of the second call that is the first call's result."""
        args = self.second.value.args[1].fields
        return next(i for i, x in enumerate(args) if x.same_as(self.first.var))

    @property
    def names(self) -> tuple[str, str]:
        """The functions' names."""
        first, second = (str(x.value.args[0].name_hint) for x in (self.first, self.second))
        return first, second

    @property
    def key(self) -> tuple[str, str, int, bool]:
        """Key of pairs that share a function."""
        return *self.names, self.place, self.both


def find_pairs(
    mod: tvm.IRModule,
    func: Any,
    block: Any,
    is_first: Callable[[tirx.PrimFunc], bool],
    is_second: Callable[[tirx.PrimFunc], bool],
    same_shape: bool = True,
) -> list[Pair]:
    """List the calls of a block of which the second reads what the first computes, and is next.

    Parameters
    ----------
    mod : IRModule
        Of the functions.
    func, block : Function, BindingBlock
        Where calls are looked for.
    is_first, is_second : callable
        Which functions are the first and the second of a pair.
    same_shape : bool
        Whether both compute tensors of one type.
    """
    if not isinstance(block, relax.DataflowBlock):
        return []
    place = {x.var: i for i, x in enumerate(block.bindings)}
    readers: dict[Any, int] = {}

    def count(node: Any) -> None:
        if isinstance(node, relax.Var):
            readers[node] = readers.get(node, 0) + 1

    for binding in block.bindings:
        relax.analysis.post_order_visit(binding.value, count)
    relax.analysis.post_order_visit(func.body.body, count)
    pairs: list[Pair] = []
    taken: set[Any] = set()
    for second in block.bindings:
        if not _is_call(mod, second) or not is_second(mod[second.value.args[0]]):
            continue
        args = list(second.value.args[1].fields)
        for x in args:
            if x not in place or x in taken:
                continue
            first = block.bindings[place[x]]
            if not _is_call(mod, first) or not is_first(mod[first.value.args[0]]):
                continue
            known = [place.get(y, -1) < place[x] for y in args if not y.same_as(x)]
            is_whole = not same_shape or tvm_ffi.structural_equal(x.ty, second.var.ty)
            if all(known) and is_whole and args.count(x) == 1:
                both = readers[x] > 1 or not isinstance(x, relax.DataflowVar)
                pairs.append(Pair(first, second, both))
                taken |= {first.var, second.var}
                break
    return pairs


def _is_call(mod: tvm.IRModule, binding: Any) -> bool:
    """Tell a call of one function in plain loops with one output, and tensors alone."""
    call = binding.value
    return (
        isinstance(binding, relax.VarBinding)
        and isinstance(call, relax.Call)
        and call.op == CALL_TIR
        and len(call.args) == 2
        and isinstance(call.ty_args[0], relax.TensorType)
        and isinstance(mod[call.args[0]], tirx.PrimFunc)
        and is_plain(mod[call.args[0]])
        and all(map(tirx.is_buffer_var, mod[call.args[0]].params))
    )


def reduces(func: tirx.PrimFunc) -> bool:
    """Tell whether a function sums, or has another reduction."""
    blocks = ir.find_all(func.body, ir.SBlock)
    return any(x.iter_type == IterVar.CommReduce for block in blocks for x in block.iter_vars)


def is_elementwise(func: tirx.PrimFunc) -> bool:
    """Tell whether each element is made of those at its own place, or along some of its dimensions.

    Others, as a transpose, are read better in another order than rows are reduced in.
    """
    return not reduces(func) and all(
        _in_order(read.region, block.writes[0].region)
        for block in ir.find_all(func.body, ir.SBlock)
        for read in (block.reads if block.writes else ())
    )


def _in_order(read: Any, write: Any) -> bool:
    """Tell whether what is read has the indices of what is written, or some of them, in order."""
    axes = [x.min for x in write]
    places = []
    for index in (x.min for x in read):
        matches = [i for i, axis in enumerate(axes) if index.same_as(axis)]
        if not matches and ir.static_int(index) is None:
            return False
        places += matches
    return places == sorted(set(places))
