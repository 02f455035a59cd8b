"""An sm_80 GEMM: stages filled by cp.async, fragments by ldmatrix, products by mma.sync.

The classic loop with one barrier for each K step: wait for the oldest group, meet, refill the slot
that was read in the step before, multiply.  Rows and 16-byte chunks that lie outside of A or B are
filled with zeros by a source size of 0.  Four warps, 32x32 of the 64x64 tile each.  Mutations A01
to A11.
"""

from tvm.script import tirx as T

from .common import LDMATRIX, Kernel, operands, plain_product, product

TILE, TILE_K = 64, 32  # of C along both axes; a row of a stage is 64 bytes
TILE_ELEMENTS = TILE * TILE_K
COPY_16B = "cp.async.cg.shared.global"
MMA = "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"
CHUNK = 8  # fp16 elements of 16 bytes


def build(
    mutation: str | None = None,
    *,
    m: int = 60,
    n: int = 56,
    k: int = 104,
    stages: int = 3,
    seed: int = 0,
) -> Kernel:
    """Build the kernel for C (m, n) = A (m, k) B (n, k)^T in fp32; k is a multiple of 8."""
    bug = mutation
    trips = (k + TILE_K - 1) // TILE_K
    tiles_m, tiles_n = (m + TILE - 1) // TILE, (n + TILE - 1) // TILE
    b_start = stages * TILE_ELEMENTS
    # of the groups that are committed when step k waits, those of the steps behind it
    newer = stages - 1 if bug == "A01" else stages - 2

    def place(row, chunk):  # element offset of a 16-byte chunk in a row of 64 bytes
        return row * TILE_K + T.bitwise_xor(chunk, row // 2 % 4) * CHUNK

    def read_place(row, chunk):
        return row * TILE_K + chunk * CHUNK if bug == "A08" else place(row, chunk)

    @T.inline
    def copy_tile(X, tile, start, rows, first_row, step, tx):
        for i in T.serial(TILE * TILE_K // CHUNK // 128):
            row = T.meta_var(i * 32 + tx // 4)
            column = T.meta_var(step * TILE_K + tx % 4 * CHUNK)
            inside = T.meta_var(T.And(first_row + row < rows, column < k))
            at = T.meta_var(T.address_of(tile[start + place(row, tx % 4)]))
            # the address of what is not read must not be followed, but be one of A or B
            source = T.meta_var(
                T.address_of(
                    X[
                        T.min(first_row + row, rows - 1),
                        column if bug == "A07" else T.min(column, k - CHUNK),
                    ]
                )
            )
            if bug == "A06":  # what is outside is left as it was
                if inside:
                    T.ptx[COPY_16B](at, source, 16)
            elif bug == "A07":
                T.ptx[COPY_16B](at, source, 16)
            else:
                T.ptx[COPY_16B](at, source, 16, T.if_then_else(inside, T.uint32(16), T.uint32(0)))

    @T.inline
    def fill(A, B, sA, sB, step, row, col, tx):
        copy_tile(A, sA, step % stages * TILE_ELEMENTS, m, row, step, tx)
        copy_tile(B, sB, b_start + step % stages * TILE_ELEMENTS, n, col, step, tx)

    @T.inline
    def refill(A, B, sA, sB, step, row, col, tx):
        """Fill the slot that step - 1 read; the group is committed even if nothing is left."""
        if step + stages - 1 < trips:
            fill(A, B, sA, sB, step + stages - 1, row, col, tx)
            if bug == "A04":
                T.ptx.cp.async_.commit_group()
        if bug == "A09":
            if tx % 32 < 16:
                T.ptx.cp.async_.commit_group()
        elif bug != "A04":
            T.ptx.cp.async_.commit_group()

    @T.inline
    def multiply(sA, sB, a, b, acc, slot, warp, lane):
        for kk in T.unroll(TILE_K // 16):
            for i in T.unroll(2):
                row = T.meta_var(warp // 2 * 32 + i * 16 + lane % 16)
                T.ptx[LDMATRIX](
                    *[a[i * 4 + r] for r in range(4)],
                    T.address_of(sA[slot * TILE_ELEMENTS + read_place(row, kk * 2 + lane // 16)]),
                )
            for j in T.unroll(2):  # columns 0-7 and 8-15, each with both halves of 16 along K
                row = T.meta_var(warp % 2 * 32 + j * 16 + lane // 16 * 8 + lane % 8)
                T.ptx[LDMATRIX](
                    *[b[j * 4 + r] for r in range(4)],
                    T.address_of(
                        sB[b_start + slot * TILE_ELEMENTS + place(row, kk * 2 + lane // 8 % 2)]
                    ),
                )
            for i in T.unroll(2):
                for j in T.unroll(4):
                    T.ptx[MMA](
                        *[acc[(i * 4 + j) * 4 + r] for r in range(4)],
                        *[a[i * 4 + r] for r in range(4)],
                        *[b[j * 2 + r] for r in range(2)],
                        *[acc[(i * 4 + j) * 4 + r] for r in range(4)],
                    )

    @T.prim_func(s_tir=True)
    def main(
        A: T.Buffer((m, k), "float16"),
        B: T.Buffer((n, k), "float16"),
        C: T.Buffer((m, n), "float32"),
    ):
        T.func_attr({"global_symbol": "main"})
        bx = T.launch_thread("blockIdx.x", tiles_n)
        by = T.launch_thread("blockIdx.y", tiles_m)
        tx = T.launch_thread("threadIdx.x", 128)
        with T.attr(T.int32(0), "hand_threaded", 1):
            # of the type of all its views: StorageRewrite would give bytes that type, and as many
            dyn_smem = T.alloc_buffer((2 * b_start,), "float16", scope="shared.dyn", align=128)
            sA = T.decl_buffer((2 * b_start,), "float16", data=dyn_smem.data, scope="shared.dyn")
            sB = T.decl_buffer((2 * b_start,), "float16", data=dyn_smem.data, scope="shared.dyn")
            acc = T.alloc_buffer((32,), "float32", scope="local")
            a = T.alloc_buffer((8,), "uint32", scope="local")
            b = T.alloc_buffer((8,), "uint32", scope="local")
            row, col = T.meta_var(by * TILE), T.meta_var(bx * TILE)
            warp, lane = T.meta_var(tx // 32), T.meta_var(tx % 32)
            for i in T.unroll(32):
                acc[i] = T.float32(0)
            for s in T.unroll(stages - 1):
                if s < trips:
                    fill(A, B, sA, sB, s, row, col, tx)
                T.ptx.cp.async_.commit_group()
            for step in T.serial(trips):
                if bug == "A11":
                    if lane == 0:
                        T.ptx["cp.async.wait_group"](newer)
                elif bug != "A10":
                    T.ptx["cp.async.wait_group"](newer)
                if bug == "A03":
                    refill(A, B, sA, sB, step, row, col, tx)
                if bug != "A02":
                    T.tvm_storage_sync("shared")
                if bug == "A10":  # each thread waits for its own copies, after all have met
                    T.ptx["cp.async.wait_group"](newer)
                if bug != "A03":
                    refill(A, B, sA, sB, step, row, col, tx)
                multiply(
                    sA, sB, a, b, acc, (step + 1 if bug == "A05" else step) % stages, warp, lane
                )
            for i in T.unroll(2):
                for j in T.unroll(4):
                    for r in T.unroll(4):
                        c_row = T.meta_var(row + warp // 2 * 32 + i * 16 + r // 2 * 8 + lane // 4)
                        c_col = T.meta_var(col + warp % 2 * 32 + j * 8 + lane % 4 * 2 + r % 2)
                        if T.And(c_row < m, c_col < n):
                            C[c_row, c_col] = acc[(i * 4 + j) * 4 + r]

    inputs = operands(m, n, k, seed)
    return Kernel(
        main,
        inputs,
        {"C": product(inputs)},
        tiles_m * tiles_n,
        plain_product(m, n, k),
        arch="sm_80",
    )
