"""How far apart neighboring threads store, by which a copy out of shared memory is offered."""

from __future__ import annotations

import pytest
import tvm
from tvm.script import tirx as T

from tvm_hopper import ir
from tvm_hopper.requests.keys import ASYNC_COPY
from tvm_hopper.transforms.common.copy_nests import find_copy_nests
from tvm_hopper.transforms.copies.store_coalescing import are_apart


def stored(place, width: int = 64, threads: bool = True, dtype: str = "float16"):
    """Build a kernel that stores tile elements at `place(thread, i)`; return it and the copy."""
    tile = ir.new_buffer("tile", (32, width), dtype, "shared.dyn")
    tensor = ir.new_buffer("B", (64, width), dtype, "global")
    tx, i = ir.Var("tx", "int32"), ir.Var("i", "int32")
    index = list(place(tx, i))
    load = tvm.tirx.BufferLoad(tile, [index[0] % 32, index[1]])
    block = ir.opaque_block(
        "B", ir.BufferStore(tensor, load, index), reads=[], writes=[], annotations={ASYNC_COPY: "x"}
    )
    inner = ir.For(i, 0, width, ir.ForKind.SERIAL, block)
    if not threads:
        return ir.For(tx, 0, 32, ir.ForKind.SERIAL, inner)
    axis = tvm.tirx.IterVar(None, ir.Var("t", "int32"), tvm.tirx.IterVar.ThreadIndex, "threadIdx.x")
    return ir.For(tx, 0, 32, ir.ForKind.THREAD_BINDING, inner, thread_binding=axis)


@pytest.mark.parametrize(
    ("place", "apart"),
    [
        (lambda tx, i: (tx, i), True),  # rows of 128 bytes
        (lambda tx, i: (i % 32, tx), False),  # next to each other
        (lambda tx, i: (i % 32, tx * 8), False),  # 16 bytes
        (lambda tx, i: (i % 32, tx * 16), True),  # 32 bytes
        (lambda tx, i: (31 - tx, i), True),  # backwards
        (lambda tx, i: (tx // 8 + i % 8, tx % 8 * 8), False),  # nobody knows
        (lambda tx, i: (i % 32, i), False),  # all the same
    ],
)
def test_sectors(place, apart):
    kernel = stored(place)
    (copy,) = find_copy_nests(kernel)
    assert are_apart(kernel, copy) == apart


def test_without_threads_nobody_is_apart():
    kernel = stored(lambda tx, i: (tx, i), threads=False)
    (copy,) = find_copy_nests(kernel)
    assert not are_apart(kernel, copy)


def test_what_is_no_store_is_not_known():
    kernel = ir.replace(
        stored(lambda tx, i: (tx, i)),
        ir.SBlock,
        lambda x: ir.with_block(x, body=tvm.tirx.Evaluate(T.int32(0))),
    )
    (copy,) = find_copy_nests(kernel)
    assert not are_apart(kernel, copy)
