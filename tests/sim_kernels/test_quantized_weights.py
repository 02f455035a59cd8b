"""Weights of a few bits in words, with values of groups: formats as models have them."""

import numpy as np
import pytest
from tvm import s_tir, te, tirx
from tvm.target import Target

from tests.quantized_values import AWQ, FORMATS, draw
from tests.schedule.programs import module, product, tensor
from tvm_hopper import schedule as hs
from tvm_hopper.simulation import load, simulate, verify
from tvm_hopper.testing.quantized import grouped_weight

SLOW = pytest.mark.slow
H200 = "nvidia/nvidia-h200"
TILE = {"tile": (64, 8, 64), "consumers": 1, "stages": 2}


def scheduled(extents, config, form):
    mod = grouped_weight(*extents, **form)
    sch = s_tir.Schedule(mod)
    with Target(H200):
        hs.matmul(sch, "C", hs.MatmulConfig(**{**TILE, **config}))
    return mod, sch.mod


@pytest.mark.parametrize(
    ("config", "form"),
    [
        ({}, {}),
        pytest.param({}, {**AWQ, "group": 128}, marks=SLOW),
        pytest.param({"tile": (64, 16, 128)}, {}, marks=SLOW),
        pytest.param({"tile": (128, 16, 64), "consumers": 2, "split_k": 2}, {}, marks=SLOW),
        pytest.param({"split_k": "stream", "persistent": 3}, {}, marks=SLOW),
        pytest.param({"cluster": (1, 2)}, {}, marks=SLOW),
        pytest.param({"tile": (192, 8, 128)}, {"bits": 8}, marks=SLOW),  # beyond both ends
    ],
)
def test_verdicts_and_values_of_the_program(config, form):
    mod, module = scheduled((12, 128, 128), config, form)
    report = verify(module, against=mod, target=H200).require_clean()
    assert "values compared" in str(report)


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(
    ("name", "sides", "shape"),
    [
        ("q4f16_1", (12, 72, 640), (4, 32, 128)),  # rows and steps beyond both ends
        ("bytes of two", (5, 64, 256), (3, 16, 128)),
        ("q4bf16", (9, 64, 256), (1, 16, 256)),
        ("q8bf16", (5, 71, 320), (2, 16, 64)),
        ("fp8 of blocks", (17, 200, 320), (2, 32, 64)),
        ("two bits", (1, 32, 512), (2, 16, 256)),
    ],
)
def test_lanes_decode(name, sides, shape):
    """Few rows: each lane decodes what it loads from memory."""
    sch = s_tir.Schedule(grouped_weight(*sides, **FORMATS[name]))
    with Target(H200):
        hs.matmul(sch, "C", hs.MatmulConfig(form=hs.DirectShape(*shape)))
    given, want, bound = draw(*sides, np.random.default_rng(0), **FORMATS[name])
    given["S"].flat[0] = np.inf  # what is loaded in place of elements beyond the end
    rows = FORMATS[name].get("rows_of_group", 1)
    got = simulate(load(sch.mod), given, "on_wait", 0)
    assert not got.findings
    error = np.abs(got.outputs["D"].astype("float64") - want)
    assert (error <= bound)[:, rows:].all()


@pytest.mark.parametrize("wide", ["float16", "int16"])  # as words, and one by one
def test_rows_that_a_decoder_leaves_out_are_zero(wide):
    rng = np.random.default_rng(0)
    given = {"X": rng.integers(-2, 3, (4, 256)).astype("float16"),
             "W": rng.integers(-8, 8, (50, 256)).astype("int8")}  # fmt: skip
    x, w = tensor(4, 256, dtype="float16", name="X"), tensor(50, 256, dtype="int8", name="W")

    def decoded(j, k):
        value = w[j, k].astype(wide).astype("float16")
        return tirx.if_then_else(j < 50, value, tirx.const(0, "float16"))

    mod = module(x, w, product(x, te.compute((64, 256), decoded, name="F")))
    sch = s_tir.Schedule(mod)
    with Target(H200):
        hs.matmul(sch, "C", hs.MatmulConfig(form=hs.DirectShape(2, 16, 64)))
    got = simulate(load(sch.mod), given, "on_wait", 0)
    assert not got.findings
    want = given["X"].astype(float) @ given["W"].astype(float).T
    (out,) = got.outputs.values() if len(got.outputs) == 1 else [got.outputs["C"]]
    assert np.array_equal(out, np.pad(want, ((0, 0), (0, 14))))


ODD = [
    ("q4f16_1", (72, 96)),  # rows and a depth that no tile divides
    ("gptq", (48, 320)),  # and no group
    ("q8bf16", (71, 48)),
    ("fp8 of blocks", (200, 144)),
]
OFTEN = ("q4f16_0", "q8bf16", "awq", "gptq of 8 bits", "fp8 of blocks", "q3f16")


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(
    ("name", "sides"),
    [
        *((x, (128, 160 if x == "q3f16" else 128)) for x in OFTEN),
        *ODD[:2],
        *(pytest.param(x, (128, 128), marks=SLOW) for x in FORMATS if x not in OFTEN),
        *(pytest.param(*x, marks=SLOW) for x in ODD[2:]),
    ],
)
def test_formats(name, sides):
    """Each format, with scales that are zero, denormal and huge, next to float64."""
    tile = {"tile": (64, 8, 80)} if name == "q3f16" else {}  # ten in a word
    _, module = scheduled((5, *sides), tile, FORMATS[name])
    given, want, bound = draw(5, *sides, np.random.default_rng(0), **FORMATS[name])
    got = simulate(load(module), given, "on_wait", 0)
    assert not got.findings
    assert (np.abs(got.outputs["D"].astype("float64") - want) <= bound).all()
