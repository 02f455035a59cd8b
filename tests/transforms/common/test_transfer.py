"""Transfers: what is moved, from where to where, under which predicate, by which operation."""

import pytest

from tests.transforms.refusals.copies import COPY
from tests.transforms.scripts import parse
from tvm_hopper import ir
from tvm_hopper.errors import LoweringError
from tvm_hopper.transforms.common.transfer import find_transfers


def test_a_plain_copy():
    (copy,) = find_transfers(parse(COPY).body)
    assert (copy.src.buffer.name, copy.dst.buffer.name) == ("A", "tile")
    assert [str(x) for x in copy.src.indices] == ["bx * 8 + i", "j"]
    assert [x.loop_var.name for x in copy.loops] == ["i", "j"]
    assert copy.condition is None
    assert not copy.is_partial
    assert copy.op.name == "tma_load"
    assert (copy.tile, copy.tensor) == (copy.dst, copy.src)
    assert copy.num_bytes == 8 * 64 * 2
    assert copy.where == "copy of A into tile"


def test_a_padded_copy():
    padded = "T.if_then_else(i < 7, A[bx * 8 + i, j], T.float16(0))"
    (copy,) = find_transfers(parse(COPY, ("A[bx * 8 + i, j]", padded)).body)
    assert str(copy.condition) == "i < 7"
    assert ir.is_zero(copy.fill)


def test_a_padded_copy_of_float8_that_tvm_chooses_in_float32():
    """What another type is chosen in stays a computation."""
    wide = (
        'T.Cast("{}", T.if_then_else(i < 7, T.Cast("float32", A[bx * 8 + i, j]), '
        'T.Cast("float32", T.float8_e4m3fn(0))))'
    )
    types = ('"float16"', '"float8_e4m3fn"')
    padded = ("A[bx * 8 + i, j]", wide.format("float8_e4m3fn"))
    (copy,) = find_transfers(parse(COPY, types, padded).body)
    assert str(copy.condition) == "i < 7"
    assert str(copy.src.indices[0]) == "bx * 8 + i"
    assert ir.is_zero(copy.fill)
    other = ("A[bx * 8 + i, j]", wide.format("float8_e5m2"))
    with pytest.raises(LoweringError, match="need a plain load"):
        find_transfers(parse(COPY, types, other).body)


def test_a_predicate_on_the_store_is_part_of_the_condition():
    where = ('"copy"', '"copy", where=i < n')
    (copy,) = find_transfers(parse(COPY, where).body)
    assert copy.is_partial
    assert str(copy.condition) == "i < n"
    assert ir.is_zero(copy.fill)


def test_the_other_direction_is_another_operation():
    out = ("tile[i, j] = A[bx * 8 + i, j]", "A[bx * 8 + i, j] = tile[i, j]")
    (copy,) = find_transfers(parse(COPY, out).body)
    assert copy.op.name == "tma_store"
    assert not copy.fills_shared
    assert (copy.tile.buffer.name, copy.tensor.buffer.name) == ("tile", "A")
    assert copy.where == "copy of tile into A"


def test_bytes_are_known_where_extents_are():
    (copy,) = find_transfers(parse(COPY, ("T.grid(8, 64)", "T.grid(n, 64)")).body)
    assert copy.num_bytes is None


def test_copies_come_in_the_order_of_the_program():
    first = COPY[COPY.index("            for i, j") :]
    second = first.replace("tile[i", "tile2[i").replace('"copy"', '"second"')
    more = COPY.replace(
        "            for i, j",
        '            tile2 = T.sblock_alloc_buffer((8, 64), "float16", scope="shared.dyn")\n'
        "            for i, j",
        1,
    )
    found = find_transfers(parse(more + second).body)
    assert [copy.tile.buffer.name for copy in found] == ["tile", "tile2"]


def test_blocks_that_ask_for_nothing_are_none():
    nothing = (', async_copy="tma"', "")
    assert find_transfers(parse(COPY, nothing).body) == ()
