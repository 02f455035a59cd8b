"""CompactTiles: static tiles of tensors whose extents are symbolic and have 64 bits."""

import pytest

from tests.transforms.scripts import check, parse, run
from tvm_hopper import ir
from tvm_hopper.transforms.compact_tiles import CompactTiles, plan_tiles

KERNEL = """
@T.prim_func(private=True, s_tir=True)
def func(r: T.handle, d: T.handle):
    m = T.int64()
    R = T.match_buffer(r, (m, T.int64(64)), "float16")
    D = T.match_buffer(d, (m, T.int64(64)), "float16")
    for bx in T.thread_binding((m + T.int64(127)) // T.int64(128), thread="blockIdx.x"):
        for ty in T.thread_binding(T.int64(2), thread="threadIdx.y"):
            for part in range(T.int64(4)):
                with T.sblock("outer"):
                    T.reads(R[bx * T.int64(128) : bx * T.int64(128) + T.int64(128), 0:64])
                    T.writes(D[bx * T.int64(128) : bx * T.int64(128) + T.int64(128), 0:64])
                    tile = T.sblock_alloc_buffer((ROWS, T.int64(64)), "float16", scope="SCOPE")
                    for i, j in T.grid(T.int64(128), T.int64(64)):
                        with T.sblock("copy"):
                            T.where(bx * T.int64(128) + i < m)
                            T.reads(R[bx * T.int64(128) + i, j])
                            T.writes(tile[START + i, j])
                            tile[START + i, j] = R[bx * T.int64(128) + i, j]
                    for i, j in T.grid(T.int64(64), T.int64(64)):
                        with T.sblock("use"):
                            T.where(bx * T.int64(128) + ty * T.int64(64) + i < m)
                            T.reads(tile[OTHER + ty * T.int64(64) + i, j])
                            T.writes(D[bx * T.int64(128) + ty * T.int64(64) + i, j])
                            D[bx * T.int64(128) + ty * T.int64(64) + i, j] = tile[
                                OTHER + ty * T.int64(64) + i, j
                            ]
"""
BASE = "bx * T.int64(128)"


def kernel(rows="m", start=BASE, other=None, scope="shared.dyn"):
    found = [("ROWS", rows), ("START", start), ("OTHER", other or start), ("SCOPE", scope)]
    return parse(KERNEL, *found)


def test_a_tile_begins_where_its_accesses_do():
    zero = "T.int64(0)"
    got = run(kernel(), CompactTiles())
    check(got, kernel("T.int64(128)", zero).with_attrs(dict(got.attrs)))
    (one,) = ir.kernels(got)
    assert plan_tiles(one) == ()


@pytest.mark.parametrize(
    "options",
    [
        {"rows": "T.int64(128)", "start": "T.int64(0)"},  # static already
        {"other": "bx * T.int64(64)"},  # two places
        {"start": "bx * T.int64(128) - T.int64(1)", "other": BASE},
        {"scope": "global"},
    ],
)
def test_what_stays(options):
    func = kernel(**options)
    assert run(func, CompactTiles()).same_as(func)


def test_accesses_before_the_start_stay():
    start = "bx * T.int64(128) - i - i"
    func = kernel(start=start, other=BASE)
    assert run(func, CompactTiles()).same_as(func)
