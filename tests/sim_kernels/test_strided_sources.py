"""Copies that step over rows of their source: values, verdicts, and what is said of them."""

import re

import numpy as np
import pytest
from tvm import IRModule, te

import tvm_hopper
from tvm_hopper.facts import tensor_map
from tvm_hopper.schedule import Roles
from tvm_hopper.simulation import load, verify
from tvm_hopper.testing import strided

TARGET = "nvidia/nvidia-h200"


def check(mod, tile, *more, **options) -> str:
    report = verify(strided.schedule(mod, tile, *more, **options), against=mod).require_clean()
    assert "values compared" in str(report)
    return str(report)


def explained(mod, tile, *more, **options) -> str:
    sch = strided.schedule(mod, tile, *more, **options)
    return str(tvm_hopper.explain(sch, target=TARGET))


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(
    ("shape", "step", "first", "dtype", "swizzle"),
    [
        ((96, 64), 2, 0, "float16", None),
        ((99, 72), 2, 1, "float16", 128),  # the last row is in the slice, and a tile is cut
        ((97, 40), 3, 1, "float32", 64),
        ((200, 80), 8, 5, "int8", 32),
    ],
)
def test_rows_at_each_step(shape, step, first, dtype, swizzle):
    mod = strided.rows(*shape, step=step, first=first, dtype=dtype)
    columns = (swizzle or 128) // np.dtype(dtype).itemsize
    check(mod, (8, columns), swizzle=swizzle)


@pytest.mark.slow
@pytest.mark.parametrize("rest", range(6))
@pytest.mark.parametrize("step", range(2, 9))
def test_each_step_with_each_rest(step, rest):
    for first in (0, 1, step - 1, step + 1):
        check(strided.rows(21 * step + rest, 64, step=step, first=first), (8, 64), stages=2)


@pytest.mark.parametrize(("trips", "roles"), [(1, None), (2, Roles(consumers=1)), (5, None)])
def test_trips(trips, roles):
    """Fewer than slots, one less, more."""
    mod = strided.rows(16 * trips - 3, 64, step=2)
    check(mod, (8, 64), stages=3, steps=trips, threads=128, roles=roles)


def test_steps_of_several_dimensions():
    check(strided.rows(13, 9, 64, step=(2, 3)), (2, 3, 64), stages=2)


def test_a_box_counts_what_is_stepped_over():
    """Of 200 rows at each second one a box of 256 holds 128: two boxes, of 40 or so rows each."""
    mod = strided.rows(2 * 400, 64, step=2)
    check(mod, (200, 64), stages=2, steps=2)
    (box,) = re.findall(r"box 64 x (\d+) at each 1 x 2 of", explained(mod, (200, 64)))
    assert 200 % int(box) == 0
    assert int(box) * 2 <= tensor_map.MAX_BOX


def test_symbolic_rows():
    mod = strided.rows("n", 64, step=2)
    program = load(strided.schedule(mod, (8, 64), stages=2).mod)
    for rows in (0, 1, 2, 31, 48, 50):
        a = np.random.default_rng(rows).integers(-9, 9, (rows, 64)).astype("float16")
        b = np.full(((rows + 1) // 2, 64), 99, "float16")
        report = verify(program, {"A": a, "B": b}, against=mod)
        assert report.verdict == "clean", f"{rows}: {report}"


def test_a_slice_that_ends_before_the_tensor_does():
    """The map's end is the slice's: rows behind it are zeros, and are not read."""
    a = te.placeholder((100, 64), "float16", name="A")
    x = te.compute((30, 64), lambda i, j: a[i * 2 + 1, j], name="X")
    b = te.compute((30, 64), lambda i, j: x[i, j] + x[i, j], name="B")
    func = te.create_prim_func([a, b]).with_attr("global_symbol", "main")
    check(IRModule({"main": func}), (8, 64), stages=2)


def test_what_explain_says():
    text = explained(strided.rows(99, 72, step=3), (8, 64), "auto")
    assert "copy X: by tma" in text
    assert "box 64 x 8 at each 1 x 3 of 72 x 99 elements, 1024 bytes" in text


@pytest.mark.parametrize(
    ("options", "why", "instead"),
    [
        ({"step": 9}, "rows at each 9 of dimension 0 of A; need a step of 1 to 8", "cp_async"),
        ({"columns": 4, "dtype": "float32"}, "columns at each 4 elements of A", "cp_async"),
        ({"columns": 2}, "columns at each 2 elements of A; need columns one", "made by threads"),
    ],
)
def test_what_a_map_cannot_step_over_goes_another_way(options, why, instead):
    mod = strided.rows(99, 128, **options)
    columns = 128 // options.get("columns", 1)
    text = " ".join(explained(mod, (8, columns), "auto").split())
    assert re.search(f"not tma: .*{why}", text)
    assert f"copy X: {instead}" in text or f"copy X: by {instead}" in text
    check(mod, (8, columns), "auto", stages=2)
