"""Copy nests: what is filled, from where, under which predicate."""

from tests.transforms.refusals.copies import COPY
from tests.transforms.scripts import parse
from tvm_hopper import ir
from tvm_hopper.analysis.copies import find_copies


def test_plain_copy():
    func = parse(COPY)
    (copy,) = find_copies(func.body)
    assert (copy.source.name, copy.tile.name) == ("A", "tile")
    assert [str(x) for x in copy.source_indices] == ["bx * 8 + i", "j"]
    assert [x.loop_var.name for x in copy.loops] == ["i", "j"]
    assert copy.condition is None
    assert copy.where == "copy of A into tile"


def test_padded_copy():
    padded = "T.if_then_else(i < 7, A[bx * 8 + i, j], T.float16(0))"
    (copy,) = find_copies(parse(COPY, ("A[bx * 8 + i, j]", padded)).body)
    assert str(copy.condition) == "i < 7"
    assert ir.is_zero(copy.fill)


def test_copies_come_in_the_order_of_the_program():
    first = COPY[COPY.index("            for i, j") :]
    second = first.replace("tile[i", "tile2[i").replace('"copy"', '"second"')
    more = COPY.replace(
        "            for i, j",
        '            tile2 = T.sblock_alloc_buffer((8, 64), "float16", scope="shared.dyn")\n'
        "            for i, j",
        1,
    )
    found = find_copies(parse(more + second).body)
    assert [copy.tile.name for copy in found] == ["tile", "tile2"]


def test_blocks_that_ask_for_nothing_are_none():
    assert (
        find_copies(parse(COPY, ('T.sblock_attr({"tvm_hopper.async_copy": "tma"})', "")).body) == ()
    )
