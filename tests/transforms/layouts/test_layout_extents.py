"""SwizzleSharedTiles: a tile is as large as what is copied into it and read of it."""

import pytest

from tests.transforms.scripts import parse, run
from tvm_hopper import ir
from tvm_hopper.errors import LoweringError
from tvm_hopper.transforms.layouts.swizzle_shared_tiles import SwizzleSharedTiles

LARGER = """
def func(A: T.Buffer((64, 64), "float16"), C: T.Buffer((64, 64), "float16"), n: T.int32):
    for tx in T.thread_binding(32, thread="threadIdx.x"):
        with T.sblock("kernel", reads=[], writes=[]):
            tile = T.sblock_alloc_buffer((2147483647, 64), "float16", scope="shared.dyn")
            for i, j in T.grid(8, 64):
                with T.sblock("copy", reads=[A[i, j]], writes=[tile[i, j]], async_copy="tma"):
                    tile[i, j] = A[i, j]
            for j in range(64):
                with T.sblock("use", where=tx < 8, reads=[tile[tx, j]], writes=[C[tx, j]]):
                    C[tx, j] = tile[tx, j]
"""


OTHER = """
            other = T.sblock_alloc_buffer((2147483647, 64), "float16", scope="shared.dyn")
            for i in range(T.min(n, 8)):
                with T.sblock("write", where=tx < 32, reads=[], writes=[other[i, 0:64]]):
                    other[i, tx * 2] = T.float16(1)
"""


def test_an_array_that_no_copy_fills_has_the_extents_that_its_accesses_need():
    """A symbol may cut it: of 8 rows as many as there are, and of the columns those up to 62."""
    text = LARGER.replace(
        "            for i, j in T.grid(8, 64):",
        f"{OTHER[1:]}            for i, j in T.grid(8, 64):",
        1,
    )
    (kernel,) = ir.kernels(run(parse(text), SwizzleSharedTiles()))
    (block,) = ir.find_all(kernel, ir.SBlock, lambda x: bool(x.alloc_buffers))
    shapes = {x.name: [int(e) for e in x.shape] for x in block.alloc_buffers}
    assert shapes == {"tile": [1, 8, 64], "other": [8, 63]}


def test_a_tile_is_no_larger_than_what_is_copied_and_read():
    (kernel,) = ir.kernels(run(parse(LARGER), SwizzleSharedTiles()))
    (block,) = ir.find_all(kernel, ir.SBlock, lambda x: bool(x.alloc_buffers))
    assert [int(x) for x in block.alloc_buffers[0].shape] == [1, 8, 64]


@pytest.mark.parametrize(
    "change",
    [
        ("where=tx < 8", "where=tx < 9"),
        ("where=tx < 8", "where=j < 8"),
        ("C[tx, j] = tile[tx, j]", 'T.evaluate(T.call_extern("int32", "f", tile.data))'),
    ],
)
def test_a_tile_that_is_read_where_nothing_was_copied_stays_as_large(change):
    with pytest.raises(LoweringError, match=r"one loop over each dimension of the whole tile"):
        run(parse(LARGER, change), SwizzleSharedTiles())


def test_loops_that_go_beyond_the_tile_make_it_no_larger():
    with pytest.raises(LoweringError, match=r"one loop over each dimension of the whole tile"):
        run(parse(LARGER, ("(2147483647, 64)", "(4, 64)")), SwizzleSharedTiles())
