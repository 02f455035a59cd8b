"""Softmax of rows, each by a whole CTA: shuffles inside warps, shared memory between them.

Each warp leaves its maximum, later its sum, in a slot of its own; the first warp reduces the slots
and leaves the result in one more.  A CTA does several rows, so the slots are used again and again:
every use needs a barrier in front of it.  Mutations S08-S15.
"""

from tvm.script import tirx as T

from tests.sim.hand_threaded import F32, Elements, Local, Shared, hand_threaded

from .common import Kernel
from .plain_softmax import LOWEST, plain_softmax, rows_of_softmax, softmax, tolerance

LANES = 32
ALL = 0xFFFFFFFF


def build(
    mutation: str | None = None,
    *,
    rows: int = 3,
    columns: int = 150,
    dtype: str = "float32",
    warps: int = 3,
    grid: int = 2,
    seed: int = 0,
) -> Kernel:
    """Build the kernel: Y = softmax of each row of X; CTA i does the rows i, i + grid, ..."""
    m = mutation
    threads = LANES * warps
    each = -(-columns // threads)
    trips = -(-rows // grid)
    result = 0  # the slot that the result is left in; each warp has the one of its number
    read_slots = warps + 1 if m == "S12" else warps

    @T.inline
    def reduce_warp(value, is_sum):
        for s in T.unroll(5):
            if is_sum:
                value[0] = value[0] + T.cuda.__shfl_down_sync(T.uint32(ALL), value[0], 16 >> s, 32)
            else:
                value[0] = T.max(
                    value[0], T.cuda.__shfl_down_sync(T.uint32(ALL), value[0], 16 >> s, 32)
                )

    @T.inline
    def reduce_slots(slots, value, is_sum, neutral, lane):
        value[0] = T.if_then_else(lane < read_slots, slots[lane], T.float32(neutral))
        reduce_warp(value, is_sum)
        if lane == 0:
            slots[result] = value[0]

    @T.inline
    def reduce_block(slots, value, is_sum, neutral, tx):
        reduce_warp(value, is_sum)
        if m == "S13" and is_sum:
            # of which lane 0 alone has the whole
            slots[tx // LANES] = value[0]
        else:
            if tx % LANES == 0:
                slots[tx // LANES] = value[0]
        if m != "S08":
            T.tvm_storage_sync("shared")
        if m == "S14":
            if tx < warps:
                reduce_slots(slots, value, is_sum, neutral, tx)
        else:
            if tx < LANES:
                reduce_slots(slots, value, is_sum, neutral, tx)
        if m != "S09":
            T.tvm_storage_sync("shared")
        value[0] = slots[result]

    @hand_threaded(threads, grid=grid, smem=256)
    def main(
        X: Elements(dtype)[rows, columns], Y: Elements(dtype)[rows, columns],
        bx, tx, slots: Shared[F32], x: Local[F32, each], top: Local[F32], total: Local[F32],
    ):  # fmt: skip
        for r in T.serial(trips):
            row = T.meta_var(r * grid + bx)
            if row < rows:
                top[0] = T.float32(LOWEST)
                for e in T.serial(each):
                    x[e] = T.if_then_else(
                        e * threads + tx < columns,
                        T.Cast("float32", X[row, e * threads + tx]),
                        T.float32(LOWEST),
                    )
                    top[0] = T.max(top[0], x[e])
                reduce_block(slots, top, False, LOWEST, tx)
                total[0] = T.float32(0)
                for e in T.serial(each):
                    x[e] = T.exp(x[e] - top[0])
                    total[0] = total[0] + x[e]
                if m == "S15":
                    # the threads without an element in the last turn need not meet
                    if (each - 1) * threads + tx < columns:
                        T.tvm_storage_sync("shared")
                elif m != "S10":
                    T.tvm_storage_sync("shared")
                reduce_block(slots, total, True, 0.0, tx)
                for e in T.serial(each):
                    if e * threads + tx < columns:
                        Y[row, e * threads + tx] = T.Cast(dtype, x[e] / total[0])
                if m != "S11":
                    T.tvm_storage_sync("shared")

    x = rows_of_softmax(rows, columns, dtype, seed)
    return Kernel(
        main,
        {"X": x},
        {"Y": softmax(x)},
        grid=grid,
        against=plain_softmax(rows, columns, dtype),
        tolerance=tolerance(dtype),
    )
