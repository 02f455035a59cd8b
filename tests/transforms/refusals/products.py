"""What LowerWgmma refuses."""

from tests.transforms.refusals.case import case, rows
from tests.transforms.scripts import deeper, nest
from tvm_hopper.transforms import LowerWgmma

PRODUCT = """
def func(A: T.Buffer((64, 16), "float16"), C: T.Buffer((64, 8), "float32"), n: T.int32):
    for bx in T.thread_binding(1, thread="blockIdx.x"):
        for ty in T.thread_binding(1, thread="threadIdx.y"):
            with T.sblock("", reads=[], writes=[]):
                acc = T.sblock_alloc_buffer((64, 8), scope="local")
                a = T.sblock_alloc_buffer((1, 64, 16), "float16", scope="shared.dyn", align=256)
                b = T.sblock_alloc_buffer((1, 8, 16), "float16", scope="shared.dyn", align=256)
                for i, j in T.grid(64, 8):
                    with T.sblock("init", reads=[], writes=[]):
                        acc[i, j] = T.float32(0)
                for p, r, s in T.grid(1, 64, 16):
                    with T.sblock("load_a", reads=[], writes=[], async_copy="tma", swizzle=32):
                        a[p, r, s] = A[r, s]
                for p, r, s in T.grid(1, 8, 16):
                    with T.sblock("load_b", reads=[], writes=[], async_copy="tma", swizzle=32):
                        b[p, r, s] = A[r, s]
                with T.sblock("update", reads=[], writes=[], wgmma=1):
                    for i, j, k in T.grid(64, 8, 16):
                        with T.sblock("inner", reads=[], writes=[]):
                            acc[i, j] = SUM
                for i, j in T.grid(64, 8):
                    with T.sblock("store", reads=[], writes=[]):
                        C[i, j] = acc[i, j]
"""

SUM = 'acc[i, j] + T.Cast("float32", a[0, i, k]) * T.Cast("float32", b[0, j, k])'
PRODUCT = PRODUCT.replace("SUM", SUM)
WHERE = r"block update, tvm_hopper\.wgmma: "
BLOCK = nest(PRODUCT, '"update"')
ACCUMULATOR = '                acc = T.sblock_alloc_buffer((64, 8), scope="local")\n'
OTHER = """
                for i in range(64):
                    with T.sblock("other", reads=[], writes=[]):
                        C[i, 0] = T.float32(1)
"""


STAGING = """                half = T.sblock_alloc_buffer((64, 8), scope="shared.dyn")
"""
COPY_OUT = """                for i, j in T.grid(64, 8):
                    with T.sblock("copy_out", reads=[], writes=[], async_copy="tma"):
                        C[i, j] = half[i, j]
"""
FILL_AGAIN = """                for i, j in T.grid(64, 8):
                    with T.sblock("again", reads=[], writes=[]):
                        half[i, j] = acc[i, j]
"""
STORE = "                        C[i, j] = acc[i, j]\n"
STORES = "                for i, j in T.grid(64, 8):\n" + nest(PRODUCT, '"store"')
STAGED = (
    (ACCUMULATOR, ACCUMULATOR + STAGING),
    (STORE, STORE.replace("C[", "half[") + COPY_OUT),
)


# the left operand is computed at each step, from a narrower tile and a value of its row
IN_REGISTERS = (
    ("def func(", 'def func(W: T.Buffer((64, 16), "int8"), S: T.Buffer((64,), "float16"), '),
    (ACCUMULATOR, ACCUMULATOR + ACCUMULATOR.replace("acc", "f").replace("8)", '16), "float16"')),
    (
        'a = T.sblock_alloc_buffer((1, 64, 16), "float16"',
        'a = T.sblock_alloc_buffer((1, 64, 16), "int8"',
    ),
    (
        "swizzle=32):\n                        a[p, r, s] = A[r, s]",
        "swizzle=0):\n                        a[p, r, s] = W[r, s]",
    ),
    (
        BLOCK,
        """                for p in range(4):
                    for i, k in T.grid(64, 16):
                        with T.sblock("convert", reads=[], writes=[]):
                            f[i, k] = T.Cast("float16", a[0, i, k]) * S[i]
"""
        + deeper(BLOCK.replace("a[0, i, k]", "f[i, k]")),
    ),
)


