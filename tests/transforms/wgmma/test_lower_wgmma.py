"""LowerWgmma: the accumulator becomes registers, the multiply-add instructions, threads appear."""

import textwrap
from dataclasses import replace

import pytest
import tvm
from tvm import tirx
from tvm.script import tirx as T

from tests.transforms.refusals.products import BLOCK, PRODUCT
from tests.transforms.scripts import check, given, nest, notes_of, parse, run
from tvm_hopper import ir
from tvm_hopper.facts import wgmma
from tvm_hopper.facts.arch import SM_90A
from tvm_hopper.transforms.common.explain_notes import MmaNote, RemarkNote, StoreNote
from tvm_hopper.transforms.wgmma.lower_wgmma import LowerWgmma
from tvm_hopper.transforms.wgmma.lower_wgmma_plan import plan_mma

# A descriptor without its address: swizzle code << 62 | stride / 16 << 32 | leading / 16 << 16.
# K-major 32 B swizzle: code 3, eight rows of 32 B apart = 256 B, leading unused, encoded as 1.
K_MAJOR_32 = 3 << 62 | 16 << 32 | 1 << 16
# MN-major 128 B swizzle, 16 rows (k) a panel: panels 16 x 128 B = 2048 B apart, k atoms 1024 B.
MN_MAJOR_32 = 3 << 62 | 16 << 32 | 32 << 16  # 32 B: panels 16 x 32 B = 512 B apart, atoms 256 B
MN_MAJOR_128 = 1 << 62 | 64 << 32 | 128 << 16


def descriptor(address, fixed, offset):
    """Return a descriptor in TIR: bits 4 to 17 of the address, the rest, an offset in 16 bytes."""
    start = T.cuda.cvta_generic_to_shared(address) & T.uint32(0x3FFFF)
    whole = T.Cast("uint64", start >> T.uint32(4)) | tirx.const(fixed, "uint64")
    return whole + T.Cast("uint64", offset)


M64N8 = "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16"
M64N16 = "wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16"


BEFORE = """
def before(A: T.Buffer((64, 16), "float16"), B: T.Buffer((8, 16), "float16"),
    C: T.Buffer((64, 8), "float32")):
    for _bx in T.thread_binding(1, thread="blockIdx.x"):
        for _ty in T.thread_binding(1, thread="threadIdx.y"):
            with T.sblock(""):
                acc = T.sblock_alloc_buffer((64, 8), scope="local")
                a = T.sblock_alloc_buffer((1, 64, 16), "float16", scope="shared.dyn", align=256)
                b = T.sblock_alloc_buffer((1, 8, 16), "float16", scope="shared.dyn", align=256)
                for i, j in T.grid(64, 8):
                    with T.sblock("init"):
                        acc[i, j] = T.float32(0)
                for p, r, s in T.grid(1, 64, 16):
                    with T.sblock("load_a", async_copy="tma", swizzle=32):
                        a[p, r, s] = A[r, p * 16 + s]
                for p, r, s in T.grid(1, 8, 16):
                    with T.sblock("load_b", async_copy="tma", swizzle=32):
                        b[p, r, s] = B[r, p * 16 + s]
                with T.sblock("update", wgmma=1):
                    for i, j, k in T.grid(64, 8, 16):
                        with T.sblock("inner"):
                            acc[i, j] = acc[i, j] + T.Cast("float32",
                                a[0, i, k]) * T.Cast("float32", b[0, j, k])
                for i, j in T.grid(64, 8):
                    with T.sblock("store"):
                        C[i, j] = acc[i, j]
"""


