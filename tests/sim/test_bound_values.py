"""Variables: each keeps what its expression was worth where it stands."""

import numpy as np
from tvm.script import tirx as T

from tvm_hopper.simulation import simulate

from .kernels import lower


@T.prim_func(s_tir=True)
def exchanged(A: T.Buffer((2, 32), "float32"), B: T.Buffer((2, 32), "float32")):
    """Exchange two registers by variables, one of them through what it is computed of."""
    tx = T.launch_thread("threadIdx.x", 32)
    with T.sblock("kernel"):
        T.reads(A[0:2, 0:32])
        T.writes(B[0:2, 0:32])
        pair = T.alloc_buffer((2,), "float32", scope="local")
        pair[0] = A[0, tx]
        pair[1] = A[1, tx]
        first: T.let[T.float32] = pair[0]
        second: T.let[T.float32] = T.max(pair[1], pair[1])
        pair[0] = second
        pair[1] = first
        B[0, tx] = pair[0]
        B[1, tx] = pair[1]


def test_a_variable_is_no_name_for_a_register():
    a = np.arange(64, dtype="float32").reshape(2, 32)
    result = simulate(lower(exchanged), {"A": a})
    assert not result.findings
    np.testing.assert_array_equal(result.outputs["B"], a[::-1])
