"""Remember the unscheduled module of a schedule, for `verify`.

Every helper `hs.*` notes the module as it stood before the first of them: a plain program, whatever
primitives of TVM were applied to it by then.  The note is kept in this process, under two names:

* the first instruction that the helper left in the schedule's trace: the same object in the
  schedule, in its copies, and whatever is scheduled after it;
* the content (structural hash) of the module as each helper left it: so for `sch.mod`, for a
  schedule that replays the trace, and for a module that comes back from JSON.

Neither the schedule, its trace nor its module carry anything: code, hashes and records are those
of a schedule without a note. There are at most `MOST_NOTES`, the latest ones, of each kind.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Hashable, Iterator
from threading import Lock
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir

MOST_NOTES = 128


class _Notes:
    """The latest notes, by anything that can be a key."""

    def __init__(self) -> None:
        self.notes: OrderedDict[Hashable, Any] = OrderedDict()
        self.lock = Lock()

    def put(self, key: Hashable, plain: Any) -> None:
        """Keep a note, in the place of an older one; two that disagree are none."""
        with self.lock:
            old = self.notes.pop(key, plain)
            same = old is not None and (
                old.same_as(plain) or bool(tvm_ffi.structural_equal(old, plain))
            )
            self.notes[key] = plain if same else None
            while len(self.notes) > MOST_NOTES:
                self.notes.popitem(last=False)

    def get(self, key: Hashable) -> Any:
        """Return a note, or None."""
        with self.lock:
            return self.notes.get(key)


_by_instruction = _Notes()
_by_content = _Notes()


@contextlib.contextmanager
def noted(sch: s_tir.Schedule) -> Iterator[None]:
    """Note what a schedule's module was before the helper that runs here."""
    before = sch.mod
    known = plain_of(sch)
    plain = before if known is None else known
    count = len(_instructions(sch))
    yield
    instructions = _instructions(sch)
    if len(instructions) > count:
        _by_instruction.put(instructions[count], plain)
    elif instructions and not sch.mod.same_as(before):  # a schedule that begins again
        _by_instruction.put(instructions[0], plain)
    note(sch.mod, plain)


def note(module: Any, plain: Any) -> None:
    """Note what one module was made of."""
    known = plain_of(plain)
    _by_content.put(tvm_ffi.structural_hash(module), plain if known is None else known)


def plain_of(thing: Any) -> tvm.IRModule | None:
    """Return what a schedule or a module was before its first helper; None if nothing is known."""
    if isinstance(thing, s_tir.Schedule):
        for instruction in _instructions(thing):
            if (plain := _by_instruction.get(instruction)) is not None:
                return plain
        thing = thing.mod
    if isinstance(thing, tvm.IRModule):
        return _by_content.get(tvm_ffi.structural_hash(thing))
    return None


def _instructions(sch: s_tir.Schedule) -> Any:
    trace = sch.trace
    return trace.insts if trace is not None else []