AFTER = """
def after(A: T.Buffer((64, 16), "float16"), B: T.Buffer((8, 16), "float16"),
    C: T.Buffer((64, 8), "float32")):
    for _bx in T.thread_binding(1, thread="blockIdx.x"):
        for tx in T.thread_binding(128, thread="threadIdx.x"):
            with T.sblock(""):
                a = T.sblock_alloc_buffer((1, 64, 16), "float16", scope="shared.dyn", align=256)
                b = T.sblock_alloc_buffer((1, 8, 16), "float16", scope="shared.dyn", align=256)
                acc = T.sblock_alloc_buffer((4,), scope="local")
                for p, r, s in T.grid(1, 64, 16):
                    with T.sblock("load_a", async_copy="tma", swizzle=32):
                        a[p, r, s] = A[r, p * 16 + s]
                for p, r, s in T.grid(1, 8, 16):
                    with T.sblock("load_b", async_copy="tma", swizzle=32):
                        b[p, r, s] = B[r, p * 16 + s]
                with T.sblock("update", reads=[a[0, 0:64, 0:16], b[0, 0:8, 0:16], acc[0:4]],
                    writes=[acc[0:4]], async_op="wgmma"):
                    descriptor_a: T.let[T.uint64] = descriptor(T.address_of(a[0, 0, 0]),
                        K_MAJOR_32, 0)
                    descriptor_b: T.let[T.uint64] = descriptor(T.address_of(b[0, 0, 0]),
                        K_MAJOR_32, 0)
                    T.ptx[M64N8](
                        acc[0],
                        acc[1],
                        acc[2],
                        acc[3],
                        descriptor_a + T.Cast("uint64", 0),
                        descriptor_b + T.Cast("uint64", 0),
                        T.bool(False),  # one step in all: nothing is added to
                        1,
                        1,
                        0,
                        0,
                    )
                with T.sblock("store", reads=[acc[0:4]], writes=[C[0:64, 0:8]]):
                    pair = T.sblock_alloc_buffer((2,), scope="local")
                    # registers 2 h and 2 h + 1 hold row 16 warp + 8 h + lane // 4, two columns
                    for h in T.serial(2, pragma_unroll=2):
                        pair[0] = acc[h * 2]
                        pair[1] = acc[h * 2 + 1]
                        for e in T.vectorized(2):
                            C[tx % 128 // 32 * 16 + h * 8 + tx % 32 // 4, tx % 4 * 2 + e] = pair[e]
"""
STORE = '                with T.sblock("store"'
names = given(K_MAJOR_32=K_MAJOR_32, M64N8=M64N8, descriptor=descriptor)


def test_smallest_product_becomes_one_instruction():
    check(run(parse(BEFORE), LowerWgmma()), names(AFTER))


def with_second_product(script: str, store: str, *blocks: str) -> str:
    """Add a product into `up`: `blocks` are those of `acc` to repeat, `store` reads both."""
    for block in blocks:
        script = script.replace(block, block + block.replace("acc", "up"))
    for line in script.splitlines(keepends=True):
        if "acc = T" in line:
            script = script.replace(line, line + line.replace("acc", "up"))
        if store in line and "acc" in line:
            value = line.rstrip().split(" = ")[1]
            times = line.rstrip() + " * " + value.replace("acc", "up") + "\n"
            script = script.replace(line, times)
    return script


def test_two_products_have_registers_of_their_own_and_one_store_reads_both():
    fill = " " * 16 + "for i, j in T.grid(64, 8):\n" + nest(BEFORE, '"init"')
    both = with_second_product(BEFORE, "C[i, j] =", fill, nest(BEFORE, '"update"'))
    got = run(parse(both), LowerWgmma())
    update = AFTER[AFTER.index('                with T.sblock("update"') : AFTER.index(STORE)]
    want = with_second_product(AFTER, "pair[", update)
    check(got, names(want.replace("reads=[acc[0:4]]", "reads=[acc[0:4], up[0:4]]")))


# Two warp groups share the rows; the depth takes two instructions; the last column is cut off, so
# that neighbours cannot be stored as a pair.
shared_rows = parse("""
def shared_rows(C: T.Buffer((128, 7), "bfloat16"), A: T.Buffer((128, 32), "bfloat16")):
    for _bx in T.thread_binding(1, thread="blockIdx.x"):
        for w in T.thread_binding(2, thread="threadIdx.y"):
            with T.sblock("", reads=[A[0:128, 0:32]], writes=[C[w * 64 : w * 64 + 64, 0:7]]):
                acc = T.sblock_alloc_buffer((64, 8), scope="local")
                a = T.sblock_alloc_buffer((1, 128, 32), "bfloat16", scope="shared.dyn", align=512)
                b = T.sblock_alloc_buffer((1, 8, 32), "bfloat16", scope="shared.dyn", align=512)
                for p, r, s in T.grid(1, 128, 32):
                    with T.sblock("load_a", async_copy="tma", swizzle=64):
                        a[p, r, s] = A[r, s]
                for p, r, s in T.grid(1, 8, 32):
                    with T.sblock("load_b", async_copy="tma", swizzle=64):
                        b[p, r, s] = A[r, s]
                with T.sblock("update", reads=[acc[0:64, 0:8], a[0, w * 64 : w * 64 + 64, 0:32],
                    b[0, 0:8, 0:32]], writes=[acc[0:64, 0:8]], wgmma=1):
                    for i, j, k in T.grid(64, 8, 32):
                        # either order of the operands, cast before the product
                        acc[i, j] = acc[i, j] + T.Cast("float32", b[0, j, k]) * T.Cast("float32",
                            a[0, w * 64 + i, k])
                for i, j in T.grid(64, 8):
                    with T.sblock("store", where=j < 7):
                        C[w * 64 + i, j] = T.Cast("bfloat16", T.max(acc[i, j], T.float32(0)))
""")


