"""PipelineRowLoop: the next turn's row is reduced before this turn waits for its cluster."""

from __future__ import annotations

import pytest

from tests.transforms.scripts import check, notes_of, parse, run
from tvm_hopper.errors import LoweringError
from tvm_hopper.transforms.memory_bound.pipeline_row_loop import PipelineRowLoop

HEAD = """
def func(X: T.Buffer((1000, 64), "float32"), Y: T.Buffer((1000, 64), "float32")):
    for bx in T.thread_binding(16, thread="blockIdx.x", memory_bound="row_reduction"):
        for tx in T.thread_binding(64, thread="threadIdx.x"):
            with T.sblock("kernel"):
                rooms = T.sblock_alloc_buffer((4,), "float32", scope="shared.dyn")
                arrived = T.sblock_alloc_buffer((4,), "uint64", scope="shared.dyn", align=8)
                kept = T.sblock_alloc_buffer((1,), "float32", scope="local")
"""
SEND = """
TABval[0] = X[NUMBER * 16 + bx, tx]
TABT.tvm_storage_sync("shared", T.bool(False), -1)
TABT.evaluate(TAB    T.ptx.st_async(TAB        T.uint32(0), val[0], T.uint32(8), "",
    "shared::cluster", TAB        "mbarrier::complete_tx::bytes", "f32", "", TAB    ) TAB)
"""
WAIT = "T.evaluate(T.cuda.mbarrier_wait(T.address_of(arrived[r % 4]), r // 4 % 2))"
MARKED = f"""with T.sblock("wait", reads=[], writes=[], skew_turns=1):
TAB    {WAIT}"""
TAKE = """
TABWAIT
TABtotal[0] = rooms[r % 4]
TABY[r * 16 + bx, tx] = RESULT
"""


def indented(text: str, number: str, columns: int) -> str:
    return text.replace("WAIT", WAIT).replace("NUMBER", number).replace("TAB", " " * columns)


BEFORE = (
    HEAD
    + """
                for r in T.serial(63, skew_turns=1):
                    if r * 16 + bx < 1000:
                        with T.sblock("turn", reads=[], writes=[]):
                            total = T.sblock_alloc_buffer((1,), "float32", scope="local")
                            with T.sblock("sum", reads=[], writes=[]):
                                val = T.sblock_alloc_buffer((1,), "float32", scope="local")
"""
    + indented(SEND, "r", 32)
    + indented(TAKE.replace("WAIT", MARKED), "r", 32)
)
AFTER = (
    HEAD
    + """
                with T.sblock("turns", reads=[], writes=[]):
                    total = T.sblock_alloc_buffer((1,), "float32", scope="local")
                    val = T.sblock_alloc_buffer((1,), "float32", scope="local")
                    if bx < 1000:
"""
    + indented(SEND, "T.Mul(0, 1)", 24).replace("T.Mul(0, 1) * 16", "T.Mul(0, 16)")
    + """
                    for r in range(63):
                        if r + 1 < 63 and r * 16 + bx < 984:
"""
    + indented(SEND, "(r + 1)", 28)
    + """
                        if r * 16 + bx < 1000:
"""
    + indented(TAKE, "r", 28)
)


def before(result: str = "total[0]"):
    return parse(BEFORE, ("RESULT", result))


def after():
    return parse(AFTER, ("RESULT", "total[0]"))


def in_order(result: str):
    start = BEFORE.index(indented(TAKE.replace("WAIT", MARKED), "r", 32))
    text = BEFORE[:start] + indented(TAKE, "r", 32)
    return parse(text, ("RESULT", result), (", skew_turns=1", ""))


def test_the_next_row_is_sent_before_this_turn_waits():
    check(run(before(), PipelineRowLoop()), after())


def test_registers_of_the_earlier_part_keep_the_turns_in_order():
    result = "total[0] * val[0]"
    got = run(before(result), PipelineRowLoop())
    check(got, in_order(result))
    (note,) = notes_of(got)
    assert "each row waits for its cluster" in note.text
    with pytest.raises(LoweringError, match=r"loop r, tvm_hopper\.skew_turns"):
        run(before(result).with_attr("tvm_hopper.strict", True), PipelineRowLoop())


def test_turns_that_say_of_no_wait_stay_in_order():
    start = BEFORE.index(indented(TAKE.replace("WAIT", MARKED), "r", 32))
    unmarked = parse(BEFORE[:start] + indented(TAKE, "r", 32), ("RESULT", "total[0]"))
    check(run(unmarked, PipelineRowLoop()), in_order("total[0]"))
