"""The fit of how kernels of symbolic rows compare: on times that it made itself it finds them."""

import json
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.calibration import fit_rows
from tvm_hopper.schedule.products.rates import MEASURED

TABLE = [
    {"N x K": "1024 x 4096", "M": 16, "kernels us": "many:16 5.2, alone:16 9.0, many:128 6.0"},
    {"N x K": "1024 x 4096", "M": 128, "kernels us": "many:128 6.1"},
    {"N x K": "512 x 512", "M": 64, "kernels us": "alone:64 6.1"},
]


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "row_matrix.json"
    path.write_text(json.dumps({"table": TABLE}))
    return path


def test_constants_are_found_again(path):
    (layer,) = fit_rows.read(path)
    # The kernel for 128 rows has transposed tiles of 64: two of them lie across.
    assert (layer.n, layer.k, layer.rows) == (1024, 4096, (16,))
    assert layer.times.tolist() == [[5.2, 6.0 - fit_rows.OPEN]]
    rows, rungs = (4, 16, 64, 128, 300), (16, 40, 64, 128, 320)
    configs = fit_rows.AnyRows.of("", 1024, 4096, "float16", None, ("k", "k"), None)
    large = replace(layer, rows=rows, configs=configs.choose(rungs), times=np.ones((5, 5)))
    rates = replace(MEASURED, any_rows_workspace_cycles=4000.0)
    large = replace(large, times=np.exp(large.errors(rates)))
    before = fit_rows.spread([large], MEASURED)
    fitted = fit_rows.fit([large], MEASURED, 10)
    assert fit_rows.spread([large], fitted) < 0.3 * before


def test_the_command_prints_constants_and_errors(path, capsys):
    assert fit_rows.main([str(path)]) == 0
    printed = capsys.readouterr().out
    assert "    early_launch_saved_cycles: float = " in printed
    assert "1024x4096 2 " in printed


def test_ratios_to_static_builds_count_too(path, tmp_path, capsys):
    table = [
        {"N x K": "1024 x 4096", "M": 16, "kernel for": 40, "of static": "0.8"},
        {"N x K": "1024 x 4096", "M": 1, "kernel for": 1, "of static": "1.0"},  # dot products
        {"N x K": "1024 x 4096", "M": 2048, "kernel for": 2048, "of static": "1.0"},
        {"N x K": "geometric mean (least)", "M": "", "kernel for": "", "of static": "0.97 (0.95)"},
    ]
    symbolic = tmp_path / "symbolic.json"
    symbolic.write_text(json.dumps({"table": table}))
    (pair,) = fit_rows.read_pairs(symbolic)
    assert (pair.product.m, pair.ratio) == (16, 0.8)
    assert fit_rows.main([str(path), "--symbolic", str(symbolic)]) == 0
    _, before, after = capsys.readouterr().out.splitlines()[-1].rsplit(" ", 2)
    assert float(after) < float(before)
