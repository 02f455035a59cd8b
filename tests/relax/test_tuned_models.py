"""A model is tuned, and built with what was found: from end to end, with times by formula."""

from __future__ import annotations

import re

import pytest
import tvm
from tvm import relax
from tvm.script import ir as I, relax as R

import tvm_hopper
from tests.meta_schedule.stand_ins import FormulaRunner, NoteBuilder
from tests.relax import models
from tvm_hopper import schedule as hs
from tvm_hopper.errors import OptionError
from tvm_hopper.meta_schedule import Database
from tvm_hopper.meta_schedule.checking import no_check
from tvm_hopper.relax import prepare, report
from tvm_hopper.relax.records import OURS


@I.ir_module
class Layer:
    @R.function
    def main(
        x: R.Tensor((4, 16, 256), "float16"),
        g: R.Tensor((256,), "float16"),
        w: R.Tensor((96, 256), "float16"),
        few: R.Tensor(("rows", 256), "float16"),
    ):
        with R.dataflow():
            y = R.nn.rms_norm(x, g, axes=[-1])
            z = R.matmul(y, R.permute_dims(w))
            rest = R.matmul(few, R.permute_dims(w))
            out = (z, rest)
            R.output(out)
        return out


@I.ir_module
class Mixed:
    @R.function
    def main(
        x: R.Tensor((4, 16, 256), "float16"),
        g: R.Tensor((256,), "float16"),
        a: R.Tensor((64, 96), "float32"),
        b: R.Tensor((96, 32), "float32"),
    ):
        with R.dataflow():
            y = R.nn.rms_norm(x, g, axes=[-1])
            z = R.sort(R.matmul(a, b), axis=-1)
            out = (y, z)
            R.output(out)
        return out


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("tuned")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hs, "choose_classes", lambda *args, **more: (16, 128))
        tvm_hopper.tune(
            Layer,
            models.H200,
            trials=24,
            work_dir=made,
            runner=FormulaRunner(),
            builder=NoteBuilder(),
            check=no_check,
            progress=False,
        )
    return made


def test_each_function_gets_what_was_found_for_it(folder):
    pipeline = relax.get_pipeline("tvm_hopper", database=str(folder))
    ex = relax.build(Layer, models.H200, relax_pipeline=pipeline)
    found = {x.name: x for x in report(ex).functions}
    assert {x.computed_by for x in found.values()} == {OURS}
    kernels = [x for one in found.values() for x in one.kernels]
    assert len(found) == 3
    assert len(kernels) >= 3
    assert all(x.configuration.endswith(", tuned") for x in kernels)
    assert len({x.configuration for x in kernels}) >= 3


@pytest.mark.filterwarnings("ignore:model. found:tvm_hopper.errors.HopperWarning")
def test_foreign_kernels_are_the_same_to_a_byte(folder):
    """A product in float32 and a sort are TVM's, beside a norm that a database schedules."""

    def kernels(**database):
        pipeline = relax.get_pipeline("tvm_hopper", **database)
        ex = relax.build(Mixed, models.H200, relax_pipeline=pipeline)
        texts = re.split(r'(?=extern "C" __global__)', models.device_text(ex.mod))[1:]
        return {re.search(r"(\w+)_kernel", text)[0]: text for text in texts}

    stock, tuned = kernels(), kernels(database=str(folder))
    assert stock.keys() == tuned.keys()
    changed = {name for name in tuned if tuned[name] != stock[name]}
    assert changed == {x for x in tuned if "norm" in x} != set(tuned)
    assert len(tuned) - len(changed) >= 2


def test_records_are_opened_once(folder, monkeypatch):
    opened = []
    init = Database.__init__

    def counted(self, *args, **more):
        opened.append(args)
        init(self, *args, **more)

    monkeypatch.setattr(Database, "__init__", counted)
    models.schedule(Layer, database=str(folder))
    assert len(opened) == 1


def test_what_is_prepared_is_what_the_pipeline_schedules():
    def names(mod):
        found = mod.functions.items()
        return {gv.name_hint for gv, f in found if isinstance(f, tvm.tirx.PrimFunc)}

    assert names(prepare(Layer, models.H200)) == names(models.schedule(Layer)) != set()


def test_what_cannot_be_prepared():
    with pytest.raises(OptionError, match=r"relax\.prepare: found no target; need a cuda target"):
        prepare(Layer)
    with pytest.raises(OptionError, match=r"relax\.prepare: found 5; need a Relax module"):
        prepare(5, models.H200)
