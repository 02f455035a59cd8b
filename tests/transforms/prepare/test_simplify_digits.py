"""simplify_digits: sums are divided term by term."""

import pytest

from tests.transforms.scripts import check, parse
from tvm_hopper import ir
from tvm_hopper.transforms.prepare.simplify_digits import plan_digits, rewrite_digits

KERNEL = """
def func(A: T.Buffer((2, 56, 56, 64), "float16"), C: T.Buffer((128, 64), "float16")):
    for by in T.thread_binding(49, thread="blockIdx.y"):
        for w in T.thread_binding(2, thread="threadIdx.y"):
            for r, j in T.grid(64, 64):
                with T.sblock("copy", reads=[A[0, 0, 0, 0]], writes=[C[0, 0]]):
                    C[w * 64 + r, j] = A[INDEX, j]
"""
ROW = "by * 128 + w * 64 + r"


def kernel(index):
    return parse(KERNEL, ("INDEX", index))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (f"({ROW}) // 6272, ({ROW}) % 6272 // 896, 0", "0, by // 7, 0"),
        (f"0, ({ROW}) // 128 % 7, ({ROW}) % 16", "0, by % 7, r % 16"),
        (f"0, ({ROW}) % 384 // 64, 0", "0, by % 3 * 2 + w, 0"),
        (f"0, ({ROW} + 128) // 256, 0", "0, (by + 1) // 2, 0"),
    ],
)
def test_terms_that_do_not_matter_go(before, after):
    func = kernel(before)
    (one,) = ir.kernels(func)
    plan = plan_digits(one)
    got = func.with_body(ir.map_kernels(func, lambda x: rewrite_digits(x, plan)).body)
    check(got, kernel(after))
    (again,) = ir.kernels(got)
    assert not plan_digits(again)


@pytest.mark.parametrize(
    "index",
    [
        "0, (by * 100 + r) // 96, 0",  # reaches the next multiple
        "0, (by - r) // 64, 0",  # may be negative
        f"0, ({ROW}) // 56, ({ROW}) % 56",  # one dimension of memory
    ],
)
def test_left_alone(index):
    (one,) = ir.kernels(kernel(index))
    assert not plan_digits(one)
