"""Says in words why TVM refused a primitive: without the program, and with the user's own names.

    # tirx.For#0
    for k_1 in range(64): ...
    Error message: ScheduleError: ... expect the loop tirx.For#0 to be higher than ...
  ->
    ... expect loop k_1 to be higher than ...

A failed check of TVM's says nothing to a user: then there is no reason, and the caller says what it
was about to do.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any

import tvm
from tvm import s_tir

from tvm_hopper import ir
from tvm_hopper.errors import cannot_schedule

TVM_ERRORS = (s_tir.ScheduleError, tvm.error.InternalError)  # some primitives only have a check
MESSAGE = "Error message: "
MOST_READS = 4  # of a block that a message lists

_MARK = re.compile(r"#\s*((?:s_tir|tirx)\.\w+#\d+)\s*$")  # a line of TVM's print above a node
_NODE = re.compile(r"(?:\b(?:the )?(?:block|loop|scope) )?\b((?:s_tir|tirx)\.\w+#\d+)")
_OWN_NAME = (
    (re.compile(r'with T\.sblock\("(.*)"\)'), "block"),
    (re.compile(r"for (\w+) in"), "loop"),
)
_SENTENCE_END = re.compile(r"(?<!\.)\.(?=\s|$)")
_STATEMENTS = {
    ir.IfThenElse: "a store under a condition",
    ir.SeqStmt: "several stores",
    ir.For: "a loop",
}
_PLAIN_WORDS = (  # what TVM says in words of its own making
    (
        "is not a stage pipeline",
        "a block next to it writes a part of its tensor, or one that was read before",
    ),
    (
        "is only allowed to read a single buffer region",
        "it reads a tensor besides the product that is written in this function",
    ),
    (
        "The body of the inlined block should be in form of",
        "it reads a tensor at several places, under a condition, or not element by element",
    ),
    ("is an output block", "its result is an output of the function"),
    *(
        (
            words,
            'extents of int32 and of int64: te.create_prim_func(.., index_dtype_override="int64")',
        )
        for words in ("previous index for the same", "int32 vs. int64", "int64 vs. int32")
    ),
)


@contextlib.contextmanager
def as_refusal(where: str, need: str, fix: str = "") -> Iterator[None]:
    """Raise what TVM refuses as one error of this package."""
    try:
        yield
    except TVM_ERRORS as error:
        found = f"what TVM cannot schedule{in_words(error)}"
        raise cannot_schedule(where, found, need, fix) from error


def tvm_reason(error: Exception) -> str:
    """Return the sentence of a TVM error that says what was wrong; empty if none does."""
    text = str(error)
    program, marker, message = text.partition(MESSAGE)
    if not marker:
        program, message = "", text
    for words, plain in _PLAIN_WORDS:
        if words in message:
            return plain
    message = " ".join(message.split()).removeprefix("ScheduleError: ")
    if not message or "Check failed" in message or message == "(not rendered)":
        return ""
    end = _SENTENCE_END.search(message)
    message = message[: end.start()] if end else message
    names = _names(program)
    return _NODE.sub(lambda m: names.get(m.group(1), "it"), message).rstrip(" .:")


def in_words(error: Exception) -> str:
    """Return the reason in parentheses, with a space in front; empty if TVM gives none."""
    reason = tvm_reason(error)
    return f" ({reason})" if reason else ""


def formula_of(node: Any) -> str:
    """Say which element a block computes from which others, as they are in the program."""
    body = node.body
    loads = ir.find_all(body, ir.TensorLoad)
    texts = list(dict.fromkeys(_element(load.source, load.indices) for load in loads))
    more = ", ..." if len(texts) > MOST_READS else ""
    read = ", ".join(texts[:MOST_READS]) + more or "no tensor"
    if not isinstance(body, ir.BufferStore):
        return f"{_STATEMENTS.get(type(body), 'other statements')}, computed from {read}"
    return f"{_element(body.buffer, body.indices)} computed from {read}"


def _element(buffer: Any, indices: Any) -> str:
    return f"{buffer.name}[{', '.join(str(index) for index in indices)}]"


def _names(program: str) -> dict[str, str]:
    """Map TVM's marks, e.g. `s_tir.SBlock#0`, to the names of the nodes that they are above."""
    names: dict[str, str] = {}
    waiting = ""
    for line in program.splitlines():
        mark = _MARK.search(line)
        if mark:
            waiting = mark.group(1)
            continue
        for pattern, kind in _OWN_NAME:
            found = pattern.search(line) if waiting else None
            if found:
                names[waiting] = f"{kind} {found.group(1)}"
                waiting = ""
    return names
