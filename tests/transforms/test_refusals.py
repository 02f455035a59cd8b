"""Every refusal of the passes: what is asked, in the smallest IR, and the message that comes back.

A case is a script with a few words changed.  The last test collects the places where the errors
were raised and compares them with all `raise` statements of the sources.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import re
import traceback
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import tvm
from tvm import tirx

import tvm_hopper
from tests.transforms import test_merge_shared, test_pipeline_mbarriers, test_raster_blocks
from tests.transforms.scripts import parse, run
from tvm_hopper import ir, pipeline
from tvm_hopper.errors import HopperError, LoweringError, VerifyError
from tvm_hopper.plan.ring_plan import plan_ring
from tvm_hopper.transforms import (
    InjectTmaLoad,
    InsertAsyncWaits,
    LayoutShared,
    LowerWgmma,
    MergeShared,
    PipelineMbarriers,
    RasterBlocks,
)

COPY = """
@T.prim_func(private=True, s_tir=True)
def func(A: T.Buffer((64, 128), "float16"), n: T.int32):
    for bx in T.thread_binding(4, thread="blockIdx.x"):
        with T.sblock("kernel"):
            other = T.sblock_alloc_buffer((8, 64), "float16", scope="local")
            tile = T.sblock_alloc_buffer((8, 64), "float16", scope="shared.dyn")
            for i, j in T.grid(8, 64):
                with T.sblock("copy"):
                    T.reads()
                    T.writes()
                    T.sblock_attr({"tvm_hopper.async_copy": "tma"})
                    tile[i, j] = A[bx * 8 + i, j]
"""

PRODUCT = """
@T.prim_func(private=True, s_tir=True)
def func(A: T.Buffer((64, 16), "float16"), C: T.Buffer((64, 8), "float32"), n: T.int32):
    for bx in T.thread_binding(1, thread="blockIdx.x"):
        for ty in T.thread_binding(1, thread="threadIdx.y"):
            with T.sblock(""):
                T.reads()
                T.writes()
                acc = T.sblock_alloc_buffer((64, 8), scope="local")
                a = T.sblock_alloc_buffer((1, 64, 16), "float16", scope="shared.dyn", align=256)
                b = T.sblock_alloc_buffer((1, 8, 16), "float16", scope="shared.dyn", align=256)
                for i, j in T.grid(64, 8):
                    with T.sblock("init"):
                        T.reads()
                        T.writes()
                        acc[i, j] = T.float32(0)
                for p, r, s in T.grid(1, 64, 16):
                    with T.sblock("load_a"):
                        T.reads()
                        T.writes()
                        T.sblock_attr({"tvm_hopper.async_copy": "tma", "tvm_hopper.swizzle": 32})
                        a[p, r, s] = A[r, s]
                for p, r, s in T.grid(1, 8, 16):
                    with T.sblock("load_b"):
                        T.reads()
                        T.writes()
                        T.sblock_attr({"tvm_hopper.async_copy": "tma", "tvm_hopper.swizzle": 32})
                        b[p, r, s] = A[r, s]
                with T.sblock("update"):
                    T.reads()
                    T.writes()
                    T.sblock_attr({"tvm_hopper.wgmma": 1})
                    for i, j, k in T.grid(64, 8, 16):
                        with T.sblock("inner"):
                            T.reads()
                            T.writes()
                            acc[i, j] = acc[i, j] + T.Cast("float32", a[0, i, k]) * T.Cast("float32", b[0, j, k])
                for i, j in T.grid(64, 8):
                    with T.sblock("store"):
                        T.reads()
                        T.writes()
                        C[i, j] = acc[i, j]
