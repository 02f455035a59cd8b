"""An output is staged where the operand came that each element is computed from."""

import pytest

from tests.transforms.scripts import check, nest, parse, run
from tvm_hopper.transforms import ReuseOperandTiles

BEFORE = """
def func(R: T.Buffer((64, 64), "float16"), D: T.Buffer((64, 64), "float16")):
    for bx in T.thread_binding(1, thread="blockIdx.x"):
        with T.sblock("work", reads=[], writes=[]):
            acc = T.sblock_alloc_buffer((64, 128), scope="local")
            with T.sblock("product", reads=[acc[0:64, 0:128]], writes=[acc[0:64, 0:128]], wgmma=1):
                for i, j in T.grid(64, 128):
                    acc[i, j] = acc[i, j] + T.float32(1)
            d = T.sblock_alloc_buffer((64, 64), "float16", scope="shared.dyn")
            r = T.sblock_alloc_buffer((64, 64), "float16", scope="shared.dyn")
            for i, j in T.grid(64, 64):
                with T.sblock("load", reads=[R[i, j]], writes=[r[i, j]], async_copy="tma"):
                    r[i, j] = R[i, j]
            for i, j in T.grid(64, 64):
                with T.sblock("epilogue", reads=[acc[0:64, 0:128], r[0:64, 0:64]],
                    writes=[d[0:64, 0:64]]):
                    d[i, j] = T.Cast("float16", acc[i, 64 + j] + T.Cast("float32", r[i, j]))
            for i, j in T.grid(64, 64):
                with T.sblock("store", reads=[d[i, j]], writes=[D[i, j]], async_copy="tma"):
                    D[i, j] = d[i, j]
"""
EPILOGUE = BEFORE[BEFORE.index("            for i, j in T.grid(64, 64):\n" + nest(BEFORE, '"ep')) :]
AFTER = (
    ('            d = T.sblock_alloc_buffer((64, 64), "float16", scope="shared.dyn")\n', ""),
    (
        EPILOGUE,
        """\
            with T.sblock("in_place", reads=[], writes=[]):
                for i, j in T.grid(64, 64):
                    with T.sblock("epilogue", reads=[acc[0:64, 0:128], r[0:64, 0:64]],
                        writes=[acc[0:64, 0:128]]):
                        acc[i, 64 + j] = acc[i, 64 + j] + T.Cast("float32", r[i, j])
                for i, j in T.grid(64, 64):
                    with T.sblock("epilogue", reads=[acc[0:64, 0:128]], writes=[r[0:64, 0:64]],
                        takes_place=1):
                        r[i, j] = T.Cast("float16", acc[i, 64 + j])
            for i, j in T.grid(64, 64):
                with T.sblock("store", reads=[r[i, j]], writes=[D[i, j]], async_copy="tma"):
                    D[i, j] = r[i, j]
""",
    ),
)
STORE = "            for i, j in T.grid(64, 64):\n" + nest(BEFORE, 'T.sblock("store"')
VALUE = 'T.Cast("float16", acc[i, 64 + j] + T.Cast("float32", r[i, j]))'
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
    loop = f"            for part in range({turns}):\n"
    block = '                with T.sblock("part", reads=[], writes=[]):\n        '
    func = parse(BEFORE[:start] + loop + block + inner + "\n")
    after = run(func, ReuseOperandTiles())
    assert ("takes_place" in after.script()) == taken


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
        "no product": [(", wgmma=1", "")],
        "sums of several turns": [
            (ACC, ""),
            (KERNEL, f"    {ACC.strip()}\n    for bx in range(2):"),
        ],
        "sums that are read again": [
            (STORE, "            E[0] = acc[0, 64]\n" + STORE),
            (SIGNATURE, SIGNATURE.replace("):", ', E: T.Buffer((1,), "float32")):')),
        ],
        "loaded in part": [
            ("reads=[R[i, j]]", "where=i < 60, reads=[R[i, j]]"),
        ],
        "copied out by threads": [
            ('writes=[D[i, j]], async_copy="tma"', "writes=[D[i, j]]"),
        ],
        "loaded by threads": [
            ('writes=[r[i, j]], async_copy="tma"', "writes=[r[i, j]]"),
        ],
    }.values(),
)  # fmt: skip
def test_what_stays_as_it_is(changes):
    func = parse(BEFORE, *changes)
    check(run(func, ReuseOperandTiles()), func)
