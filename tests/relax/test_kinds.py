"""Models of other kinds build, what is ours in them is right, and the report names the rest."""

import numpy as np
import pytest
from tvm import relax
from tvm.target import Target

from tests.relax import kinds, models
from tvm_hopper.relax.flatten_batch import FlattenBatch
from tvm_hopper.relax.keep_records import records_of
from tvm_hopper.relax.model_report import report
from tvm_hopper.relax.records import OURS, STOCK

# of experts nearly nothing is ours, which the build says
pytestmark = pytest.mark.filterwarnings("ignore:model. found:tvm_hopper.errors.HopperWarning")

PRODUCTS = {"encoder": 4, "convolutions": 1, "experts": 1}
SIZES = {
    "encoder": {"batch": 2, "length": 3},
    "convolutions": {"batch": 2},
    "experts": {"tokens": 5},
}


@pytest.mark.parametrize(
    "kind", ["encoder", "convolutions", pytest.param("experts", marks=pytest.mark.slow)]
)
def test_builds_and_is_right(kind):
    mod = kinds.export(kind)
    pipeline = relax.get_pipeline("tvm_hopper", classes=models.CLASSES)
    ex = relax.build(mod, target=Target(models.H200), relax_pipeline=pipeline)
    said = report(ex)
    ours = [x for x in said.functions if x.computed_by == OURS]
    assert sum(x.product is not None for x in ours) == PRODUCTS[kind]
    if kind != "experts":
        assert not said.others
        assert sum("conv2d" in x.name for x in ours) == (2 if kind == "convolutions" else 0)
        return
    assert {x.computed_by for x in said.others} == {STOCK}
    for other in said.others:
        assert any("found" in why for _, why in other.refused)
        assert other.name in str(said)


@pytest.mark.slow  # test_every_bit_is_kept is of the rewrites, tests/sim_kernels of the kernels
@pytest.mark.parametrize("kind", PRODUCTS)
def test_values(kind):
    mod = kinds.export(kind)
    scheduled = models.schedule(mod)
    ours = sum(x.computed_by == OURS for x in records_of(scheduled))
    assert models.check_values(scheduled, models.plain_functions(mod), (20,)) == ours


@pytest.mark.parametrize("kind", kinds.KINDS)
def test_every_bit_is_kept(kind):
    plain = models.legalized(kinds.export(kind, "float32"))
    flat = relax.transform.DeadCodeElimination()(FlattenBatch()(plain))
    given = models.inputs_of(plain, "forward", SIZES[kind])
    want, got = (models.on_processor(x, "forward", given) for x in (plain, flat))
    for one, other in zip(want, got, strict=True):
        np.testing.assert_array_equal(one.view(np.uint8), other.view(np.uint8))
