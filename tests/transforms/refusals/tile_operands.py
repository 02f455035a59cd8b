"""What LowerWgmma refuses of register tiles that are operands of a second product."""

from tests.transforms.refusals.case import rows
from tests.transforms.refusals.products import ACCUMULATOR, BLOCK, PRODUCT, product
from tests.transforms.scripts import nest

# what threads compute from a sum is the left operand of a second product
_SECOND = BLOCK.replace("acc", "other").replace("update", "second").replace("inner", "added")
_FILL = "                for i, j in T.grid(64, 8):\n" + nest(PRODUCT, '"init"')
TILE_OPERAND = (
    (_FILL, _FILL.replace("8)", "16)")),
    ("b = T.sblock_alloc_buffer((1, 8, 16)", "b = T.sblock_alloc_buffer((1, 16, 16)"),
    (
        'T.grid(1, 8, 16):\n                    with T.sblock("load_b"',
        'T.grid(1, 16, 16):\n                    with T.sblock("load_b"',
    ),
    (
        BLOCK,
        BLOCK.replace("8, 16)", "16, 16)")
        + """                for i, j in T.grid(64, 16):
                    with T.sblock("weights", reads=[], writes=[]):
                        w[i, j] = T.Cast("float16", acc[i, j])
                for p, r, s in T.grid(1, 8, 16):
                    with T.sblock("load_c", reads=[], writes=[], async_copy="tma", swizzle=32):
                        c[p, r, s] = A[r, s]
"""
        + _FILL.replace("acc", "other")
        + _SECOND.replace("a[0, i, k]", "w[i, k]").replace("b[0", "c[0"),
    ),
    ("C[i, j] = acc[i, j]", "C[i, j] = other[i, j]"),
    (
        ACCUMULATOR,
        ACCUMULATOR.replace("8)", "16)")
        + ACCUMULATOR.replace("acc", "w").replace("8)", '16), "float16"')
        + ACCUMULATOR.replace("acc", "other")
        + '                c = T.sblock_alloc_buffer((1, 8, 16), "float16", scope="shared.dyn")\n',
    ),
)

TILE_OPERANDS = [
    *rows(product, TILE=TILE_OPERAND)("""
register tile as an operand of 32 bits
    + *TILE
    w = T.sblock_alloc_buffer((64, 16), "float16" => w = T.sblock_alloc_buffer((64, 16), "float32"
    w[i, j] = T.Cast("float16", acc[i, j]) => w[i, j] = acc[i, j]
    T.Cast("float32", w[i, k]) => T.Cast("float32", T.Cast("float32", w[i, k]))
    block second, tvm_hopper.wgmma, operand w: found float32 in registers; need float16 or bfloat16;
    cast it where it is computed: WGMMA takes other types from other threads
register tile of which a product reads a part
    + *TILE
    (64, 16), "float16", scope => (64, 32), "float16", scope
    block second, tvm_hopper.wgmma, operand w: found w[64, 32] read at [i, k]; need a register tile
    of exactly the block's 64 rows and depth of 16; let one step multiply the whole tile
    """),
]
