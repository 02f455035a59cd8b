"""An output is staged where the operand came that each element is computed from."""

import pytest

from tests.transforms.scripts import check, parse, run
from tvm_hopper.transforms import ReuseOperandTiles

BEFORE = """
@T.prim_func(private=True, s_tir=True)
def func(R: T.Buffer((64, 64), "float16"), D: T.Buffer((64, 64), "float16")):
    for bx in T.thread_binding(1, thread="blockIdx.x"):
        with T.sblock("work"):
            T.reads()
            T.writes()
            acc = T.sblock_alloc_buffer((64, 128), scope="local")
            with T.sblock("product"):
                T.reads(acc[0:64, 0:128])
                T.writes(acc[0:64, 0:128])
                T.sblock_attr({"tvm_hopper.wgmma": 1})
                for i, j in T.grid(64, 128):
                    acc[i, j] = acc[i, j] + T.float32(1)
            d = T.sblock_alloc_buffer((64, 64), "float16", scope="shared.dyn")
            r = T.sblock_alloc_buffer((64, 64), "float16", scope="shared.dyn")
            for i, j in T.grid(64, 64):
                with T.sblock("load"):
                    T.reads(R[i, j])
                    T.writes(r[i, j])
                    T.sblock_attr({"tvm_hopper.async_copy": "tma"})
                    r[i, j] = R[i, j]
            for i, j in T.grid(64, 64):
                with T.sblock("epilogue"):
                    T.reads(acc[0:64, 0:128], r[0:64, 0:64])
                    T.writes(d[0:64, 0:64])
                    d[i, j] = T.Cast("float16", acc[i, 64 + j] + T.Cast("float32", r[i, j]))
            for i, j in T.grid(64, 64):
                with T.sblock("store"):
                    T.reads(d[i, j])
                    T.writes(D[i, j])
                    T.sblock_attr({"tvm_hopper.async_copy": "tma"})
                    D[i, j] = d[i, j]
"""
AFTER = (
    ('            d = T.sblock_alloc_buffer((64, 64), "float16", scope="shared.dyn")\n', ""),
    (
        BEFORE[
            BEFORE.index(
                '            for i, j in T.grid(64, 64):\n                with T.sblock("ep'
            ) :
        ],
        """\
            with T.sblock("in_place"):
                T.reads()
                T.writes()
                for i, j in T.grid(64, 64):
                    with T.sblock("epilogue"):
                        T.reads(acc[0:64, 0:128], r[0:64, 0:64])
                        T.writes(acc[0:64, 0:128])
                        acc[i, 64 + j] = acc[i, 64 + j] + T.Cast("float32", r[i, j])
                for i, j in T.grid(64, 64):
                    with T.sblock("epilogue"):
                        T.reads(acc[0:64, 0:128])
                        T.writes(r[0:64, 0:64])
                        T.sblock_attr({"tvm_hopper.takes_place": 1})
                        r[i, j] = T.Cast("float16", acc[i, 64 + j])
            for i, j in T.grid(64, 64):
                with T.sblock("store"):
                    T.reads(r[i, j])
                    T.writes(D[i, j])
                    T.sblock_attr({"tvm_hopper.async_copy": "tma"})
                    D[i, j] = r[i, j]
""",
    ),
)
VALUE = 'T.Cast("float16", acc[i, 64 + j] + T.Cast("float32", r[i, j]))'
ASKED = '                    T.sblock_attr({"tvm_hopper.async_copy": "tma"})\n'
OUT, IN = (f"                    T.writes({x}[i, j])\n" for x in "Dr")
ACC = '            acc = T.sblock_alloc_buffer((64, 128), scope="local")\n'
KERNEL = '    for bx in T.thread_binding(1, thread="blockIdx.x"):'
SIGNATURE = 'D: T.Buffer((64, 64), "float16")):'
R_ALLOC = 'r = T.sblock_alloc_buffer((64, 64), "float16", scope="shared.dyn")'


def test_an_output_takes_the_place_of_an_operand():
    check(run(parse(BEFORE), ReuseOperandTiles()), parse(BEFORE, *AFTER))


@pytest.mark.parametrize(("turns", "taken"), [(1, True), (2, False)])
def test_sums_that_several_turns_would_overwrite(turns, taken):
    """A loop of one turn is what is left of one over parts."""
    start = BEFORE.index("            d = T.sblock_alloc")
    inner = BEFORE[start:].replace("\n            ", "\n                    ").rstrip()
    loop = f'            for part in range({turns}):\n                with T.sblock("part"):\n'
    body = "                    T.reads()\n                    T.writes()\n        "
    func = parse(BEFORE[:start] + loop + body + inner + "\n")
    after = run(func, ReuseOperandTiles())
    assert ("takes_place" in after.script()) == taken


def test_again_finds_nothing():
    once = run(parse(BEFORE), ReuseOperandTiles())
    check(run(once, ReuseOperandTiles()), once)


@pytest.mark.parametrize(
    "changes",
    {
        "read elsewhere": [("r[i, j]))", "r[j, i]))")],
        "read twice, once elsewhere": [
            (VALUE, VALUE[:-1] + ' + T.Cast("float32", r[j, i]))'),
        ],
        "no operand": [(VALUE, 'T.Cast("float16", acc[i, 64 + j])')],
        "another type": [(R_ALLOC, R_ALLOC.replace("float16", "bfloat16"))],
        "another shape": [(R_ALLOC, R_ALLOC.replace("(64, 64)", "(64, 72)"))],
        "two elements of the sum": [("acc[i, 64 + j] +", "acc[i, 64 + j] + acc[i, j] +")],
        "a sum in 16 bits": [
            (VALUE, "r[i, j] + half[i, j]"),
            ("            d = T", '            half = T.sblock_alloc_buffer((64, 64), "float16", '
             'scope="local")\n            d = T'),
        ],
        "no product": [('T.sblock_attr({"tvm_hopper.wgmma": 1})', "pass")],
        "sums of several turns": [
            (ACC, ""),
            (KERNEL, f"    {ACC.strip()}\n    for bx in range(2):"),
        ],
        "sums that are read again": [
            ('            for i, j in T.grid(64, 64):\n                with T.sblock("store")',
             "            E[0] = acc[0, 64]\n"
             '            for i, j in T.grid(64, 64):\n                with T.sblock("store")'),
            (SIGNATURE, SIGNATURE.replace("):", ', E: T.Buffer((1,), "float32")):')),
        ],
        "loaded in part": [
            ("                    T.reads(R[i, j])\n", "                    T.where(i < 60)\n"
             "                    T.reads(R[i, j])\n"),
        ],
        "copied out by threads": [
            (OUT + ASKED, OUT),
        ],
        "loaded by threads": [
            (IN + ASKED, IN),
        ],
    }.values(),
)  # fmt: skip
def test_what_stays_as_it_is(changes):
    func = parse(BEFORE, *changes)
    check(run(func, ReuseOperandTiles()), func)
