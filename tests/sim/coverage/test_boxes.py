"""Boxes, cells and cut tensor-map boxes against sets of bytes."""

import random
from dataclasses import replace

import numpy as np
import pytest

from tvm_hopper.sim.coverage.accesses import ATOMIC, LOAD, STORE, GlobalAccess
from tvm_hopper.sim.coverage.boxes import choose_moduli, piece_boxes, pitches, range_boxes
from tvm_hopper.sim.coverage.footprint import Piece, cut_boxes
from tvm_hopper.sim.coverage.lattice import Lattice, own_ranges
from tvm_hopper.sim.coverage.nodes import Nodes
from tvm_hopper.sim.coverage.offsets import Offsets, merged
from tvm_hopper.sim.launch.tensors import place
from tvm_hopper.sim.launch.tma import BoundTensorMap, TensorMapArg

ACCESS = GlobalAccess(None, STORE, (), "C", (), Nodes().one, 1, "C")


def bytes_of(low: np.ndarray, high: np.ndarray, moduli: tuple[int, ...]) -> set[int]:
    """List the bytes of boxes."""
    found: set[int] = set()
    for first, last in zip(low, high, strict=True):
        ranges = [np.arange(a, b) for a, b in zip(first, last, strict=True)]
        grid = np.stack(np.meshgrid(*ranges, indexing="ij"), -1).reshape(-1, len(ranges))
        found |= set((grid * np.array([*moduli, 1])).sum(axis=1).tolist())
    return found


@pytest.mark.parametrize("moduli", [(), (12,), (60, 12), (60, 12, 4)])
def test_ranges_are_the_bytes_of_their_boxes(moduli: tuple[int, ...]) -> None:
    rng = random.Random(1)
    for _ in range(200):
        start = rng.randrange(-70, 200)
        stop = start + rng.randrange(1, 150)
        low, high, _ = range_boxes(np.array([start]), np.array([stop]), moduli)
        sizes = int(np.prod(high - low, axis=1).sum())
        assert bytes_of(low, high, moduli) == set(range(start, stop))
        assert sizes == stop - start  # no byte twice


def test_pieces_are_the_bytes_of_their_boxes() -> None:
    rng = np.random.default_rng(2)
    for _ in range(150):
        sets = tuple(
            np.unique(rng.integers(0, 5, rng.integers(1, 4)) * step)
            for step in rng.choice([1, 2, 6, 12, 24, 36, 48, 60], 3)
        )
        width = int(rng.integers(1, 5))
        piece = Piece(ACCESS, rng.integers(0, 300, 6), np.arange(6), Offsets(sets, width))
        runs = piece.offsets.runs()
        moduli = choose_moduli([*((p, 2) for p in pitches(runs[0])), (12, 1)])
        boxes = piece_boxes(piece, runs, moduli)
        offsets = (sets[0][:, None, None] + sets[1][:, None] + sets[2]).ravel()
        for owner, base in enumerate(piece.base):
            mine = boxes.owner == owner
            expected = {int(base + o + b) for o in offsets for b in range(width)}
            assert bytes_of(boxes.low[mine], boxes.high[mine], moduli) == expected


def test_boxes_of_tensor_maps_are_cut_as_the_hardware_cuts_them() -> None:
    rng = np.random.default_rng(3)
    for _ in range(100):
        rank = int(rng.integers(1, 4))
        dims = tuple(int(d) for d in rng.integers(1, 9, rank))
        box = tuple(int(b) for b in rng.integers(1, 6, rank))
        steps = tuple(int(s) for s in rng.integers(1, 3, rank))
        strides = tuple(int(np.prod(dims[: d + 1])) * 2 for d in range(rank - 1))
        arg = TensorMapArg("C", "float16", dims, strides, box, steps, byte_offset=16)
        places = rng.integers(-7, 10, (5, rank))
        pieces = cut_boxes(ACCESS, arg, places, np.arange(5))
        got: dict[int, set[int]] = {}
        for piece in pieces:
            starts, lengths = piece.offsets.runs()
            for base, owner in zip(piece.base, piece.owner, strict=True):
                begin = base + piece.offsets.low
                for start, length in zip(starts, lengths, strict=True):
                    here = range(int(begin + start), int(begin + start + length))
                    got.setdefault(int(owner), set()).update(here)
        bound = BoundTensorMap(arg, None)  # type: ignore[arg-type]
        for owner, start in enumerate(places):
            offsets, inside = bound.select(start)
            kept = offsets if inside is None else offsets[inside]
            expected = {int(o) + b for o in kept for b in range(2)}
            assert got.get(owner, set()) == expected


def test_runs_join_where_they_touch_or_overlap() -> None:
    starts, lengths = merged(np.array([8, 0, 4, 20, 21]), np.array([4, 4, 4, 2, 4]))
    assert starts.tolist() == [0, 20]
    assert lengths.tolist() == [12, 5]


def test_elements_of_views() -> None:
    base = np.zeros((6, 10), "int16")
    starts, ends = own_ranges(place(base[1:4, 2:7]))
    assert starts.tolist() == [24, 44, 64]
    assert ends.tolist() == [34, 54, 74]
    starts, ends = own_ranges(place(base.T))
    assert (starts.tolist(), ends.tolist()) == ([0], [120])
    starts, ends = own_ranges(place(np.zeros(8, "int32")[::-2]))
    assert starts.tolist() == [4, 12, 20, 28]


def test_a_conflict_and_a_hole_are_found_where_they_are() -> None:
    tensor = np.zeros((8, 16), "float32")
    tile = Offsets((np.arange(4) * 64, np.arange(8) * 4), 4)
    base = np.array([0, 32, 256, 288])
    lattice = Lattice([Piece(ACCESS, base, np.arange(4), tile)], place(tensor))
    assert lattice.conflict() is None
    assert not len(lattice.holes())
    moved = Piece(ACCESS, base + np.array([0, 4, 0, 0]), np.arange(4), tile)
    lattice = Lattice([moved], place(tensor))
    conflict = lattice.conflict()
    assert conflict is not None
    assert conflict.owners == (0, 1) or conflict.owners[1] in (1, 2)
    assert lattice.byte_of(int(lattice.holes()[0])) == 32


def test_a_load_conflicts_with_what_another_cta_updates_atomically() -> None:
    tensor = np.zeros(64, "float32")
    row = Offsets((np.arange(16) * 4,), 4)

    def piece(kind: str, owners: list[int]) -> Piece:
        access = replace(ACCESS, kind=kind)
        return Piece(access, np.zeros(len(owners), np.int64), np.array(owners), row)

    def owners(*pieces: Piece) -> tuple[int, int] | None:
        conflict = Lattice(pieces, place(tensor)).conflict()
        return None if conflict is None else conflict.owners

    assert owners(piece(ATOMIC, [0, 1, 2])) is None
    assert owners(piece(ATOMIC, [1, 1]), piece(LOAD, [1])) is None
    assert owners(piece(LOAD, [0, 1])) is None
    assert owners(piece(ATOMIC, [1, 1]), piece(LOAD, [0])) == (0, 1)
    assert owners(piece(ATOMIC, [0, 1]), piece(LOAD, [0])) == (0, 1)
    assert owners(piece(ATOMIC, [1]), piece(STORE, [0])) == (0, 1)
    lattice = Lattice([piece(STORE, [0, 1])], place(tensor))
    assert lattice.conflict(np.array([0, 0])) is None
    assert lattice.conflict(np.array([0, 1])) is not None
