"""Rows of a tile that follow several dimensions of a tensor."""

import pytest

from tests.transforms.scripts import parse
from tvm_hopper import ir
from tvm_hopper.transforms.common.transfer import find_transfers
from tvm_hopper.transforms.mechanisms.tma_row_dimensions import in_digits

COPY = """
def func(W: T.Buffer((2, 24, 8, 128), "float16")):
    for bx in T.thread_binding(6, thread="blockIdx.x"):
        with T.sblock("kernel", reads=[], writes=[]):
            tile = T.sblock_alloc_buffer((1, 64, 64), "float16", scope="shared.dyn")
            for p, r, s in T.grid(1, 64, 64):
                with T.sblock("copy", async_copy="tma"):
                    tile[p, r, s] = VALUE
"""
ROW = "W[r % 16 // 8, bx * 4 + r // 16, r % 8, s]"


def copy(value=ROW):
    (found,) = find_transfers(parse(COPY, ("VALUE", value)))
    return found


def test_each_digit_is_a_loop():
    found = in_digits(copy())
    assert [int(x.extent) for x in found.loops] == [1, 4, 2, 8, 64]
    assert [str(x) for x in found.tensor.indices] == ["r_1", "bx * 4 + r_0", "r_2", "s"]
    assert str(found.tile.indices[1]) == "r_0 * 16 + r_1 * 8 + r_2"
    assert in_digits(found) is found


@pytest.mark.parametrize(
    ("bound", "want"),
    [
        ("bx * 64 + r < 336", "bx * 4 + r_0 < 21"),  # whole steps of the first digit
        ("bx * 64 + r < 340", "bx * 64 + ((r_0 * 2 + r_1) * 8 + r_2) < 340"),
        ("bx < 5", "bx < 5"),
        ("bx * 64 + r != 3", "bx * 64 + ((r_0 * 2 + r_1) * 8 + r_2) != 3"),
        ("r * r < 64", None),
    ],
)
def test_bounds(bound, want):
    found = in_digits(copy(f"T.if_then_else({bound}, {ROW}, T.float16(0))"))
    assert want in (None, str(found.condition))
    assert not ir.uses(found.condition, copy().loops[1].loop_var)


@pytest.mark.parametrize(
    "value", ["W[0, bx, r % 8, s]", "W[0, r, 0, s]", "W[r % 12, 0, r // 18, s]"]
)
def test_what_stays(value):
    found = copy(value.replace("r % 8", "r") if "bx, r" in value else value)
    assert in_digits(found) is found
