"""Pointers to rows of 16 bytes, as ldmatrix takes them."""

import pytest
from tvm import sym, tirx
from tvm.ir import Range
from tvm.script import tirx as T

from tvm_hopper import ir
from tvm_hopper.analysis.row_pointers import find_row_pointers, is_whole_row, reads_rows


def function(columns, step):
    @T.prim_func(private=True, s_tir=True, check_well_formed=False)
    def func():
        tile = T.alloc_buffer((16, columns), "float16", scope="shared.dyn")
        other = T.alloc_buffer((16, columns), "float16", scope="shared.dyn")
        fragment = T.alloc_buffer((256,), "float16", scope="local")
        for t in range(32):
            T.evaluate(
                T.ptx_legacy.ldmatrix(
                    False,
                    4,
                    ".b16",
                    fragment.data,
                    0,
                    T.tvm_access_ptr(T.type_annotation("float16"), tile.data, columns, 256, 1),
                    t * step,
                    dtype="float16",
                )
            )
            T.evaluate(
                T.ptx_legacy.ldmatrix(
                    False,
                    4,
                    ".b16",
                    fragment.data,
                    0,
                    T.address_of(tile[t % 16, t // 16 * step]),
                    0,
                    dtype="float16",
                )
            )
            T.evaluate(T.call_extern("int32", "f", T.address_of(other[t % 16, 0])))

    return func


def test_a_number_of_elements_or_indices():
    func = function(64, 8)
    counted, indexed = find_row_pointers(func.body)
    assert (counted.is_indexed, indexed.is_indexed) == (False, True)
    assert counted.buffer.same_as(indexed.buffer)
    assert counted.position == indexed.position == 5
    (loop,) = ir.find_all(func.body, ir.For)
    want = 64 + loop.loop_var * 8
    assert sym.Analyzer().can_prove(tirx.EQ(counted.place, want))
    assert isinstance(indexed.place, ir.TensorLoad)


def test_other_calls_read_no_rows():
    func = function(64, 8)
    tile, other = (
        next(x.buffer for x in ir.find_all(func.body, tirx.AllocBuffer) if x.buffer.name == name)
        for name in ("tile", "other")
    )
    assert reads_rows(func.body, tile)
    assert not reads_rows(func.body, other)


@pytest.mark.parametrize(
    ("columns", "step", "whole"),
    [(64, 8, True), (24, 8, True), (64, 16, True), (64, 4, False), (20, 8, False), (64, 1, False)],
)
def test_rows_start_at_multiples_of_16_bytes(columns, step, whole):
    func = function(columns, step)
    (loop,) = ir.find_all(func.body, ir.For)
    analyzer = sym.Analyzer()
    analyzer.bind(loop.loop_var, Range(0, 32))
    found = [is_whole_row(x, analyzer) for x in find_row_pointers(func.body)]
    if columns % 8 == 0:
        assert found == [whole, whole]
    else:
        assert found == [False, False]
