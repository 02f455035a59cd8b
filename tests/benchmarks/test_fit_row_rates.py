"""The fit of memory-bound kernels' constants: on times that it made itself it finds them again."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.calibration import fit_row_rates
from tvm_hopper.schedule import RowReductionConfig
from tvm_hopper.schedule.memory_bound.row_rates import MEASURED, RowRates
from tvm_hopper.schedule.memory_bound.work import RowWork

WORK = RowWork(1 << 17, 4096, 8, loaded=2, shared=2, kept=0, reductions=1, moved=4)
CONFIGS = tuple(
    RowReductionConfig(threads=threads, blocks=blocks)
    for threads in (64, 128, 256, 512)
    for blocks in (1, 2, 4)
)


def measured(rates):
    one = fit_row_rates.Measured("made", (WORK,) * len(CONFIGS), CONFIGS, np.ones(len(CONFIGS)))
    return replace(one, times=one.guess(rates))


def test_constants_are_found_again(monkeypatch):
    monkeypatch.setattr(fit_row_rates, "NAMES", ["load_latency"])
    monkeypatch.setattr(fit_row_rates, "PRIOR", 0.0)
    data = [measured(replace(MEASURED, load_latency=3600.0))]
    fitted = fit_row_rates.fit(data, 12)
    assert fitted.load_latency == pytest.approx(3600.0, rel=0.05)
    assert fit_row_rates.losses(data, fitted) == [1.0]


def test_a_file_is_read_and_illegal_configurations_are_left_out(tmp_path):
    configs = [
        {"threads": 128, "blocks": 4},
        {"threads": 256, "blocks": 4},
        {"threads": 128, "blocks": 4},  # measured twice: the larger share counts
        {"threads": 100},
        {"persistent": 132, "threads": 512},
    ]
    row = {"program": "rms_norm", "rows": 8192, "columns": 4096, "dtype": "bfloat16", "run": "a"}
    path = tmp_path / "times.json"
    path.write_text(
        json.dumps({"rows": [row | {"configs": configs, "share": [0.8, 0.9, 1, 1, 0.7]}]})
    )
    (one,) = fit_row_rates.read(path)
    assert one.slower.tolist() == pytest.approx([1.0, 1 / 0.9, 1 / 0.7])
    assert one.guess(MEASURED).shape == (3,)


def test_constants_are_written_to_their_module():
    source = fit_row_rates.TARGET.read_text()
    assert fit_row_rates.module(MEASURED, source) == source
    other = replace(MEASURED, load_latency=1234.5, vector_loss=0.02)
    names: dict[str, object] = {"__name__": RowRates.__module__}
    exec(fit_row_rates.module(other, source), names)
    assert vars(names["MEASURED"]) == vars(replace(other, load_latency=1234.0))