# K-major 64 B swizzle: code 2, eight rows of 64 B = 512 B.
K_MAJOR_64 = 2 << 62 | 32 << 32 | 1 << 16
M64N8_BF16 = "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16"


shared_rows_after = given(K_MAJOR_64=K_MAJOR_64, M64N8_BF16=M64N8_BF16, descriptor=descriptor)("""
def shared_rows_after(C: T.Buffer((128, 7), "bfloat16"), A: T.Buffer((128, 32), "bfloat16")):
    for _bx in T.thread_binding(1, thread="blockIdx.x"):
        for tx in T.thread_binding(256, thread="threadIdx.x"):
            with T.sblock("", reads=[A[0:128, 0:32]],
                writes=[C[tx // 128 * 64 : tx // 128 * 64 + 64, 0:7]]):
                a = T.sblock_alloc_buffer((1, 128, 32), "bfloat16", scope="shared.dyn", align=512)
                b = T.sblock_alloc_buffer((1, 8, 32), "bfloat16", scope="shared.dyn", align=512)
                acc = T.sblock_alloc_buffer((4,), scope="local")
                for p, r, s in T.grid(1, 128, 32):
                    with T.sblock("load_a", async_copy="tma", swizzle=64):
                        a[p, r, s] = A[r, s]
                for p, r, s in T.grid(1, 8, 32):
                    with T.sblock("load_b", async_copy="tma", swizzle=64):
                        b[p, r, s] = A[r, s]
                with T.sblock("update", reads=[a[0, tx // 128 * 64 : tx // 128 * 64 + 64, 0:32],
                    b[0, 0:8, 0:32], acc[0:4]], writes=[acc[0:4]], async_op="wgmma"):
                    # 64 rows of 64 B further for the second warp group: 256 units of 16 B
                    descriptor_a: T.let[T.uint64] = descriptor(T.address_of(a[0, 0, 0]),
                        K_MAJOR_64, tx // 128 * 256)
                    descriptor_b: T.let[T.uint64] = descriptor(T.address_of(b[0, 0, 0]),
                        K_MAJOR_64, 0)
                    for step in T.serial(2, pragma_unroll=2):
                        # 16 elements of 2 bytes further along k: 2 units; a panel ends after two
                        # steps, the next would start 128 rows (of a) or 8 (of b) of 64 B further
                        T.ptx[M64N8_BF16](acc[0], acc[1], acc[2], acc[3],
                            descriptor_a + T.Cast("uint64", step // 2 * 512 + step % 2 * 2),
                            descriptor_b + T.Cast("uint64", step // 2 * 32 + step % 2 * 2),
                            T.bool(True), 1, 1, 0, 0)
                with T.sblock("store", reads=[acc[0:4]], writes=[C[0:128, 0:7]]):
                    for h in T.serial(2, pragma_unroll=2):
                        if tx % 4 * 2 < 7:
                            C[tx // 128 * 64 + (tx % 128 // 32 * 16 + h * 8 + tx % 32 // 4),
                                tx % 4 * 2] = T.Cast("bfloat16", T.max(acc[h * 2], T.float32(0)))
                        if tx % 4 * 2 + 1 < 7:
                            C[tx // 128 * 64 + (tx % 128 // 32 * 16 + h * 8 + tx % 32 // 4),
                                tx % 4 * 2 + 1] = T.Cast("bfloat16",
                                T.max(acc[h * 2 + 1], T.float32(0)))
""")


def test_warp_groups_steps_and_ragged_columns():
    check(run(shared_rows, LowerWgmma()), shared_rows_after)


