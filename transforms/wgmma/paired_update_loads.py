"""Load both elements of an update in place before either is computed.

    C[0] = f(C[0], acc[0]); C[1] = f(C[1], acc[1])
  ->
    old[0:2] = C[0:2]; C[0] = f(old[0], acc[0]); C[1] = f(old[1], acc[1])

One by one, between the stores of other pairs, the CUDA compiler no longer unrolls the loops and
moves the accumulator to local memory (NVRTC, nvcc 13.0: 624 bytes for 128 registers).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx

from tvm_hopper import ir

# (a value of one element, which element) -> the same value of what was loaded
FromOld = Callable[[Any, int], Any]
KEEP: tuple[None, FromOld] = (None, lambda value, _: value)  # nothing is read back


def load_old(new: ir.BufferStore, e: ir.Var, old: ir.Var) -> tuple[ir.Stmt, FromOld]:
    """Return the load of a pair into `old`, and what makes a value read it from there.

    `new` stores element `e` of the pair.
    """

    def from_old(value: Any, x: int) -> Any:
        def load(node: ir.TensorLoad, mutator: Any) -> Any:
            mine = node.source.same_as(new.buffer)
            return tirx.BufferLoad(old, [x]) if mine else mutator.default_mutate(node)

        return ir.mutate(value, [(ir.TensorLoad, load)])

    first = ir.BufferStore(old, tirx.BufferLoad(new.buffer, new.indices), [e])
    return ir.For(e, 0, 2, ir.ForKind.VECTORIZED, first), from_old
