"""O stages: warp 0 prepares a row in shared memory, the others scale it; and opaque bodies beside.

The golden kernel calls nothing unknown. The mutations hide a step in a body that nobody sees (a C
function, CUDA as text, a printing statement), or break something in front of such a call.
"""

import numpy as np
from tvm.script import tirx as T

from tests.sim import ptx
from tests.sim.hand_threaded import F32, U64, Shared, hand_threaded

from .common import Kernel

THREADS = 128
SIGNAL = """
__device__ void signal_row(unsigned long long* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];"
               :: "r"((unsigned)__cvta_generic_to_shared(barrier)) : "memory");
}
"""


def build(mutation: str | None = None, *, seed: int = 0) -> Kernel:
    """Build it: Y[i] = 2 X[reversed i], by way of shared memory and one mbarrier."""
    m = mutation

    @hand_threaded(THREADS, smem=1152)
    def main(X: F32[THREADS], Y: F32[THREADS], tx, row: Shared[F32], bars: Shared[U64]):
        if tx == 0:
            ptx.init_mbarrier(bars[128], 1)
        T.tvm_storage_sync("shared")
        if m == "O05":  # the first warp is left alone with what nobody knows
            if tx < 32:
                T.evaluate(T.call_extern("void", "warm_up", tx))
        row[tx] = X[tx]
        if m == "O02":
            T.evaluate(T.call_extern("void", "meet_all_threads"))
        elif m == "O05":
            if tx >= 32:  # nothing orders what these exchange
                Y[tx] = row[159 - tx]
            T.tvm_storage_sync("shared")
        elif m != "O04":
            T.tvm_storage_sync("shared")
        if tx == 0:
            if m == "O01":
                T.evaluate(
                    T.cuda.func_call("signal_row", T.address_of(bars[128]), source_code=SIGNAL)
                )
            else:
                ptx.arrive(bars[128])
        if m == "O06":
            ptx.wait(bars[128], T.call_extern("int32", "phase_of", 0))
        else:
            ptx.wait(bars[128], 0)
        if m == "O03":
            if T.call_extern("int32", "is_wanted", tx) > 0:
                Y[tx] = row[127 - tx] * T.float32(2)
        elif m == "O04":
            Y[tx] = T.call_extern("float32", "twice", row[127 - tx])
        elif m == "O07":
            Y[tx] = row[127 - tx] * T.float32(2)
            T.evaluate(T.cuda.printf("done"))
            Y[tx] = row[128 + tx]
        else:
            Y[tx] = row[127 - tx] * T.float32(2)

    x = np.random.default_rng(seed).integers(-8, 9, THREADS).astype("float32")
    return Kernel(main, {"X": x}, {"Y": 2 * x[::-1].astype("float64")})
