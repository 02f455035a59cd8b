"""hoist_index_numbers: a thread divides once for the elements that it loads one by one."""

import pytest

from tests.transforms.scripts import check, parse, run
from tvm_hopper.transforms.memory_bound.hoist_index_numbers import hoist_index_numbers

BEFORE = """
def func(X: T.Buffer((9, 64), "float16"), P: T.Buffer((4,), "int32")):
    for bx in T.thread_binding(4, thread="blockIdx.x", memory_bound="pointwise"):
        for tx in T.thread_binding(32, thread="threadIdx.x"):
            with T.sblock("kernel", reads=[X[0:9, 0:64]], writes=[]):
                tile = T.sblock_alloc_buffer((2,), "float16", scope="local")
                for v in T.unroll(2):
                    with T.sblock("Y", reads=[X[0:9, 0:64]], writes=[tile[v]]):
                        tile[v] = VALUE
"""
AFTER = """
def func(X: T.Buffer((9, 64), "float16"), P: T.Buffer((4,), "int32")):
    for bx in T.thread_binding(4, thread="blockIdx.x", memory_bound="pointwise"):
        for tx in T.thread_binding(32, thread="threadIdx.x"):
            with T.sblock("kernel", reads=[X[0:9, 0:64]], writes=[]):
                tile = T.sblock_alloc_buffer((2,), "float16", scope="local")
                number = T.sblock_alloc_buffer((1,), "int32", scope="local")
                first = T.sblock_alloc_buffer((1,), "int32", scope="local")
                with T.sblock("number", reads=[], writes=[number[0]]):
                    number[0] = (bx * 64 + tx * 2) % 66
                with T.sblock("first", reads=[], writes=[first[0]]):
                    first[0] = (bx * 64 + tx * 2) // 66 * 64 + (bx * 64 + tx * 2) % 66 - 1
                for v in T.unroll(2):
                    with T.sblock("Y", reads=[X[0:9, 0:64], number[0:1], first[0:1]],
                        writes=[tile[v]]):
                        tile[v] = T.if_then_else(
                            1 <= number[0] + v,
                            X[(first[0] + v) // 64, (first[0] + v) % 64],
                            T.float16(0))
"""
ROW, COLUMN = "(bx * 64 + tx * 2) // 66", "((bx * 64 + tx * 2) % 66 + v - 1)"
PADDED = f"T.if_then_else(1 <= (bx * 64 + tx * 2) % 66 + v, X[{ROW}, {COLUMN}], T.float16(0))"


def test_places_and_conditions_divide_before_the_loop():
    check(run(parse(BEFORE, ("VALUE", PADDED)), hoist_index_numbers), parse(AFTER))


@pytest.mark.parametrize(
    "value",
    [
        "X[bx, tx * 2 + v]",  # nothing to divide
        "X[(bx * 64 + tx * 2 + v) // 66, 3]",  # each element by itself
        "X[P[bx // 2], tx % 3 + v]",  # the row is loaded
        f"X[{ROW}, 3]",  # the same for all elements
    ],
)
def test_others_stay(value):
    func = parse(BEFORE, ("VALUE", value))
    check(run(func, hoist_index_numbers), func)


def test_elements_that_32_bits_do_not_number_stay():
    """The number of an element is kept in 32 bits."""
    large = BEFORE.replace("(9, 64)", "(40000000, 64)")
    func = parse(large, ("VALUE", PADDED))
    check(run(func, hoist_index_numbers), func)