# Operands whose rows are contiguous (MN-major), an accumulator that the program declares in
# float16, and an epilogue that reads another tensor.
MN_MAJOR = """
def func(A: T.Buffer((16, 64), "float16"), B: T.Buffer((16, 16), "float16"),
    R: T.Buffer((64, 16), "float16"), C: T.Buffer((64, 16), "float16")):
    for bx in T.thread_binding(1, thread="blockIdx.x"):
        with T.sblock(""):
            acc = T.sblock_alloc_buffer((64, 16), "float16", scope="local")
            a = T.sblock_alloc_buffer((1, 16, 64), "float16", scope="shared.dyn", align=1024)
            b = T.sblock_alloc_buffer((1, 16, 16), "float16", scope="shared.dyn", align=256)
            for p, r, s in T.grid(1, 16, 64):
                with T.sblock("load_a", async_copy="tma", swizzle=128):
                    a[p, r, s] = A[r, s]
            for p, r, s in T.grid(1, 16, 16):
                with T.sblock("load_b", async_copy="tma", swizzle=32):
                    b[p, r, s] = B[r, s]
            for i, j in T.grid(64, 16):
                with T.sblock("init"):
                    acc[i, j] = T.float16(0)
            with T.sblock("update", wgmma=1, accumulate="float32"):
                for i, j, k in T.grid(64, 16, 16):
                    acc[i, j] = acc[i, j] + a[0, k, i] * b[0, k, j]
            for i, j in T.grid(64, 16):
                with T.sblock("store"):
                    C[i, j] = acc[i, j] + R[i, j]
"""


def test_mn_major_operands_and_a_wider_accumulator():
    got = run(parse(MN_MAJOR), LowerWgmma())
    registers = "float32"

    want = given(registers=registers, **globals())("""
    def want():
        with T.sblock("update"):
            a = T.sblock_alloc_buffer((1, 16, 64), "float16", scope="shared.dyn", align=1024)
            b = T.sblock_alloc_buffer((1, 16, 16), "float16", scope="shared.dyn", align=256)
            acc = T.sblock_alloc_buffer((8,), registers, scope="local")
            with T.sblock("inner", reads=[a[0, 0:16, 0:64], b[0, 0:16, 0:16], acc[0:8]],
                writes=[acc[0:8]], async_op="wgmma"):
                descriptor_a: T.let[T.uint64] = descriptor(T.address_of(a[0, 0, 0]), MN_MAJOR_128,
                    0)
                descriptor_b: T.let[T.uint64] = descriptor(T.address_of(b[0, 0, 0]), MN_MAJOR_32, 0)
                T.ptx[M64N16](
                    acc[0],
                    acc[1],
                    acc[2],
                    acc[3],
                    acc[4],
                    acc[5],
                    acc[6],
                    acc[7],
                    descriptor_a + T.Cast("uint64", 0),
                    descriptor_b + T.Cast("uint64", 0),
                    T.bool(False),
                    1,
                    1,
                    1,  # both operands transposed
                    1,
                )
    """)

    (block,) = ir.find_blocks(got.body, "tvm_hopper.async_op")
    (wanted,) = ir.find_blocks(want.body, "tvm_hopper.async_op")
    tvm.ir.assert_structural_equal(block.body, wanted.body, map_free_vars=True)

    epilogue = given(registers=registers)("""
    def epilogue(tx: T.int32, R: T.Buffer((64, 16), "float16"), C: T.Buffer((64, 16), "float16")):
        acc = T.alloc_buffer((8,), registers, scope="local")
        pair = T.alloc_buffer((2,), "float16", scope="local")
        for g in T.serial(2, pragma_unroll=2):
            for h in T.serial(2, pragma_unroll=2):
                pair[0] = (T.Cast("float16",
                    acc[g * 4 + h * 2]) + R[tx % 128 // 32 * 16 + h * 8 + tx % 32 // 4,
                    g * 8 + tx % 4 * 2])
                pair[1] = (T.Cast("float16",
                    acc[g * 4 + h * 2 + 1]) + R[tx % 128 // 32 * 16 + h * 8 + tx % 32 // 4,
                    g * 8 + tx % 4 * 2 + 1])
                for e in T.vectorized(2):
                    C[tx % 128 // 32 * 16 + h * 8 + tx % 32 // 4, g * 8 + tx % 4 * 2 + e] = pair[e]
    """)

    (store,) = ir.find_all(got.body, ir.SBlock, lambda block: block.name_hint == "store")
    loop = ir.find_all(epilogue.body, ir.For)[0]
    tvm.ir.assert_structural_equal(store.body, loop, map_free_vars=True)


