"""Let convolutions of 16 bits have their channels last, and be products.

    y = conv2d(x, w, padding=1)                              NCHW, OIHW
  ->
    t = permute_dims(x, (0, 2, 3, 1)); v = permute_dims(w, (0, 2, 3, 1))
    y = permute_dims(conv2d(t, v, padding=1), (0, 3, 1, 2))   NHWC, OHWI

    y = conv2d(x, w, strides=16)                             windows of 16 x 16: patches
  ->
    y = matmul(patches(x), permute_dims(reshape(w, (O, C * 256))))

TMA loads boxes of pixels of which the channels lie next to each other (`schedule/products/
windows.py`). TVM's ConvertLayout moves transposes through what lies between convolutions, so that a
chain of them has one at each end. Those of weights are made once where weights are constants.
Windows of one pixel are products of rows. Depthwise convolutions follow, for the sake of a norm or
a product, too. Channels that fill no 16 bytes are padded with zeros. Group norms read transposed
images: groups of channels are rows there, and parts of rows where channels are last.
"""

from __future__ import annotations

import math
from typing import Any

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_hopper import ir
from tvm_hopper.facts.dtypes import HALF_DTYPES, dtype_bytes
from tvm_hopper.facts.tensor_map import STRIDE_ALIGNMENT
from tvm_hopper.schedule.reasons import TVM_ERRORS

from .mutator_passes import JoinEqual, is_for_library, rewrite_functions
from .simplify_operands import CAST, PERMUTE, axes_of, maker_of, swapped
from .to_half import CONVOLUTIONS, OF_CONVOLUTION

GROUP_NORM = tvm.ir.Op.get("relax.nn.group_norm")
LAYOUTS = {  # by the axes of an image: as PyTorch stores them, and with channels last
    1: (("NCW", "OIW"), ("NWC", "OWI")),
    2: (("NCHW", "OIHW"), ("NHWC", "OHWI")),
    3: (("NCDHW", "OIDHW"), ("NDHWC", "ODHWI")),
}


@tvm.transform.module_pass(opt_level=0, name="tvm_hopper.ChannelsLast")
class ChannelsLast:
    """See the module's docstring for the rewrite."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Rewrite the convolutions of a module."""
        mod = rewrite_functions(mod, _Patches(mod), is_for_library)
        calls: list[Any] = []

        def note(node: Any) -> None:
            if isinstance(node, relax.Call):
                calls.append(node)

        functions = [x for x in mod.functions.values() if isinstance(x, relax.Function)]
        for func in functions:
            relax.analysis.post_order_visit(func, note)
        gains = any(x.op in CONVOLUTIONS and _gains(x) for x in calls)
        gains = gains or (any(map(_is_depthwise, calls)) and any(map(_turns_channels, calls)))
        if not gains or any(map(_is_misturned, calls)) or any(map(is_for_library, functions)):
            return mod
        try:
            mod = relax.transform.ConvertLayout({}, _layouts)(mod)
        except (IndexError, *TVM_ERRORS):  # an operator that it does not know: convolutions stay
            return mod
        mod = JoinEqual()(mod)
        return rewrite_functions(mod, _ChannelPadder(mod), is_for_library)


def _is_misturned(call: Any) -> bool:
    """Tell an operator that ConvertLayout turns to one which no kernel computes, or another result.

    Transposed convolutions have no kernel with channels last. Norms over channels and pixels get
    turned axes and keep their weights as they lie.
    """
    name = str(getattr(call.op, "name", "")).removeprefix("relax.").removeprefix("nn.")
    if name.startswith("conv") and name.endswith("transpose"):
        return True
    if name not in ("layer_norm", "rms_norm"):
        return False
    rank = int(call.args[0].ty.ndim)
    axes = {int(x) % rank for x in call.attrs.axes} if rank > 0 else set()
    return len(axes) > 1 and 1 in axes


