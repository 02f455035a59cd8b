"""Rows that name their matrix each, as tokens of experts, are sorted by it on the device."""

import numpy as np
import pytest
from tvm import s_tir, te

from tvm_hopper import schedule as hs
from tvm_hopper.schedule.products.sorted_rows import sort_rows
from tvm_hopper.simulation import simulate, verify

SMALL = {"tile": (64, 32, 64), "stages": 2, "consumers": 1}


def experts(rows=64, columns=40, depth=72, matrices=3, more=False, per_group=1):
    """Build products of one row each, or of several, with gathered matrices."""
    x = te.placeholder((rows, depth, per_group), "float16", name="A")
    b = te.placeholder((matrices, columns, depth), "float16", name="B")
    e = te.placeholder((rows,), "int64", name="E")
    k = te.reduce_axis((0, depth), "k")
    chosen = te.compute((rows, columns, depth), lambda r, j, q: b[e[r], j, q], name="T")

    def product(r, j, u):
        return te.sum(chosen[r, j, k].astype("float32") * x[r, k, u].astype("float32"), k)

    c = te.compute((rows, columns, per_group), product, name="C")
    if more:
        one = te.const(1, "float16")
        c = te.compute(c.shape, lambda *i: c(*i).astype("float16") + one, name="D")
    return te.create_prim_func([b, e, x, c])


def is_sorted(sch):
    return "order" in [str(x.name) for x in sch.mod["main"].body.block.alloc_buffers]


def drawn(rows=64, columns=40, depth=72, matrices=3, seed=0):
    rng = np.random.default_rng(seed)
    return {
        "B": rng.integers(-2, 3, (matrices, columns, depth)).astype("float16"),
        "E": rng.integers(0, matrices, rows),
        "A": rng.integers(-2, 3, (rows, depth, 1)).astype("float16"),
    }


@pytest.mark.parametrize("named", ["any", "one", "first and last"])
@pytest.mark.parametrize("epilogue", [False, True])
def test_values(named, epilogue):
    sch = s_tir.Schedule(experts(more=epilogue))
    hs.matmul(sch, "C", hs.MatmulConfig(**SMALL))
    tensors = drawn()
    if named != "any":
        tensors["E"][:] = 1 if named == "one" else np.arange(64) % 2 * 2
    result = simulate(sch, tensors)
    result.require_clean()
    matrices = tensors["B"][tensors["E"]].astype("float64")
    want = np.einsum("rnk,rku->rnu", matrices, tensors["A"].astype("float64"))
    got = result.outputs["D" if epilogue else "C"].astype("float64")
    np.testing.assert_array_equal(got, want + epilogue)


def test_a_part_of_the_rows_stays_as_it_is():
    """Sorted rows are all of them."""
    sch = s_tir.Schedule(experts())
    (loop, *_) = sch.get_loops("C")
    part, _ = sch.split(loop, [2, 32])
    assert sort_rows(sch.mod["main"], "C") is None
    assert int(sch.get(part).extent) == 2


def test_three_kernels_are_verified():
    sch = s_tir.Schedule(experts())
    hs.matmul(sch, "C", hs.MatmulConfig(**SMALL))
    assert is_sorted(sch)
    report = verify(sch, {"E": drawn()["E"]}, runs=[("eager", 0)])
    assert report.verdict == "clean"
    assert "by the contents of places" in str(report)
    assert "by the contents of tiles" in str(report)


@pytest.mark.parametrize(
    "func",
    [
        experts(rows=11),  # fewer than four rows of each matrix
        experts(rows=(1 << 16) + 1),  # more than are compared with each other
        experts(per_group=16),  # rows in groups as they are
    ],
)
def test_others_stay(func):
    assert sort_rows(func, "C") is None


def test_sampled_tiles_leave_rows_as_they_are():
    sch = s_tir.Schedule(experts(depth=128))
    tile = sch.sample_categorical([64, 128], [0.5, 0.5])
    hs.matmul(sch, "C", hs.MatmulConfig(tile=(tile, 32, 64), stages=2, consumers=1))
    assert not is_sorted(sch)


@pytest.mark.parametrize(
    "given",
    [{"cluster": (2, 1)}, {"split_k": 2}],
)
def test_what_does_not_go_with_groups_leaves_rows_as_they_are(given):
    sch = s_tir.Schedule(experts(depth=128))
    hs.matmul(sch, "C", hs.MatmulConfig(**SMALL, **given))
    assert not is_sorted(sch)