def test_the_wider_accumulator_is_reported():
    got = run(parse(MN_MAJOR), LowerWgmma())
    assert notes_of(got) == (
        MmaNote("update", (64, 16, 16), M64N16, accumulator_registers=8),
        StoreNote("C", num_bytes=4),
        RemarkNote("accumulates in float32 where the program says float16"),
    )


# -- what a product finds in its accumulator

FILL = "acc[i] = T.float32({})"
HOLD = "tvm_hopper_hold_float32"
ADDS = "T.bool({}), 1, 1, 0, 0"


def lowered(around: str = "", *changes: tuple[str, str]) -> str:
    """Return a kernel with another statement around its product, lowered, as text."""
    block = f"{' ' * 16}{around}\n{textwrap.indent(BLOCK, '    ')}" if around else BLOCK
    return run(parse(PRODUCT, (BLOCK, block), *changes), LowerWgmma()).script()


@pytest.mark.parametrize("trips", ["2", "n", "0"])
def test_a_loop_adds_to_zeros(trips):
    text = lowered(f"for q in range({trips}):")
    assert FILL.format(0.0) in text
    assert HOLD not in text
    assert ADDS.format(True) in text


def test_what_runs_once_overwrites():
    """Ptxas serialised it: zeros are constants, which the compiler put behind wgmma.fence."""
    text = lowered("for q in range(1):")
    assert "T.float32(0" not in text
    assert ADDS.format(False) in text


def test_only_the_first_step_overwrites():
    deep = ("(1, 64, 16)", "(1, 64, 32)"), ("(1, 8, 16)", "(1, 8, 32)"), ("8, 16)", "8, 32)")
    wide = ("(64, 16)", "(64, 32)"), ("swizzle=32", "swizzle=64")
    text = lowered("", *deep, *wide)
    assert "T.float32(0" not in text
    assert "step != 0, 1, 1, 0, 0" in text


def test_what_runs_once_from_another_value_is_held_in_front():
    text = lowered("", ("T.float32(0)", "T.float32(1)"))
    assert text.index(FILL.format(1.0)) < text.index(HOLD) < text.index("T.ptx.wgmma(")
    assert ADDS.format(True) in text


def test_zeros_that_something_else_reads_are_kept():
    first = "for i, j in T.grid(64, 8):\n    with T.sblock('first'):\n        C[i, j] = acc[i, j]\n"
    text = lowered("", (BLOCK, textwrap.indent(first, " " * 16) + BLOCK))
    assert FILL.format(0.0) in text
    assert HOLD in text
    assert ADDS.format(True) in text


def test_zeros_of_a_product_that_may_not_run_are_kept():
    text = lowered("if n > 0:")
    assert FILL.format(0.0) in text
    assert HOLD in text
    assert ADDS.format(True) in text


DOUBLE = """                for i, j in T.grid(64, 8):
                    with T.sblock("double"):
                        acc[i, j] = acc[i, j] * T.float32(2)
"""


@pytest.mark.parametrize("loop", ["", "for q in range(2):"], ids=["one step", "two steps"])
@pytest.mark.parametrize("is_before", [True, False])
def test_what_updates_an_accumulator_is_no_fill_of_it(loop, is_before):
    """Zeros that are doubled first are kept; a product that runs once overwrites before that."""
    both = DOUBLE + BLOCK if is_before else BLOCK + DOUBLE
    around = f"{' ' * 16}{loop}\n{textwrap.indent(both, '    ')}" if loop else both
    text = lowered("", (BLOCK, around))
    overwrites = not loop and not is_before
    assert (FILL.format(0.0) in text) != overwrites
    assert ADDS.format(not overwrites) in text


def test_a_condition_that_holds_for_a_tile_is_asked_once():
    """What an element has to do with stays at the element."""
    update = DOUBLE.replace('"double"', '"double", where=n > 3 and i < 40')
    block = nest(lowered("", (BLOCK, BLOCK + update)), '"double"')
    assert block.count("if n > 3:") == 1
    assert block.index("if n > 3:") < block.index("for h in") < block.index("< 40")
    assert "if n > 3" not in nest(lowered("", (BLOCK, BLOCK + DOUBLE)), '"double"')