def _layouts(call: Any) -> dict[str, list[str]]:
    """Return the layouts that a convolution is to have; nothing for one that stays."""
    if call.op not in CONVOLUTIONS or not _is_half(call):
        return {}
    if _layout(call) != LAYOUTS[_rank(call)][0]:
        return {}
    images, weights = LAYOUTS[_rank(call)][1]
    if _is_depthwise(call):  # each place of the window with the weights of all channels
        return {call.op.name: [images, f"{weights[1:-1]}OI"]}
    return {call.op.name: [images, weights]} if _gains(call) else {}


def _is_depthwise(call: Any) -> bool:
    """Tell a convolution of 16 bits of each channel by itself."""
    if call.op not in CONVOLUTIONS or not _is_half(call) or int(call.attrs.groups) == 1:
        return False
    has_one = ir.is_const(call.args[1].ty.shape.values[1], 1)
    return has_one and _layout(call) == LAYOUTS[_rank(call)][0]


def _turns_channels(call: Any) -> bool:
    """Tell a transpose that puts the channels of images last, for a norm or a product of them."""
    rank = int(call.ty.ndim) if call.op == PERMUTE else 0
    return 3 <= rank <= 5 and axes_of(call) == [0, *range(2, rank), 1]


def _rank(call: Any) -> int:
    return int(call.args[0].ty.ndim) - 2


def _layout(call: Any) -> tuple[str, str]:
    return str(call.attrs.data_layout), str(call.attrs.kernel_layout)


def _is_half(call: Any) -> bool:
    known = all(isinstance(getattr(x.ty, "shape", None), relax.ShapeExpr) for x in call.args)
    return known and all(str(x.ty.dtype) in HALF_DTYPES for x in call.args)


def _gains(call: Any) -> bool:
    """Tell a convolution that is a product of boxes of pixels if its channels are last."""
    if not _is_half(call) or int(call.attrs.groups) != 1:
        return False
    return _layout(call) == LAYOUTS[_rank(call)][0]


def _is_pointwise(call: Any) -> bool:
    """Tell a convolution of single pixels, and no pad."""
    window = call.args[1].ty.shape.values[1:-1]
    return all(ir.is_const(n, 1) for n in window) and not any(map(int, call.attrs.padding))


def _are_side_by_side(call: Any, window: list[int]) -> bool:
    """Tell whether windows of several pixels neither overlap nor touch a pad."""
    attrs = call.attrs
    apart = [int(n) for n in attrs.strides] == window and max(window) > 1
    return apart and not any(map(int, attrs.padding)) and all(int(n) == 1 for n in attrs.dilation)


