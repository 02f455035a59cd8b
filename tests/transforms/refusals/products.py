"""What LowerWgmma refuses."""

from tests.transforms.refusals.case import case
from tvm_hopper.transforms import LowerWgmma

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
                            acc[i, j] = SUM
                for i, j in T.grid(64, 8):
                    with T.sblock("store"):
                        T.reads()
                        T.writes()
                        C[i, j] = acc[i, j]
"""

SUM = 'acc[i, j] + T.Cast("float32", a[0, i, k]) * T.Cast("float32", b[0, j, k])'
PRODUCT = PRODUCT.replace("SUM", SUM)
WHERE = r"block update, tvm_hopper\.wgmma: "
UPDATE = 'with T.sblock("update"):\n'
INNER = 'with T.sblock("inner"):\n'
BLOCK = PRODUCT[
    PRODUCT.index('                with T.sblock("update")') : PRODUCT.index(
        '                for i, j in T.grid(64, 8):\n                    with T.sblock("store")'
    )
]


ACCUMULATOR = '                acc = T.sblock_alloc_buffer((64, 8), scope="local")\n'
OTHER = """
                for i in range(64):
                    with T.sblock("other"):
                        T.reads()
                        T.writes()
                        C[i, 0] = T.float32(1)
"""


STAGING = """                half = T.sblock_alloc_buffer((64, 8), scope="shared.dyn")
"""
COPY_OUT = """                for i, j in T.grid(64, 8):
                    with T.sblock("copy_out"):
                        T.reads()
                        T.writes()
                        T.sblock_attr({"tvm_hopper.async_copy": "tma"})
                        C[i, j] = half[i, j]
"""
FILL_AGAIN = """                for i, j in T.grid(64, 8):
                    with T.sblock("again"):
                        T.reads()
                        T.writes()
                        half[i, j] = acc[i, j]
