"""align_row_vectors: rows that begin at any element are covered by aligned vectors."""

import pytest

from tests.transforms.scripts import check, parse, run
from tvm_hopper.transforms.memory_bound.align_row_vectors import align_row_vectors

BEFORE = """
def func(
    X: T.Buffer((300, 151), "float16"),
    W: T.Buffer((151,), "float16"),
    Y: T.Buffer((300, 151), "float16"),
):
    for bx in T.thread_binding(300, thread="blockIdx.x", memory_bound="row_reduction"):
        for tx in T.thread_binding(THREADS, thread="threadIdx.x"):
            with T.sblock("", reads=[X[bx, 0:256], W[0:256]], writes=[Y[bx, 0:256]]):
                x = T.sblock_alloc_buffer((8,), "float16", scope="local")
                w = T.sblock_alloc_buffer((8,), "float16", scope="local")
                y = T.sblock_alloc_buffer((8,), "float16", scope="local")
                total = T.sblock_alloc_buffer((1,), scope="local")
                for v in T.unroll(8):
                    with T.sblock("load", where=tx * 8 + v < 151):
                        x[v] = X[bx, tx * 8 + v]
                for v in T.unroll(8):
                    with T.sblock("load what rows share", where=tx * 8 + v < 151):
                        w[v] = W[tx * 8 + v]
                for v in T.unroll(8):
                    with T.sblock("sum", where=tx * 8 + v < 151):
                        total[0] = total[0] + T.Cast("float32", x[v])
                for v in T.unroll(8):
                    with T.sblock("compute", where=tx * 8 + v < 151):
                        y[v] = x[v] * w[v]
                for v in T.unroll(8):
                    with T.sblock("store", where=tx * 8 + v < 151):
                        Y[bx, tx * 8 + v] = y[v]
"""
AFTER = """
def func(
    X: T.Buffer((300, 151), "float16"),
    W: T.Buffer((151,), "float16"),
    Y: T.Buffer((300, 151), "float16"),
):
    for bx in T.thread_binding(300, thread="blockIdx.x", memory_bound="row_reduction"):
        for tx in T.thread_binding(32, thread="threadIdx.x"):
            with T.sblock("", reads=[X[bx, 0:256], W[0:256]], writes=[Y[bx, 0:256]]):
                x = T.sblock_alloc_buffer((8,), "float16", scope="local")
                w = T.sblock_alloc_buffer((8,), "float16", scope="local")
                y = T.sblock_alloc_buffer((8,), "float16", scope="local")
                total = T.sblock_alloc_buffer((1,), scope="local")
                if MET and FITS:
                    for v in T.vectorized(8):
                        with T.sblock("load", reads=[X[bx, OWN]]):
                            x[v] = X[bx, OWN]
                else:
                    for v in T.unroll(8):
                        with T.sblock("load", reads=[X[bx, OWN]]):
                            x[v] = T.if_then_else(INSIDE, X[bx, OWN], T.float16(0))
SHARED
                for v in T.unroll(8):
                    with T.sblock("sum", where=INSIDE):
                        total[0] = total[0] + T.Cast("float32", x[v])
                for v in T.unroll(8):
                    with T.sblock("compute", where=MET):
                        y[v] = x[v] * w[v]
                if tx * 8 >= SHIFT and tx * 8 + 7 < 151 + SHIFT:
                    for v in T.vectorized(8):
                        with T.sblock("store", writes=[Y[bx, OWN]]):
                            Y[bx, OWN] = y[v]
                else:
                    for v in T.unroll(8):
                        with T.sblock("store", where=INSIDE, writes=[Y[bx, OWN]]):
                            Y[bx, OWN] = y[v]
"""
SHARED = """
                with T.sblock("load what rows share", where=MET, reads=[W[0:151]], writes=[w[0:8]]):
                    both = T.sblock_alloc_buffer((16,), "float16", scope="local", align=16)
                    if tx * 8 - 8 >= 0 and tx * 8 <= 151:
                        for v in T.vectorized(8):
                            with T.sblock("both", reads=[W[tx * 8 + (v - 8)]]):
                                both[v] = W[tx * 8 + (v - 8)]
                    else:
                        for v in T.unroll(8):
                            with T.sblock("both", reads=[W[tx * 8 + (v - 8)]]):
                                both[v] = T.if_then_else(
                                    tx * 8 - 8 + v >= 0 and tx * 8 - 8 + v < 151,
                                    W[tx * 8 + (v - 8)],
                                    T.float16(0),
                                )
                    if tx * 8 >= 0 and tx * 8 + 8 <= 151:
                        for v in T.vectorized(8):
                            with T.sblock("both"):
                                both[v + 8] = W[tx * 8 + v]
                    else:
                        for v in T.unroll(8):
                            with T.sblock("both", reads=[W[tx * 8 + v]]):
                                both[v + 8] = T.if_then_else(
                                    tx * 8 + v >= 0 and tx * 8 + v < 151,
                                    W[tx * 8 + v],
                                    T.float16(0),
                                )
                    words = T.decl_buffer((8,), "uint32", data=both.data, scope="local")
BINDS
                    for v in T.vectorized(8):
                        w[v] = both[v]
"""


