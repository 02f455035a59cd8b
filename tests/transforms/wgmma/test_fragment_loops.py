"""Stores of an accumulator's registers: one by one, in pairs, or in runs of eight."""

import pytest
import tvm
from tvm import tirx
from tvm.script import tirx as T

from tests.transforms.scripts import given, parse, run
from tvm_hopper import ir
from tvm_hopper.transforms.wgmma.lower_wgmma import LowerWgmma

PRODUCT = """
def func(A: T.Buffer((64, 16), "float16"), C: T.Buffer((64, N), "DTYPE")):
    for bx in T.thread_binding(1, thread="blockIdx.x"):
        with T.sblock(""):
            acc = T.sblock_alloc_buffer((64, 32), scope="local")
            a = T.sblock_alloc_buffer((1, 64, 16), "float16", scope="shared.dyn", align=256)
            b = T.sblock_alloc_buffer((1, 32, 16), "float16", scope="shared.dyn", align=256)
            for p, r, s in T.grid(1, 64, 16):
                with T.sblock("load_a", async_copy="tma", swizzle=32):
                    a[p, r, s] = A[r, s]
            for p, r, s in T.grid(1, 32, 16):
                with T.sblock("load_b", async_copy="tma", swizzle=32):
                    b[p, r, s] = A[r, s]
            with T.sblock("update", reads=[acc[0:64, 0:32], a[0, 0:64, 0:16], b[0, 0:32, 0:16]],
                writes=[acc[0:64, 0:32]], wgmma=1):
                for i, j, k in T.grid(64, 32, 16):
                    acc[i, j] = acc[i, j] + T.Cast("float32", a[0, i, k] * b[0, j, k])
            for i, j in T.grid(64, 32):
                with T.sblock("store", where=j < N):
                    C[i, j] = T.Cast("DTYPE", acc[i, j])
"""


def store_of(columns, dtype):
    """Return the loops that stand for the epilogue."""
    func = parse(PRODUCT, ("N", str(columns)), ("DTYPE", dtype))
    got = run(func, LowerWgmma())
    (block,) = ir.find_all(got.body, ir.SBlock, lambda x: x.name_hint == "store")
    return block.body


def first_loop(func):
    return ir.find_all(func.body, ir.For)[0]


def test_runs_of_eight_where_all_columns_of_a_run_are_in_bounds_together():
    want = given(odd=odd, swap=swap, upper=upper)("""
    def want(tx: T.int32, C: T.Buffer((64, 24), "float16")):
        with T.sblock(""):
            acc = T.sblock_alloc_buffer((16,), scope="local")
            run = T.sblock_alloc_buffer((16,), "float16", scope="local")
            for h in T.serial(2, pragma_unroll=2):
                # two columns of every eight, from row 8 h + lane // 4
                for j in T.serial(4, pragma_unroll=4):
                    run[h * 8 + j * 2] = T.Cast("float16", acc[j * 4 + h * 2])
                    run[h * 8 + j * 2 + 1] = T.Cast("float16", acc[j * 4 + h * 2 + 1])
                words = T.decl_buffer((8,), "uint32", data=run.data, scope="local", layout=None)
                # the odd of two neighbours gives words 0 and 2 away, the even 1 and 3
                a: T.let[T.uint32] = swap(odd(tx), words[h * 4], words[h * 4 + 1], 1)
                words[h * 4] = T.Select(odd(tx), a, words[h * 4])
                words[h * 4 + 1] = T.Select(odd(tx), words[h * 4 + 1], a)
                b: T.let[T.uint32] = swap(odd(tx), words[h * 4 + 2], words[h * 4 + 3], 1)
                words[h * 4 + 2] = T.Select(odd(tx), b, words[h * 4 + 2])
                words[h * 4 + 3] = T.Select(odd(tx), words[h * 4 + 3], b)
                # the upper two of four threads give words 0 and 1 away, the lower 2 and 3
                c: T.let[T.uint32] = swap(upper(tx), words[h * 4], words[h * 4 + 2], 2)
                words[h * 4] = T.Select(upper(tx), c, words[h * 4])
                words[h * 4 + 2] = T.Select(upper(tx), words[h * 4 + 2], c)
                d: T.let[T.uint32] = swap(upper(tx), words[h * 4 + 1], words[h * 4 + 3], 2)
                words[h * 4 + 1] = T.Select(upper(tx), d, words[h * 4 + 1])
                words[h * 4 + 3] = T.Select(upper(tx), words[h * 4 + 3], d)
            # now thread t of the four holds columns 8 t to 8 t + 7; branches come last
            for h in T.serial(2, pragma_unroll=2):
                if tx % 4 < 3:
                    for e in T.vectorized(8):
                        C[tx % 128 // 32 * 16 + h * 8 + tx % 32 // 4,
                            tx % 128 % 4 * 8 + e] = run[h * 8 + e]
    """)

    block = ir.find_all(want.body, ir.SBlock, lambda x: x.name_hint == "")[-1]
    tvm.ir.assert_structural_equal(store_of(24, "float16"), block.body, map_free_vars=True)


