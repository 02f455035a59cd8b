"""Descriptors to try: what a canonical tile may hold, and what the manual leaves open."""

from __future__ import annotations

from dataclasses import dataclass

from tvm_hopper.sim.layouts.matrix_descriptor import FIELDS, SPAN_OF_MODE, MatrixDescriptor

SPANS = (0, 32, 64, 128)
CANONICAL = "canonical"
LINES = range(1, 8)  # 128 bytes each; a repetition of the 128 B mode has eight


def word_of(descriptor: MatrixDescriptor) -> int:
    """Return the 64 bits."""
    values = {
        "start": descriptor.start >> 4,
        "leading_bytes": descriptor.leading_bytes >> 4,
        "stride_bytes": descriptor.stride_bytes >> 4,
        "base_offset": descriptor.base_offset,
        "mode": SPAN_OF_MODE.index(descriptor.span),
    }
    return sum(value << FIELDS[name][0] for name, value in values.items())


@dataclass(frozen=True)
class Trial:
    """One descriptor of an operand; `kind` is CANONICAL or names what is open about it."""

    kind: str
    major: str
    descriptor: MatrixDescriptor


def trials(major: str, span: int) -> list[Trial]:
    """Return what is tried of one layout."""
    found = [
        Trial(CANONICAL, major, MatrixDescriptor(start, leading, stride, 0, span))
        for leading, stride in _strides(major, span)
        for start in _starts(major, span)
    ]
    if not span:
        return found
    leading, stride = _strides(major, span)[0]
    for line in LINES:
        for start, base, kind in (
            (128 * line, 0, "start inside a repetition, base offset 0"),
            (128 * line, line, "start inside a repetition, base offset of its line"),
            (1024, line, "start of a repetition, base offset 1 to 7"),
        ):
            made = MatrixDescriptor(start, leading, stride, base, span)
            found.append(Trial(kind, major, made))
    for start in {16, 48, span - 16}:
        made = MatrixDescriptor(1024 + start, leading, stride, 0, span)
        found.append(Trial("start at an odd 16 bytes", major, made))
    apart = MatrixDescriptor(1024, leading + 128, stride + 128, 0, span)
    found.append(Trial("strides that are no whole repetitions", major, apart))
    return found


def _strides(major: str, span: int) -> list[tuple[int, int]]:
    """Return pairs of leading and stride bytes: side by side, then with room in between."""
    atom = 8 * max(span, 16)
    if not span:
        return [(128, 256), (2048, 128), (256, 512)]
    if major == "k":  # leading bytes are not used
        return [(16, atom), (0, 2 * atom), (4096, atom)]
    return [(2 * atom, atom), (atom, 8 * atom), (4 * atom, 2 * atom)]


def _starts(major: str, span: int) -> list[int]:
    """Return starts at a repetition, and those of later instructions of one tile."""
    whole = [0, 1024, 5 * 1024]
    if not span:
        return [*whole, 16, 1024 + 48, 1024 + 128]
    if major == "k":
        return [*whole, *(1024 + step for step in range(32, span, 32))]
    return [*whole, 2 * 8 * span, 6 * 8 * span]