"""
STORE = "                        C[i, j] = acc[i, j]\n"
STAGED = (
    (ACCUMULATOR, ACCUMULATOR + STAGING),
    (STORE, STORE.replace("C[", "half[") + COPY_OUT),
)


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
        r"operands loaded as they are; compute it into a separate buffer first",
        ('T.Cast("float32", a[0, i, k]) *', '(T.Cast("float32", a[0, i, k]) + T.float32(1)) *'),
    ),
    product(
        "operand cast to a narrower type first",
        WHERE + r"found operand a cast to bfloat16, which can change its value; need casts to "
        r"float32 or float64 alone; compute it into a separate buffer first",
        ('T.Cast("float32", a[0, i, k])', 'T.Cast("float32", T.Cast("bfloat16", a[0, i, k]))'),
    ),
    product(
        "product cast to a narrower type",
        WHERE + r"found the product .* cast to float16, which can change its value; need casts",
        (
            SUM,
            f'acc[i, j] + T.Cast("float32", T.Cast("float16", {SUM.removeprefix("acc[i, j] + ")}))',
        ),
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
        WHERE + r"found an accumulator of 64x512: 256 registers a thread; need at most 229 of the "
        r"consumer's 256, the rest being needed for addresses; choose a smaller tile, more cons",
        ("64, 8", "64, 512"),
        ("1, 8, 16", "1, 512, 16"),
    ),
    product(
        "operands of two types",
        WHERE
        + r"found operands of types \['bfloat16', 'float16'\]; need operands of one type, two",
        (
            'b = T.sblock_alloc_buffer((1, 8, 16), "float16"',
            'b = T.sblock_alloc_buffer((1, 8, 16), "bfloat16"',
        ),
        ("b[p, r, s] = A[r, s]", "b[p, r, s] = B[r, s]"),
        ("def func(", 'def func(B: T.Buffer((8, 16), "bfloat16"), '),
    ),
    product(
        "operands in float32",
        WHERE.removesuffix(": ") + r", operand a: found type float32; need a type that WGMMA "
        r"multiplies as it is; pass operands=\"tf32\" \(annotation tvm_hopper.operands\)",
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
        "start inside an atom of eight rows",
        WHERE.removesuffix(": ")
        + r", operand a: found a start at i = 4 with a 32 B swizzle; need a "
        r"multiple of 8 elements, where an instruction can start; request a narrower swizzle, or",
        ("a[0, i, k]", "a[0, i + 4, k]"),
    ),
    product(
        "start inside an instruction's depth",
        WHERE.removesuffix(": ")
        + r", operand b: found a start at k = 8 with a 32 B swizzle; need a "
        r"multiple of 16 elements",
        ("b[0, j, k]", "b[0, j, k + 8]"),
    ),
    product(
        "threads bound by the schedule",
        WHERE + r"found loop ty bound to threadIdx.x; need threadIdx.y alone \(one step a warp "
        r"group\): the lowering distributes the threads",
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
    product(
        "accumulator allocated outside of the kernel",
        WHERE + r"found accumulator acc allocated outside of the kernel; need registers of a warp "
        r"group; reverse_compute_at the cache_write at the loop of the warp group",
        (ACCUMULATOR, ""),
        ("    for bx in", '    acc = T.sblock_alloc_buffer((64, 8), scope="local")\n    for bx in'),
    ),
    product(
        "accumulator stored into shared memory",
        r"block store: found a store of accumulator elements into half in scope 'shared'; need a "
        r"store into global memory; inline what follows into the store",
        (ACCUMULATOR, ACCUMULATOR + ACCUMULATOR.replace("acc", "half").replace("local", "shared")),
        ("C[i, j] = acc[i, j]", "half[i, j] = acc[i, j]"),
    ),
    product(
        "accumulator stored into a tile that nothing empties",
        r"block store: found a store of accumulator elements into half in scope 'shared.dyn', "
        r"which no asynchronous copy stores; need a store into global memory, or into a tile that "
        r"this block alone fills and that async_store empties; inline what follows into the store",
        (ACCUMULATOR, ACCUMULATOR + STAGING),
        ("C[i, j] = acc[i, j]", "half[i, j] = acc[i, j]"),
    ),
    product(
        "accumulator stored into a tile that others fill too",
        r"block store: found a store of accumulator elements into half in scope 'shared.dyn', "
        r"which other statements fill too; need a store into global memory, or into a tile that",
        *STAGED,
        (COPY_OUT, COPY_OUT + FILL_AGAIN),
    ),
    product(
        "epilogue that reads the tile it fills",
        r"block store: found a read of half, which it fills; need values of the accumulator and "
        r"of tensors in global memory; let the threads that hold the accumulator update a tensor",
        *STAGED,
        ("half[i, j] = acc[i, j]", "half[i, j] = half[i, j] + acc[i, j]"),
    ),
    product(
        "part of the accumulator that a thread counts",
        r"block store: found a part of the accumulator from \[v \* 64, 0\], counted by loop v of "
        r"kind vectorized over 1; need a serial loop of known length",
        *STAGED,
        (
            "                for i, j in T.grid(64, 8):\n"
            '                    with T.sblock("store"):\n'
            "                        T.reads()\n                        T.writes()\n"
            "                        half[i, j] = acc[i, j]\n",
            "                for v in T.vectorized(1):\n"
            "                    for i, j in T.grid(64, 8):\n"
            '                        with T.sblock("store"):\n'
            "                            T.reads()\n                            T.writes()\n"
            "                            half[i, j] = acc[v * 64 + i, j]\n",
        ),
    ),
    product(
        "other work in the kernel",
        r"block other: found a statement next to the k loop that is no fill or store of the "
        r"accumulator; need the accumulator's fill, the k loop and stores of its elements; inline",
        (BLOCK, BLOCK + OTHER),
    ),
    product(
        "sum of columns in the epilogue",
        r"block store: found a store into C\[i, 0\], in which several elements of the product can "
        r"meet; need one element of the output for each of the accumulator's, in all tiles; index",
        ("C[i, j] = acc[i, j]", "C[i, 0] = acc[i, j]"),
    ),
    *(
        product(
            f"epilogue that stores at {index}",
            rf"block store: found a store into C\[{pattern}\], in which several elements",
            ("C[i, j] = acc[i, j]", f"C[{index}] = acc[i, j]"),
        )
        for index, pattern in (
            ("i // 2, j", r"i // 2, j"),
            ("i % 32, j", r"i % 32, j"),
            ("i + j, 0", r"i \+ j, 0"),
            ("T.min(i, 60), j", r"T.min\(i, 60\), j"),
        )
    ),
    product(
        "tiles that store into each other",
        r"block store: found a store into C\[i, j\], in which several elements .* in all tiles; ",
        ("T.thread_binding(1, thread", "T.thread_binding(2, thread"),
    ),
    product(
        "epilogue that reads its neighbours' results",
        r"block store: found a read of other elements of C than the one it stores; need one",
        ("C[i, j] = acc[i, j]", "C[i, j] = acc[i, j] + C[0, j]"),
    ),
]
