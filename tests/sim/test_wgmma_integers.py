"""WGMMA of 8-bit integers and of bits: sums in 32 bits that wrap around or saturate."""

import functools

import numpy as np
import pytest
from tvm.script import tirx as T

from tests.sim.test_wgmma import facts, place
from tvm_hopper.sim.layouts.fragments import a_fragment_index
from tvm_hopper.simulation import simulate

from .hand_threaded import U32, U64, Local, Shared, hand_threaded
from .kernels import lower

N, REGISTERS = 16, 8
B_START, NUM_BYTES = 4096, 8192
WORDS = NUM_BYTES // 4


@functools.cache
def kernel(form, from_registers, a_desc, b_desc):
    """Build a kernel that adds one product to C; A is in shared memory or in F."""
    low = 0xFFFFFFFF

    @hand_threaded(128, smem=NUM_BYTES)
    def main(
        X: U32[WORDS], F: U32[512], C: U32[128 * REGISTERS], D: U32[128 * REGISTERS],
        tx, tile: Shared[U32, WORDS], d: Local[U32, REGISTERS], a: Local[U32, 4],
        desc: Local[U64, 2],
    ):  # fmt: skip
        for i in T.serial(WORDS // 128):
            tile[i * 128 + tx] = X[i * 128 + tx]
        for i in T.serial(4):
            a[i] = F[tx * 4 + i]
        for i in T.serial(REGISTERS):
            d[i] = C[tx * REGISTERS + i]
        T.ptx.fence.proxy.async_.shared__cta()
        T.tvm_storage_sync("shared")
        base = T.meta_var(
            T.Cast("uint64", T.cuda.cvta_generic_to_shared(T.address_of(tile[0]))) >> T.uint64(4)
        )
        desc[0] = (T.uint64(a_desc >> 32) << T.uint64(32)) + T.uint64(a_desc & low) + base
        desc[1] = (T.uint64(b_desc >> 32) << T.uint64(32)) + T.uint64(b_desc & low) + base
        desc[1] = desc[1] + T.uint64(B_START // 16)
        T.ptx.wgmma.fence.sync.aligned()
        if from_registers:
            T.ptx[form](
                *[d[i] for i in range(REGISTERS)],
                *[a[i] for i in range(4)],
                desc[1],
                T.bool(True),
            )
        else:
            T.ptx[form](*[d[i] for i in range(REGISTERS)], desc[0], desc[1], T.bool(True))
        T.ptx.wgmma.commit_group.sync.aligned()
        T.ptx.wgmma.wait_group.sync.aligned(0)
        for i in T.serial(REGISTERS):
            D[tx * REGISTERS + i] = d[i]

    return lower(main)


def places_of_d():
    """Return row and column of each register, shape (128, REGISTERS) (9.7.15.5.1.1)."""
    thread, i = np.arange(128)[:, None], np.arange(REGISTERS)
    row = thread // 32 * 16 + thread % 32 // 4 + 8 * (i // 2 % 2)
    return row, thread % 4 * 2 + 8 * (i // 4) + i % 2


def run(form, a, b, c, from_registers):
    """Return C + A B of bytes A (64, 32) and B (N, 32), laid out with a swizzle of 32 bytes."""
    a_bytes, a_desc = place(a, facts.operand_layout, "uint8", "k", 32)
    b_bytes, b_desc = place(b, facts.operand_layout, "uint8", "k", 32)
    raw = np.zeros(NUM_BYTES, np.uint8)
    raw[: len(a_bytes)], raw[B_START : B_START + len(b_bytes)] = a_bytes, b_bytes
    row, column = a_fragment_index(1)
    fragment = np.concatenate([a[16 * warp + row, column] for warp in range(4)])
    inputs = {
        "X": raw.view(np.uint32),
        "F": np.ascontiguousarray(fragment).view(np.uint32).ravel(),
        "C": c[places_of_d()].astype(np.int32).view(np.uint32).ravel(),
    }
    result = simulate(kernel(form, from_registers, a_desc, b_desc), inputs).require_clean()
    out = np.zeros((64, N), np.int64)
    out[places_of_d()] = result.outputs["D"].view(np.int32).reshape(128, REGISTERS)
    return out


@pytest.mark.parametrize("from_registers", [False, True])
def test_bits_are_counted(from_registers):
    rng = np.random.default_rng(0)
    a, b = (rng.integers(0, 256, (rows, 32)).astype(np.uint8) for rows in (64, N))
    c = rng.integers(-(2**31), 2**31, (64, N))
    got = run("wgmma.mma_async.sync.aligned.m64n16k256.s32.b1.b1.and.popc", a, b, c, from_registers)
    both = np.array([[sum(int(x).bit_count() for x in m & n) for n in b] for m in a])
    np.testing.assert_array_equal(got, (both + c + 2**31) % 2**32 - 2**31)


@pytest.mark.parametrize("saturates", [False, True])
def test_integers_wrap_around_or_saturate(saturates):
    rng = np.random.default_rng(1)
    a, b = (rng.integers(0, 256, (rows, 32)).astype(np.uint8) for rows in (64, N))
    c = rng.choice([-1, 1], (64, N)) * (2**31 - rng.integers(1, 10**6, (64, N)))
    form = f"wgmma.mma_async.sync.aligned.m64n16k32{'.satfinite' * saturates}.s32.s8.s8"
    whole = a.astype(np.int8).astype(np.int64) @ b.astype(np.int8).astype(np.int64).T + c
    wraps = (whole + 2**31) % 2**32 - 2**31
    assert (whole != wraps).any()
    want = np.clip(whole, -(2**31), 2**31 - 1) if saturates else wraps
    np.testing.assert_array_equal(run(form, a, b, c, False), want)
