"""Fuse what makes weights from fewer bytes into the products that read them.

    w = R.call_tir(dequantize, (packed, scales), R.Tensor((N, K), "float16"))
    y = R.call_tir(NT_matmul, (x, w), R.Tensor((rows, N)))
    z = R.call_tir(NT_matmul, (v, w), R.Tensor((rows, N)))
  ->
    y = R.call_tir(fused_dequantize_NT_matmul, (packed, scales, x), R.Tensor((rows, N)))
    z = R.call_tir(fused_dequantize_NT_matmul, (packed, scales, v), R.Tensor((rows, N)))

The weight is then never in memory as 16 bits. Each product gets a decoder of its own.

Needs: fused functions in rows (FlattenBatch).
Leaves: functions that `hs.matmul` takes. A decoder stays a kernel where one of its readers is no
such product, or takes no decoder; `report` names it.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.target import Target

from tvm_hopper import dlight, ir
from tvm_hopper.facts.dtypes import DTYPES, HALF_DTYPES
from tvm_hopper.schedule.reasons import TVM_ERRORS, in_words

from .call_groups import CallGraph, CallGroup, fuse_group, is_plain_call, reduces, rewrite_groups
from .flat_functions import has_product
from .flatten_batch import CALL_TIR
from .options import ModelOptions

# Attribute of a decoder that stays a kernel: why, for `report`. No request, so without our prefix.
ALONE = "relax.stays_alone"


@tvm.transform.module_pass(opt_level=0, name="tvm_hopper.FuseDecoders")
class FuseDecoders:
    """The pass; see the module."""

    def __init__(self, options: ModelOptions) -> None:
        self.options = options

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Fuse decoders whose readers all are products that take them."""
        fuser = _DecoderFuser(mod, Target.current(allow_none=False), self.options)
        for gv, func in mod.functions.items():
            if isinstance(func, relax.Function) and isinstance(func.body, relax.SeqExpr):
                blocks = [x for x in func.body.blocks if isinstance(x, relax.DataflowBlock)]
                shared = [y for x in blocks for y in fuser.shared(CallGraph(func, x))]
                if shared:
                    mod = _OwnDecoders(mod, shared).rewrite(gv)
        fuser.mod = mod

        def grow(graph: CallGraph) -> None:
            graph.grow(lambda x: is_plain_call(mod, x), fuser.accepts)

        mod = rewrite_groups(mod, grow, fuser.functions)
        for gv, why in fuser.alone.items():
            mod.update_func(gv, mod[gv].with_attr(ALONE, f"a kernel of its own: {why}"))
        return mod


def is_decoder(func: tirx.PrimFunc) -> bool:
    """Tell a function that makes a tensor of 16 bits from fewer bytes, integers or float8."""
    *inputs, output = func.params
    tensors = [x for x in inputs if tirx.is_buffer_var(x)]
    narrow = [x for x in tensors if "int" in ir.dtype_of(x) or "float8" in ir.dtype_of(x)]
    if not narrow or reduces(func) or ir.dtype_of(output) not in HALF_DTYPES:
        return False
    sizes = [_num_bytes(x) for x in (*tensors, output)]
    return None not in sizes and sum(sizes[:-1]) < sizes[-1]


def _num_bytes(tensor: Any) -> Any:
    """Return the bytes of a tensor, None of an unknown shape or type."""
    known = DTYPES.get(ir.dtype_of(tensor))
    extents = [ir.static_int(x) for x in tensor.shape]
    if known is None or None in extents:
        return None
    count = known.num_bytes
    for extent in extents:
        count *= extent or 0
    return count


