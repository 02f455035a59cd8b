"""Kernels that end badly on a device: they never end, or they touch memory that is not theirs.

What a runner has to survive. TVM lowers them as it lowers any kernel.
"""

from collections.abc import Callable
from typing import Any

import tvm
from tvm.script import tirx as T

THREADS = 32
TRIPS = 1 << 40  # hours
FAR = 1 << 42  # elements beyond any tensor


def endless() -> tvm.IRModule:
    """Return a kernel that takes hours."""
    return _kernel(trips=TRIPS)


def illegal_address() -> tvm.IRModule:
    """Return a kernel that writes where nothing is."""
    return _kernel(lambda i: T.Cast("int64", i) + T.int64(FAR))


def silent() -> tvm.IRModule:
    """Return a kernel that writes half of its output."""
    return _kernel(threads=THREADS // 2)


def _kernel(
    at: Callable[[Any], Any] = lambda i: i, threads: int = THREADS, trips: int = 0
) -> tvm.IRModule:
    """Copy an element for each thread to `at`, and change it some times."""

    @T.prim_func(s_tir=True)
    def main(A: T.Buffer((32,), "float32"), C: T.Buffer((32,), "float32")):
        for i in T.thread_binding(threads, thread="threadIdx.x"):
            with T.sblock("C"):
                vi = T.axis.spatial(threads, i)
                C[at(vi)] = A[vi]
                if trips > 0:
                    for _k in T.serial(T.int64(trips)):
                        C[vi] = C[vi] * T.float32(0.999) + A[vi]

    return tvm.IRModule({"main": main})
