"""Every fragment of mma.sync: a bijection, and the one that PTX's formulas give."""

import itertools

import numpy as np
import pytest

from tests.sim import ptx_fragments as ptx
from tvm_hopper.sim.layouts import fragments
from tvm_hopper.sim.ops.mma_forms import DENSE, SPARSE, find_product

LINES = [
    (shape, kind, sparse)
    for sparse, lines in ((False, DENSE), (True, SPARSE))
    for line in lines
    for shape, kind in itertools.product(line.shapes, line.inputs)
]


def once_each(where, shape):
    """Tell whether some places are every element of matrices of a shape, once."""
    count = np.zeros(shape, int)
    np.add.at(count, tuple(where), 1)
    return (count == 1).all()


@pytest.mark.parametrize(("shape", "kind", "sparse"), LINES)
def test_places_are_those_of_the_manual(shape, kind, sparse):
    sums = {"f64": "f64"}.get(kind, "s32" if kind[0] in "bus" and kind != "bf16" else "f32")
    bits = "and" if kind == "b1" else ""
    product = find_product(
        shape, ("row", "col"), (kind, kind, sums), False, bit_operation=bits, sparse=sparse
    )
    quads = 4 if product.quads else 1
    rows, depth = product.rows, product.depth
    shapes = {
        "a": (quads, rows, depth // (2 if sparse else 1)),
        "b": (quads, depth, 8),
        "c": (quads, rows, 8),
    }
    layouts = {"a": "row", "b": "col", "c": sums}
    for operand, of in (("a", kind), ("b", kind), ("c", sums)):
        want = ptx.places(shape, of, operand, layouts[operand], sparse)
        assert once_each(want, shapes[operand])
        for mine, theirs in zip(product.places(operand, of), want, strict=True):
            np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize(
    ("operand", "layout"), [*itertools.product("ab", ("row", "col")), ("c", "f16"), ("c", "f32")]
)
def test_places_of_four_products_at_once(operand, layout):
    want = ptx.places("m8n8k4", "f16", operand, layout)
    assert once_each(want, (4, *{"a": (8, 4), "b": (4, 8), "c": (8, 8)}[operand]))
    for mine, theirs in zip(fragments.quad_places(operand, layout), want, strict=True):
        np.testing.assert_array_equal(mine, theirs)
