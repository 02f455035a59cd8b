"""SwizzleSharedTiles: tiles of which rows of 16 bytes are read at addresses that the lanes give."""

import pytest
import tvm

from tests.transforms.layouts.test_swizzle_shared_tiles import COPY, tile_of
from tests.transforms.scripts import notes_of, parse, run
from tvm_hopper.transforms.common.explain_notes import read_notes
from tvm_hopper.transforms.layouts.swizzle_shared_tiles import SwizzleSharedTiles

FRAGMENTS = """
            fragment = T.sblock_alloc_buffer((256,), "DTYPE", scope="warp")
            for t in T.thread_binding(32, thread="threadIdx.x"):
                with T.sblock("load", reads=[tile[0:ROWS, 0:COLUMNS]], writes=[fragment[0:256]]):
                    T.ptx_legacy.ldmatrix(T.bool(False), 4, ".b16", fragment.data, t * 8,
                        T.address_of(tile[t % 16, t // 16 * 8]), 0, dtype="DTYPE")
"""


@pytest.mark.parametrize("mechanism", ["tma", "cp_async"])
@pytest.mark.parametrize(
    ("columns", "asked", "swizzle", "shape"),
    [
        (64, "", 128, (1, 16, 64)),
        (128, "", 128, (2, 16, 64)),
        (32, "", 64, (1, 16, 32)),
        (16, "", 32, (1, 16, 16)),
        (24, "", 0, (1, 16, 24)),  # rows that no pattern divides stay as they are
        (64, 32, 32, (4, 16, 16)),
    ],
)
def test_rows_of_16_bytes_take_the_widest_swizzle(columns, asked, swizzle, shape, mechanism):
    reader = FRAGMENTS.replace("DTYPE", "float16")
    found = tile_of(16, columns, asked, reader, mechanism=mechanism)
    assert found[:2] == (swizzle, shape)


def test_an_address_for_more_than_a_row_keeps_the_tile():
    more = FRAGMENTS.replace('), 0, dtype="', '), 8, dtype="')  # counts on, from an element
    assert tile_of(16, 64, reader=more.replace("DTYPE", "float16"))[:2] == (0, (1, 16, 64))


@pytest.mark.parametrize(
    ("mechanism", "columns", "said"),
    [
        ("cp_async", 64, ("tile tile: swizzle 128 B",)),
        ("cp_async", 24, ()),
        ("tma", 64, ()),  # a tensor map says it
    ],
)
def test_explain_hears_of_a_swizzle_without_a_tensor_map(mechanism, columns, said):
    text = COPY.replace("READER", FRAGMENTS).replace("ASKED", "").replace("DTYPE", "float16")
    text = text.replace('"tma"', f'"{mechanism}"')
    text = text.replace("ROWS", "16").replace("COLUMNS", str(columns))
    func = parse(text).with_attr("target", tvm.target.Target("nvidia/nvidia-h200"))
    got = run(func, SwizzleSharedTiles())
    assert tuple(x.text for x in (notes_of(got) if read_notes(got) else ())) == said
