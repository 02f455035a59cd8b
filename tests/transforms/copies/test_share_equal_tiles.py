"""Equal copies of a loop become one; its stages lose the entry of the other."""

import pytest

from tests.transforms.scripts import check, nest, parse, run
from tvm_hopper.transforms import ReuseOperandTiles

BEFORE = """
def func(A: T.Buffer((256, 64), "float16"), D: T.Buffer((64, 16), "float32")):
    for bx in T.thread_binding(4, thread="blockIdx.x"):
        with T.sblock("work", reads=[], writes=[]):
            a = T.sblock_alloc_buffer((64, 16), "float16", scope="shared.dyn")
            again = T.sblock_alloc_buffer((64, 16), "float16", scope="shared.dyn")
            for k in T.serial(4, annotations={"software_pipeline_stage": [0, 0, 2, 2],
                "software_pipeline_order": [0, 1, 2, 3]}):
                for i, j in T.grid(64, 16):
                    with T.sblock("load", reads=[A[0:256, 0:64]], writes=[a[0:64, 0:16]],
                        async_copy="tma"):
                        a[i, j] = A[bx * 64 + i, k * 16 + j]
                for i, j in T.grid(64, 16):
                    with T.sblock("repeat", reads=[A[0:256, 0:64]], writes=[again[0:64, 0:16]],
                        async_copy="tma"):
                        again[i, j] = A[bx * 64 + i, k * 16 + j]
                for i, j in T.grid(64, 16):
                    with T.sblock("one", reads=[a[0:64, 0:16]], writes=[D[0:64, 0:16]]):
                        D[i, j] = T.Cast("float32", a[i, j])
                for i, j in T.grid(64, 16):
                    with T.sblock("two", reads=[again[0:64, 0:16]], writes=[D[0:64, 0:16]]):
                        D[i, j] = D[i, j] + T.Cast("float32", again[i, j])
"""
SECOND = " " * 16 + "for i, j in T.grid(64, 16):\n" + nest(BEFORE, '"repeat"')
ALLOC = '            again = T.sblock_alloc_buffer((64, 16), "float16", scope="shared.dyn")\n'
READ = "again[i, j] = A[bx * 64 + i, k * 16 + j]"
AFTER = (
    (SECOND, ""),
    (ALLOC, ""),
    ("again", "a"),
    ("[0, 0, 2, 2]", "[0, 2, 2]"),
    ("[0, 1, 2, 3]", "[0, 1, 2]"),
)


def test_a_tile_is_loaded_once():
    check(run(parse(BEFORE), ReuseOperandTiles()), parse(BEFORE, *AFTER))


@pytest.mark.parametrize(
    "change",
    [
        (READ, READ.replace("bx", "k").replace("k * 16", "bx * 16")),
        (READ, READ.replace("A[", "B[")),
        (
            'writes=[again[0:64, 0:16]],\n                        async_copy="tma"',
            'writes=[again[0:64, 0:16]],\n                        async_copy="tma", swizzle=32',
        ),
        ("D[i, j] = T.Cast", "a[i, j] = T.float16(1)\n                        D[i, j] = T.Cast"),
        ("A[bx * 64 + i, k * 16 + j]\n                for i, j in T.grid(64, 16):\n"
         '                    with T.sblock("repeat"',
         "A[bx * 64 + i, k * 16 + j]\n                for i, j in T.grid(64, 8):\n"
         '                    with T.sblock("repeat"'),
    ],
    ids=["other elements", "another tensor", "another request", "a written tile", "a part"],
)  # fmt: skip
def test_copies_that_differ_stay(change):
    script = BEFORE.replace("def func(", 'def func(B: T.Buffer((256, 64), "float16"), ')
    func = parse(script, change)
    check(run(func, ReuseOperandTiles()), func)
