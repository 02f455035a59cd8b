"""A kernel of one mma.sync: registers as they lie in A, B, C and E, D out again."""

import functools

from tvm.backend.cuda.ptx.table import TABLE, mods, operand_layout, variants
from tvm.script import tirx as T

from tests.sim.kernels import lower

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

    @T.prim_func(s_tir=True)
    def main(
        A: T.Buffer((32 * num_a,), inputs),
        B: T.Buffer((32 * num_b,), inputs),
        C: T.Buffer((32 * num_c,), sums),
        E: T.Buffer((32,), "uint32"),
        D: T.Buffer((32 * num_d,), results),
    ):
        T.func_attr({"global_symbol": "main"})
        tx = T.launch_thread("threadIdx.x", 32)
        with T.attr(T.int32(0), "hand_threaded", 1):
            a = T.alloc_buffer((num_a,), inputs, scope="local")
            b = T.alloc_buffer((num_b,), inputs, scope="local")
            c = T.alloc_buffer((num_c,), sums, scope="local")
            d = T.alloc_buffer((num_d,), results, scope="local")
            e = T.alloc_buffer((1,), "uint32", scope="local")
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
