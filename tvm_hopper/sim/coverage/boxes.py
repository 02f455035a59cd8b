"""Runs of bytes as boxes in a tensor's own rows: few boxes where there are many runs.

    128 runs of 256 bytes, every 16384 bytes     one box: 128 rows by bytes [512, 768)

Moduli, each a multiple of the next (the tensor's row pitch is one), split an address into digits. A
box is a range in each of the digits; the last digit counts bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from tvm_hopper.sim.coverage.footprint import Piece
from tvm_hopper.sim.coverage.points import UndecidedError

MAX_BOXES = 1 << 22  # boxes of one tensor
MAX_MODULI = 4


@dataclass(frozen=True)
class Boxes:
    """Ranges [low, high) in each digit, (boxes, digits) int64, and their owners, (boxes,)."""

    low: np.ndarray
    high: np.ndarray
    owner: np.ndarray


def pitches(starts: np.ndarray) -> list[int]:
    """Return by how much runs follow each other, then groups of them, and so on."""
    found: list[int] = []
    while len(starts) > 1 and len(found) < MAX_MODULI:
        gaps = np.diff(starts)
        pitch = int(gaps[0])
        found.append(pitch)
        heads = starts[np.concatenate(([True], gaps != pitch))]
        if len(heads) * 2 > len(starts):
            break
        starts = heads
    return found


def choose_moduli(weighted: Iterable[tuple[int, int]]) -> tuple[int, ...]:
    """Choose moduli, the largest first, from (pitch, how many boxes it saves)."""
    weights: dict[int, int] = {}
    for pitch, weight in weighted:
        weights[pitch] = weights.get(pitch, 0) + weight
    kept: list[int] = []
    for pitch in sorted(weights, key=lambda p: (-weights[p], p)):
        fits = all(pitch % other == 0 or other % pitch == 0 for other in kept)
        if pitch > 1 and fits and len(kept) < MAX_MODULI:
            kept.append(pitch)
    return tuple(sorted(kept, reverse=True))


def digits(address: np.ndarray, moduli: Sequence[int]) -> np.ndarray:
    """Split addresses into digits; (addresses, digits)."""
    parts = []
    for modulus in moduli:
        parts.append(address // modulus)
        address = address % modulus
    return np.stack([*parts, address], axis=1)


def place_of(parts: Sequence[int], moduli: Sequence[int]) -> int:
    """Put an address together."""
    return int(sum(int(p) * m for p, m in zip(parts, (*moduli, 1), strict=True)))


def range_boxes(starts: np.ndarray, ends: np.ndarray, moduli: Sequence[int]) -> tuple[
    np.ndarray, np.ndarray, np.ndarray
]:  # fmt: skip
    """Return low and high of the boxes of ranges of bytes, and the range that each belongs to."""
    which = np.arange(len(starts), dtype=np.int64)
    if not moduli:
        return starts[:, None], ends[:, None], which
    modulus = moduli[-1]
    upper = [m // modulus for m in moduli[:-1]]
    row, last = starts // modulus, (ends - 1) // modulus
    inside = row == last
    head = ~inside & (starts % modulus != 0)
    tail = ~inside & (ends % modulus != 0)
    lows, highs, origin = [], [], []

    def one_row(mask: np.ndarray, rows: np.ndarray, low: np.ndarray, high: np.ndarray) -> None:
        above = digits(rows[mask], upper)
        lows.append(np.concatenate((above, low[mask, None]), axis=1))
        highs.append(np.concatenate((above + 1, high[mask, None]), axis=1))
        origin.append(which[mask])

    begin = starts - row * modulus
    stop = ends - last * modulus
    one_row(inside, row, begin, stop)
    one_row(head, row, begin, np.full_like(begin, modulus))
    one_row(tail, last, np.zeros_like(begin), stop)
    first_full, end_full = row + head, last + 1 - tail
    whole = ~inside & (first_full < end_full)
    if whole.any():
        low, high, of = range_boxes(first_full[whole], end_full[whole], upper)
        lows.append(np.concatenate((low, np.zeros((len(low), 1), np.int64)), axis=1))
        highs.append(np.concatenate((high, np.full((len(low), 1), modulus)), axis=1))
        origin.append(which[whole][of])
    return np.concatenate(lows), np.concatenate(highs), np.concatenate(origin)


def joined(low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Join boxes of one owner that are alike but for one digit, in which they follow each other."""
    for digit in range(low.shape[1] - 1, -1, -1):
        if len(low) < 2:
            break
        others = [d for d in range(low.shape[1]) if d != digit]
        keys = [low[:, digit], *(part[:, d] for d in reversed(others) for part in (high, low))]
        order = np.lexsort(keys)
        low, high = low[order], high[order]
        same = np.ones(len(low) - 1, bool)
        for d in others:
            same &= (low[1:, d] == low[:-1, d]) & (high[1:, d] == high[:-1, d])
        same &= low[1:, digit] == high[:-1, digit]
        first = np.flatnonzero(np.concatenate(([True], ~same)))
        last = np.concatenate((first[1:] - 1, [len(low) - 1]))
        high = high[first] if digit < 0 else _with(high[first], digit, high[last, digit])
        low = low[first]
    return low, high


def _with(boxes: np.ndarray, digit: int, values: np.ndarray) -> np.ndarray:
    boxes = boxes.copy()
    boxes[:, digit] = values
    return boxes


def _leftmost(starts: np.ndarray, modulus: int) -> int:
    """Return where rows of some runs begin, so that none goes over an end: after a gap."""
    places = np.unique(starts % modulus)
    gaps = np.diff(np.append(places, places[0] + modulus))
    first = int(places[(int(np.argmax(gaps)) + 1) % len(places)])
    return first - modulus if first > modulus // 2 else first


def piece_boxes(
    piece: Piece, runs: tuple[np.ndarray, np.ndarray], moduli: Sequence[int], most: int = MAX_BOXES
) -> Boxes:
    """Return the boxes of a piece, whose offsets make some runs; at most so many."""
    starts, lengths = runs
    base = piece.base + piece.offsets.low
    if moduli:
        left = _leftmost(starts, moduli[-1])
        starts, base = starts - left, base + left
    low, high, _ = range_boxes(starts, starts + lengths, moduli)
    low, high = joined(low, high)
    at = digits(base, moduli)
    fits = np.ones(len(base), bool)
    for digit, modulus in enumerate((*moduli, 1)[1:], start=1):
        radix = moduli[digit - 1] // modulus
        fits &= at[:, digit] + int(high[:, digit].max()) <= radix
        fits &= at[:, digit] + int(low[:, digit].min()) >= 0
    rank = len(moduli) + 1
    count = int(fits.sum()) * len(low) + int((~fits).sum()) * len(starts)
    if count > most:
        raise UndecidedError(f"more than {MAX_BOXES} pieces of memory to compare")
    lows = [(at[fits][:, None] + low).reshape(-1, rank)]
    highs = [(at[fits][:, None] + high).reshape(-1, rank)]
    owners = [np.repeat(piece.owner[fits], len(low))]
    if not fits.all():  # a carry: run by run
        begins = (base[~fits][:, None] + starts).ravel()
        sizes = np.tile(lengths, int((~fits).sum()))
        more_low, more_high, of = range_boxes(begins, begins + sizes, moduli)
        lows.append(more_low)
        highs.append(more_high)
        owners.append(np.repeat(piece.owner[~fits], len(starts))[of])
    return Boxes(np.concatenate(lows), np.concatenate(highs), np.concatenate(owners))
