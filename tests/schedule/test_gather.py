"""`hs.matmul` of products whose epilogue takes several elements of a row: gates."""

import numpy as np
import pytest
import tvm
from tvm import s_tir
from tvm.target import Target

from tests.schedule.refuse import refuse
from tvm_hopper import explain, schedule as hs
from tvm_hopper.simulation import simulate, verify
from tvm_hopper.testing.gates import gated_product

H200 = "nvidia/nvidia-h200"


def given(m, n, k, count=2):
    rng = np.random.default_rng(0)
    a = rng.standard_normal((m, k)).astype("float16")
    w = (rng.standard_normal((count, n // 8, 8, k)) * k**-0.5).astype("float16")
    return {"A": a, "W": w}


def wanted(a, w):
    parts = [a.astype("float64") @ x.reshape(-1, a.shape[1]).astype("float64").T for x in w]
    gate = parts[0] / (1 + np.exp(-parts[0]))
    return gate * np.prod(parts[1:], axis=0)


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(
    ("shape", "config"),
    [
        ((128, 128, 64), {}),
        ((100, 40, 64), {}),  # no whole tile
        ((70, 72, 128), {"tile": (128, 128, 64)}),
        ((64, 96, 64), {"tile": (64, 96, 64), "consumers": 3}),  # consumers by columns
        ((130, 128, 64), {"tile": (192, 256, 64), "consumers": 3}),  # two instructions side by side
        ((130, 64, 64), {"tile": (64, 64, 64), "stages": 2, "persistent": 3}),
        ((6, 64, 64), {}),  # fewer rows than any tile
        ((1, 256, 128), {}),
        ((1, 40, 64), {"tile": (128, 80, 64), "consumers": 2}),
        ((64, 64, 64, 3), {"tile": (64, 48, 64)}),  # three of a row
    ],
)
def test_values(shape, config):
    """In registers, and out in bounds: within a rounding of what float64 gives."""
    sch = s_tir.Schedule(gated_product(*shape))
    hs.matmul(sch, "C", hs.MatmulConfig(**config))
    values = given(*shape)
    done = simulate(sch, values, target=H200)
    want = wanted(*values.values())
    assert done.findings == ()
    error = np.linalg.norm(done.outputs["D"] - want) / np.linalg.norm(want)
    assert error < 4e-4


def test_size_classes():
    """Few rows take tiles too: dot products and transposed tiles hold one element of a row."""
    mod = gated_product("m", 64, 64)
    sch = s_tir.Schedule(mod)
    with Target(H200):
        hs.matmul(sch, "C", classes=(1, 64))
    for m in (1, 70):  # dot products would be chosen for the first, the last class has more rows
        values = given(m, 64, 64)
        out = {"D": np.zeros((m, 64), "float16")}
        done = simulate(sch, {**values, **out}, target=H200)
        want = wanted(*values.values())
        assert done.findings == ()
        assert np.linalg.norm(done.outputs["D"] - want) / np.linalg.norm(want) < 4e-4
    text = str(explain(tvm.compile(sch.mod, target=H200)))
    assert "x 8 x" in text  # a box of eights
    assert "chosen by estimate" in text


def test_verdict():
    sch = s_tir.Schedule(gated_product(64, 64, 128))
    hs.matmul(sch, "C", hs.MatmulConfig(tile=(64, 64, 64), stages=2))
    verify(sch, given(64, 64, 128), target=H200, progress=False).require_clean()


@pytest.mark.parametrize(
    "config",
    [
        {"form": "transposed"},
        {"split_k": 2},
        {"form": "dots"},
        {"form": "direct"},
        {"store": "tma"},
        {"cluster": (2, 1)},
    ],
)
def test_what_does_not_go_with_it(config):
    (name,) = config
    match = f"found {name}.*and several elements of a row after it"
    refuse(gated_product(64, 64, 64), match, config=hs.MatmulConfig(**config))


def test_a_tile_that_cuts_through_a_group():
    config = hs.MatmulConfig(tile=(64, 40, 64))
    refuse(gated_product(64, 80, 64), "found a tile of 40 columns.*multiples of 16", config=config)
    config = hs.MatmulConfig(tile=(64, 48, 64), consumers=2)
    refuse(gated_product(64, 96, 64), "48 columns for 2 consumers", config=config)


@pytest.mark.parametrize(("order", "columns"), [("halves", 512), ("pairs", 64)])
def test_other_orders_are_refused(order, columns):
    """A thread holds eights of columns: what is somewhere else belongs into another kernel."""
    mod = gated_product(64, columns, 64, order=order)
    match = "reads of C.* and C.*one element of the product for each.*a multiple of 8 columns apart"
    refuse(mod, match)
