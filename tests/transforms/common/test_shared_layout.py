"""SharedLayout: where elements lie, against the patterns that the hardware applies."""

import pytest
from tvm import tirx

from tvm_hopper.facts.dtypes import dtype_bytes
from tvm_hopper.facts.swizzle import span_elements, swizzle_offset
from tvm_hopper.transforms.common.shared_layout import SharedLayout


def flat(layout, place):
    """Return the byte at which a place of the buffer lies."""
    panel, row, inside = place
    return ((panel * layout.rows + row) * layout.span + inside) * dtype_bytes(layout.dtype)


def layouts():
    """List a layout of 2 panels for each swizzle and size of elements, and two without."""
    for swizzle in (32, 64, 128):
        for dtype in ("uint8", "float16", "float32", "float64"):
            span = span_elements(swizzle, dtype)
            for rows in (4, 16, 24):
                yield SharedLayout(dtype, rows, 2 * span, span, swizzle)
    yield SharedLayout("float32", 5, 200, 200, 0)
    yield SharedLayout("float16", 8, 512, 256, 0)


@pytest.mark.parametrize("layout", [*layouts()], ids=lambda x: f"{x.dtype}-{x.swizzle}-{x.rows}")
def test_index_is_where_the_hardware_puts_an_element(layout):
    seen = set()
    for row in range(layout.rows):
        for column in range(layout.columns):
            told = flat(layout, layout.panel_index(row, column))
            panel, line, inside = layout.index(row, column)
            assert 0 <= panel < layout.panels
            assert 0 <= line < layout.rows
            assert 0 <= inside < layout.span
            found = flat(layout, (panel, line, inside))
            assert found == swizzle_offset(told, layout.swizzle)
            seen.add(found)
    assert len(seen) == layout.rows * layout.columns


@pytest.mark.parametrize("layout", [*layouts()], ids=lambda x: f"{x.dtype}-{x.swizzle}-{x.rows}")
def test_expressions_and_ints_agree(layout):
    exprs = layout.index(tirx.Var("row", "int32"), tirx.Var("column", "int32"))
    for row, column in ((0, 0), (1, 5), (layout.rows - 1, layout.columns - 1)):
        # as text, since TVM folds no XOR of constants
        got = tuple(eval(str(x), {"row": row, "column": column}) for x in exprs)
        assert got == layout.index(row, column)


def test_shape_and_alignment():
    layout = SharedLayout("float16", 16, 128, 64, 128)
    assert (layout.panels, layout.shape) == (2, (2, 16, 64))
    assert (layout.panel_bytes, layout.alignment) == (2048, 1024)