class _DecoderFuser:
    """Decides which decoders go into which products."""

    def __init__(self, mod: tvm.IRModule, target: Target, options: ModelOptions) -> None:
        self.mod, self.target, self.options = mod, target, options
        self.functions: dict[tuple[Any, ...], Any] = {}  # None: stays two
        self.alone: dict[Any, str] = {}  # decoders that stay kernels, and why

    def accepts(self, group: CallGroup) -> bool:
        """Tell whether a decoder and its one reader become one function."""
        first, *others = (self.mod[x.value.args[0]] for x in group.calls)
        if len(others) != 1 or len(group.outputs) > 1:
            return False
        return is_decoder(first) and has_product(others[0]) and self._is_taken(group)

    def _is_taken(self, group: CallGroup) -> bool:
        if group.key not in self.functions:
            self.functions[group.key] = self._fused(group)
        return self.functions[group.key] is not None

    def _fused(self, group: CallGroup) -> tirx.PrimFunc | None:
        """Return one function of a decoder and a product, None where `hs.matmul` refuses it."""
        try:
            func = fuse_group(self.mod, group)
        except TVM_ERRORS as error:  # what TVM cannot fuse stays two functions
            self._leave(group.calls[0], f"TVM cannot fuse it with a product{in_words(error)}")
            return None
        rule = dlight.Matmul(
            self.options.accumulate,
            classes=self.options.classes,
            batch_invariant=self.options.batch_invariant,
        )
        if rule.apply(func, self.target, False) is not None:
            return func
        self._leave(group.calls[0], rule.decisions[-1].reason)
        return None

    def _leave(self, decoder: Any, why: str) -> None:
        self.alone.setdefault(decoder.value.args[0], why)

    def shared(self, graph: CallGraph) -> list[Any]:
        """Return what decoders make that several products read, all of which take them."""
        found = []
        for i, binding in enumerate(graph.bindings):
            if not is_plain_call(self.mod, binding) or not is_decoder(self._callee(binding)):
                continue
            readers = [graph.bindings[j] for j in sorted(graph.readers[i])]
            others = [x for x in readers if not self._is_product(x)]
            if graph.leaves[i] or others:
                names = [str(x.value.args[0].name_hint) for x in others if _is_call(x)]
                why = "the model returns what it makes"
                if names:
                    why = f"{', '.join(names)}, which is no product, reads what it makes"
                self._leave(binding, why)
            elif len(readers) > 1 and all([self._takes(binding, x) for x in readers]):
                found.append(binding.var)
        return found

    def _callee(self, binding: Any) -> tirx.PrimFunc:
        return self.mod[binding.value.args[0]]

    def _is_product(self, binding: Any) -> bool:
        return is_plain_call(self.mod, binding) and has_product(self._callee(binding))

    def _takes(self, decoder: Any, product: Any) -> bool:
        """Tell whether a product takes a decoder that others read, too."""
        return self._is_taken(CallGroup((decoder, product), (product.var,)))


def _is_call(binding: Any) -> bool:
    value = binding.value
    return isinstance(value, relax.Call) and value.op == CALL_TIR


@mutator
class _OwnDecoders(PyExprMutator):  # type: ignore[misc]
    """Gives each reader of some results a call of its own that makes them."""

    def __init__(self, mod: tvm.IRModule, shared: list[Any]) -> None:
        super().__init__(mod)
        self.shared = shared

    def rewrite(self, gv: Any) -> tvm.IRModule:
        """Rewrite one function; calls that nothing reads any more go."""
        func = self.visit_expr(self.builder_.get()[gv])
        self.builder_.update_func(gv, relax.analysis.remove_all_unused(func))
        return self.builder_.get()

    def visit_call_(self, call: Any) -> Any:
        """Make each shared argument again."""
        new = super().visit_call_(call)
        if call.op != CALL_TIR:
            return new
        args = list(new.args[1].fields)
        for i, x in enumerate(call.args[1].fields):
            if any(x.same_as(y) for y in self.shared):
                args[i] = self.builder_.emit(self.lookup_binding(args[i]))
        return relax.Call(new.op, [new.args[0], relax.Tuple(args)], new.attrs, new.ty_args)
