"""Softmax of rows, each by one warp: several elements a lane, maximum and sum by shuffles.

Lane l holds the columns l, l + 32, ...; what lies behind the row's end counts as minus infinity.
Inputs are float32 or float16, sums float32.  Some rows are far from zero, so that the maximum has
to be subtracted.  Mutations S01-S07.
"""

from tvm.script import tirx as T

from tests.sim.hand_threaded import F32, Elements, Local, hand_threaded

from .common import Kernel
from .plain_softmax import LOWEST, plain_softmax, rows_of_softmax, softmax, tolerance

LANES = 32
ALL = 0xFFFFFFFF


def build(
    mutation: str | None = None,
    *,
    rows: int = 3,
    columns: int = 70,
    dtype: str = "float32",
    warps: int = 2,
    seed: int = 0,
) -> Kernel:
    """Build the kernel: Y = softmax of each row of X, `warps` rows to a CTA."""
    m = mutation
    grid = -(-rows // warps)
    each = -(-columns // LANES)
    steps = 4 if m == "S01" else 5
    padding = 0.0 if m == "S06" else LOWEST
    end = each * LANES if m == "S05" else columns

    @T.inline
    def sum_up(total, steps):
        for s in T.unroll(steps):
            total[0] = total[0] + T.cuda.__shfl_xor_sync(T.uint32(ALL), total[0], 16 >> s, LANES)

    @hand_threaded(LANES * warps, grid=grid)
    def main(
        X: Elements(dtype)[rows, columns], Y: Elements(dtype)[rows, columns],
        bx, tx, x: Local[F32, each], top: Local[F32], total: Local[F32],
    ):  # fmt: skip
        row = T.meta_var(bx * warps + tx // LANES)
        lane = T.meta_var(tx % LANES)
        if T.bool(True) if m == "S04" else row < rows:
            top[0] = T.float32(padding)
            for e in T.serial(each):
                x[e] = T.if_then_else(
                    e * LANES + lane < end,
                    T.Cast("float32", X[row, e * LANES + lane]),
                    T.float32(padding),
                )
                top[0] = T.max(top[0], x[e])
            for s in T.unroll(5):
                top[0] = T.max(
                    top[0], T.cuda.__shfl_xor_sync(T.uint32(ALL), top[0], 16 >> s, LANES)
                )
            if m == "S07":
                top[0] = T.float32(0)
            total[0] = T.float32(0)
            for e in T.serial(each):
                x[e] = T.exp(x[e] - top[0])
                total[0] = total[0] + x[e]
            if m == "S02":
                # which leaves the sum in lane 0 alone
                for s in T.unroll(5):
                    total[0] = total[0] + T.cuda.__shfl_down_sync(
                        T.uint32(ALL), total[0], 16 >> s, LANES
                    )
            elif m == "S03":
                # the lanes without an element in the last turn have nothing to add
                if (each - 1) * LANES + lane < columns:
                    sum_up(total, 5)
            else:
                sum_up(total, steps)
            for e in T.serial(each):
                if e * LANES + lane < columns:
                    Y[row, e * LANES + lane] = T.Cast(dtype, x[e] / total[0])

    x = rows_of_softmax(rows, columns, dtype, seed)
    return Kernel(
        main,
        {"X": x},
        {"Y": softmax(x)},
        grid=grid,
        against=plain_softmax(rows, columns, dtype),
        tolerance=tolerance(dtype),
    )
