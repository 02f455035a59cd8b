"""Check the arguments of tuning runs, builders and runners."""

from __future__ import annotations

from typing import Any

from tvm_hopper.errors import cannot_tune

MOST_PROCESSES = 1024
MOST_SECONDS = 1 << 40  # of a whole number; math.inf is a time as well


def check_number(where: str, name: str, value: Any, most: int) -> None:
    """Refuse what is no number from 1 on.

    - raises TuningError: it is not.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise cannot_tune(where, f"{name}={value!r}", f"a number from 1 to {most}")


def check_seconds(where: str, value: Any) -> None:
    """Refuse a time that is none.

    - raises TuningError: it is no number above 0.
    """
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    is_huge = isinstance(value, int) and value > MOST_SECONDS  # which no float may hold
    if not (is_number and value > 0) or is_huge:
        found = f"an int of {value.bit_length()} bits" if is_huge else f"{value!r}"
        raise cannot_tune(where, f"seconds={found}", "a number above 0")


def check_method(where: str, name: str, value: Any, method: str, need: str) -> None:
    """Refuse an object without a method, and a class, which is no object yet.

    - raises TuningError: it is one of these; None is neither.
    """
    if value is None or (callable(getattr(value, method, None)) and not _is_class(value, method)):
        return
    raise cannot_tune(where, f"{name}={value!r}", need)


def _is_class(value: Any, method: str) -> bool:
    return isinstance(value, type) and method != "__call__"
