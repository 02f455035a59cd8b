"""Few rows whose warps load what they multiply: when they are chosen, what is refused."""

import pytest
from tvm import s_tir

import tvm_hopper
from tests.schedule.refuse import refuse
from tvm_hopper import ir, schedule as hs
from tvm_hopper.errors import ScheduleError
from tvm_hopper.requests import keys
from tvm_hopper.testing import workloads

TARGET = "nvidia/nvidia-h200"
SHAPE = hs.DirectShape(4, 16, 64)


def kinds(mod, config=None, **options):
    """Return for each kernel of a scheduled product what it is, if it has no tiles."""
    sch = s_tir.Schedule(mod)
    hs.matmul(sch, "C", config, **options)
    axes = [ir.thread_axes(kernel)["blockIdx.x"] for kernel in ir.kernels(sch.mod["main"])]
    return [str(axis.annotations.get(keys.MEMORY_BOUND, "")) for axis in axes]


@pytest.mark.parametrize(
    ("m", "layout", "config"),
    [
        (8, "NT", hs.MatmulConfig(form="direct")),
        (3, "NN", hs.MatmulConfig(form="direct", accumulate="float32")),
        (64, "TN", hs.MatmulConfig(form="direct")),
        (16, "TT", hs.MatmulConfig(form=hs.DirectShape(4, 32, 64))),
        (1, "NT", hs.MatmulConfig(form="direct")),
    ],
)
def test_what_is_asked_for_is_served(m, layout, config):
    assert kinds(workloads.matmul(m, 256, 512, layout), config) == [keys.FRAGMENTS]


@pytest.mark.parametrize(
    "config",
    [
        hs.MatmulConfig(form="tiles"),
        hs.MatmulConfig(batch_invariant=True),
        hs.MatmulConfig((64, 64, 64)),
    ],
)
def test_tiles_where_they_are_asked_for(config):
    assert kinds(workloads.matmul(4, 1024, 1024), config) == [""]


def test_symbolic_rows_have_a_class_of_them():
    classes = {8: hs.MatmulConfig(form=SHAPE), 64: hs.MatmulConfig((64, 64, 64))}
    mod = workloads.matmul("m", 64, 512)
    assert kinds(mod, classes=classes) == [keys.FRAGMENTS, ""]
    assert kinds(mod, hs.MatmulConfig(form="direct"), rows=8) == [keys.FRAGMENTS]


def test_explain_says_how():
    sch = s_tir.Schedule(workloads.matmul(8, 4096, 4096))
    hs.matmul(sch, "C", hs.MatmulConfig(form=hs.DirectShape(4, 16, 128)))
    told = str(tvm_hopper.explain(sch, TARGET))
    assert "fragments from memory, 4 warps a sum, 16 columns, 128 of the sum in flight" in told


@pytest.mark.parametrize(
    ("form", "shape", "match"),
    [
        ({"m": 65}, "direct", "found 65 rows; need at most 64, or a size class"),
        ({"n": "n"}, "direct", "found N = n, symbolic; need static N and K"),
        ({"n": 72, "layout": "NN"}, (4, 32, 64), "multiples of 64 and 16 for the rows"),
        ({"m": 64}, (1, 128, 256), "registers for operands and sums; need at most"),
        ({"m": 48}, (16, 32, 32), "of shared memory for sums; need at most 49152"),
    ],
)  # fmt: skip
def test_what_cannot_be_served_is_refused_where_it_was_asked_for(form, shape, match):
    mod = workloads.matmul(**{"m": 8, "n": 64, "k": 512} | form)
    way = shape if isinstance(shape, str) else hs.DirectShape(*shape)
    refuse(mod, match, config=hs.MatmulConfig(form=way))


def test_early_weights_of_tiles_are_refused():
    mod = workloads.matmul(256, 256, 512)
    refuse(
        mod, "early_launch='weights': found tiles", config=hs.MatmulConfig(early_launch="weights")
    )


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ((4, 24, 64), "24 columns and a depth of 64; need multiples of 16 and of 16"),
        ((33, 16, 64), "DirectShape: found warps=33; need at most 32"),
        ((4, None, 64), "DirectShape: found columns=None; need an int"),
    ],
)
def test_shapes_that_are_none(given, match):
    with pytest.raises(ScheduleError, match=match):
        hs.DirectShape(*given)


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"form": "direct", "batch_invariant": True}, "form='direct' with batch_invariant=True"),
        ({"form": SHAPE, "stages": 3}, r"depth=\d+\) with stages=3; need the form alone"),
        ({"form": "dots", "split_k": 1}, r"form='dots' with split_k=1; need the form alone"),
        ({"form": "direct", "early_launch": True}, "with early_launch=True; need the form alone"),
    ],
)
def test_forms_without_tiles_exclude_fields_of_tiles(given, match):
    with pytest.raises(ScheduleError, match=match):
        hs.MatmulConfig(**given)
