"""Models that others wrote, as TVM's importers for PyTorch and ONNX gave them, small.

`imported/bert.txt`: a BERT of transformers with one layer; `imported/mixtral.txt`: a Mixtral with
one layer of four experts. `imported/*.json.xz`: models of `benchmarks.models`, written by `python
-m benchmarks.models save FOLDER`.  `tests.relax.torch_models` makes larger ones, where there is
PyTorch.
"""

import functools
import lzma
import warnings
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import relax

from tests.relax import models
from tvm_hopper.errors import HopperWarning
from tvm_hopper.relax import report
from tvm_hopper.relax.keep_records import records_of
from tvm_hopper.relax.lowering import prepare
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
    assert models.check_values(mod, plain, (1,)) > 10


SAVED = sorted(x.name.split(".")[0] for x in FOLDER.glob("*.json.xz"))


def saved(name):
    return tvm.ir.load_json(lzma.decompress((FOLDER / f"{name}.json.xz").read_bytes()).decode())


@pytest.mark.sampled(every=24)
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", SAVED)
def test_models_of_the_benchmark_build(name):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", HopperWarning)
        executable = relax.build(saved(name), target=models.H200, relax_pipeline="tvm_hopper")
    assert not [x for x in told if "crashed" in str(x.message)]
    said = report(executable)
    assert NOBODY not in {x.computed_by for x in said.functions}
    assert said.sections[0].total > 0
    assert "ushort4" not in models.device_text(executable.mod)  # bools, printed as 2 bytes each


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", SAVED)
def test_what_is_rewritten_computes_the_same(name):
    """Functions before they are scheduled, on the processor, against TVM's own legalisation."""
    mod, rng = saved(name), np.random.default_rng(0)
    given = []
    for param in mod["main"].params:
        shape, dtype = [int(x) for x in param.ty.shape], str(param.ty.dtype)
        drawn = rng.integers(0, 2, shape) if "int" in dtype else rng.standard_normal(shape) * 0.1
        given.append(np.asarray(drawn).astype(dtype))
    (want, *_) = models.on_processor(relax.get_pipeline("zero")(mod), "main", given)
    prepared = prepare(mod, models.H200)
    (got, *_) = models.on_processor(prepared, "main", given)
    want, got = want.astype("float64"), got.astype("float64")
    assert np.linalg.norm(got - want) <= 2e-2 * np.linalg.norm(want)
