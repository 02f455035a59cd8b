"""Models that others wrote, as TVM's importer for PyTorch gave them, in float16 and small.

`imported/bert.txt`: a BERT of transformers with one layer; `imported/mixtral.txt`: a Mixtral with
one layer of four experts.  `tests.relax.torch_models` makes larger ones, where there is PyTorch.
"""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
import tvm

from tests.relax import models
from tvm_hopper.relax.keep_records import records_of
from tvm_hopper.relax.records import NOBODY, OURS

FOLDER = Path(__file__).with_name("imported")
PRODUCTS = {"bert": 3, "mixtral": 3}  # whose weights have no batch: at least so many are ours
OTHERS = {"bert": 4, "mixtral": 8}  # attention, experts, sorts, sums in bool: at most


@functools.cache
def imported(name):
    return tvm.script.from_source((FOLDER / f"{name}.txt").read_text())


@functools.cache
def scheduled(name):
    return models.schedule(imported(name))


NAMES = ["bert", pytest.param("mixtral", marks=pytest.mark.slow)]


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", NAMES)
def test_products_and_norms_are_ours(name):
    records = records_of(scheduled(name))
    ours = [x for x in records if x.computed_by == OURS]
    assert NOBODY not in {x.computed_by for x in records}
    assert len(records) - len(ours) <= OTHERS[name]
    assert sum(x.product is not None for x in ours) >= PRODUCTS[name]
    assert any(x.rule == "RowReduction" for x in ours)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_values():
    mod, plain = scheduled("bert"), models.plain_functions(imported("bert"))
    assert models.check_values(mod, plain, (1,)) > 15