"""

SUM = 'acc[i, j] + T.Cast("float32", a[0, i, k]) * T.Cast("float32", b[0, j, k])'
WHERE = r"block update, tvm_hopper\.wgmma: "
RING = test_pipeline_mbarriers.BEFORE
MERGE = test_merge_shared.BEFORE
RASTER = test_raster_blocks.KERNEL


@dataclass(frozen=True)
class Case:
    """A script, what to change in it, the passes that run, and the message."""

    name: str
    script: str
    changes: tuple[tuple[str, str], ...]
    passes: tuple[Any, ...]
    match: str

    def __call__(self) -> None:
        """Lower; raises the refusal."""
        run(parse(self.script, *self.changes), *(make() for make in self.passes))


def case(name, script, passes, match, *changes):
    return Case(name, script, changes, passes, match)


LAYOUT, TMA = (LayoutShared,), (LayoutShared, InjectTmaLoad)

COPIES = [
    case(
        "copy without loops",
        COPY,
        LAYOUT,
        r"block copy: found a copy without loops; need loops over a tile's rows",
        ("for i, j in T.grid(8, 64):", "if n > 0:"),
        ("tile[i, j] = A[bx * 8 + i, j]", "tile[0, 0] = A[0, 0]"),
    ),
    case(
        "no store",
        COPY,
        LAYOUT,
        r"block copy, tvm_hopper.async_copy: found Evaluate; need one store into shared memory",
        ("tile[i, j] = A[bx * 8 + i, j]", 'T.call_extern("int32", "f", A[i, j])'),
    ),
    case(
        "store into registers",
        COPY,
        LAYOUT,
        r"found a store into other in scope 'local'; need a store into shared memory; make the "
        r'block with cache_read\(..., "shared.dyn"\)',
        ("tile[i, j] = A", "other[i, j] = A"),
    ),
    case(
        "predicate on the store",
        COPY,
        LAYOUT,
        r"found a predicate on the store \(i < n\); need a store of the whole tile; pad the block",
        ('T.sblock("copy"):\n', 'T.sblock("copy"):\n                    T.where(i < n)\n'),
    ),
    case(
        "computation in the copy",
        COPY,
        LAYOUT,
        r"found A\[bx \* 8 \+ i, j\] \* T.float16\(2.0\); need a plain load: the hardware copies",
        ("A[bx * 8 + i, j]", "A[bx * 8 + i, j] * T.float16(2)"),
    ),
    case(
        "load from registers",
        COPY,
        LAYOUT,
        r"found a load from other in scope 'local'; need a load from global memory",
        ("A[bx * 8 + i, j]", "other[i, j]"),
    ),
]

TILES = [
    case(
        "swizzle wider than the rows",
        COPY,
        LAYOUT,
        r"copy of A into tile: found rows of 96 elements with a 128 B swizzle; need rows of a "
        r"multiple of 64 elements; choose a tile of 128 or another swizzle",
        ("(8, 64)", "(8, 96)"),
        ('"tma"}', '"tma", "tvm_hopper.swizzle": 128}'),
    ),
    case(
        "two copies into a tile",
        COPY + COPY[COPY.index("            for i, j") :],
        LAYOUT,
        r"copy of A into tile: found a second copy into one tile; need one copy per tile",
    ),
    case(
        "tile of unknown size",
        COPY,
        LAYOUT,
        r"copy of A into tile: found a tile of shape \[n, 64\]; need a static shape",
        ("tile = T.sblock_alloc_buffer((8, 64)", "tile = T.sblock_alloc_buffer((n, 64)"),
    ),
    case(
        "tile of three dimensions",
        COPY,
        LAYOUT,
        r"found a tile of shape \[2, 8, 64\]; need a tile of two dimensions",
        ("tile = T.sblock_alloc_buffer((8, 64)", "tile = T.sblock_alloc_buffer((2, 8, 64)"),
        ("tile[i, j]", "tile[0, i, j]"),
    ),
    case(
        "loops that do not cover the tile",
        COPY,
        LAYOUT,
        r"found loops \['i<8', 'j<32'\] that store at \[i, j\]; need one loop over the rows and "
        r"one over the columns of the whole tile; leave the copy's loops as compute_at made them",
        ("T.grid(8, 64)", "T.grid(8, 32)"),
    ),
    case(
        "rows shorter than 16 bytes",
        COPY,
        LAYOUT,
        r"copy of A into tile: found rows of 8 B; need rows of a multiple of 16 B; choose another",
        ("(8, 64)", "(8, 4)"),
    ),
]

LOADS = [
    case(
        "row stride, with the padding that helps",
        COPY,
        TMA,
        r"copy of A into tile: found stride 1 of 200 bytes; need a multiple of 16 bytes; "
        r"pad its last dimension from 100 to 104",
        ("(64, 128)", "(64, 100)"),
    ),
    case(
        "several rules at once",
        COPY,
        TMA,
        r"found dimension 1 of 0 and stride 1 of 200 bytes; need 1 to 4294967296 and a multiple",
        ("(64, 128)", "(0, 100)"),
    ),
    case(
        "empty tensor",
        COPY,
        TMA,
        r"found dimension 1 of 0; need 1 to 4294967296; copy the tensor into one of another shape",
        ("(64, 128)", "(0, 128)"),
    ),
    case(
        "rank",
        COPY,
        TMA,
        r"found rank 6; need 1 to 5",
        ("(64, 128)", "(1, 1, 1, 1, 64, 128)"),
        ("A[bx", "A[0, 0, 0, 0, bx"),
    ),
    case(
        "type without a tensor map",
        COPY,
        TMA,
        r"found type int16; need one of uint8, int8, .*, bfloat16",
        ('"float16"', '"int16"'),
    ),
    case(
        "strided tensor",
        COPY,
        TMA,
        r"copy of A into tile: found strides \[256, 1\]; need a compact tensor; copy it, or",
        ("func(A: ", "func(a: T.handle, X: "),
        (
            "    for bx",
            '    A = T.match_buffer(a, (64, 128), "float16", strides=[256, 1])\n    for bx',
        ),
    ),
    case(
        "transposed tile",
        COPY,
        TMA,
        r"found index \[.*\]; need rows along one dimension of A, columns along its last, each "
        r"with step 1; cache_read the tensor with its last dimension as the tile's last",
        ("A[bx * 8 + i, j]", "A[j, bx * 8 + i]"),
    ),
    case(
        "every second row",
        COPY,
        TMA,
        r"found index \[bx \* 8 \+ r \* 2, .*\]; need rows along one dimension of A",
        ("A[bx * 8 + i, j]", "A[bx * 8 + i * 2, j]"),
    ),
    case(
        "symbolic row stride",
        COPY,
        TMA,
        r"copy of A into tile: found a symbolic dimension m, so rows at multiples of 2 bytes; need "
        r"rows at multiples of 16 bytes; make every dimension but the first static",
        ("func(A: ", "func(a: T.handle, X: "),
        (
            "    for bx",
            '    m = T.int32()\n    A = T.match_buffer(a, (64, m), "float16")\n    for bx',
        ),
    ),
    case(
        "fill",
        COPY,
        TMA,
        r"copy of A into tile: found a fill of T.float16\(.-inf.\) out of bounds; need a fill of 0",
        ("A[bx * 8 + i, j]", 'T.if_then_else(i < 60, A[bx * 8 + i, j], T.float16("-inf"))'),
    ),
    case(
        "another predicate",
        COPY,
        TMA,
        r"found the predicate r <= bx; need exactly the bounds of A\[64, 128\], by which the "
        r"hardware fills; apply any other predicate where the tile is used",
        ("A[bx * 8 + i, j]", "T.if_then_else(i <= bx, A[bx * 8 + i, j], T.float16(0))"),
    ),
    case(
        "bounds of a part of the tensor",
        COPY,
        TMA,
        r"found the predicate bx \* 8 \+ r < 60; need exactly the bounds of A\[64, 128\]",
        ("A[bx * 8 + i, j]", "T.if_then_else(bx * 8 + i < 60, A[bx * 8 + i, j], T.float16(0))"),
    ),
]

UPDATE = 'with T.sblock("update"):\n'
INNER = 'with T.sblock("inner"):\n'
BLOCK = PRODUCT[
    PRODUCT.index('                with T.sblock("update")') : PRODUCT.index(
        '                for i, j in T.grid(64, 8):\n                    with T.sblock("store")'
    )
]


def product(name, match, *changes):
    return case(name, PRODUCT, (LowerWgmma,), match, *changes)


PRODUCTS = [
    product(
        "predicate on the block",
        WHERE + r"found a predicate \(n < 3\); need whole tiles; pad the block",
        (UPDATE, UPDATE + "                    T.where(n < 3)\n"),
    ),
    product(
        "predicate inside",
        WHERE + r"found a predicate \(i < n\); need whole tiles; pad the block",
        (INNER, INNER + "                            T.where(i < n)\n"),
    ),
    product(
        "multiplication without a store",
        WHERE
        + r"found Evaluate; need C\[i, j\] = C\[i, j\] \+ A\[i, k\] \* B\[j, k\] in loops over "
        r"i, j and k; blockize the loops of the update alone",
        (f"acc[i, j] = {SUM}", 'T.call_extern("int32", "f", i, j, k)'),
    ),
    product(
        "no sum",
        WHERE + r"found T.Cast\(.*\) \* .*; need C\[i, j\] = C",
        (SUM, SUM.removeprefix("acc[i, j] + ")),
    ),
    product(
        "sum onto another element",
        WHERE + r"found acc\[i, 0\] \+ .*; need C\[i, j\] = C",
        (SUM, SUM.replace("acc[i, j]", "acc[i, 0]")),
    ),
    product(
        "computed operand",
        WHERE + r'found the operand T.Cast\("float32", a\[0, i, k\]\) \+ T.float32\(1.0\); need '
        r"operands loaded as they are; compute it into a buffer of its own first",
        ('T.Cast("float32", a[0, i, k]) *', '(T.Cast("float32", a[0, i, k]) + T.float32(1)) *'),
    ),
    product(
        "no reduction",
        WHERE + r"found .* in loops over \['i', 'j', 'k'\]; need C\[i, j\] = C",
        ("b[0, j, k]", "b[0, j, 0]"),
    ),
    product(
        "two multiplications",
        r"blocks update, update: found 2 tvm_hopper.wgmma blocks; need one per kernel",
        (BLOCK, BLOCK + BLOCK),
    ),
    product(
        "rows",
        WHERE + r"found 32 rows per warp group; need a multiple of 64 rows; choose another tile",
        ("(64, 8)", "(32, 8)"),
        ("T.grid(64, 8, 16)", "T.grid(32, 8, 16)"),
    ),
    product(
        "columns",
        WHERE + r"found 4 columns per warp group; need a multiple of 8 columns",
        ("(64, 8)", "(64, 4)"),
        ("T.grid(64, 8, 16)", "T.grid(64, 4, 16)"),
    ),
    product(
        "depth",
        WHERE + r"found a depth of 8; need a multiple of 16",
        ("T.grid(64, 8, 16)", "T.grid(64, 8, 8)"),
    ),
    product(
        "registers",
        WHERE + r"found an accumulator of 64x512: 256 registers a thread; need at most 231 of 255, "
        r"the rest being needed for addresses; choose a smaller tile or more consumers",
        ("64, 8", "64, 512"),
        ("1, 8, 16", "1, 512, 16"),
    ),
    product(
        "operands of two types",
        WHERE + r"found operands of types \['bfloat16', 'float16'\]; need operands of one type",
        (
            'b = T.sblock_alloc_buffer((1, 8, 16), "float16"',
            'b = T.sblock_alloc_buffer((1, 8, 16), "bfloat16"',
        ),
        ("b[p, r, s] = A[r, s]", "b[p, r, s] = B[r, s]"),
        ("def func(", 'def func(B: T.Buffer((8, 16), "bfloat16"), '),
    ),
    product(
        "operands in float32",
        WHERE.removesuffix(": ") + r", operand a: found type float32; need float16 or bfloat16",
        ('"float16"', '"float32"'),
    ),
    product(
        "operand that no copy fills",
        WHERE.removesuffix(": ") + r", operand a: found a tile in scope 'shared.dyn' that no "
        r"async_copy fills; need shared memory filled by an asynchronous copy; cache_read the",
        ("a[p, r, s] = A[r, s]", "b[p, r, s] = A[r, s]"),
    ),
    product(
        "operand with two loops in one dimension",
        WHERE.removesuffix(": ") + r", operand a: found index \[0, i, i \+ k\]; need i and k each "
        r"alone in one dimension",
        ("a[0, i, k]", "a[0, i, i + k]"),
    ),
    product(
        "tile that WGMMA cannot read",
        WHERE.removesuffix(": ") + r", operand b: found K-major 12x16 float16 tile with a 32 B "
        r"swizzle: found 12x16; need multiples of 8 and 16; need a tile that WGMMA can read",
        ("1, 8, 16", "1, 12, 16"),
    ),
    product(
        "threads bound by the schedule",
        WHERE + r"found loop ty bound to threadIdx.x; need threadIdx.y alone \(one step a warp "
        r"group\): threads are dealt out by the lowering",
        ("threadIdx.y", "threadIdx.x"),
    ),
    product(
        "number of warp groups unknown",
        WHERE + r"found a symbolic extent of threadIdx.y; need a static one",
        ('T.thread_binding(1, thread="threadIdx.y")', 'T.thread_binding(n, thread="threadIdx.y")'),
    ),
    product(
        "accumulator in float16",
        WHERE + r'found an accumulator of type float16; need float32; pass accumulate="float32" '
        r"\(annotation tvm_hopper.accumulate\) to sum in float32 registers",
        (
            "acc = T.sblock_alloc_buffer((64, 8), scope",
            'acc = T.sblock_alloc_buffer((64, 8), "float16", scope',
        ),
        (SUM, "acc[i, j] + a[0, i, k] * b[0, j, k]"),
        ("T.float32(0)", "T.float16(0)"),
        ('C: T.Buffer((64, 8), "float32")', 'C: T.Buffer((64, 8), "float16")'),
    ),
    product(
        "depth unknown",
        WHERE + r"found loop k over \[0, \+n\); need static loops from 0",
        ("T.grid(64, 8, 16)", "T.grid(64, 8, n)"),
    ),
    product(
        "accumulator in shared memory",
        WHERE + r"found an accumulator in scope 'shared'; need registers; cache_write\(block, 0,",
        ('scope="local"', 'scope="shared"'),
    ),
    product(
        "accumulator larger than the tile",
        WHERE + r"found an accumulator acc\[128, 8\] written at \[i, j\]; need one of exactly the "
        r"block's 64x8 elements; compute the cache_write at the loop of the warp group and",
        ("acc = T.sblock_alloc_buffer((64, 8)", "acc = T.sblock_alloc_buffer((128, 8)"),
    ),
    product(
        "epilogue with loops of its own",
        r"block store: found loops \['i<64', 'j<4'\] over accumulator elements .*; need one loop "
        r"over 64 rows and one over 8 columns, element by element; leave the loops of the fill",
        (
            'T.grid(64, 8):\n                    with T.sblock("store")',
            'T.grid(64, 4):\n                    with T.sblock("store")',
        ),
    ),
    product(
        "accumulator used outside of loops",
        r"block store: found an access of accumulator acc outside of loops over its elements; need "
        r"loops over its rows and columns",
        (
            'for i, j in T.grid(64, 8):\n                    with T.sblock("store")',
            'if n > 0:\n                    with T.sblock("store")',
        ),
        ("C[i, j] = acc[i, j]", "C[0, 0] = acc[0, 0]"),
    ),
]

ANNOTATIONS = RING[RING.index('"software_pipeline_stage"') : RING.index("                    },\n")]
K_LOOP = RING[
    RING.index("                for k in T.serial(") : RING.index(
        '                with T.sblock("store")'
    )
]
LOAD_B = RING[
    RING.index('                        with T.sblock("load_b")') : RING.index(
        '                        with T.sblock("mma")'
    )
]


def ring(name, match, *changes):
    return case(name, RING, (PipelineMbarriers,), match, *changes)


RINGS = [
    ring(
        "more pending groups than slots",
        r"loop k: found tvm_hopper.wgmma_pending = 1 with 1 stages; need at most 0: a slot is "
        r"released 1 iterations late, and the producer would wait for it for ever; take more",
        ("[0, 0, 1]", "[0, 0, 0]"),
        test_pipeline_mbarriers.ASK_PENDING,
    ),
    ring(
        "registers that the chip has not",
        r"loop k, tvm_hopper.registers: found 40 \+ 2 x 240 = 520 registers; need at most 3 x 168 "
        r"= 504, or a consumer waits for ever; need a legal split",
        (ANNOTATIONS, ANNOTATIONS + '"tvm_hopper.registers": [40, 240],\n'),
    ),
    ring(
        "more bytes than an mbarrier counts",
        r"loop k: found \d+ bytes a stage; need at most 1048575, what an mbarrier can count",
        ("(2, 64, 64)", "(2, 8192, 64)"),
    ),
    ring(
        "shared memory, itemised",
        r"loop k: found a 20 x 16384 \+ b 20 x 2048 \+ barriers 320 = 368960 bytes of shared memory;"
        r" need at most 232448; take 12 stages",
        ("[0, 0, 1]", "[0, 0, 19]"),
    ),
    ring(
        "a tile that fits not once",
        r"need at most 232448; choose a smaller tile",
        ("(2, 64, 64)", "(2, 1024, 64)"),
    ),
    ring(
        "copies without a multiplication",
        r"copies load_a, load_b: found no multiplication by warp groups that would read them; need "
        r"a tvm_hopper.wgmma block in the same kernel",
        ('for tx in T.thread_binding(256, thread="threadIdx.x")', "for tx in range(256)"),
    ),
    ring(
        "copies outside of the loop",
        r"copies load_a, load_b, load_a, load_b: found 2 statements that hold them; need one loop "
        r"over k around all copies and the multiplication; compute_at the copies at the k loop",
        (K_LOOP, K_LOOP + K_LOOP),
    ),
    ring(
        "unrolled loop",
        r"loop k: found a loop of kind unrolled from 0; need a serial loop from 0",
        ("for k in T.serial(", "for k in T.unroll("),
    ),
    ring(
        "loop without the block of its tiles",
        r"loop k: found SeqStmt; need one block with the copies' tiles",
        (
            '                    with T.sblock(""):\n                        T.reads()\n                        T.writes()\n                        a =',
            '                    T.call_extern("int32", "f")\n                    with T.sblock(""):\n                        T.reads()\n                        T.writes()\n                        a =',
        ),
    ),
    ring(
        "another statement in the loop",
        r"loop k: found statement other, neither an asynchronous copy nor a multiplication; need "
        r"copies and multiplications alone in a pipelined loop; annotate the copy with async_copy",
        (
            LOAD_B,
            LOAD_B.replace("load_b", "other").replace(
                'T.sblock_attr({"tvm_hopper.async_op": "tma_load"})', "T.evaluate(0)"
            ),
        ),
    ),
    ring(
        "number of consumers",
        r"loop k, tvm_hopper.consumers: found 3 with 2 warp groups on threadIdx.y; need the same "
        r"number; split the tile by the number of consumers and bind that loop",
        (ANNOTATIONS, ANNOTATIONS + '"tvm_hopper.consumers": 3,\n'),
    ),
    ring(
        "too many consumers",
        r"loop k: found 4 consumer warp groups; need 1, 2 or 3",
        ("T.thread_binding(256", "T.thread_binding(512"),
    ),
    ring(
        "order without stages",
        r"loop k: found software_pipeline_order without software_pipeline_stage; need both",
        ('"software_pipeline_stage": [0, 0, 1],', ""),
    ),
    ring(
        "stage for each statement",
        r"loop k: found software_pipeline_stage = \[0, 1\] and software_pipeline_order = "
        r"\[0, 1, 2\]; need one entry for each of the 3 statements \['load_a', 'load_b', 'mma'\]",
        ("[0, 0, 1]", "[0, 1]"),
    ),
    ring(
        "copies in different stages",
        r"loop k: found software_pipeline_stage = \[0, 1, 2\]; need one stage for all copies and "
        r"one, not earlier, for what reads them; e.g. \[0, 0, 3\] for a ring of four slots",
        ("[0, 0, 1]", "[0, 1, 2]"),
    ),
    ring(
        "multiplication before its copies",
        r"loop k: found software_pipeline_stage = \[1, 1, 0\]; need one stage for all copies",
        ("[0, 0, 1]", "[1, 1, 0]"),
    ),
    ring(
        "copies that are not asynchronous",
        r"loop k: found software_pipeline_async_stages = \[\]; need stage 0, where the asynchronous "
        r"copies are, in it",
        ('async_stages": [0]', 'async_stages": []'),
    ),
    case(
        "multiplication without a pipelined loop",
        RING,
        (InsertAsyncWaits,),
        r"blocks \['mma'\]: found asynchronous operations outside of a warp group's role; need a "
        r"pipelined loop with asynchronous copies around them",
        ('"tvm_hopper.async_op": "tma_load"', '"other": 1'),
    ),
]

REST = [
    case(
        "shared memory of a whole kernel",
        MERGE,
        (MergeShared,),
        r"shared memory: found ring 400000 \+ rest 12 \+ full 16 = 400032 bytes with alignment; need "
        r"at most 232448; take fewer stages or a smaller tile",
        ("(48,)", "(200000,)"),
    ),
    case(
        "shared buffer of unknown size",
        MERGE,
        (MergeShared,),
        r"shared buffer ring: found shape \[n\]; need a static shape",
        ("(48,)", "(n,)"),
        ("def func(", "def func(n: T.int32, "),
    ),
    case(
        "raster group of no rows",
        RASTER,
        (RasterBlocks,),
        r"loop bx, tvm_hopper.raster_group: found 0; need at least one row of tiles",
        test_raster_blocks.noted(raster_group=0),
    ),
    case(
        "persistent kernel of no blocks",
        RASTER,
        (RasterBlocks,),
        r"loop bx, tvm_hopper.persistent: found 0; need at least one thread block",
        test_raster_blocks.noted(persistent=0),
    ),
    case(
        "raster order without rows",
        RASTER,
        (RasterBlocks,),
        r"loop bx, tvm_hopper.raster_group: found no loop bound to blockIdx.y; need rows of output "
        r"tiles on blockIdx.y and columns on blockIdx.x, around a pipelined loop",
        test_raster_blocks.noted(raster_group=2),
        ("blockIdx.y", "blockIdx.z"),
    ),
    case(
        "raster order of a kernel without a pipelined loop",
        RASTER,
        (RasterBlocks,),
        r"loop bx, tvm_hopper.raster_group: found a kernel without a pipelined loop; need rows",
        test_raster_blocks.noted(raster_group=2),
        ('"kernel"', '"other"'),
    ),
]

CASES = COPIES + TILES + LOADS + PRODUCTS + RINGS + REST


@functools.cache
def refusal(one: Case) -> LoweringError:
    """Return the error that a case ends with."""
    with pytest.raises(LoweringError) as caught:
        one()
    return caught.value


@pytest.mark.parametrize("one", CASES, ids=lambda one: one.name)
def test_refused(one):
    assert re.search(one.match, str(refusal(one)))


def test_names_of_cases_are_unique():
    assert len({one.name for one in CASES}) == len(CASES)


# -- places that no script reaches through a pass


def test_a_ring_needs_a_slot():
    (plan,) = plan_ring(ir.kernels(parse(RING))[0])
    with pytest.raises(LoweringError, match="loop k: found 0 stages; need at least 1"):
        replace(plan, stages=0)


def test_transforms_is_no_package_of_its_own():
    path = Path(tvm_hopper.__file__).parents[1] / "transforms" / "__init__.py"
    spec = importlib.util.spec_from_file_location("transforms", path)
    with pytest.raises(ImportError, match=r"a part of tvm_hopper: import tvm_hopper\.transforms"):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


def test_lower_names_the_passes_that_it_knows():
    with pytest.raises(ValueError, match=r"found no pass named 'X'; need one of .*LowerWgmma"):
        pipeline.lower(parse(PRODUCT), "nvidia/nvidia-h200", until="X")


def test_lower_needs_a_target():
    with pytest.raises(ValueError, match="found no target; need one as argument or a `with target"):
        pipeline.lower(parse(PRODUCT))


def test_another_tvm_is_named(monkeypatch):
    monkeypatch.setattr(pipeline, "HOOK", "s_tir.Gone")
    need = r"without s_tir.Gone or .*; need the pipeline of apache-tvm 0\.27\.0\.post1; pip install"
    with pytest.raises(HopperError, match=need):
        pipeline.stock_passes()


def test_a_pass_that_breaks_the_ir_is_named():
    free = tirx.PrimFunc([], tirx.Evaluate(tirx.Var("x", "int32")))
    with pytest.raises(VerifyError, match="main after SomePass: found IR that is not well formed"):
        pipeline._verify(tvm.IRModule({"main": free}), after="SomePass")


# -- every raise is reached

FOLDERS = ("transforms", "tvm_hopper/plan", "tvm_hopper/analysis")


@dataclass(frozen=True)
class Raise:
    """A `raise` statement of the sources."""

    file: str
    first: int
    last: int
    source: str

    def holds(self, frame: traceback.FrameSummary) -> bool:
        """Tell whether a stack frame stands in the statement."""
        return Path(frame.filename).name == self.file and self.first <= frame.lineno <= self.last


def raise_statements() -> list[Raise]:
    """Return all `raise` statements of the passes."""
    root = Path(tvm_hopper.__file__).parents[1]
    paths = sorted(path for folder in FOLDERS for path in (root / folder).glob("*.py"))
    return [
        Raise(path.name, node.lineno, node.end_lineno, ast.unparse(node))
        for path in paths
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Raise)
    ]


# no script gets there: tested by name above
ELSEWHERE = ("a part of tvm_hopper", "at least 1')")


def test_every_raise_of_the_passes_is_reached():
    frames = [f for one in CASES for f in traceback.extract_tb(refusal(one).__traceback__)]
    missed = [
        one
        for one in raise_statements()
        if not any(map(one.holds, frames)) and not any(text in one.source for text in ELSEWHERE)
    ]
    assert not missed