def product(name, match, *changes):
    return case(name, PRODUCT, (LowerWgmma,), match, *changes)


def two_products(name, match, *changes, sides="(64, 8)", tile="(1, 8, 16)"):
    """Add a product into an accumulator of other sides, whose right operand is another tile."""
    more = ACCUMULATOR.replace("acc", "other").replace("(64, 8)", sides)
    more += f"""                c = T.sblock_alloc_buffer({tile}, "float16", scope="shared.dyn")
                for p, r, s in T.grid{tile}:
                    with T.sblock("load_c", reads=[], writes=[], async_copy="tma", swizzle=32):
                        c[p, r, s] = A[r, s]
"""
    second = BLOCK.replace("acc", "other").replace("b[0, j, k]", "c[0, j, k]")
    second = second.replace("T.grid(64, 8, 16)", f"T.grid{sides[:-1]}, 16)")
    return product(
        name, match, (ACCUMULATOR, ACCUMULATOR + more), (BLOCK, BLOCK + second), *changes
    )


ROWS = ACCUMULATOR.replace("acc", "row").replace("(64, 8)", "(64,), TYPE")
FLOAT_ROWS = ROWS.replace("TYPE", '"float32"')
REVERSED = """                for i in range(64):
                    with T.sblock("more", reads=[], writes=[]):
                        row[63 - i] = T.Cast("float32", i)"""


ROW_STORE = """                for i in range(64):
                    with T.sblock("more", reads=[], writes=[]):
                        C[i, 0] = VALUE
"""


def row_sums(name, match, statement, dtype="float32"):
    declared = ROWS.replace("TYPE", f'"{dtype}"')
    changes = (ACCUMULATOR, ACCUMULATOR + declared), ("C[i, j] = acc[i, j]", statement)
    return product(name, match, *changes)