def odd(tx):
    return (tx % 128 % 2).equal(1)


def upper(tx):
    return (tx % 128 // 2 % 2).equal(1)


def swap(gives_first, first, second, distance):
    """Return the word that comes from the thread `distance` away."""
    sent = tirx.Select(gives_first, first, second)
    return T.tvm_warp_shuffle_xor(T.uint32(0xFFFFFFFF), sent, distance, 32, 32)


@pytest.mark.parametrize(("columns", "dtype"), [(20, "float32"), (32, "float32"), (24, "float32")])
def test_pairs_where_a_run_would_cross_the_bound_or_the_type_is_wide(columns, dtype):
    want = given(columns=columns, dtype=dtype)("""
    def want(tx: T.int32, C: T.Buffer((64, columns), dtype)):
        with T.sblock(""):
            acc = T.sblock_alloc_buffer((16,), scope="local")
            pair = T.sblock_alloc_buffer((2,), dtype, scope="local")
            for g in T.serial(4, pragma_unroll=4):
                for h in T.serial(2, pragma_unroll=2):
                    if T.Add(g * 8 + tx % 4 * 2, 0) < columns:
                        pair[0] = T.Cast(dtype, acc[g * 4 + h * 2])
                        pair[1] = T.Cast(dtype, acc[g * 4 + h * 2 + 1])
                        for e in T.vectorized(2):
                            C[tx % 128 // 32 * 16 + h * 8 + tx % 32 // 4,
                                g * 8 + tx % 4 * 2 + e] = pair[e]
    """)

    tvm.ir.assert_structural_equal(store_of(columns, dtype), first_loop(want), map_free_vars=True)


def test_one_by_one_where_neighbours_are_in_bounds_apart():
    want = parse("""
    def want(tx: T.int32, C: T.Buffer((64, 31), "float32")):
        with T.sblock(""):
            acc = T.sblock_alloc_buffer((16,), scope="local")
            for g in T.serial(4, pragma_unroll=4):
                for h in T.serial(2, pragma_unroll=2):
                    if g * 8 + tx % 4 * 2 < 31:
                        C[tx % 128 // 32 * 16 + h * 8 + tx % 32 // 4,
                            g * 8 + tx % 4 * 2] = T.Cast("float32", acc[g * 4 + h * 2])
                    if g * 8 + tx % 4 * 2 + 1 < 31:
                        C[tx % 128 // 32 * 16 + h * 8 + tx % 32 // 4,
                            g * 8 + tx % 4 * 2 + 1] = T.Cast("float32", acc[g * 4 + h * 2 + 1])
    """)

    tvm.ir.assert_structural_equal(store_of(31, "float32"), first_loop(want), map_free_vars=True)


def test_a_load_outside_of_the_tensor_reads_its_first_element_without_a_branch():
    func = parse(
        PRODUCT,
        ("N", "24"),
        ("DTYPE", "float16"),
        ('C: T.Buffer((64, 24), "float16")', 'C: T.Buffer((64, 24), "float16"), X: T.handle'),
        ("    for bx", "    E = T.match_buffer(X, (70, 24), 'float16')\n    for bx"),
        ('T.Cast("float16", acc[i, j])', 'T.Cast("float16", acc[i, j]) + E[i, j] + E[i, 3]'),
    )
    (block,) = ir.find_all(
        run(func, LowerWgmma()).body, ir.SBlock, lambda x: x.name_hint == "store"
    )
    text = block.body.script()
    assert "if_then_else" not in text
    (whole, rows, *_) = ir.find_all(block.body, ir.TensorLoad, lambda x: x.source.name == "E")
    assert all(isinstance(x, tirx.Select) for x in whole.indices)
    assert not ir.find_all(list(rows.indices), tirx.Select)  # that columns end says nothing of rows


def test_terms_of_a_condition_are_about_an_expression_by_way_of_others():
    i, j, k, n = (ir.Var(x, "int32") for x in "ijkn")
    condition = tirx.And(tirx.And(i < 8, i + j < n), k < 5)
    got = list(ir.conjuncts(ir.terms_about(condition, [j])))
    assert [str(x) for x in got] == ["i < 8", "i + j < n"]
    assert ir.is_const(ir.terms_about(condition, [3]), 1)
