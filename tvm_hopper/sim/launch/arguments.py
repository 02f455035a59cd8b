"""Arguments of a call: checks the given ones, and makes the others."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tvm_hopper.errors import VerifyError
from tvm_hopper.sim.launch.host import evaluate
from tvm_hopper.sim.launch.signature import Argument, Size
from tvm_hopper.sim.machine.memory import POISON
from tvm_hopper.sim.tir import numpy_dtype

ROW_ALIGNMENT = 16  # bytes: TMA and the widest vector load request no more


def complete(
    arguments: list[Argument],
    inputs: Mapping[str, Any],
    allocate: Callable[[Argument, int], np.ndarray] | None = None,
) -> tuple[dict[str, Any], list[str]]:
    """Add the arguments that `inputs` lacks: outputs with the shape that the others imply.

    An integer under the name of a variable of shapes fixes that size. A tensor with strides or an
    element offset is made as a view with padded rows that starts after the beginning of its memory.

    - `allocate` (callable or None): gives so many bytes for an argument; None: bytes of 0xFF, which
      is NaN.
    - returns (tuple): all arguments in order, and the names of those that were left out.
    - raises ValueError: a name is unknown, a value is no array or number, a scalar is missing, or a
      shape is unknown.
    """
    _check(arguments, inputs)
    sizes = _sizes(arguments, inputs)
    values: dict[str, Any] = {}
    missing = []
    for argument in arguments:
        if argument.name in inputs:
            values[argument.name] = inputs[argument.name]
            continue
        if argument.shape is None:
            raise ValueError(f"inputs: found no value for scalar {argument.name}; need a number")
        extents = [_known(extent, sizes) for extent in argument.shape]
        symbols = [
            str(d) for d, known in zip(argument.shape, extents, strict=True) if known is None
        ]
        if symbols:
            raise ValueError(
                f"inputs: found no value for {argument.name}, whose shape has {symbols}; need the "
                "array itself, or one that fixes these sizes, or their values by name"
            )
        shape = tuple(int(extent) for extent in extents if extent is not None)
        values[argument.name] = _empty(argument, shape, sizes, allocate or _poisoned)
        missing.append(argument.name)
    return values, missing


def _check(arguments: list[Argument], inputs: Mapping[str, Any]) -> None:
    if not isinstance(inputs, Mapping):
        raise ValueError(
            f"inputs: found a {type(inputs).__name__}; need a dict of arrays and numbers by name, "
            f"{[a.name for a in arguments]}"
        )
    known = {a.name: a for a in arguments}
    sizes = {x for a in arguments for x in a.shape or () if isinstance(x, str)} - set(known)
    unknown = sorted(set(inputs) - set(known) - sizes)
    if unknown:
        raise ValueError(f"inputs: found {unknown}; need names among {sorted(known)}")
    for name, value in inputs.items():
        if name in sizes:
            if type(value) is not int or value < 0:
                raise ValueError(f"inputs: found {name}={value!r}; need a size, an int from 0")
        elif known[name].shape is not None and not isinstance(value, np.ndarray):
            hint = ", for example its .numpy()" if hasattr(value, "numpy") else ""
            raise ValueError(
                f"inputs: found {name} of type {type(value).__name__}; need a numpy array{hint}"
            )


def _sizes(arguments: list[Argument], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the function's variables that the given values determine, by shapes first."""
    sizes: dict[str, Any] = {
        name: getattr(value, "item", lambda v=value: v)()
        for name, value in inputs.items()
        if not isinstance(value, np.ndarray)
    }
    given = [(a, inputs[a.name]) for a in arguments if a.name in inputs and a.shape is not None]
    for argument, array in given:
        _learn(sizes, argument.shape or (), array.shape)
    for argument, array in given:
        steps = [step // array.itemsize for step in array.strides]
        _learn(sizes, argument.strides or (), steps)
    return sizes


def _learn(sizes: dict[str, Any], names: Any, actual: Any) -> None:
    for name, value in zip(names, actual, strict=False):
        if isinstance(name, str):
            sizes.setdefault(name, value)


def _known(size: Size, sizes: Mapping[str, Any]) -> int | None:
    """Return the value of an extent, a stride or an offset; None if it is not known."""
    if isinstance(size, int):
        return size
    if isinstance(size, str):
        return sizes.get(size)
    try:
        return int(evaluate(size, {}, {}, sizes))
    except VerifyError:
        return None


def _poisoned(argument: Argument, size: int) -> np.ndarray:
    return np.full(size, POISON, np.uint8)


def _empty(
    argument: Argument,
    shape: tuple[int, ...],
    sizes: dict[str, Any],
    allocate: Callable[[Argument, int], np.ndarray],
) -> np.ndarray:
    """Make an array with the strides and the offset that a function declares."""
    dtype = numpy_dtype(argument.dtype)
    unit = max(ROW_ALIGNMENT // dtype.itemsize, 1)
    strides = [0] * len(shape)
    need = 1  # elements from one step of a dimension to the next
    for i in reversed(range(len(shape))):
        declared = argument.strides[i] if argument.strides is not None else need
        step = _known(declared, sizes)
        if step is None:
            # One unit more than the elements inside take; the innermost ones stay neighbors.
            step = need if i == len(shape) - 1 else (-(-need // unit) + 1) * unit
            _learn(sizes, [declared], [step])
        strides[i] = step
        need = max(need, abs(step) * shape[i])
    offset = _known(argument.elem_offset, sizes)
    if offset is None:
        offset = math.lcm(argument.offset_factor, unit)
        _learn(sizes, [argument.elem_offset], [offset])
    first = offset - sum((n - 1) * s for n, s in zip(shape, strides, strict=True) if s < 0)
    base = allocate(argument, (first + need) * dtype.itemsize)
    steps = [step * dtype.itemsize for step in strides]
    return np.ndarray(shape, dtype, base, first * dtype.itemsize, steps)
