"""The fit of the estimate: on times that it made itself it finds its constants again."""

import json
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.calibration import fit_choice, form_times, tile_times
from benchmarks.form_population import FormProblem
from tvm_hopper.facts.devices import Chip
from tvm_hopper.schedule import MatmulConfig
from tvm_hopper.schedule.products.candidates import candidates
from tvm_hopper.schedule.products.estimate import estimate
from tvm_hopper.schedule.products.product_shape import ProductShape
from tvm_hopper.schedule.products.rates import MEASURED


def measured(rates, shapes):
    tiles = candidates("float16", MatmulConfig())
    found = []
    for shape in shapes:
        times = estimate(shape, tiles, Chip(), rates)
        found.append(fit_choice.Measured(shape, ((shape, tiles, False),), times, 1.0, True))
    return found


SHAPES = [ProductShape(*x) for x in ((64, 4096, 4096), (2048, 2048, 512), (500, 300, 9000))]


def test_constants_are_found_again():
    data = measured(replace(MEASURED, fill_bytes=60.0, slot_handover_cycles=300.0), SHAPES)
    before = fit_choice.spread(data, MEASURED)
    fitted = fit_choice.fit(data, MEASURED, 8)
    assert fit_choice.spread(data, fitted) < 0.2 * before
    assert fitted.fill_bytes == pytest.approx(60.0, rel=0.1)


def test_the_loss_is_that_of_the_chosen_configuration():
    (one,) = measured(MEASURED, SHAPES[:1])
    assert fit_choice.losses([one], MEASURED) == [1.0]
    order = np.argsort(one.times)
    slower = one.times.copy()
    slower[order[0]] *= 3  # the one that is chosen
    wrong = replace(one, times=slower)
    want = slower[order[0]] / slower.min()
    assert fit_choice.losses([wrong], MEASURED) == [pytest.approx(want)]


def test_only_configurations_that_would_be_chosen_are_read(tmp_path):
    problem = [16384, 1024, 64, "NT", "float16"]  # several waves, and B stays in the cache
    tile = {"tile": [128, 128, 64], "consumers": 2}
    configs = [
        tile | {"raster_group": 1},
        tile | {"raster_group": 1, "stages": 3},
        tile,  # sixteen rows together, which would not be chosen
        tile | {"raster_group": 1, "store": "tma"},
        tile | {"raster_group": 1},  # measured twice
    ]
    row = {"problem": problem, "configs": configs, "us": [5.0, 6.0, 1.0, 1.0, 4.0], "cublas": 3.0}
    path = tmp_path / "times.json"
    path.write_text(json.dumps({"rows": [row]}))
    (one,) = fit_choice.read(path)
    assert one.times.tolist() == [4.0, 6.0]
    ((_, tiles, _),) = one.parts
    assert tiles.stages.tolist() == [2, 3]
    assert one.product == ProductShape(16384, 1024, 64, "float16", ("k", "k"))


def test_both_ways_of_a_problem_are_read(tmp_path):
    problem = [16, 4096, 4096, "NT", "float16"]
    configs = [
        {"tile": [64, 32, 128], "consumers": 1},
        {"tile": [64, 16, 128], "consumers": 1, "transposed": True, "raster_group": 1},
    ]
    row = {"problem": problem, "configs": configs, "us": [9.0, 7.0], "cublas": 8.0}
    path = tmp_path / "times.json"
    path.write_text(json.dumps({"rows": [row]}))
    (one,) = fit_choice.read(path)
    assert [product.is_transposed for product, *_ in one.parts] == [False, True]
    assert one.times.tolist() == [9.0, 7.0]
    assert one.describe(1) == "64x16x128/1 transposed"
    assert len(one.guess(MEASURED)) == 2


def test_stores_of_earlier_transposed_tiles_are_estimated_as_they_were(tmp_path):
    configs = [{"tile": [128, 96, 128], "consumers": 2, "transposed": True}]
    row = {"problem": [192, 4096, 4096, "NT", "float16"], "configs": configs, "us": [9.0]}
    path, guesses = tmp_path / "times.json", []
    for more in ({}, {"turned_stores": True}):
        path.write_text(json.dumps({"rows": [row | {"cublas": 8.0}]} | more))
        (one,) = fit_choice.read(path)
        guesses.append(one.guess(MEASURED)[0])
    assert guesses[1] < guesses[0]


def test_a_population_tells_the_time_of_what_was_chosen(tmp_path):
    problem = {"m": 96, "n": 944, "k": 11968, "layout": "NT", "dtype": "bfloat16"}
    config = {"tile": [64, 96, 64], "consumers": 1, "split_k": 6, "split_mode": "caller"}
    times = {"ours": {"median_us": 11.0}, "cublas": {"median_us": 13.0}}
    rows = [
        {"problem": problem, "config": config, **times},
        {"problem": problem | {"m": 1}, "config": {}, **times},  # dot products
        {"problem": problem | {"m": 2}, "message": "CompileError"},
    ]
    path = tmp_path / "population.json"
    path.write_text(json.dumps({"rows": rows}))
    (one,) = fit_choice.read(path)
    assert one.times.tolist() == [11.0]
    assert (one.cublas, one.spare) == (13.0, True)
    assert one.describe(0) == "64x96x64/1 in 6 by kernels"
    assert fit_choice.with_several([one]) == []


@pytest.mark.parametrize("form", ["fp8", "int8", "tf32", "bmm"])
def test_times_of_other_types_are_read_with_their_outputs_and_batch(tmp_path, form):
    """What `form_times` tries can be given to `hs.matmul`, and read where it was timed."""
    problem = FormProblem(form, 4 if form == "bmm" else 1, 256, 4096, 4096)
    configs = form_times.configurations(problem)
    for fields in configs[::3]:
        assert form_times.as_config(problem, fields).tile == fields["tile"]
    row = {"problem": [256, 4096, 4096, "NT", problem.dtype], "batch": problem.b, "cublas": 8.0,
           "configs": configs, "us": [9.0] * len(configs), "out_dtype": "float32"}  # fmt: skip
    path = tmp_path / "times.json"
    path.write_text(json.dumps({"rows": [row], "spare_rows": True, "turned_stores": True}))
    (one,) = fit_choice.read(path)
    assert len(one.times) == len(configs) == len(one.guess(MEASURED))
    assert (one.product.output_bytes, one.product.batch) == (4, problem.b)


def test_the_module_that_is_written_holds_the_constants():
    names: dict = {}
    source = fit_choice.module(MEASURED, "Fitted by hand.\n")
    code = source.replace("from .rate", "from tvm_hopper.schedule.products.rate")
    exec(code, names)
    assert names["MEASURED"] == MEASURED


def test_what_cannot_be_built_is_a_text():
    case = tile_times.Case(64, 64, 64, config={"tile": (63, 64, 64)})
    assert "need a multiple of 64" in tile_times.build_library(case, "nowhere.so")
