"""Gradients, losses, reductions of columns and what attention has beside its products, as cases.

Each program says how it is built, scheduled and drawn, how PyTorch computes it, and what is right:
values of float64 for some of its rows, and for whole columns where it sums those.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm_hopper.testing import (
    attention,
    backward,
    columns,
    group_norms,
    losses,
    memory_bound,
    neighbors,
)

EPSILON = memory_bound.EPSILON
WHOLE = "XYDV"  # letters of tensors of all elements
HEAD, HEADS = attention.HEAD, 32
GROUPS, SIDE = 32, 32  # of a group norm: groups of an image, pixels along each side of it
ROWS_CHECKED = 16  # at the start, in the middle, at the end
TOLERANCE = 0.02  # relative: of bfloat16, at 2^-8 a rounding
CHUNK_BYTES = 1 << 28  # of float64, that a sum of columns is checked by at once


@dataclass(frozen=True)
class Program:
    """One program.

    Attributes
    ----------
    build
        Makes the module of rows and columns.
    helper
        The name of the schedule helper.
    inputs, outputs
        A letter for each tensor: X, Y, D, V all elements (Y those of a softmax, D a gradient, V
        columns below one another), W and S a column each, R and L a float32 and a label a row, C
        and Q an angle's cosine and sine a token, P a place a row, T a float32 in all.
    full
        Tensors of all elements that it moves.
    columns
        Lengths of rows that are timed.
    rowwise, columnwise
        Take inputs in float64; return the outputs of those rows, the summands of column sums.
    compute
        Takes inputs and returns the outputs, by PyTorch.
    forward
        What PyTorch keeps for a gradient, and differentiates; in place of `compute`.
    """

    build: Callable[..., Any]
    helper: str
    inputs: str
    outputs: str
    full: int
    columns: tuple[int, ...]
    rowwise: Callable[..., list[Any]] = lambda *_: []
    columnwise: Callable[..., list[Any]] = lambda *_: []
    compute: Callable[..., Any] | None = None
    forward: Callable[..., Any] | None = None

    @property
    def reads_only(self) -> bool:
        """Whether what it stores is little beside what it reads."""
        return not set(self.outputs) & set(WHOLE)


# -- what is right, in float64 --------------------------------------------------------------------


def _normal(x: Any, r: Any, m: Any = 0) -> Any:
    return (x - m) * r


def _rms_rows(x: Any, dy: Any, w: Any, r: Any) -> list[Any]:
    r = r[:, None]
    inner = (dy * w * x).mean(-1, keepdim=True)
    return [r * (dy * w - x * r * r * inner)]


def _layer_rows(x: Any, dy: Any, w: Any, m: Any, r: Any) -> list[Any]:
    n, g = _normal(x, r[:, None], m[:, None]), dy * w
    return [r[:, None] * (g - g.mean(-1, keepdim=True) - n * (g * n).mean(-1, keepdim=True))]


def _loss_rows(x: Any, label: Any) -> list[Any]:
    import torch

    ignored = label == losses.IGNORED
    picked = x.gather(1, torch.where(ignored, 0, label).long()[:, None])[:, 0]
    return [torch.where(ignored, 0, x.logsumexp(-1) - picked)]


def _loss_gradient_rows(x: Any, label: Any, scale: Any) -> list[Any]:
    import torch

    place = torch.arange(x.shape[1], device=x.device)
    used = torch.where(label == losses.IGNORED, 0, scale)
    return [(x.softmax(-1) - (place == label[:, None]).double()) * used[:, None]]


def _turned(x: Any, cosine: Any, sine: Any) -> Any:
    import torch

    left, right = x.chunk(2, -1)
    return x * cosine + torch.cat((-right, left), -1) * sine


def _rope(x: Any, cosine: Any, sine: Any) -> Any:
    heads = x.view(x.shape[0], -1, HEAD)
    turned = _turned(heads, cosine[:, None], sine[:, None])
    return turned.view(x.shape).to(x.dtype)


# -- what PyTorch differentiates ------------------------------------------------------------------


def _rms(x: Any, w: Any) -> Any:
    from torch.nn import functional as f

    return f.rms_norm(x, x.shape[1:], w, EPSILON)


def _layer(x: Any, w: Any, b: Any) -> Any:
    from torch.nn import functional as f

    return f.layer_norm(x, x.shape[1:], w, b, EPSILON)


def _softmax(x: Any) -> Any:
    return x.softmax(-1)


def _loss(x: Any, label: Any) -> Any:
    from torch.nn import functional as f

    return f.cross_entropy(x, label, reduction="none", ignore_index=losses.IGNORED)


NORM_COLUMNS = (1024, 4096, 8192, 16384, 32768, 65536, 131072)
PROGRAMS = {
    "rms_norm_backward": Program(
        backward.rms_norm_backward,
        "row_reduction",
        "XDWR",
        "XW",
        3,
        NORM_COLUMNS,
        rowwise=_rms_rows,
        columnwise=lambda x, dy, w, r: [dy * _normal(x, r[:, None])],
        forward=_rms,
    ),
    "layer_norm_backward": Program(
        backward.layer_norm_backward,
        "row_reduction",
        "XDWMR",
        "XWS",
        3,
        NORM_COLUMNS,
        rowwise=_layer_rows,
        columnwise=lambda x, dy, w, m, r: [dy * _normal(x, r[:, None], m[:, None]), dy],
        forward=_layer,
    ),
    "softmax_backward": Program(
        backward.softmax_backward,
        "row_reduction",
        "YD",
        "X",
        3,
        (4096, 32768),
        rowwise=lambda y, dy: [y * (dy - (y * dy).sum(-1, keepdim=True))],
        forward=_softmax,
    ),
    "cross_entropy": Program(
        losses.cross_entropy,
        "row_reduction",
        "XL",
        "R",
        1,
        (4096, 16384, 32768, 65536, 131072),
        rowwise=_loss_rows,
        compute=_loss,
    ),
    "cross_entropy_backward": Program(
        backward.cross_entropy_backward,
        "row_reduction",
        "XLR",
        "X",
        2,
        (4096, 32768, 131072),
        rowwise=_loss_gradient_rows,
        forward=_loss,
    ),
    "argmax": Program(
        losses.argmax,
        "row_reduction",
        "X",
        "P",
        1,
        (4096, 32768),
        rowwise=lambda x: [x.argmax(-1)],
        compute=lambda x: x.argmax(-1),
    ),
    "column_sum": Program(
        columns.column_sum,
        "column_reduction",
        "X",
        "W",
        1,
        (64, 1024, 4096, 16384),
        columnwise=lambda x: [x],
        compute=lambda x: x.sum(0),
    ),
    "mean": Program(
        columns.mean,
        "column_reduction",
        "X",
        "T",
        1,
        (4096,),
        columnwise=lambda x: [x.mean(-1, keepdim=True)],
        compute=lambda x: x.mean(dtype=_float32()),
    ),
    "transpose": Program(
        lambda rows, width: neighbors.transpose(width, rows, "bfloat16"),
        "pointwise",
        "V",
        "X",
        2,
        (16384,),
        rowwise=lambda x: [x.T],
        compute=lambda x: x.T.contiguous(),
    ),
    "rope": Program(
        attention.rope,
        "pointwise",
        "XCQ",
        "X",
        2,
        (HEAD * HEADS,),
        rowwise=lambda *given: [_rope(*given)],
        compute=_rope,
    ),
    "head_norm": Program(
        memory_bound.rms_norm,
        "row_reduction",
        "XW",
        "X",
        2,
        (HEAD,),
        rowwise=lambda x, w: [x / ((x * x).mean(-1, keepdim=True) + EPSILON).sqrt() * w],
        compute=_rms,
    ),
    "group_norm": Program(
        lambda rows, width: group_norms.group_norm(
            rows // GROUPS, GROUPS, width // SIDE**2, SIDE, SIDE
        ),
        "row_reduction",
        "XWW",
        "X",
        2,
        (8192, 40960),
        rowwise=lambda *given: [_group_norm_of(*given)],
        compute=lambda *given: _group_norm_of(*given),
    ),
}


def _image(rows: int, width: int) -> tuple[int, ...]:
    """Return the shape of images whose groups are so many rows of that length."""
    return (rows // GROUPS, GROUPS * width // SIDE**2, SIDE, SIDE)


def _group_norm_of(x: Any, w: Any, b: Any) -> Any:
    from torch.nn import functional as f

    return f.group_norm(x, GROUPS, w, b, EPSILON)


def _float32() -> Any:
    import torch

    return torch.float32


# -- tensors --------------------------------------------------------------------------------------


def shape_of(name: str, letter: str, rows: int, width: int) -> tuple[int, ...]:
    """Return the shape of a tensor of a program."""
    if name == "group_norm":
        image = _image(rows, width)
        return image if letter == "X" else image[1:2]
    own = {"W": (width,), "S": (width,), "R": (rows,), "M": (rows,), "T": (1,), "V": (width, rows)}
    return (rows, HEAD) if letter in "CQ" else own.get(letter, (rows, width))


def draw(name: str, rows: int, width: int) -> tuple[list[Any], list[Any]]:
    """Draw the inputs of a program, and make room for its outputs."""
    import torch

    def new(letter: str) -> Any:
        if letter == "L":
            labels = torch.randint(0, width, (rows,), device="cuda")
            labels[::3] = losses.IGNORED
            return labels
        shape = shape_of(name, letter, rows, width)
        kind = torch.float32 if letter in "RMCQT" else torch.bfloat16
        drawn = torch.randn(shape, device="cuda", dtype=kind)
        return drawn.softmax(-1) if letter == "Y" else drawn.abs() if letter == "R" else drawn

    program = PROGRAMS[name]
    inputs = [new(x) for x in program.inputs]
    if name.endswith("norm_backward"):  # what a forward pass keeps
        part = max(1, CHUNK_BYTES // (8 * width))
        for start in range(0, rows, part):
            x = inputs[0][start : start + part].float()
            square = (x * x).mean(-1) if "M" not in program.inputs else x.var(-1, unbiased=False)
            inputs[-1][start : start + part] = (square + EPSILON).rsqrt()
            if "M" in program.inputs:
                inputs[3][start : start + part] = x.mean(-1)
    outputs = []
    for letter in program.outputs:
        place = torch.empty(rows, device="cuda", dtype=torch.int32)
        outputs.append(place if letter == "P" else torch.empty_like(new(letter)))
    return inputs, outputs


def wanted(name: str, inputs: list[Any], rows: slice) -> list[Any]:
    """Compute the outputs of some rows in float64."""
    letters = PROGRAMS[name].inputs
    part = [_part(k, x, rows) for k, x in zip(letters, inputs, strict=True)]
    return PROGRAMS[name].rowwise(*[x.double() if x.is_floating_point() else x for x in part])


def _part(letter: str, x: Any, rows: slice) -> Any:
    return x if letter in "WS" else x[:, rows] if letter == "V" else x[rows]


def wanted_sums(name: str, inputs: list[Any]) -> list[Any]:
    """Compute the sums of columns in float64."""
    width = inputs[0].shape[1]
    part = max(1, CHUNK_BYTES // (8 * width))
    sums: list[Any] = []
    for start in range(0, inputs[0].shape[0], part):
        rows = slice(start, start + part)
        letters = PROGRAMS[name].inputs
        given = [_part(k, x, rows) for k, x in zip(letters, inputs, strict=True)]
        found = PROGRAMS[name].columnwise(*[x.double() for x in given])
        if not found:
            return []
        summed = [x.sum(0) for x in found]
        sums = [a + b for a, b in zip(sums, summed, strict=True)] if sums else summed
    return [x / inputs[0].shape[0] for x in sums] if PROGRAMS[name].outputs == "T" else sums


def are_right(name: str, inputs: list[Any], outputs: list[Any]) -> bool:
    """Compare some rows of what a kernel left with float64, and whole sums of columns."""
    program = PROGRAMS[name]
    count = inputs[0].shape["V" in program.inputs]
    sums = iter(wanted_sums(name, inputs))
    by_row = [x for k, x in zip(program.outputs, outputs, strict=True) if k not in "WST"]
    by_column = [x for k, x in zip(program.outputs, outputs, strict=True) if k in "WST"]
    pairs = list(zip(by_column, sums, strict=True))
    for start in (0, count // 2, max(0, count - ROWS_CHECKED)):
        rows = slice(start, min(count, start + ROWS_CHECKED))
        if by_row:
            pairs += zip([x[rows] for x in by_row], wanted(name, inputs, rows), strict=True)
    return all(_is_close(one.double(), want.double()) for one, want in pairs) and not any(
        bool(x.isnan().any()) for x in outputs if x.is_floating_point()
    )


def _is_close(one: Any, want: Any) -> bool:
    error = (one - want).abs() / (want.abs() + want.abs().mean() / 10 + 1e-9)
    return bool((error < TOLERANCE).all())  # what is no number is not


# -- others' kernels ------------------------------------------------------------------------------


def others(name: str, inputs: list[Any]) -> dict[str, Callable[[], Any]]:
    """Return what else computes the same, by name."""
    import torch

    program = PROGRAMS[name]
    if program.forward is None:
        eager = program.compute
        compiled = torch.compile(eager, dynamic=False)
        both = {"eager": lambda: eager(*inputs), "torch.compile": lambda: compiled(*inputs)}
        with contextlib.suppress(ImportError):
            both |= _liger_forward(name, inputs)
        return both
    found = {
        "eager": _gradient(program.forward, name, inputs),
        "torch.compile": _gradient(torch.compile(program.forward, dynamic=False), name, inputs),
    }
    with contextlib.suppress(ImportError):
        for k, forward in _liger(name).items():
            with contextlib.suppress(RuntimeError):  # theirs take no rows of such a length
                found[k] = _gradient(forward, name, inputs)
    return found


def _gradient(forward: Callable[..., Any], name: str, inputs: list[Any]) -> Callable[[], Any]:
    """Run a forward pass once; return what runs the backward pass of it, as often as called."""
    import torch

    letters, outputs = PROGRAMS[name].inputs, PROGRAMS[name].outputs
    x = inputs[0].detach().clone().requires_grad_()
    given = [v for k, v in zip(letters, inputs, strict=True) if k == "W"]
    w = [v.detach().clone().requires_grad_() for k in outputs if k in "WS" for v in given]
    labels = [v for k, v in zip(letters, inputs, strict=True) if k == "L"]
    y = forward(x, *w, *labels)
    dy = inputs[2].to(y.dtype) if labels else inputs[1]
    return lambda: torch.autograd.grad(y, [x, *w], dy, retain_graph=True)


def _liger_forward(name: str, inputs: list[Any]) -> dict[str, Callable[[], Any]]:
    from liger_kernel.ops.group_norm import group_norm_forward
    from liger_kernel.ops.rms_norm import rms_norm_forward

    x, *more = inputs
    known: dict[str, Callable[[], Any]] = {
        "group_norm": lambda: group_norm_forward(x, x.shape[1], GROUPS, *more, EPSILON),
        "head_norm": lambda: rms_norm_forward(x, *more, EPSILON, 0.0, "llama", None),
    }
    return {"Liger": known[name]} if name in known else {}


def _liger(name: str) -> dict[str, Callable[..., Any]]:
    from liger_kernel.ops.layer_norm import LigerLayerNormFunction
    from liger_kernel.ops.rms_norm import LigerRMSNormFunction
    from liger_kernel.ops.softmax import LigerSoftmaxFunction

    def rms(x: Any, w: Any) -> Any:  # dX has memory of its own, as ours
        return LigerRMSNormFunction.apply(x, w, EPSILON, 0.0, "llama", False)

    def layer(x: Any, w: Any, b: Any) -> Any:
        return LigerLayerNormFunction.apply(x, w, b, EPSILON)

    known: dict[str, Callable[..., Any]] = {
        "rms_norm_backward": rms,
        "layer_norm_backward": layer,
        "softmax_backward": lambda x: LigerSoftmaxFunction.apply(x),
    }
    return {"Liger": known[name]} if name in known else {}
