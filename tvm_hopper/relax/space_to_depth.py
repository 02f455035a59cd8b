"""Let strided convolutions of few channels have more channels and no stride.

    y = conv2d(x, w, strides=2, padding=3)            x: (n, 3, 224, 224), w: (64, 3, 7, 7)
  ->
    p = reshape(pad(x), (n, 3, 115, 2, 115, 2))       boxes of 2 x 2 pixels are 12 channels
    v = reshape(pad(w), (64, 3, 4, 2, 4, 2))
    y = conv2d(channels(p), channels(v))              (n, 12, 115, 115), (64, 12, 4, 4)

A convolution is a product of boxes of pixels, for each place of its window one, and a colour image
fills a small part of what a box and an instruction have room for. Zeros make the window and the
image whole multiples of the stride; the sum is the same of finite pixels. Those next to a window
are multiplied by its zeros: infinite ones give NaN there.
"""

from __future__ import annotations

import math
from typing import Any

from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_hopper import ir
from tvm_hopper.facts.wgmma import instruction_k

from .mutator_passes import mutator_pass
from .to_half import CONVOLUTIONS


@mutator
class _Boxes(PyExprMutator):  # type: ignore[misc]
    changed = False

    def visit_call_(self, call: Any) -> Any:
        """Rewrite one convolution."""
        call = super().visit_call_(call)
        if call.op not in CONVOLUTIONS or not self.builder_.current_block_is_dataflow():
            return call
        x, w = call.args
        rank = int(x.ty.ndim) - 2
        steps = [int(n) for n in call.attrs.strides]
        if not _gains(call, steps):
            return call
        pads = [int(n) for n in call.attrs.padding]
        outs = [int(n) for n in call.ty.shape.values[2:]]
        windows = [math.ceil(int(n) / s) for n, s in zip(w.ty.shape.values[2:], steps, strict=True)]
        counts = [out + n - 1 for out, n in zip(outs, windows, strict=True)]
        if any(n * s <= pad for n, s, pad in zip(counts, steps, pads[:rank], strict=True)):
            return call  # windows of zeros alone
        self.changed = True
        images = self._boxed(x, pads[:rank], counts, steps)
        weight = self._boxed(w, [0] * rank, windows, steps)
        return CONVOLUTIONS[call.op](
            images, weight, data_layout=call.attrs.data_layout,
            kernel_layout=call.attrs.kernel_layout, out_dtype=str(call.ty.dtype),
        )  # fmt: skip

    def _boxed(self, x: Any, begins: list[int], counts: list[int], steps: list[int]) -> Any:
        """Pad a tensor, cut off what no window reads, and make channels of its boxes."""
        emit, rank = self.builder_.emit, len(steps)
        first, channels, *sizes = (int(n) for n in x.ty.shape.values)
        wholes = [n * s for n, s in zip(counts, steps, strict=True)]
        ends = [n - size - b for n, size, b in zip(wholes, sizes, begins, strict=True)]
        if min(ends) < 0:
            axes = [*range(2, 2 + rank)]
            kept = [size + min(0, e) for size, e in zip(sizes, ends, strict=True)]
            x = emit(relax.op.strided_slice(x, axes, [0] * rank, kept))
        widths = [n for b, e in zip(begins, ends, strict=True) for n in (b, max(0, e))]
        padded = emit(relax.op.nn.pad(x, [0, 0, 0, 0, *widths])) if any(widths) else x
        pairs = [n for pair in zip(counts, steps, strict=True) for n in pair]
        boxes = emit(relax.op.reshape(padded, [first, channels, *pairs]))
        inner, outer = [3 + 2 * i for i in range(rank)], [2 + 2 * i for i in range(rank)]
        turned = emit(relax.op.permute_dims(boxes, [0, *inner, 1, *outer]))
        return emit(relax.op.reshape(turned, [first, channels * math.prod(steps), *counts]))


SpaceToDepth = mutator_pass("SpaceToDepth", _Boxes)


def _gains(call: Any, steps: list[int]) -> bool:
    """Tell a strided convolution of 16 bits whose channels do not fill an instruction."""
    dtypes = {str(x.ty.dtype) for x in call.args}
    known = all(isinstance(getattr(x.ty, "shape", None), relax.ShapeExpr) for x in call.args)
    if not known or dtypes not in ({"float16"}, {"bfloat16"}):
        return False
    sizes = [ir.static_int(n) for x in (*call.args, call) for n in x.ty.shape.values]
    attrs = call.attrs
    if None in sizes or int(attrs.groups) != 1 or any(int(n) != 1 for n in attrs.dilation):
        return False
    if not str(attrs.data_layout).startswith("NC") or not str(attrs.kernel_layout).startswith("OI"):
        return False
    channels, window = int(call.args[1].ty.shape.values[1]), call.args[1].ty.shape.values[2:]
    overlaps = any(int(n) > s for n, s in zip(window, steps, strict=True))
    return overlaps and math.prod(steps) > 1 and channels < instruction_k(dtypes.pop())
