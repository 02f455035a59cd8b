"""join_vector_rows: vectors that go over the end of a row say where they begin."""

import pytest

from tests.transforms.scripts import check, parse, run
from tvm_hopper.transforms.memory_bound.join_vector_rows import join_vector_rows

KERNEL = """
def func(X: T.Buffer((9, 28, 28), "float16"), Y: T.Buffer((9, 28, 28), "float16")):
    for bx in T.thread_binding(4, thread="blockIdx.x", memory_bound="pointwise"):
        for tx in T.thread_binding(32, thread="threadIdx.x"):
            tile = T.sblock_alloc_buffer((8,), "float16", scope="local")
            for v in T.vectorized(8):
                with T.sblock("load", reads=[X[0:9, 0:28, 0:28]], writes=[tile[v]]):
                    tile[v] = X[PLACE]
            for v in T.vectorized(8):
                with T.sblock("store", reads=[tile[v]], writes=[Y[0:9, 0:28, 0:28]]):
                    Y[PLACE] = tile[v]
"""
NUMBER = "(bx * 256 + tx * 8 + v)"
CROSSING = f"{NUMBER} // 784, {NUMBER} % 784 // 28, {NUMBER} % 28"
FIRST = "(bx * 256 + tx * 8) % 784"


def test_dimensions_that_no_vector_crosses_stand_without_the_lane():
    want = f"(bx * 256 + tx * 8) // 784, ({FIRST} + v) // 28, ({FIRST} + v) % 28"
    check(run(parse(KERNEL, ("PLACE", CROSSING)), join_vector_rows), parse(KERNEL, ("PLACE", want)))


@pytest.mark.parametrize(
    "place",
    [
        "bx, tx % 28, v",  # in a row
        "bx, v, tx % 28",  # no neighbours
        f"0, {NUMBER} // 28 * 2, {NUMBER} % 28",  # every second row
    ],
)
def test_others_stay(place):
    func = parse(KERNEL, ("PLACE", place))
    check(run(func, join_vector_rows), func)
