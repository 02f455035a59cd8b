"""Tensors that say how long loops are: which they are, and what verify draws for them."""

import numpy as np
import pytest
from tvm import te

from tvm_hopper.testing.ragged import ragged
from tvm_hopper.verification.lengths import WAYS, draw_lengths, find_lengths


def found_in(mod):
    (found,) = find_lengths(mod["main"], {})
    return found


@pytest.mark.parametrize("layout", ["offsets", "offsets64"])
@pytest.mark.parametrize("epilogue", ["", "cast", "bias"])
def test_offsets(epilogue, layout):
    mod = ragged(40, 8, 16, 4, epilogue=epilogue, layout=layout)
    found = found_in(mod)
    result = len(mod["main"].params) - 1
    assert (found.place, found.rises, found.limit, found.outputs) == (2, True, 40, (result,))


def test_counts():
    found = found_in(ragged(40, 8, 16, 4, layout="counts"))
    assert (found.place, found.rises, found.limit, found.outputs) == (2, False, 40, (3,))


def test_loops_of_known_lengths_need_none():
    a = te.placeholder((8, 8), name="A")
    func = te.create_prim_func([a, te.compute((8, 8), lambda i, j: a[i, j] + 1, name="B")])
    assert find_lengths(func, {}) == []


@pytest.mark.parametrize("layout", ["offsets", "counts"])
def test_what_is_drawn(layout):
    mod = ragged(40, 8, 16, 4, layout=layout)
    names = [str(x.name) for x in mod["main"].params]
    shapes = {str(x.name): [int(n) for n in x.shape] for x in mod["main"].params}
    values = {n: np.ones(shapes[n], "int32" if n == "P" else "float32") for n in names}
    found = find_lengths(mod["main"], {})
    calls = draw_lengths(found, names, values, [])
    assert len(calls) == len(WAYS)
    for way, call in zip(WAYS, calls, strict=True):
        counts = np.diff(call["P"]) if layout == "offsets" else call["P"]
        assert (call["P"].dtype, len(counts)) == ("int32", 4)
        assert 0 <= counts.min() <= call["P"].max() <= 40
        stays = way == "ragged" or (way == "one" and layout == "counts")
        assert ("C" in call) == stays  # rows are left over
        if not stays:
            assert counts.sum() == (40 if layout == "offsets" else 160)
    assert draw_lengths(found, names, values, ["P"]) == [{}]
    assert all("C" not in x for x in draw_lengths(found, names, values, ["C"]))
