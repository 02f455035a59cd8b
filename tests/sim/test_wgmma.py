"""One wgmma of every type and both majors, with operands laid out by the facts, is exact."""

import functools

import ml_dtypes
import numpy as np
import pytest
from tvm import tirx
from tvm.script import tirx as T

from tests.sim_kernels.mutate import change, with_argument
from tvm_hopper.facts import wgmma as facts
from tvm_hopper.sim.layouts.matrix_descriptor import MatrixDescriptor
from tvm_hopper.sim.protocol.trace import thread_extents
from tvm_hopper.simulation import simulate

from .hand_threaded import U32, U64, Elements, Local, Shared, hand_threaded
from .kernels import lower

N = 64
NAMES = {"float16": "f16", "bfloat16": "bf16", "float32": "tf32", "int8": "s8", "uint8": "u8",
         "float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2"}  # fmt: skip

INTEGERS = ("int8", "uint8")


def place(values, layout_of, dtype, major, swizzle):
    """Return operand bytes in shared order, and the descriptor's leading and stride bytes."""
    rows, k = values.shape
    row_of_tile = swizzle // values.dtype.itemsize if major == "k" else 0
    layout = layout_of(major, rows, max(k, row_of_tile), dtype, swizzle)
    descriptor = facts.Descriptor(0, layout.leading_bytes, layout.stride_bytes, 0, swizzle)
    addresses = facts.operand_addresses(descriptor, major, rows, dtype)
    size = values.dtype.itemsize
    raw = np.zeros((int(addresses.max()) // size + 1) * size, np.uint8).view(values.dtype)
    raw[addresses // size] = values
    return raw.view(np.uint8), descriptor.encode()


@functools.cache
def kernel(dtype, trans_a, trans_b, acc, num_bytes, a_desc, b_desc, b_start):
    k = facts.instruction_k(dtype)
    short = NAMES[dtype]
    out = "s32" if dtype in INTEGERS else "f32"
    name = f"wgmma.mma_async.sync.aligned.m64n{N}k{k}.{out}.{short}.{short}"
    registers = N // 2
    words, low = num_bytes // 4, 0xFFFFFFFF
    flags = [] if dtype in INTEGERS else [1, 1]
    if dtype in ("float16", "bfloat16"):
        flags = [1, 1, trans_a, trans_b]

    @hand_threaded(128, smem=num_bytes)
    def main(
        X: U32[words], C: Elements(acc)[64 * N],
        tx, tile: Shared[U32, words], d: Local[Elements(acc), registers], desc: Local[U64, 2],
    ):  # fmt: skip
        for i in T.serial((words + 127) // 128):
            if i * 128 + tx < words:
                tile[i * 128 + tx] = X[i * 128 + tx]
        T.ptx.fence.proxy.async_.shared__cta()
        T.tvm_storage_sync("shared")
        base = T.meta_var(
            T.Cast("uint64", T.cuda.cvta_generic_to_shared(T.address_of(tile[0]))) >> T.uint64(4)
        )
        # the parser takes no literal above 2**63
        desc[0] = (T.uint64(a_desc >> 32) << T.uint64(32)) + T.uint64(a_desc & low) + base
        desc[1] = (T.uint64(b_desc >> 32) << T.uint64(32)) + T.uint64(b_desc & low) + base
        desc[1] = desc[1] + T.uint64(b_start // 16)
        T.ptx.wgmma.fence.sync.aligned()
        T.ptx[name](
            *[d[i] for i in range(registers)],
            desc[0],
            desc[1],
            T.bool(False),
            *flags,
        )
        T.ptx.wgmma.commit_group.sync.aligned()
        T.ptx.wgmma.wait_group.sync.aligned(0)
        for i in T.serial(registers):
            C[
                (tx // 32 * 16 + i // 2 % 2 * 8 + tx % 32 // 4) * N
                + i // 4 * 8
                + tx % 4 * 2
                + i % 2
            ] = d[i]

    return lower(main)


CASES = [
    (dtype, a, b, swizzle)
    for dtype in NAMES
    for a in ("k", "mn")
    for b in ("k", "mn")
    for swizzle in (0, 32, 64, 128)
    if dtype in facts.MN_MAJOR_DTYPES or (a, b) == ("k", "k")
]


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(("dtype", "a_major", "b_major", "swizzle"), CASES)
def test_one_instruction_is_exact(dtype, a_major, b_major, swizzle):
    k = facts.instruction_k(dtype)
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    rng = np.random.default_rng(0)
    a, b = (
        rng.integers(0 if dtype == "uint8" else -3, 4, (rows, k)).astype(kind) for rows in (64, N)
    )
    a_bytes, a_desc = place(a, facts.operand_layout, dtype, a_major, swizzle)
    b_bytes, b_desc = place(b, facts.operand_layout, dtype, b_major, swizzle)
    b_start = -(-len(a_bytes) // 1024) * 1024
    raw = np.zeros(-(-(b_start + len(b_bytes)) // 16) * 16, np.uint8)
    raw[: len(a_bytes)], raw[b_start : b_start + len(b_bytes)] = a_bytes, b_bytes
    acc = "uint32" if dtype in INTEGERS else "float32"
    program = kernel(
        dtype,
        int(a_major == "mn"),
        int(b_major == "mn"),
        acc,
        len(raw),
        a_desc,
        b_desc,
        b_start,
    )
    result = simulate(program, {"X": raw.view(np.uint32)}).require_clean()
    want = a.astype("float64") @ b.astype("float64").T
    got = result.outputs["C"].reshape(64, N)
    got = got.view("int32") if dtype in INTEGERS else got
    assert np.array_equal(got.astype("float64"), want)


def run_with(a_desc, b_desc=0):
    """Run one float16 instruction on 16 KiB of zeros."""
    words = np.zeros(4096, np.uint32)
    return simulate(kernel("float16", 0, 0, "float32", 16384, a_desc, b_desc, 0), {"X": words})


@pytest.mark.parametrize("lines", [0, 3, 7])
def test_a_base_offset_tells_where_a_repetition_begins(lines):
    """An H200 reads so (docs/calibration.md): the drawing begins at that line of 1024 bytes."""
    rng = np.random.default_rng(lines)
    a, b = (rng.integers(-3, 4, (rows, 16)).astype("float16") for rows in (64, N))
    a_desc = facts.Descriptor(0, 16, 1024, lines, 128).encode()
    b_desc = facts.Descriptor(0, 16, 1024, 0, 128).encode()
    b_start = 9216
    raw = np.zeros(b_start + N * 128, np.uint8)
    for start, desc, operand in ((0, a_desc, a), (b_start, b_desc, b)):
        places = MatrixDescriptor.of(desc).addresses("k", len(operand), 16, 2)
        raw[start:].view("float16")[places // 2] = operand
    program = kernel("float16", 0, 0, "float32", len(raw), a_desc, b_desc, b_start)
    result = simulate(program, {"X": raw.view(np.uint32)}).require_clean()
    want = a.astype("float64") @ b.astype("float64").T
    assert np.array_equal(result.outputs["C"].reshape(64, N).astype("float64"), want)


def test_an_operand_beyond_shared_memory():
    made = facts.Descriptor(0, 16, 4096, 0, 128).encode()  # the eighth group of rows ends at 29 KiB
    found = run_with(made, facts.Descriptor(0, 16, 1024, 0, 128).encode())
    assert found.rules == {"OOB_ACCESS"}
    assert "operand A reads bytes [0, 29696) of shared memory" in str(found.findings[0])


@pytest.mark.parametrize(("threads", "found"), [(0, set()), (16, {True}), (32, {True})])
def test_one_scale_d_for_a_warp_group(threads, found):
    """No sentence of PTX says what lanes, or warps, with another scale-d do."""
    descriptor = facts.Descriptor(0, 16, 1024, 0, 128).encode()
    program = kernel("float16", 0, 0, "float32", 16384, descriptor, descriptor, 0)
    (func,) = program.kernels.values()
    thread, _ = thread_extents(func)["threadIdx.x"]
    scale_d = tirx.Select(thread < threads, tirx.IntImm("int32", 1), tirx.IntImm("int32", 0))
    changed = change(program, "wgmma_f16_ss", 0, with_argument(N // 2 + 2, scale_d))
    result = simulate(changed, {"X": np.zeros(4096, np.uint32)})
    named = {"scale-d that differs" in f.message for f in result.findings if f.rule == "INCOMPLETE"}
    assert named == found