def moved() -> str:
    """Return what moves eight words by a shift in bytes, as text."""
    bytes_, pad = "(SHIFT * 2)", " " * 20
    lines = [f"w{i}: T.let[T.uint32] = words[{i}]" for i in range(8)]
    for name, old, count, step in (("x", "w", 6, 2), ("y", "x", 5, 1)):
        bit = f"{bytes_} // 4 // {step} % 2 == 1" if step > 1 else f"{bytes_} // 4 % 2 == 1"
        lines += [
            f"{name}{i}: T.let[T.uint32] = T.Select({bit}, {old}{i}, {old}{i + step})"
            for i in range(count)
        ]
    bits = f'T.Cast("uint64", T.Cast("uint32", {bytes_} % 4 * 8))'
    for i in range(4):
        both = f'T.Cast("uint64", y{i + 1}) << T.uint64(32) | T.Cast("uint64", y{i})'
        lines.append(f'words[{i}] = T.Cast("uint32", ({both}) << {bits} >> T.uint64(32))')
    return "\n".join(pad + x for x in lines)


WORDS = [
    ("SHARED", SHARED.strip("\n")),
    ("BINDS", moved()),
    ("MET", "tx * 8 < 151 + SHIFT"),
    ("FITS", "bx * 151 // 8 * 8 + tx * 8 + 8 <= 45300"),
    ("INSIDE", "tx * 8 + v >= SHIFT and tx * 8 + v < 151 + SHIFT"),
    ("OWN", "tx * 8 + (v - (bx * 151 - bx * 151 // 8 * 8))"),
    ("SHIFT", "bx % 8 * 7 % 8"),
]
BRANCH = """
                if tx * 8 >= SHIFT and tx * 8 + 7 < 151 + SHIFT:
                    for v in T.unroll(8):
                        with T.sblock("sum"):
                            total[0] = total[0] + T.Cast("float32", x[v])
                else:
                    for v in T.unroll(8):
                        with T.sblock("sum", where=INSIDE):
                            total[0] = total[0] + T.Cast("float32", x[v])
"""
SUM = """
                for v in T.unroll(8):
                    with T.sblock("sum", where=INSIDE):
                        total[0] = total[0] + T.Cast("float32", x[v])
"""


def test_vectors_begin_before_a_row():
    got = run(parse(BEFORE, ("THREADS", "32")), align_row_vectors)
    check(got, parse(AFTER, *WORDS))


def test_several_warps_of_a_row_sum_without_conditions_inside_of_it():
    got = run(parse(BEFORE, ("THREADS", "64")), align_row_vectors)
    check(got, parse(AFTER, (SUM, BRANCH), ("binding(32", "binding(64"), *WORDS))


def test_rows_that_fill_their_tensor_need_no_check_of_its_end():
    got = run(parse(BEFORE, ("THREADS", "32"), ("300", "304")), align_row_vectors)
    assert "else:" not in got.script().partition("load what rows share")[0]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("151", "152"),  # whole vectors: others make them
        ("X[bx, tx * 8 + v]", "X[bx, tx * 8 + 7 - v]"),  # no neighbours, no store next to it
        ("tx * 8 + v < 151", "tx * 8 + v < bx"),  # rows of any length
        ("for v in T.unroll", "for v in T.vectorized"),
    ],
)
def test_other_lanes_stay(old, new):
    func = parse(BEFORE, ("Y[bx, tx * 8 + v]", "Y[bx, v]"), ("THREADS", "32"), (old, new))
    check(run(func, align_row_vectors), func)


def test_registers_have_room_for_one_more_vector():
    """511 elements are two vectors of each of 32 threads, and three where row 1 begins late."""
    text = """
def func(X: T.Buffer((8, 511), "float16"), Y: T.Buffer((8,), "float32")):
    for bx in T.thread_binding(8, thread="blockIdx.x", memory_bound="row_reduction"):
        for tx in T.thread_binding(32, thread="threadIdx.x"):
            with T.sblock("", reads=[X[bx, 0:768]], writes=[Y[bx]]):
                x = T.sblock_alloc_buffer((2, 8), "float16", scope="local")
                for c in T.unroll(3):
                    for v in T.unroll(8):
                        with T.sblock("load", where=c * 256 + tx * 8 + v < 511):
                            x[c, v] = X[bx, c * 256 + tx * 8 + v]
                Y[bx] = T.Cast("float32", x[0, 0])
"""
    script = run(parse(text), align_row_vectors).script()
    assert 'x = T.sblock_alloc_buffer((3, 8), "float16", scope="local")' in script
