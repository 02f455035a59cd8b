"""Integers from a launch's memory that no instruction overwrites.

Synchronisation may depend on them: a loop over `N[blockIdx.x]` tiles. If the tensor is given, the
skeleton reads it; else the element is `UNKNOWN`, as all data is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from tvm import ir

from tvm_hopper.sim.launch.tensors import Pointer, place
from tvm_hopper.sim.tir import dtype_of, nodes_in

READ = "given tensors that were read"  # an entry of the environment: their names

Given = Mapping[Any, np.ndarray]  # arrays by kernel parameter
NOTHING_GIVEN: Given = MappingProxyType({})


def given_integers(
    func: Any, params: Mapping[Any, Any], values: Mapping[str, Any], stored: set[str]
) -> dict[Any, np.ndarray]:
    """Return the arrays of a launch's parameters that are integers and stay unchanged.

    With them come the integers among the parameters, by which they are read.

    - `func` (tvm.tirx.PrimFunc): final device function.
    - `params` (dict): arguments of its parameters, see `Launch.bind`.
    - `values` (dict): tensors whose elements are known, by name.
    - `stored`: tensors that some launch stores to.
    """
    found = {}
    others = [values[name] for name in stored if isinstance(values.get(name), np.ndarray)]
    for param, value in zip(func.params, params.values(), strict=True):
        if not isinstance(value, Pointer) or value.tensor in stored:
            continue
        array = values.get(value.tensor)
        if not isinstance(array, np.ndarray) or array.dtype.kind not in "iu":
            continue
        start = value.offset - place(array).offset
        alone = not any(np.may_share_memory(array, other) for other in others)
        if alone and array.flags.c_contiguous and start >= 0 and start % array.itemsize == 0:
            found[param] = array.reshape(-1)[start // array.itemsize :]
    if found:
        numbers = zip(func.params, params.values(), strict=True)
        found |= {x: np.array(n) for x, n in numbers if type(n) is int}
    return found


def as_environment(given: Given) -> dict[Any, Any]:
    """Return the entries of an environment for the given integers."""
    arrays = {("given", param): array for param, array in given.items() if array.ndim}
    return {READ: set(), **arrays, **{x: int(n) for x, n in given.items() if not n.ndim}}


def pass_on(env: Any, buffer: Any, data: Any) -> None:
    """Bind a buffer over a parameter to the parameter's array."""
    if ("given", data) in env:
        env["given", buffer] = env["given", data]


def load_given(load: Any, index: Callable[[Any], Any], unknown: Any) -> Callable[[Any], Any]:
    """Return how to evaluate a load from global memory."""
    name = str(load.source.name)

    def evaluate(env: Any) -> Any:
        array = env.get(("given", load.source))
        if array is None:
            return unknown
        places = np.asarray(index(env))
        if places.dtype.kind not in "iu" or ((places < 0) | (places >= len(array))).any():
            return unknown
        env[READ].add(name)
        found = array[places].astype(np.int64)
        return found if places.ndim else int(found)

    return evaluate


def asking(expr: Any) -> str:
    """Return the tensors that a condition or an extent needs; empty if none help."""
    loads = nodes_in(expr, ir.TensorLoad)
    integers = [x.source for x in loads if dtype_of(x).startswith(("int", "uint"))]
    names = {str(x.name) for x in integers if x.scope() in ("", "global")}
    return f"; give {', '.join(sorted(names))} (inputs=) to follow it" if names else ""
