"""A kernel of one mma.sync: registers as they lie in A, B, C and E, D out again."""

import functools

from tvm.backend.cuda.ptx.table import TABLE, mods, operand_layout, variants
from tvm.script import tirx as T

from .hand_threaded import U32, Elements, Local, hand_threaded
from .kernels import lower

ROWS = [name for name in TABLE if name == "mma" or name.startswith("mma_")]
_HOLDS = {"f64": "float64", "f32": "float32"}


@functools.cache
def forms():
    """Return every combination of modifiers of every row: (row, tokens)."""
    return [(name, tokens) for name in ROWS for tokens in variants(TABLE[name])]


def modifiers(name, tokens):
    """Return the modifiers by slot."""
    return mods(TABLE[name], tokens)


def spelled(name, tokens):
    """Return the instruction as PTX spells it."""
    return ".".join(["mma", *(token for token in tokens if token)])


def dtype_of(kind):
    """Return the TIR type of the registers that hold elements of a PTX type."""
    return _HOLDS.get(kind, "uint32")


@functools.cache
def program(name, tokens, selector=0, lanes=32):
    """Build the kernel; `selector` is that of a sparse form."""
    found = modifiers(name, tokens)
    counts = {slot.name: count for slot, _, count in operand_layout(TABLE[name], found)}
    num_a, num_b, num_c, num_d = (counts[x] for x in "abcd")
    inputs = "float64" if found["atype"] == "f64" else "uint32"
    sums, results = dtype_of(found["ctype"]), dtype_of(found["dtype"])
    sparse = "spvariant" in found
    form = spelled(name, tokens)

    @hand_threaded(32, grid=None)
    def main(
        A: Elements(inputs)[32 * num_a], B: Elements(inputs)[32 * num_b],
        C: Elements(sums)[32 * num_c], E: U32[32], D: Elements(results)[32 * num_d],
        tx, a: Local[Elements(inputs), num_a], b: Local[Elements(inputs), num_b],
        c: Local[Elements(sums), num_c], d: Local[Elements(results), num_d], e: Local[U32],
    ):  # fmt: skip
        e[0] = E[tx]
        for i in T.serial(num_a):
            a[i] = A[tx * num_a + i]
        for i in T.serial(num_b):
            b[i] = B[tx * num_b + i]
        for i in T.serial(num_c):
            c[i] = C[tx * num_c + i]
        if tx < lanes:
            if sparse:
                T.ptx[form](
                    *[d[i] for i in range(num_d)],
                    *[a[i] for i in range(num_a)],
                    *[b[i] for i in range(num_b)],
                    *[c[i] for i in range(num_c)],
                    e[0],
                    selector,
                )
            else:
                T.ptx[form](
                    *[d[i] for i in range(num_d)],
                    *[a[i] for i in range(num_a)],
                    *[b[i] for i in range(num_b)],
                    *[c[i] for i in range(num_c)],
                )
        for i in T.serial(num_d):
            D[tx * num_d + i] = d[i]

    return lower(main)