BOUNDS = """
bound_0 = T.sblock_alloc_buffer((2,), "int32", scope="local")
for row in T.serial(2, unroll=2):
    bound_0[row] = row // 2 * 64 + ROW + row % 2 * 8 + tx % 32 // 4 + n - tx % 4 * 2
for h in T.serial(2, unroll=2):
    acc[h * 2] = T.Select(0 <= bound_0[h], acc[h * 2], T.float32(0.0))
    acc[h * 2 + 1] = T.Select(1 <= bound_0[h], acc[h * 2 + 1], T.float32(0.0))
""".replace("ROW", "tx % 128 // 32 * 16")


def test_columns_are_compared_with_a_bound_of_their_row():
    """One comparison with a constant is left of `j <= i + n` for each element."""
    value = "T.Select(j <= i + n, acc[i, j], T.float32(0))"
    update = DOUBLE.replace("acc[i, j] * T.float32(2)", value)
    block = nest(lowered("", (BLOCK, BLOCK + update)), '"double"').replace("threadIdx_x", "tx")
    want = textwrap.indent(BOUNDS.strip(), " " * 20)
    assert block.splitlines()[-6:] == want.splitlines()
    loaded = update.replace("j <= i + n", "acc[i, j] <= T.float32(3)")
    assert "bound_" not in nest(lowered("", (BLOCK, BLOCK + loaded)), '"double"')


IN_BOUNDS = "A[T.max(T.min(bx, 63), 0), T.max(T.min(LANE, 15), 0)]"


@pytest.mark.parametrize(
    ("where", "read"),
    [
        ("", "A[bx, LANE] > T.float16(0.0)"),
        ("j < n and ", "LANE < n and A[bx, LANE] > T.float16(0.0)"),
        # some rows may not read it
        ("i < n and ", f"{IN_BOUNDS} > T.float16(0.0)"),
        ("n > 2 and ", f"{IN_BOUNDS} > T.float16(0.0)"),
    ],
    ids=["columns", "columns that exist", "rows that exist", "of all elements"],
)
def test_what_memory_says_of_columns_is_bits_of_a_warp(where, read):
    """Eight columns of a tile: those of the other lanes are none."""
    condition = f"T.if_then_else({where}A[bx, j] > T.float16(0), acc[i, j], T.float32(0))"
    update = DOUBLE.replace("acc[i, j] * T.float32(2)", condition)
    text = nest(lowered("", (BLOCK, BLOCK + update)), '"double"')
    text = text.replace("threadIdx_x % 128 % 32", "LANE")
    assert f'T.Cast("int32", LANE < 8 and {read})) >> ' in text
    assert text.count("A[") == 1


def test_a_condition_that_does_not_hold_keeps_bits_in_bounds():
    inner = "T.if_then_else(A[bx, j] > T.float16(0), acc[i, j], T.float32(0))"
    value = f"T.if_then_else(n <= j, acc[i, j], {inner})"
    update = DOUBLE.replace("acc[i, j] * T.float32(2)", value)
    text = nest(lowered("", (BLOCK, BLOCK + update)), '"double"')
    assert "not n <= threadIdx_x % 128 % 32 and A[bx, " in text


def test_instructions_of_a_wide_tile_start_at_panels():
    """320 columns in panels of 64: two instructions of 160 would start inside of one."""
    wide = (
        ("(1, 16, 16)", "(5, 16, 64)"),
        ("swizzle=32", "swizzle=128"),
        ("B[r, s]", "B[r, p * 64 + s]"),
        ("b[0, k, j]", "b[j // 64, k, j % 64]"),
        ("(64, 16, 16)", "(64, 320, 16)"),
        ("(64, 16)", "(64, 320)"),
        ("(16, 16)", "(16, 320)"),
    )
    (plan,) = plan_mma(ir.kernels(parse(MN_MAJOR, *wide))[0], SM_90A)
    assert (plan.n, plan.instruction_n) == (320, 64)
    narrow = wgmma.operand_layout("mn", 320, 16, "float16", 0)
    plan = replace(plan, right=replace(plan.right, layout=narrow))
    assert plan.instruction_n == 160
