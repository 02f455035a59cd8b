"""Results whose rows begin at any element: aligned vectors, and single elements at their ends."""

import numpy as np
import pytest
from tvm import s_tir

from tvm_hopper import explain, schedule as hs
from tvm_hopper.pipeline import lower_final
from tvm_hopper.simulation import simulate, verify
from tvm_hopper.testing.contractions import contraction, reference
from tvm_hopper.testing.workloads import make_inputs

H200 = "nvidia/nvidia-h200"
FORMULA = "bmk,bnk->bmn"


def scheduled(columns, tile, dtype="float16", rows=50, **config):
    mod = contraction(
        FORMULA,
        {"b": 2, "m": rows, "n": columns, "k": 40},
        epilogue=lambda total, *i: total(*i).astype(dtype),
    )
    sch = s_tir.Schedule(mod)
    rows_of_tile = 64 * config.get("consumers", 1)
    config = {"tile": (rows_of_tile, tile, 32), "stages": 2, "consumers": 1} | config
    hs.matmul(sch, "C", hs.MatmulConfig(**config))
    return mod, sch


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(
    ("columns", "tile", "config"),
    [
        (197, 200, {}),  # one tile: the last run is known
        (99, 64, {"persistent": 3}),  # the second tile ends within a run
        (50, 56, {}),  # words are moved, not parts of them
        (100, 40, {"rows": 130, "consumers": 2}),
        (136, 136, {}),  # rows of whole runs, which four threads do not divide
        ("n", 72, {}),
        (96, 72, {"dtype": "float8_e4m3fn"}),  # a tile ends within a run
        (44, 64, {"dtype": "float8_e4m3fn"}),
    ],
)
def test_values(columns, tile, config):
    mod, sch = scheduled(columns, tile, **config)
    a, b = make_inputs(mod, **({"n": 53} if columns == "n" else {}))
    result = simulate(sch, {"A": a, "B": b})
    result.require_clean()
    got = result.outputs["D"]
    want = reference(FORMULA, a, b).astype(got.dtype)
    np.testing.assert_array_equal(got.astype("float32"), want.astype("float32"))


def test_what_the_program_says_is_what_is_stored():
    mod, sch = scheduled(75, 40)
    verify(sch, against=mod).require_clean()


@pytest.mark.parametrize(
    ("columns", "tile", "dtype", "wide"),
    [(197, 64, "float16", 16), (197, 24, "float16", 2), (197, 64, "float32", 4)],
    ids=["vectors", "no group of runs", "pairs of 8 bytes"],
)
def test_which_are_stored_as_vectors(columns, tile, dtype, wide):
    text = str(explain(scheduled(columns, tile, dtype)[1].mod, H200))
    assert f"store D                 {wide} bytes of a thread at once" in text
    assert ("fallback " in text) == (wide < 16)


def shuffles(columns, tile):
    (func,) = lower_final(scheduled(columns, tile)[1].mod, H200).device.functions.values()
    return str(func).count("__shfl_sync(")


def test_runs_are_shifted_where_rows_begin_off_vectors():
    assert shuffles(136, 136) == 0
    assert shuffles(132, 136) == 4  # one for each word, in loops over groups
