"""What makes an error message unclear: a predicate, so that it can be counted and tested.

A clear message is `where: found ...; need ...`, in words of the program. It is not clear when

    it is no error of this package         a Python error, or one of TVM with the program in it
    it has another form                    no place, no finding or no need
    it is longer than LONGEST              nobody finds the sentence that matters
    it quotes internals                    s_tir.SBlock#0, a file of C++, "Check failed"
    its quotation ends in the middle       "whose indices are distinct atomic variables,)"
    it found nothing                       "found strides []"
    it is untrue of the program            told by the generator, which knows the program
"""

import re
from collections.abc import Sequence

from tvm_hopper.errors import HopperError

LONGEST = 1500  # characters

_FORM = re.compile(r"\S.*?: found .+?; need .+", re.S)
_INTERNALS = re.compile(
    r"SBlock#\d|Check failed|InternalError|Traceback|TVM_FFI|\.cc\b|\.h:\d|File \"|0x[0-9a-f]{6}"
    r"|Expected \"Union|is false:"
)
_CUT = re.compile(r"(?:[a-z],|:)\s*\)")
_NOTHING = re.compile(r"found (?:\w+ )?(?:\[\]|None|\{\})?;")


def why_unclear(text: str, untrue: Sequence[str] = ()) -> str:
    """Say why a message is unclear; an empty string for a clear one.

    Parameters
    ----------
    text : str
        The message of an error of this package.
    untrue : sequence of str
        Patterns of what cannot be true of the program.
    """
    if not _FORM.search(text):
        return "no place, found and need in it"
    if len(text) > LONGEST:
        return f"{len(text)} characters"
    for pattern, what in (
        (_INTERNALS, "quotes internals"),
        (_CUT, "a quotation that is cut"),
        (_NOTHING, "found nothing"),
        *((re.compile(p), "untrue of the program") for p in untrue),
    ):
        if match := pattern.search(text):
            return f"{what}: {match[0][:80]!r}"
    return ""


def is_clear(error: Exception, untrue: Sequence[str] = ()) -> bool:
    """Tell whether an error is a refusal that a user can act on.

    Calls that schedule nothing (`simulate`, options) raise Python's errors in this form.
    """
    ours = isinstance(error, (HopperError, ValueError, TypeError, AttributeError))
    return ours and not why_unclear(str(error), untrue)


def signature(text: str) -> str:
    """Return what messages of one cause have in common: numbers and names of blocks taken off."""
    text = re.sub(r"0x[0-9a-f]+|\d+", "#", text)
    return re.sub(r"[A-Za-z_]\w*#\w*", "name", text)[:160]
