"""load_before_choice: what a choice loads is loaded before it."""

import pytest

from tests.transforms.scripts import check, parse, run
from tvm_hopper.transforms.legalize.load_before_choice import load_before_choice

KERNEL = """
def func(
    X: T.Buffer((64, 128), "float16"),
    S: T.Buffer((64,), "float16"),
    M: T.Buffer((64, 128), "bool"),
    Y: T.Buffer((64, 128), "float16"),
):
    for bx in T.thread_binding(64, thread="blockIdx.x", memory_bound="pointwise"):
        for tx in T.thread_binding(128, thread="threadIdx.x"):
            with T.sblock("", reads=[X[bx, tx], M[bx, tx], S[bx]], writes=[Y[bx, tx]]):
                x = T.sblock_alloc_buffer((1,), "float16", scope="local")
                Y[bx, tx] = VALUE
"""


def kernel(value):
    return parse(KERNEL, ("VALUE", value))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            "T.Select(M[bx, tx], x[0] * S[bx], x[0])",
            "T.Let(T.Select(M[bx, tx], x[0] * s, x[0]), where={s: S[bx]})",
        ),
        (
            "T.Select(tx < 3, X[bx, tx], S[bx]) + T.Select(tx > 9, S[bx], x[0])",
            "T.Let(T.Let(T.Select(tx < 3, a, s) + T.Select(tx > 9, s, x[0]), where={s: S[bx]}), "
            "where={a: X[bx, tx]})",
        ),
    ],
)
def test_what_is_loaded_has_a_name(before, after):
    names = ("s = T.float16()", "a = T.float16()")
    script = KERNEL.replace(
        "                Y[bx", "".join(" " * 16 + x + "\n" for x in names) + "                Y[bx"
    )
    want = parse(script, ("VALUE", after))
    check(run(kernel(before), load_before_choice), want)


@pytest.mark.parametrize(
    "value",
    [
        "T.Select(M[bx, tx], x[0] * x[0], x[0])",  # registers
        "T.Select(tx > 0, X[bx, tx - 1], T.float16(0))",  # may be no element
        "T.Select(tx < 127, X[bx, tx + 1], T.float16(0))",
        "T.if_then_else(tx < 3, X[bx, tx], T.float16(0))",
        "T.Select(tx < 9, T.if_then_else(tx < 3, X[bx, tx], T.float16(0)), x[0])",
        "T.if_then_else(tx < 3, T.Select(tx < 9, X[bx, tx], x[0]), T.float16(0))",
    ],
)
def test_what_stays(value):
    before = kernel(value)
    check(run(before, load_before_choice), before)


def test_vectors_stay():
    text = KERNEL.replace(
        "                Y[bx, tx] = VALUE",
        """\
                for v in T.vectorized(2):
                    Y[bx, tx // 2 * 2 + v] = T.Select(tx < 3, X[bx, tx // 2 * 2 + v], x[0])""",
    )
    check(run(parse(text), load_before_choice), parse(text))
