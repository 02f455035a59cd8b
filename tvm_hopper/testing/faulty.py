"""Kernels that end badly on a device: they never end, or they touch memory that is not theirs.

What a runner has to survive. TVM lowers them as it lowers any kernel.
"""

import tvm
from tvm.script import tirx as T

THREADS = 32
TRIPS = 1 << 40  # hours
FAR = 1 << 42  # elements beyond any tensor


def endless() -> tvm.IRModule:
    """Return a kernel that takes hours."""

    @T.prim_func(s_tir=True)
    def main(A: T.Buffer((32,), "float32"), C: T.Buffer((32,), "float32")):
        for i in T.thread_binding(THREADS, thread="threadIdx.x"):
            with T.sblock("C"):
                vi = T.axis.spatial(THREADS, i)
                C[vi] = A[vi]
                for _k in T.serial(T.int64(TRIPS)):
                    C[vi] = C[vi] * T.float32(0.999) + A[vi]

    return tvm.IRModule({"main": main})


def illegal_address() -> tvm.IRModule:
    """Return a kernel that writes where nothing is."""

    @T.prim_func(s_tir=True)
    def main(A: T.Buffer((32,), "float32"), C: T.Buffer((32,), "float32")):
        for i in T.thread_binding(THREADS, thread="threadIdx.x"):
            with T.sblock("C"):
                vi = T.axis.spatial(THREADS, i)
                C[T.Cast("int64", vi) + T.int64(FAR)] = A[vi]

    return tvm.IRModule({"main": main})


def silent() -> tvm.IRModule:
    """Return a kernel that writes half of its output."""

    @T.prim_func(s_tir=True)
    def main(A: T.Buffer((32,), "float32"), C: T.Buffer((32,), "float32")):
        for i in T.thread_binding(THREADS // 2, thread="threadIdx.x"):
            with T.sblock("C"):
                vi = T.axis.spatial(THREADS // 2, i)
                C[vi] = A[vi]

    return tvm.IRModule({"main": main})
