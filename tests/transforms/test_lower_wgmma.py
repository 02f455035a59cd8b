"""LowerWgmma: the accumulator becomes registers, the multiply-add instructions, threads appear."""

import json

import pytest
from tests.transforms.scripts import check, parse, run
from tvm import tirx
from tvm.script import tirx as T

from tvm_hopper import ir
from tvm_hopper.plan.wgmma_plan import plan_wgmma
from tvm_hopper.transforms.lower_wgmma import LowerWgmma

# A descriptor without its address: swizzle code << 62 | stride / 16 << 32 | leading / 16 << 16.
# K-major 32 B swizzle: code 3, eight rows of 32 B apart = 256 B, leading unused, encoded as 1.
K_MAJOR_32 = 3 << 62 | 16 << 32 | 1 << 16
# K-major 128 B swizzle: code 1, eight rows of 128 B = 1024 B.
K_MAJOR_128 = 1 << 62 | 64 << 32 | 1 << 16
# MN-major 128 B swizzle, 16 rows (k) a panel: panels 16 x 128 B = 2048 B apart, k atoms 1024 B.
MN_MAJOR_128 = 1 << 62 | 64 << 32 | 128 << 16


def descriptor(address, fixed, offset):
    """Return a descriptor in TIR: bits 4 to 17 of the address, the rest, an offset in 16 bytes."""
    start = T.cuda.cvta_generic_to_shared(address) & T.uint32(0x3FFFF)
    whole = T.Cast("uint64", start >> T.uint32(4)) | tirx.const(fixed, "uint64")
    return whole + T.Cast("uint64", offset)


M64N8 = "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16"
M64N16 = "wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16"


@T.prim_func(private=True, s_tir=True)
def before(
    A: T.Buffer((64, 16), "float16"),
    B: T.Buffer((8, 16), "float16"),
    C: T.Buffer((64, 8), "float32"),
):
    for _bx in T.thread_binding(1, thread="blockIdx.x"):
        for _ty in T.thread_binding(1, thread="threadIdx.y"):
            with T.sblock(""):
                T.reads(A[0:64, 0:16], B[0:8, 0:16])
                T.writes(C[0:64, 0:8])
                acc = T.sblock_alloc_buffer((64, 8), scope="local")
                a = T.sblock_alloc_buffer((1, 64, 16), "float16", scope="shared.dyn", align=256)
                b = T.sblock_alloc_buffer((1, 8, 16), "float16", scope="shared.dyn", align=256)
                for i, j in T.grid(64, 8):
                    with T.sblock("init"):
                        T.reads()
                        T.writes(acc[i, j])
                        acc[i, j] = T.float32(0)
                for p, r, s in T.grid(1, 64, 16):
                    with T.sblock("load_a"):
                        T.reads(A[r, p * 16 + s])
                        T.writes(a[p, r, s])
                        T.sblock_attr({"tvm_hopper.async_copy": "tma", "tvm_hopper.swizzle": 32})
                        a[p, r, s] = A[r, p * 16 + s]
                for p, r, s in T.grid(1, 8, 16):
                    with T.sblock("load_b"):
                        T.reads(B[r, p * 16 + s])
                        T.writes(b[p, r, s])
                        T.sblock_attr({"tvm_hopper.async_copy": "tma", "tvm_hopper.swizzle": 32})
                        b[p, r, s] = B[r, p * 16 + s]
                with T.sblock("update"):
                    T.reads(acc[0:64, 0:8], a[0, 0:64, 0:16], b[0, 0:8, 0:16])
                    T.writes(acc[0:64, 0:8])
                    T.sblock_attr({"tvm_hopper.wgmma": 1})
                    for i, j, k in T.grid(64, 8, 16):
                        with T.sblock("inner"):
                            acc[i, j] = acc[i, j] + T.Cast("float32", a[0, i, k]) * T.Cast(
                                "float32", b[0, j, k]
                            )
                for i, j in T.grid(64, 8):
                    with T.sblock("store"):
                        T.reads(acc[i, j])
                        T.writes(C[i, j])
                        C[i, j] = acc[i, j]


@T.prim_func(private=True, s_tir=True)
def after(
    A: T.Buffer((64, 16), "float16"),
    B: T.Buffer((8, 16), "float16"),
    C: T.Buffer((64, 8), "float32"),
):
    for _bx in T.thread_binding(1, thread="blockIdx.x"):
        for tx in T.thread_binding(128, thread="threadIdx.x"):
            with T.sblock(""):
                T.reads(A[0:64, 0:16], B[0:8, 0:16])
                T.writes(C[0:64, 0:8])
                a = T.sblock_alloc_buffer((1, 64, 16), "float16", scope="shared.dyn", align=256)
                b = T.sblock_alloc_buffer((1, 8, 16), "float16", scope="shared.dyn", align=256)
                acc = T.sblock_alloc_buffer((4,), scope="local")
                for i in T.serial(4, annotations={"pragma_unroll": 4}):
                    acc[i] = T.float32(0)
                for p, r, s in T.grid(1, 64, 16):
                    with T.sblock("load_a"):
                        T.reads(A[r, p * 16 + s])
                        T.writes(a[p, r, s])
                        T.sblock_attr({"tvm_hopper.async_copy": "tma", "tvm_hopper.swizzle": 32})
                        a[p, r, s] = A[r, p * 16 + s]
                for p, r, s in T.grid(1, 8, 16):
                    with T.sblock("load_b"):
                        T.reads(B[r, p * 16 + s])
                        T.writes(b[p, r, s])
                        T.sblock_attr({"tvm_hopper.async_copy": "tma", "tvm_hopper.swizzle": 32})
                        b[p, r, s] = B[r, p * 16 + s]
                with T.sblock("update"):
                    T.reads(a[0, 0:64, 0:16], b[0, 0:8, 0:16], acc[0:4])
                    T.writes(acc[0:4])
                    T.sblock_attr({"tvm_hopper.async_op": "wgmma"})
                    descriptor_a: T.let[T.uint64] = descriptor(
                        T.address_of(a[0, 0, 0]), K_MAJOR_32, 0
                    )
                    descriptor_b: T.let[T.uint64] = descriptor(
                        T.address_of(b[0, 0, 0]), K_MAJOR_32, 0
                    )
                    T.ptx[M64N8](
                        acc[0],
                        acc[1],
                        acc[2],
                        acc[3],
                        descriptor_a + T.Cast("uint64", 0),
                        descriptor_b + T.Cast("uint64", 0),
                        T.bool(True),
                        1,
                        1,
                        0,
                        0,
                    )
                with T.sblock("store"):
                    T.reads(acc[0:4])
                    T.writes(C[0:64, 0:8])
                    pair = T.sblock_alloc_buffer((2,), scope="local")
                    # registers 2 h and 2 h + 1 hold row 16 warp + 8 h + lane // 4, two columns
                    for h in T.serial(2, annotations={"pragma_unroll": 2}):
                        for e in T.serial(2, annotations={"pragma_unroll": 2}):
                            pair[e] = acc[h * 2 + e]
                        for e in T.vectorized(2):
                            C[
                                tx % 128 // 32 * 16 + h * 8 + tx % 32 // 4,
                                tx % 4 * 2 + e,
                            ] = pair[e]


def test_smallest_product_becomes_one_instruction():
    check(run(before, LowerWgmma()), after)


def test_again_finds_nothing():
    got = run(before, LowerWgmma())
    (kernel,) = ir.kernels(got)
    assert plan_wgmma(kernel) == ()
    check(run(got, LowerWgmma()), after)
