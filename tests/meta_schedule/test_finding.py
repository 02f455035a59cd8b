"""A database is asked for a function, and applied to a module; also by TVM alone."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import tvm
from tvm.target import Target

import tvm_hopper
from tests.meta_schedule.stand_ins import FormulaRunner, NoteBuilder
from tvm_hopper import schedule as hs
from tvm_hopper.errors import TuningError
from tvm_hopper.meta_schedule import apply, configurations_of, lookup
from tvm_hopper.meta_schedule.checking import no_check
from tvm_hopper.meta_schedule.database import Database
from tvm_hopper.meta_schedule.journal import FILE
from tvm_hopper.meta_schedule.tasks import find_tasks
from tvm_hopper.testing import memory_bound, workloads

TARGET = "nvidia/nvidia-h200"
PRODUCT = workloads.matmul(64, 64, 128, out_dtype="float16")["main"]
NORM = memory_bound.rms_norm(64, 256)["main"]
SYMBOLIC = workloads.matmul("m", 64, 128, out_dtype="float16")["main"]
MODULE = tvm.IRModule(
    {
        "product": PRODUCT.with_attr("global_symbol", "product"),
        "norm": NORM.with_attr("global_symbol", "norm").with_attr("op_pattern", 4),
    }
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("tuned")
    given = {"runner": FormulaRunner(), "builder": NoteBuilder(), "check": no_check}
    tvm_hopper.tune(MODULE, TARGET, trials=10, work_dir=made, progress=False, **given)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hs, "choose_classes", lambda *args, **more: (16, 64, 256))
        tvm_hopper.tune(SYMBOLIC, TARGET, trials=9, work_dir=made, progress=False, **given)
    return made


def source(mod):
    return tvm.compile(mod, target=TARGET).mod.imports[0].inspect_source()


def test_a_static_function_has_one_configuration(folder):
    key = find_tasks(PRODUCT, TARGET)[0].problem.key
    found = lookup(folder, PRODUCT, TARGET)
    assert found == Database(folder).winner(key).config
    renamed = PRODUCT.with_attr("global_symbol", "other").with_attr("op_pattern", 4)
    assert lookup(Database(folder), renamed, TARGET) == found
    with Target(TARGET):
        assert lookup(str(folder), PRODUCT) == found


def test_symbolic_rows_have_one_for_each_class(folder):
    found = lookup(folder, SYMBOLIC, TARGET)
    assert [rows for rows, _ in found] == sorted({rows for rows, _ in found})
    assert found[-1][0] == 256
    assert all(isinstance(config, hs.MatmulConfig) for _, config in found)
    mod = apply(folder, TARGET)(tvm.IRModule({"main": SYMBOLIC}))
    made = configurations_of(mod)
    assert [x.tile for x in made] == [x.tile for _, x in found]
    assert source(mod)


def test_what_was_not_tuned_is_none(folder):
    assert lookup(folder, workloads.matmul(128, 64, 64)["main"], TARGET) is None
    assert lookup(folder, workloads.matmul("m", 128, 64)["main"], TARGET) is None
    assert lookup(folder, PRODUCT, "nvidia/nvidia-h20") is None  # another part


def test_a_module_is_scheduled_and_the_rest_left(folder):
    other = memory_bound.softmax(64, 64)["main"].with_attr("global_symbol", "other")
    mod = tvm.IRModule({**{gv.name_hint: f for gv, f in MODULE.functions.items()}, "other": other})
    with Target(TARGET):
        made = apply(folder)(mod)
    assert made["other"].same_as(mod["other"])
    assert int(made["norm"].attrs["op_pattern"]) == 4
    assert made["norm"].attrs["global_symbol"] == "norm"
    for name in ("product", "norm"):
        assert configurations_of(made[name]) == [lookup(folder, mod[name], TARGET)]
        assert int(made[name].attrs["tirx.is_scheduled"]) == 1
    assert apply(folder, TARGET)(made).same_as(made)


def test_records_are_of_their_architecture(folder):
    """A record of another one is none; a chip without a space is one error, and left alone."""
    text = (folder / FILE).read_text()
    with pytest.raises(TuningError, match=r"nvidia/nvidia-h200.*other chips have no space here"):
        lookup(folder, PRODUCT, "nvidia/nvidia-a100")
    other = folder.with_name("other_arch")
    other.mkdir()
    (other / FILE).write_text(text.replace("-sm_90a-132", "-sm_100a-132"))
    assert lookup(other, PRODUCT, TARGET) is None
    assert apply(other, TARGET)(MODULE).same_as(MODULE)


REPLAY = """
import sys, tvm
from tvm.s_tir import meta_schedule as ms
from tvm import relax
mod = tvm.ir.load_json(open(sys.argv[1]).read())
target = tvm.target.Target("nvidia/nvidia-h200")
database = ms.database.JSONDatabase(work_dir=sys.argv[2])
with target, database:
    mod = relax.transform.MetaScheduleApplyDatabase()(mod)
assert not any(x.startswith("tvm_hopper.meta_schedule") for x in sys.modules)
print(tvm.compile(mod, target=target).mod.imports[0].inspect_source())
"""


def test_a_process_that_knows_tvm_only_makes_the_same_kernels(folder, tmp_path):
    (tmp_path / "mod.json").write_text(tvm.ir.save_json(MODULE))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", REPLAY, str(tmp_path / "mod.json"), str(folder)],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == source(apply(folder, TARGET)(MODULE)).strip()


def test_records_of_other_versions_are_ignored_with_a_warning(folder, tmp_path):
    rows = (folder / FILE).read_text().splitlines()
    header = json.dumps({**json.loads(rows[0]), "passes": "other"})
    (tmp_path / FILE).write_text("\n".join([header, *rows[1:]]) + "\n")
    with pytest.warns(UserWarning, match="found records of passes other; .* they are ignored"):
        assert lookup(tmp_path, PRODUCT, TARGET) is None
    with pytest.warns(UserWarning, match="they are ignored"):
        change = apply(tmp_path, TARGET)
    assert change(MODULE).same_as(MODULE)


def test_a_record_that_does_not_fit_any_more_is_left_with_a_warning(folder, tmp_path):
    text = (folder / FILE).read_text()
    winner = Database(folder).winner(find_tasks(NORM, TARGET)[0].problem.key)
    bad = text.replace(f'"{winner.text}"', '"row_reduction threads=32 vector=16"')
    (tmp_path / FILE).write_text(bad)
    with pytest.warns(UserWarning, match="norm: a record does not fit any more"):
        made = apply(tmp_path, TARGET)(MODULE)
    assert configurations_of(made["norm"]) == []
    assert configurations_of(made["product"])


def test_what_is_no_function(folder):
    for what in ("main", MODULE):
        with pytest.raises(TuningError, match=r"lookup: found .*; need a PrimFunc in plain loops"):
            lookup(folder, what, TARGET)


def test_a_log_that_was_only_begun_knows_nothing(tmp_path):
    (tmp_path / FILE).write_text("")
    assert lookup(tmp_path, PRODUCT, TARGET) is None


def test_a_folder_without_records(tmp_path):
    with pytest.raises(TuningError, match="found no records; need the work_dir of a tuning run"):
        lookup(tmp_path, PRODUCT, TARGET)
    with pytest.raises(TuningError, match="tune first"):
        apply(tmp_path / "nowhere", TARGET)


@pytest.mark.parametrize("folder", [5, None, ["tuned"]])
def test_what_is_no_folder(folder):
    with pytest.raises(TuningError, match=r"database: found .*, of type .*; need the work_dir"):
        Database(folder)
