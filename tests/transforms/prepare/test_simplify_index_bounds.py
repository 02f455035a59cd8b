"""simplify_index_bounds: min and max in indices that the loops' ranges decide."""

import pytest

from tests.transforms.scripts import check, deeper, parse, run
from tvm_hopper import ir
from tvm_hopper.transforms.prepare.simplify_index_bounds import plan_bounds, simplify_index_bounds

KERNEL = """
def func(A: T.Buffer((64, 128), "float32"), D: T.Buffer((64, 128), "float32")):
    for bx in T.thread_binding(2, thread="blockIdx.x"):
        for ty in T.thread_binding(2, thread="threadIdx.y"):
            with T.sblock("outer", reads=[],
                writes=[D[0:64, bx * 64 + ty * 32 - 8:bx * 64 + ty * 32 + 24]]):
                own = T.sblock_alloc_buffer((64, 32), scope="local")
                for i, j in T.grid(64, 32):
                    with T.sblock("product", reads=[own[i, COLUMN]], writes=[own[i, COLUMN]],
                        wgmma=1):
                        own[i, COLUMN] = own[i, COLUMN] + A[i, bx * 64 + ty * 32 + j]
"""
START = "bx * 64 + ty * 32"
SHIFTED = f"{START} + j - T.min({START}, {START} + T.max(8 - ty * 32 - bx * 64, 0))"


def kernel(column):
    return parse(KERNEL.replace("COLUMN", column))


def test_the_least_index_of_a_compact_buffer():
    check(run(kernel(SHIFTED), simplify_index_bounds), kernel("j"))


@pytest.mark.parametrize(
    ("column", "plain"),
    [
        ("T.min(j, 40)", "j"),
        ("T.min(40, j)", "j"),
        ("T.max(j, 0)", "j"),
        ("T.max(bx, j)", None),  # either may be larger
        ("T.min(j, ty + 16)", None),
        ("T.min(T.max(j, 0), ty + 16)", "T.min(j, ty + 16)"),  # of two the inner one
        ("T.max(T.min(j, ty + 16), 0)", "T.min(j, ty + 16)"),  # of two the outer one
    ],
)
def test_which_side_is_taken(column, plain):
    got = run(kernel(column), simplify_index_bounds)
    check(got, kernel(plain or column))
    assert got.same_as(kernel(column)) is False
    (found,) = ir.kernels(got)
    assert plan_bounds(found) == {}


def test_bounds_in_the_shape_of_a_table_stay():
    table = ("def func(", 'def func(n: T.int32, E: T.Buffer((T.min(n, n + 1),), "int32"), ')
    func = parse(KERNEL.replace("COLUMN", "j").replace("A[i, ", "A[E[i], "), table)
    assert run(func, simplify_index_bounds).same_as(func)


@pytest.mark.parametrize(("condition", "column"), [("n > 32", "j"), ("n > 8", "T.min(j, n)")])
def test_the_host_s_condition_may_decide(condition, column):
    def branch(text):
        head, _, body = KERNEL.replace("COLUMN", text).strip().partition("\n")
        head = head.replace("def func(", "def func(n: T.int32, ")
        return parse(f"{head}\n    if {condition}:\n{deeper(body)}")

    check(run(branch("T.min(j, n)"), simplify_index_bounds), branch(column))


def test_regions_of_blocks_follow():
    func = parse(
        KERNEL.replace("COLUMN", "j"),
        ("writes=[D[0:64, bx * 64", "writes=[D[0:64, T.max(bx, 0) * 64"),
    )
    check(run(func, simplify_index_bounds), kernel("j"))


def test_values_and_data_stay():
    value = "own[i, j] + A[i, bx * 64 + ty * 32 + j]"
    text = KERNEL.replace("COLUMN", "j")
    values = parse(text, (value, f"T.Cast('float32', T.min(j, 40)) + {value}"))
    assert run(values, simplify_index_bounds).same_as(values)
    index = "A[i, T.min(T.Cast('int32', A[i, j]) * 0, 0)]"
    data = parse(text, ("A[i, bx * 64 + ty * 32 + j]", index))
    assert run(data, simplify_index_bounds).same_as(data)


def test_kernels_without_a_product_stay():
    func = parse("""
    def func(A: T.Buffer((8,), "float32"), B: T.Buffer((8,), "float32")):
        for bx in T.thread_binding(8, thread="blockIdx.x"):
            B[T.min(bx, 9)] = A[bx]
    """)

    assert run(func, simplify_index_bounds).same_as(func)


ROWS = """
def func(past: T.int64, length: T.int64, start: T.int64, Y_ptr: T.handle):
    Y = T.match_buffer(Y_ptr, (8 * (past + length), 8))
    for bx in T.thread_binding(8 * (past + length), thread="blockIdx.x", memory_bound="pointwise"):
        for tx in T.thread_binding(32, thread="threadIdx.x"):
            with T.sblock("outer", reads=[], writes=[Y[bx, 0:8]]):
                own = T.sblock_alloc_buffer((8,), scope="local")
                for v in range(8):
                    with T.sblock("store", reads=[own[INDEX]], writes=[Y[bx, v]]):
                        Y[bx, v] = own[INDEX]
"""


@pytest.mark.parametrize(
    ("divisor", "index"),
    [
        ("(past + length)", 'T.Cast("int64", v)'),
        ("(past - length)", None),
        ("(past + start)", None),  # `start` is no extent of a tensor
        ("(past + bx)", None),
    ],
)
def test_extents_that_divide_are_positive(divisor, index):
    start = f"T.min(bx % {divisor}, T.int64(0))"
    before = parse(ROWS.replace("INDEX", f"v + {start}"))
    after = parse(ROWS.replace("INDEX", index)) if index else before
    check(run(before, simplify_index_bounds), after)