PRODUCTS = [
    *rows(product)("""
predicate on the block
    "update" => "update", where=n < 3
    block update, tvm_hopper.wgmma: found a predicate (n < 3); need whole tiles; pad the block
predicate inside
    "inner" => "inner", where=i < n
    block update, tvm_hopper.wgmma: found a predicate (i < n); need whole tiles; pad the block
    """),
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
    *rows(product)("""
computed operand
    T.Cast("float32", a[0, i, k]) * => (T.Cast("float32", a[0, i, k]) + T.float32(1)) *
    block update, tvm_hopper.wgmma: found the operand T.Cast("float32", a[0, i, k]) +
    T.float32(1.0); need operands loaded as they are; compute it into a separate buffer first
operand cast to a narrower type first
    T.Cast("float32", a[0, i, k]) => T.Cast("float32", T.Cast("bfloat16", a[0, i, k]))
    block update, tvm_hopper.wgmma: found operand a cast to bfloat16, which can change its value;
    need casts to float32 or float64 alone, of integers to int32 or int64; compute it into a
    separate buffer first
    """),
    product(
        "product cast to a narrower type",
        WHERE + r"found the product .* cast to float16, which can change its value; need casts",
        (
            SUM,
            f'acc[i, j] + T.Cast("float32", T.Cast("float16", {SUM.removeprefix("acc[i, j] + ")}))',
        ),
    ),
    *rows(product)("""
no reduction
    b[0, j, k] => b[0, j, 0]
    block update, tvm_hopper.wgmma: found ... in loops over ['i', 'j', 'k']; need C[i, j] = C
    """),
    product(
        "two multiplications into one accumulator",
        r"blocks update, update: found two products that are summed in acc; need an accumulator "
        r"for each product of a kernel; sum one of them in a buffer of its own",
        (BLOCK, BLOCK + BLOCK),
    ),
    two_products(
        "other elements of a second accumulator",
        r"block store: found an access of acc\[i, j\] of 64x8 next to one of other\[j, i\] of "
        r"64x8; need the same elements of accumulators of one shape: a thread has those of one",
        (STORE, STORE.replace("acc[i, j]", "acc[i, j] * other[j, i]")),
    ),
    two_products(
        "accumulators of two shapes",
        r"block store: found an access of acc\[i, j\] of 64x8 next to one of other\[i, j\] of "
        r"64x16; need the same elements of accumulators of one shape",
        (STORE, STORE.replace("acc[i, j]", "acc[i, j] * other[i, j]")),
        sides="(64, 16)",
        tile="(1, 16, 16)",
    ),
    two_products(
        "registers of two accumulators",
        WHERE + r"found an accumulator of 64x8 and an accumulator of 64x448: 228 registers a "
        r"thread; need at most 211 of the consumer's 256",
        sides="(64, 448)",
        tile="(1, 448, 16)",
    ),
    product(
        "registers of an accumulator and of rows",
        WHERE + r"found an accumulator of 64x424 and row of 64: 214 registers a thread; need at mo",
        ("(64, 8)", "(64, 424)"),
        ("(1, 8, 16)", "(1, 424, 16)"),
        ("T.grid(64, 8, 16)", "T.grid(64, 424, 16)"),
        (ACCUMULATOR.replace("8)", "424)"), ACCUMULATOR.replace("8)", "424)") + FLOAT_ROWS),
        ("C[i, j] = acc[i, j]", "row[i] = row[i] + acc[i, j]"),
    ),
    product(
        "one row for the sums of all",
        r"block store: found an access of row.* next to one of acc.*; need the same elements",
        (ACCUMULATOR, ACCUMULATOR + FLOAT_ROWS.replace("(64,)", "(1,)")),
        ("C[i, j] = acc[i, j]", "row[0] = row[0] + acc[i, j]"),
    ),
    row_sums(
        "rows of another order",
        r"block more: found loops .* over rows of registers row.*; need one loop over 64 rows",
        "row[i] = row[i] + acc[i, j]\n" + ROW_STORE.replace("VALUE", "row[i] + row[63 - i]"),
    ),
    row_sums(
        "rows from the middle on",
        r"block more: found loops .* over rows of registers row.*; need one loop over 64 rows",
        "row[i] = row[i] + acc[i, j]\n"
        + ROW_STORE.replace("(64)", "(32, 64)").replace("VALUE", "row[i]"),
    ),
    row_sums(
        "one row for all",
        r"block more: found loops .* over rows of registers row.*; need one loop over 64 rows",
        "row[i] = row[i] + acc[i, j]\n" + ROW_STORE.replace("VALUE", "row[0]"),
    ),
    *rows(product, REGISTERS=IN_REGISTERS)("""
operand in registers of 32 bits
    + *REGISTERS
    (64, 16), "float16", scope => (64, 16), scope
    "float16", a[0, i, k]) * S[i] => "float32", a[0, i, k])
    block update, tvm_hopper.wgmma, operand f: found float32 in registers; need float16 or bfloat16
operand in registers of another depth
    + *REGISTERS
    (64, 16), "float16", scope => (64, 32), "float16", scope
    block update, tvm_hopper.wgmma, operand f: found f[64, 32] read at [i, k]; need a buffer of
    exactly the block's 64 rows and depth of 16; compute_at the operand at the pipelined loop
operand in registers that is computed in part
    + *REGISTERS
    for i, k in T.grid(64, 16): => for i, k in T.grid(64, 8):
    block convert: found a store into f[i, k] in loops over [i, k]; need all of its 64x16
    elements, one after the other; choose a tile that divides the operand
operand in registers that is computed under a condition
    + *REGISTERS
    "convert" => "convert", where=i < n
    block convert: found a store into f[i, k]
operand in registers that nothing computes
    + *REGISTERS
    f[i, k] = T.Cast("float16", a[0, i, k]) * S[i] => T.evaluate(T.float16(1) * S[i])
    block update, tvm_hopper.wgmma, operand f: found a local buffer with 0 stores and 1 loads; need
    one loop nest that computes it, in the loop of the product, its one reader; cache_read
rows
    (64, 8) => (32, 8)
    T.grid(64, 8, 16) => T.grid(32, 8, 16)
    block update, tvm_hopper.wgmma: found 32 rows per warp group; need a multiple of 64 rows; choose
    another tile
columns
    (64, 8) => (64, 4)
    T.grid(64, 8, 16) => T.grid(64, 4, 16)
    block update, tvm_hopper.wgmma: found 4 columns per warp group; need a multiple of 8 columns
depth
    T.grid(64, 8, 16) => T.grid(64, 8, 8)
    block update, tvm_hopper.wgmma: found a depth of 8; need a multiple of 16
registers
    64, 8 => 64, 512
    1, 8, 16 => 1, 512, 16
    block update, tvm_hopper.wgmma: found an accumulator of 64x512: 256 registers a thread; need at
    most 229 of the consumer's 256, the rest being needed for addresses; choose a smaller tile, more
    cons
    """),
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
    *rows(product)("""
operands in float32
    "float16" => "float32"
    block update, tvm_hopper.wgmma, operand a: found type float32; need a type that WGMMA
operands in float64
    "float16" => "float64"
    block update, tvm_hopper.wgmma, operand a: found type float64; need float16 or bfloat16 or
operand that no copy fills
    a[p, r, s] = A[r, s] => b[p, r, s] = A[r, s]
    block update, tvm_hopper.wgmma, operand a: found a tile in scope 'shared.dyn' that no async_copy
    fills; need shared memory filled by an asynchronous copy; cache_read the
operand with two loops in one dimension
    a[0, i, k] => a[0, i, i + k]
    block update, tvm_hopper.wgmma, operand a: found index [0, i, i + k]; need i and k each alone in
    one dimension
tile that WGMMA cannot read
    1, 8, 16 => 1, 12, 16
    block update, tvm_hopper.wgmma, operand b: found K-major 12x16 float16 tile with a 32 B swizzle:
    found 12x16; need multiples of 8 and 16; need a tile that WGMMA can read
start inside an atom of eight rows
    a[0, i, k] => a[0, i + 4, k]
    block update, tvm_hopper.wgmma, operand a: found a start at i = 4 with a 32 B swizzle; need a
    multiple of 8 elements, where an instruction can start; request a narrower swizzle, or
start inside an instruction's depth
    b[0, j, k] => b[0, j, k + 8]
    block update, tvm_hopper.wgmma, operand b: found a start at k = 8 with a 32 B swizzle; need a
    multiple of 16 elements
threads bound by the schedule
    threadIdx.y => threadIdx.x
    block update, tvm_hopper.wgmma: found loop ty bound to threadIdx.x; need threadIdx.y alone (one
    step a warp group): the lowering distributes the threads
number of warp groups unknown
    T.thread_binding(1, thread="threadIdx.y") => T.thread_binding(n, thread="threadIdx.y")
    block update, tvm_hopper.wgmma: found a symbolic extent of threadIdx.y; need a static one
    """),
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
    *rows(product)("""
depth unknown
    T.grid(64, 8, 16) => T.grid(64, 8, n)
    block update, tvm_hopper.wgmma: found loop k over [0, +n); need static loops from 0
accumulator in shared memory
    scope="local" => scope="shared"
    block update, tvm_hopper.wgmma: found an accumulator in scope 'shared'; need registers;
    cache_write(block, 0,
accumulator larger than the tile
    acc = T.sblock_alloc_buffer((64, 8) => acc = T.sblock_alloc_buffer((128, 8)
    block update, tvm_hopper.wgmma: found an accumulator acc[128, 8] written at [i, j]; need one of
    exactly the block's 64x8 elements; compute the cache_write at the loop of the warp group and
    """),
    product(
        "epilogue with loops of its own",
        r"block store: found loops \['i<64', 'j<4'\] over accumulator elements .*; need one loop "
        r"over 64 rows and one over 8 columns, element by element; leave the loops of the fill",
        (
            'T.grid(64, 8):\n                    with T.sblock("store"',
            'T.grid(64, 4):\n                    with T.sblock("store"',
        ),
    ),
    product(
        "accumulator used outside of loops",
        r"block store: found an access of accumulator acc outside of loops over its elements; need "
        r"loops over its rows and columns",
        (
            'for i, j in T.grid(64, 8):\n                    with T.sblock("store"',
            'if n > 0:\n                    with T.sblock("store"',
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
        "local buffer of other sides than the accumulator",
        r"block store: found a local buffer half\[64, 16\] next to acc of 64x8; need a tile of the "
        r"same rows and columns, or an element for each row: a thread holds the elements that meet",
        (ACCUMULATOR, ACCUMULATOR + ACCUMULATOR.replace("acc", "half").replace("8)", "16)")),
        ("C[i, j] = acc[i, j]", "half[i, j] = acc[i, j]"),
    ),
    row_sums(
        "rows multiplied up",
        r"block store: found row\[i\] = row\[i\] \* acc\[i, j\] in float32, of all elements of a "
        r"row; need row combined with a value by one of add, max, min, in float32 or int32 or ",
        "row[i] = row[i] * acc[i, j]",
    ),
    row_sums(
        "rows in 16 bits",
        r"block store: found row\[i\] = row\[i\] \+ .* in float16, of all elements of a row; nee",
        'row[i] = row[i] + T.Cast("float16", acc[i, j])',
        "float16",
    ),
    row_sums(
        "columns of a row tile",
        r"block store: found an access of row\[j\] of 64x8 next to one of acc\[i, j\] of 64x8; ",
        "row[j] = row[j] + acc[i, j]",
    ),
    row_sums(
        "rows in another order",
        r"block more: found loops \['i<64'\] over rows of registers row\[63 - i\]; need one loop ",
        "row[i] = row[i] + acc[i, j]\n" + REVERSED,
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
    *rows(product, STAGED=STAGED)("""
epilogue that reads the tile it fills
    + *STAGED
    half[i, j] = acc[i, j] => half[i, j] = half[i, j] + acc[i, j]
    block store: found a read of half, which it fills; need values of the accumulator and of tensors
    in global memory; let the threads that hold the accumulator update a tensor
    """),
    product(
        "part of the accumulator that a thread counts",
        r"block store: found a part of the accumulator from \[v \* 64, 0\], counted by loop v of "
        r"kind vectorized over 1; need a serial loop of known length",
        *STAGED,
        (
            STORES.replace("C[", "half["),
            "                for v in T.vectorized(1):\n"
            + deeper(STORES.replace("C[", "half[").replace("acc[i", "acc[v * 64 + i")),
        ),
    ),
    product(
        "other work in the kernel",
        r"block other: found a statement next to the k loop that is no fill or store of the "
        r"accumulator; need the accumulator's fill, the k loop and stores of its elements; inline",
        (BLOCK, BLOCK + OTHER),
    ),
    *rows(product)("""
sum of columns in the epilogue
    C[i, j] = acc[i, j] => C[i, 0] = acc[i, j]
    block store: found a store into C[i, 0], in which several elements of the product can meet; need
    one element of the output for each of the accumulator's, in all tiles; index
    """),
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
    *rows(product)("""
epilogue that reads its neighbours' results
    C[i, j] = acc[i, j] => C[i, j] = acc[i, j] + C[0, j]
    block store: found a read of other elements of C than the one it stores; need one
    """),
]
