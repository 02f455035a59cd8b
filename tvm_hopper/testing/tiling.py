"""What the programs and schedules of this folder have in common: modules of te, tiles, threads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import s_tir, te


def module_of(*tensors: Any) -> tvm.IRModule:
    """Return the program of these tensors as a module's function "main"."""
    func = te.create_prim_func(list(tensors))
    return tvm.IRModule({"main": func.with_attr("global_symbol", "main")})


def product_of(m: int, n: int, k: int, dtype: str = "float16") -> tuple[Any, Any, Any]:
    """Return A, B and block C = A B^T, summed in float32, in te."""
    a, b = (te.placeholder((x, k), dtype, name=y) for x, y in ((m, "A"), (n, "B")))
    axis = te.reduce_axis((0, k), "k")

    def term(i: Any, j: Any) -> Any:
        return te.sum(a[i, axis].astype("float32") * b[j, axis].astype("float32"), axis)

    return a, b, te.compute((m, n), term, name="C")


def cut(
    sch: s_tir.Schedule, loops: Sequence[Any], tile: Sequence[int], steps: int
) -> tuple[list[Any], Any, list[Any]]:
    """Cut loops into tiles; return the loops over tiles, one over `steps` of them, those inside.

    The steps of a thread block are one below the other, along the first loop.
    """
    outer, k0, first = sch.split(loops[0], [None, steps, tile[0]])
    blocks, inner = [outer], [first]
    for loop, size in zip(loops[1:], tile[1:], strict=True):
        tiles, rest = sch.split(loop, [None, size])
        blocks.append(tiles)
        inner.append(rest)
    sch.reorder(*blocks, k0, *inner)
    return blocks, k0, inner


def fused(sch: s_tir.Schedule, loops: Sequence[Any]) -> Any:
    """Fuse loops, of which there may be one."""
    return sch.fuse(*loops) if len(loops) > 1 else loops[0]


def deal_out(sch: s_tir.Schedule, loops: Sequence[Any], threads: int, vector: int = 1) -> None:
    """Give the elements of some loops to threads, `vector` at once to each."""
    _, thread, elements = sch.split(fused(sch, loops), [None, threads, vector])
    sch.bind(thread, "threadIdx.x")
    if vector > 1:
        sch.vectorize(elements)
