"""A problem as a Relax module and as a function of PyTorch tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .problems import Problem


def to_relax(problem: Problem) -> Any:
    """Return an IRModule whose function "main" computes a problem."""
    from tvm import relax

    builder = relax.BlockBuilder()
    given = [
        relax.Var(f"x{i}", relax.TensorType(shape, dtype))
        for i, (shape, dtype, _) in enumerate(problem.inputs)
    ]
    table = _relax_operators()
    with builder.function("main", given):
        with builder.dataflow():
            known = {f"x{i}": x for i, x in enumerate(given)}
            for step in problem.steps:
                operands = [known[x] for x in step.operands]
                known[step.name] = builder.emit(table[step.op](*operands, **step.attrs))
            outs = [known[x] for x in problem.outputs]
            value = outs[0] if len(outs) == 1 else relax.Tuple(outs)
            out = builder.emit_output(builder.emit(value))
        builder.emit_func_output(out)
    return builder.finalize()


def _relax_operators() -> dict[str, Callable[..., Any]]:
    from tvm import relax

    op, nn = relax.op, relax.op.nn

    def constant(x: Any, value: float) -> Any:
        return relax.const(value, x.ty.dtype)

    def pixels(x: Any) -> list[int]:
        return list(range(2, len(x.ty.shape)))

    return {
        "cast": lambda x, dtype: op.astype(x, dtype),
        "add": op.add,
        "sub": op.subtract,
        "mul": op.multiply,
        "div": op.divide,
        "maximum": op.maximum,
        "minimum": op.minimum,
        "relu": nn.relu,
        "gelu": nn.gelu,
        "gelu_tanh": nn.gelu_tanh,
        "silu": nn.silu,
        "sigmoid": op.sigmoid,
        "tanh": op.tanh,
        "exp": op.exp,
        "abs": op.abs,
        "neg": op.negative,
        "square": lambda x: op.multiply(x, x),
        "rsqrt": op.rsqrt,
        "log": op.log,
        "round": op.round,
        "clip": lambda x, lo, hi: op.clip(x, lo, hi),
        "where": op.where,
        "scale": lambda x, by: op.multiply(x, constant(x, by)),
        "shift": lambda x, by: op.add(x, constant(x, by)),
        "sum": lambda x, axis, keep: op.sum(x, axis, bool(keep)),
        "mean": lambda x, axis, keep: op.mean(x, axis, bool(keep)),
        "amax": lambda x, axis, keep: op.max(x, axis, bool(keep)),
        "argmax": lambda x: op.argmax(x, -1),
        "softmax": lambda x, axis: nn.softmax(x, axis),
        "log_softmax": lambda x, axis: nn.log_softmax(x, axis),
        "rms_norm": lambda x, w, eps: nn.rms_norm(x, w, -1, eps),
        "layer_norm": lambda x, w, b, eps: nn.layer_norm(x, w, b, -1, eps),
        "group_norm": lambda x, w, b, groups, eps: nn.group_norm(
            x, w, b, groups, 1, pixels(x), eps
        ),
        "transpose": lambda x, axes: op.permute_dims(x, list(axes)),
        "concat": lambda *x, axis: op.concat(list(x), axis),
        "part": lambda x, axis, begin, end: op.strided_slice(x, [axis], [begin], [end]),
        "pad": lambda x, widths: nn.pad(x, list(widths)),
        "gather": lambda x, i: op.take(x, i, 0),
        "repeat": lambda x, times, axis: op.repeat(x, times, axis),
    }


def to_torch(problem: Problem, exact: bool = False) -> Callable[..., Any]:
    """Return a function of PyTorch tensors that returns a tuple; `torch.compile` takes it.

    With `exact`, what is cast to a floating-point type is float64: the program without its
    roundings, of inputs in float64.
    """
    table = _torch_operators()
    if exact:
        table["cast"] = _cast_exactly

    def run(*given: Any) -> Any:
        known = {f"x{i}": x for i, x in enumerate(given)}
        for step in problem.steps:
            operands = [known[x] for x in step.operands]
            known[step.name] = table[step.op](*operands, **step.attrs)
        return tuple(known[x].contiguous() for x in problem.outputs)

    return run


def _torch_operators() -> dict[str, Callable[..., Any]]:
    import torch

    f = torch.nn.functional

    def pad(x: Any, widths: tuple[int, ...]) -> Any:
        pairs = [widths[2 * i : 2 * i + 2] for i in reversed(range(x.dim()))]
        return f.pad(x, [y for pair in pairs for y in pair])

    return {
        "cast": lambda x, dtype: x.to(getattr(torch, dtype)),
        "add": torch.add,
        "sub": torch.sub,
        "mul": torch.mul,
        "div": torch.div,
        "maximum": torch.maximum,
        "minimum": torch.minimum,
        "relu": f.relu,
        "gelu": f.gelu,
        "gelu_tanh": lambda x: f.gelu(x, approximate="tanh"),
        "silu": f.silu,
        "sigmoid": torch.sigmoid,
        "tanh": torch.tanh,
        "exp": torch.exp,
        "abs": torch.abs,
        "neg": torch.neg,
        "square": lambda x: x * x,
        "rsqrt": torch.rsqrt,
        "log": torch.log,
        "round": torch.round,
        "clip": lambda x, lo, hi: torch.clamp(x, lo, hi),
        "where": torch.where,
        "scale": lambda x, by: x * by,
        "shift": lambda x, by: x + by,
        "sum": lambda x, axis, keep: x.sum(axis, keepdim=bool(keep)),
        "mean": lambda x, axis, keep: x.mean(axis, keepdim=bool(keep)),
        "amax": lambda x, axis, keep: x.amax(axis, keepdim=bool(keep)),
        "argmax": lambda x: torch.argmax(x, -1),
        "softmax": lambda x, axis: f.softmax(x, axis),
        "log_softmax": lambda x, axis: f.log_softmax(x, axis),
        "rms_norm": lambda x, w, eps: f.rms_norm(x, x.shape[-1:], w, eps),
        "layer_norm": lambda x, w, b, eps: f.layer_norm(x, x.shape[-1:], w, b, eps),
        "group_norm": lambda x, w, b, groups, eps: f.group_norm(x, groups, w, b, eps),
        "transpose": lambda x, axes: x.permute(*axes),
        "concat": lambda *x, axis: torch.cat(x, axis),
        "part": lambda x, axis, begin, end: x.narrow(axis, begin, end - begin),
        "pad": pad,
        "gather": lambda x, i: x[i],
        "repeat": lambda x, times, axis: torch.repeat_interleave(x, times, axis),
    }


def _cast_exactly(x: Any, dtype: str) -> Any:
    import torch

    kind = getattr(torch, dtype)
    return x.double() if kind.is_floating_point else x.to(kind)


def draw(problem: Problem, generator: Any, device: str = "cuda") -> list[Any]:
    """Draw the inputs of a problem."""
    import torch

    made: list[Any] = []
    for shape, dtype, kind in problem.inputs:
        where = {"device": device, "generator": generator}
        if kind == "mask":
            made.append(torch.rand(shape, **where) < 0.5)
        elif kind == "int8":
            made.append(torch.randint(-128, 128, shape, dtype=torch.int8, **where))
        elif kind.startswith("index"):
            top = int(kind.partition(":")[2])
            made.append(torch.randint(0, top, shape, dtype=torch.int32, **where))
        else:
            made.append(torch.randn(shape, dtype=getattr(torch, dtype), **where))
    return made
