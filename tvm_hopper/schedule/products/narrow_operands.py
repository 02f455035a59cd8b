"""Recognise decoders: blocks that compute an operand from a tensor of fewer bytes.

F[j, k] = float16(W[j, k]) * S[j]                               W of 8 bits
F[j, k] = (float16(W[j, k // 8] >> k % 8 * 4 & 15) - 7) * S[j, k // 32]
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.facts.dtypes import DTYPES, FP8_DTYPES, HALF_DTYPES
from tvm_hopper.facts.programming_model import WORD_BYTES


@dataclass(frozen=True)
class Decoder:
    """What a block computes an operand from.

    - `load`: the load of the packed tensor: each element of it makes one or several neighbours of
      the operand, and no other load is of as many bytes.
    - `num_bytes`: in memory for each element of the operand, of the packed tensor.
    - `value_bytes`: of values of groups.
    """

    load: Any
    num_bytes: float
    value_bytes: float = 0

    def in_one(self, axis: Any) -> int:
        """Return how many neighbours along an axis one element of the packed tensor makes."""
        index = next(x for x in self.load.indices if ir.depends_on(x, [axis]))
        return int(index.b) if isinstance(index, tirx.FloorDiv) else 1

    @property
    def packed(self) -> Any:
        """The tensor that most of the operand is made from."""
        return self.load.source


def find_decoder(node: Any) -> Decoder | None:
    """Return what a block computes an operand from; None if it is no decoder.

    The packed tensor is read at `v` or `v // p` for each axis v of the operand. The other loads
    are of values of rows, columns or groups, or of tables.
    """
    store = node.body
    if node.init is not None or not isinstance(store, ir.BufferStore):
        return None
    dtype = ir.dtype_of(store.buffer)
    if dtype not in HALF_DTYPES or len(store.indices) < 2:
        return None
    own = [x.var for x in node.iter_vars]
    if not all(any(x.same_as(v) for v in own) for x in store.indices):
        return None
    axes = [x.var for x in node.iter_vars if not ir.is_const(x.dom.extent, 1)]
    found: dict[tuple[str, ...], Decoder] = {}
    every = 0.0
    for load in ir.find_all(store.value, ir.TensorLoad):
        key = (str(load.source), *map(str, load.indices))
        shared = _elements_of(load, axes)
        if shared is None or key in found:
            continue
        size = DTYPES[ir.dtype_of(load)].num_bytes / shared
        found[key], every = Decoder(load, size), every + size
    widest = _widest(found.values())
    is_narrow = widest is not None and widest.num_bytes < DTYPES[dtype].num_bytes
    return replace(widest, value_bytes=every - widest.num_bytes) if widest and is_narrow else None


def _widest(loads: Iterable[Decoder]) -> Decoder | None:
    """Return the load of the most bytes of integers or float8, None where there are several."""
    narrow = [x for x in loads if (kind := ir.dtype_of(x.load)) in FP8_DTYPES or "int" in kind]
    most = max((x.num_bytes for x in narrow), default=0)
    widest = [x for x in narrow if x.num_bytes == most]
    return widest[0] if len(widest) == 1 else None


def _elements_of(load: Any, axes: list[Any]) -> int | None:
    """Return how many of the operand's elements one of a tensor is for; None if it is no such."""
    known = ir.dtype_of(load) in DTYPES
    if not known or ir.find_all(list(load.indices), ir.TensorLoad):
        return None
    count, used = 1, 0
    for index in load.indices:
        moving = [v for v in axes if ir.depends_on(index, [v])]
        if not moving:
            continue
        plain, many = index, 1
        if isinstance(index, tirx.FloorDiv) and ir.static_int(index.b) is not None:
            plain, many = index.a, int(index.b)
        if len(moving) > 1 or not plain.same_as(moving[0]):
            return None
        used, count = used + 1, count * many
    every = all(ir.depends_on(list(load.indices), [v]) for v in axes)
    return count if every and used == len(axes) else None


def values_by_step(node: Any, depth: int) -> list[Any]:
    """Return the tensors of values that change from step to step, and that copies can bring.

    A copy brings at least 4 bytes of neighbours: several groups of a row, or values of rows.

    - `node`: a decoder's block; its operand has rows along k.
    - `depth`: of a step.
    """
    decoder, store = find_decoder(node), node.body
    found: list[Any] = [] if decoder is None else [decoder.packed]
    for load in ir.find_all(store.value, ir.TensorLoad):
        tensor, last = load.source, load.indices[-1]
        known = any(tensor.same_as(x) for x in found)
        if known or not ir.depends_on(list(load.indices), [store.indices[-1]]):
            continue
        size = DTYPES[ir.dtype_of(load)].num_bytes if ir.dtype_of(load) in DTYPES else 0
        row = ir.static_int(tensor.shape[-1]) or 1
        groups = _groups(last, store.indices[-1], depth)
        is_word = all(x * size % WORD_BYTES == 0 for x in (row, groups))
        if is_word and not len(tensor.ty.strides):
            found.append(tensor)
    return found[1:]


def _groups(index: Any, axis: Any, depth: int) -> int:
    """Return how many values of a row a step has; a whole word where they are neighbours."""
    if not ir.depends_on(index, [axis]):
        return WORD_BYTES
    many = int(index.b) if isinstance(index, tirx.FloorDiv) and ir.static_int(index.b) else 1
    return depth // many if depth % many == 0 else 1