@mutator
class _Patches(PyExprMutator):  # type: ignore[misc]
    """Makes products of windows that lie next to each other."""

    changed = False

    def visit_call_(self, call: Any) -> Any:
        """Rewrite one convolution."""
        call = super().visit_call_(call)
        inside = self.builder_.current_block_is_dataflow()
        if call.op not in CONVOLUTIONS or not inside or not _gains(call):
            return call
        x, w = call.args
        sizes = list(x.ty.shape.values)
        known = [ir.static_int(n) or 0 for n in (*sizes[2:], *w.ty.shape.values)]
        rank = _rank(call)
        images, (filters, channels, *window) = known[:rank], known[rank:]
        steps = [int(n) for n in call.attrs.strides]
        whole = not any(n % m for n, m in zip(images, steps, strict=True))
        if not _are_side_by_side(call, window) or not whole or 0 in known:
            return call
        self.changed = True
        counts = [n // step for n, step in zip(images, steps, strict=True)]
        pairs = [n for pair in zip(counts, steps, strict=True) for n in pair]
        emit = self.builder_.emit
        depth, rows = channels * math.prod(steps), sizes[0] * math.prod(counts)
        outer, inner = [2 + 2 * i for i in range(rank)], [3 + 2 * i for i in range(rank)]
        last = self._channels_last(x)
        if last is None:
            parts = emit(relax.op.reshape(x, [sizes[0], channels, *pairs]))
            parts = relax.op.permute_dims(parts, [0, *outer, 1, *inner])
        else:  # pixels of a patch follow each other, their channels as they lie
            parts = emit(relax.op.reshape(last, [sizes[0], *pairs, channels]))
            before = [i - 1 for i in (*outer, *inner)]
            parts = relax.op.permute_dims(parts, [0, *before, 1 + 2 * rank])
            w = emit(relax.op.permute_dims(w, [0, *range(2, 2 + rank), 1]))
        patches = emit(relax.op.reshape(emit(parts), [rows, depth]))
        weight = emit(swapped(emit(relax.op.reshape(w, [filters, depth]))))
        product = emit(relax.op.matmul(patches, weight, out_dtype=str(call.ty.dtype)))
        last = emit(relax.op.reshape(product, [sizes[0], *counts, filters]))
        return relax.op.permute_dims(last, [0, rank + 1, *range(1, rank + 1)])

    def _channels_last(self, x: Any) -> Any:
        """Return the images with channels last that some are the transpose of, if they are."""
        cast, rank, dtype = maker_of(self, x, CAST), int(x.ty.ndim), str(x.ty.dtype)
        made = maker_of(self, x if cast is None else cast.args[0], PERMUTE)
        if made is None or axes_of(made) != [0, rank - 1, *range(1, rank - 1)]:
            return None
        last = made.args[0]
        is_same = str(last.ty.dtype) == dtype
        return last if is_same else self.builder_.emit(relax.op.astype(last, dtype))


@mutator
class _ChannelPadder(PyExprMutator):  # type: ignore[misc]
    """Adds zeros behind channels that fill no 16 bytes; turns images of group norms."""

    changed = False

    def visit_call_(self, call: Any) -> Any:
        """Rewrite one convolution, or one norm."""
        call = super().visit_call_(call)
        if call.op == GROUP_NORM:
            return self._turned(call)
        if call.op not in CONVOLUTIONS or not _is_half(call) or int(call.attrs.groups) > 1:
            return call
        if _layout(call) != LAYOUTS[_rank(call)][1]:
            return call
        if _is_pointwise(call):
            return self._product(call)
        unit = STRIDE_ALIGNMENT // dtype_bytes(str(call.args[0].ty.dtype))
        missing = -(ir.static_int(call.args[0].ty.shape.values[-1]) or 0) % unit
        if not missing:
            return call
        self.changed = True
        widths = [0] * (2 * call.args[0].ty.ndim)
        widths[-1] = missing
        both = [self.builder_.emit(relax.op.nn.pad(x, widths)) for x in call.args]
        given = {name: getattr(call.attrs, name) for name in OF_CONVOLUTION}
        return CONVOLUTIONS[call.op](*both, **given, out_dtype=call.attrs.out_dtype)

    def _product(self, call: Any) -> Any:
        """Multiply the channels of each pixel, or of every other one, which needs no boxes."""
        images, weight = call.args
        self.changed = True
        emit, sizes, rank = self.builder_.emit, weight.ty.shape.values, _rank(call)
        steps, ends = [int(n) for n in call.attrs.strides], images.ty.shape.values[1:-1]
        if max(steps) > 1:
            part = relax.op.strided_slice(images, [*range(1, 1 + rank)], [0] * rank, ends, steps)
            images = emit(part)
        turned = emit(swapped(emit(relax.op.reshape(weight, [sizes[0], sizes[-1]]))))
        return relax.op.matmul(images, turned, out_dtype=str(call.ty.dtype))

    def _turned(self, call: Any) -> Any:
        """Let a norm of images with their channels last have them first."""
        attrs, rank = call.attrs, int(call.args[0].ty.ndim)
        axes = sorted(int(x) % rank for x in attrs.axes) if rank > 0 else []
        if rank < 3 or int(attrs.channel_axis) % rank != rank - 1 or axes != [*range(1, rank - 1)]:
            return call
        self.changed = True
        images, *others = call.args
        first = self.builder_.emit(
            relax.op.permute_dims(images, [0, rank - 1, *range(1, rank - 1)])
        )
        norm = relax.op.nn.group_norm(
            first, *others, attrs.num_groups, 1, [*range(2, rank)],
            attrs.epsilon, attrs.center, attrs.scale,
        )  # fmt: skip
        norm = self.builder_.emit(norm)
        return relax.op.permute_dims(norm, [0, *range(2, rank), 1])
