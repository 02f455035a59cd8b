"""Reductions over several axes: one pass over the data, right values, clear refusals."""

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import relax, s_tir, te

from tests.sim_kernels.mutate import change
from tvm_hopper import schedule as hs
from tvm_hopper.errors import ScheduleError
from tvm_hopper.simulation import load, simulate, verify
from tvm_hopper.testing import group_norms
from tvm_hopper.testing.relax_forms import legalize

SHAPES = {  # batch, groups, channels of one, height, width
    "groups": (2, 4, 4, 8, 8),
    "one row": (1, 1, 4, 8, 8),
    "instances": (2, 3, 1, 8, 16),
    "odd": (3, 2, 5, 7, 3),
    "pixels": (2, 4, 16, 1, 1),
}


def scheduled(mod, config=None):
    sch = s_tir.Schedule(mod)
    hs.row_reduction(sch, config=config)
    return sch


def refuse(mod, match, config=None):
    sch = s_tir.Schedule(mod)
    before = sch.mod
    with pytest.raises(ScheduleError, match=match):
        hs.row_reduction(sch, config=config)
    assert sch.mod.same_as(before)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_values_and_reads(shape, read):
    """X is read once, by vectors; each element of W and B once for its channel's elements."""
    batch, groups, channels, height, width = shape
    rng = np.random.default_rng(5)
    sizes = [(batch, groups * channels, height, width), *[(groups * channels,)] * 2]
    x, w, b = (rng.standard_normal(s).astype(ml_dtypes.bfloat16) for s in sizes)
    result = simulate(scheduled(group_norms.group_norm(*shape)), {"X": x, "W": w, "B": b})
    assert not result.findings, result.findings
    want = group_norms.reference(x, w, b, groups)
    got = result.outputs["Y"].astype(np.float64)
    assert np.all(np.abs(got - want) < 2e-2 * (np.abs(want) + np.abs(want).mean()))
    covered = 0 if x.nbytes // (batch * groups) % 16 == 0 else 16 * batch * groups
    assert x.nbytes <= read["X"] <= x.nbytes + covered  # by vectors of a row and those next to it


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(
    "config",
    [
        hs.RowReductionConfig(threads=64, rows=2, preload=True),
        hs.RowReductionConfig(threads=32, rows=1, reload=True, hint=True),
        hs.RowReductionConfig(threads=32, rows=1, chunks=2),
        hs.RowReductionConfig(threads=32, rows=1, cluster=2),
    ],
    ids=["threads", "reload", "streamed", "cluster"],
)
def test_configurations(config):
    mod = group_norms.group_norm(1, 2, 4, 8, 16)
    assert verify(scheduled(mod, config), against=mod).verdict == "clean"


@pytest.mark.parametrize("which", [0, 1])
def test_without_a_barrier_the_simulator_objects(which):
    config = hs.RowReductionConfig(threads=64, rows=1)
    program = load(scheduled(group_norms.group_norm(1, 1, 8, 8, 16), config))
    inputs = {k: np.ones(s, ml_dtypes.bfloat16) for k, s in (("W", 8), ("B", 8))}
    inputs["X"] = np.zeros((1, 8, 8, 16), ml_dtypes.bfloat16)
    assert not simulate(program, inputs).findings
    found = simulate(change(program, "tvm_storage_sync", which), inputs).findings
    assert any(f.rule.startswith("RACE") for f in found), found


FORMS = {
    "group_norm": (
        lambda x, w, b: relax.op.nn.group_norm(x, w, b, 4, channel_axis=1, axes=[2, 3]),
        *(((1, 8, 4, 8), "float16"), ((8,), "float16"), ((8,), "float16")),
    ),
    "group_norm, silu": (
        lambda x, w, b: relax.op.nn.silu(
            relax.op.nn.group_norm(x, w, b, 4, channel_axis=1, axes=[2, 3])
        ),
        *(((2, 8, 4, 4), "float16"), ((8,), "float16"), ((8,), "float16")),
    ),
    "instance_norm": (
        lambda x, w, b: relax.op.nn.instance_norm(x, w, b, channel_axis=1, axes=[2, 3]),
        *((("n", 3, 8, 8), "float32"), ((3,), "float32"), ((3,), "float32")),
    ),
    "layer_norm": (
        lambda x, w, b: relax.op.nn.layer_norm(x, w, b, axes=[-2, -1]),
        *((("n", 8, 8), "float32"), ((8, 8), "float32"), ((8, 8), "float32")),
    ),
    "mean": (lambda x: relax.op.mean(x, axis=[2, 3], keepdims=True), (("n", 3, 8, 8), "float32")),
    "max": (lambda x: relax.op.max(x, axis=[1, 2]), ((7, 16, 8), "float32")),
}


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_relax(form):
    mod = legalize(*form)
    for _, func in mod.functions_items():
        one = tvm.IRModule({"main": func})
        sizes, dtype = form[1]
        values = np.random.default_rng(1).standard_normal([3 if x == "n" else x for x in sizes])
        inputs = {"a0": values.astype(dtype)} if "n" in sizes else None
        assert verify(scheduled(one), against=one, inputs=inputs).verdict == "clean"


def test_spatial_mean():
    mod = group_norms.spatial_mean(3, 5, 8, 8)
    assert verify(scheduled(mod), against=mod).verdict == "clean"


def test_a_symbolic_batch_behind_a_reshape():
    norm, _, *more = FORMS["group_norm"]
    (func,) = [f for _, f in legalize(norm, (("n", 8, 4, 8), "float16"), *more).functions_items()]
    need = (
        "a remainder by n in the index .*; need extents that are known where a tensor is reshaped"
    )
    refuse(tvm.IRModule({"main": func}), need)


def test_axes_apart():
    x = te.placeholder((4, 8, 16), "float32", name="X")
    k, m = te.reduce_axis((0, 4), "k"), te.reduce_axis((0, 16), "m")
    y = te.compute((8,), lambda i: te.sum(x[k, i, m], axis=[k, m]), name="Y")
    mod = tvm.IRModule({"main": te.create_prim_func([x, y])})
    refuse(mod, "a reduction over .*k, .*m; need one axis, the last, or several that lie")


def test_rows_of_several_dimensions_are_not_staged():
    mod = group_norms.group_norm(2, 2, 8, 8, 16)
    refuse(
        mod, "stage=True for rows over several dimensions of X", hs.RowReductionConfig(stage=True)
    )


def test_all_of_a_tensor_is_no_row():
    x = te.placeholder((64, 128), "float32", name="X")
    i, j = te.reduce_axis((0, 64), "i"), te.reduce_axis((0, 128), "j")
    y = te.compute((), lambda: te.sum(x[i, j], axis=[i, j]), name="Y")
    refuse(tvm.IRModule({"main": te.create_prim_func([x, y])}), "block Y: found a reduction over")
