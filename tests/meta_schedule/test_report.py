"""What a run found, as a table, a page, a picture, plain data, and by the shell."""

import json

import pytest
import tvm

import tvm_hopper
from tests.meta_schedule.stand_ins import FormulaRunner, NoteBuilder, formula
from tvm_hopper.cli import main
from tvm_hopper.errors import TuningError
from tvm_hopper.meta_schedule import Database, TuningReport, command, draw, tuning
from tvm_hopper.meta_schedule.checking import Verdict, no_check
from tvm_hopper.meta_schedule.command import as_gpus
from tvm_hopper.meta_schedule.journal import FILE
from tvm_hopper.testing import memory_bound, workloads

TARGET = "nvidia/nvidia-h200"


def some(text):
    return None if text == "pointwise" or "256" in text else formula(text)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("tuned")
    mod = tvm.IRModule(
        {
            "product[0]": workloads.matmul(64, 64, 128)["main"],
            "copy": memory_bound.copy(64, 256)["main"],
        }
    )
    given = {"runner": FormulaRunner(some), "builder": NoteBuilder(), "check": no_check}
    tvm_hopper.tune(mod, TARGET, trials=12, work_dir=made, progress=False, **given)
    return made


def test_rows(folder):
    report = TuningReport(Database(folder))
    product = next(x for x in report.rows if x.name == "product[0]")
    assert product.trials + next(x for x in report.rows if x.name == "copy").trials == 12
    assert product.gain == pytest.approx(product.built_in_us / product.best_us)
    assert product.gain >= 1
    assert product.tflops == pytest.approx(2 * 64 * 64 * 128 / product.best_us / 1e6)
    assert product.verdict == "unchecked"
    copy = next(x for x in report.rows if x.name == "copy")
    assert copy.built_in_us is None  # it failed
    assert copy.failed
    assert copy.gain is None
    assert copy.tflops is None
    assert copy.terabytes == pytest.approx(2 * 2 * 64 * 256 / copy.best_us / 1e6)


def test_a_work_folder_is_reported_and_drawn_by_its_path(folder, tmp_path):
    for path in (folder, str(folder)):
        assert TuningReport(path).rows == TuningReport(Database(folder)).rows
        assert len(draw(path).axes) == len(draw(Database(folder)).axes)
    for take in (TuningReport, draw):
        with pytest.raises(TuningError, match="records"):
            take(tmp_path / "none")


def test_times_of_the_last_round_stand_in_for_those_of_the_search(folder, tmp_path):
    rows = [json.loads(x) for x in (folder / FILE).read_text().splitlines()]
    (final,) = [x for x in rows if x["is"] == "final" and x["finalists"][0] == "matmul"]
    count = len(final["finalists"])
    final |= {"winner": final["finalists"][1], "gain": 1.25, "library": "cuBLAS", "library_us": 9}
    final["sustained_us"] = [10.0, 8.0, *[11.0] * (count - 2)]
    text = final["winner"]
    check = {"is": "check", "workload": final["workload"], "configuration": text, "by": "GPU 0"}
    rows.append({**check, "verdict": "equal", "record": None})
    (tmp_path / FILE).write_text("".join(json.dumps(x) + "\n" for x in rows))
    report = TuningReport(Database(tmp_path))
    row = next(x for x in report.rows if x.name == "product[0]")
    assert (row.built_in_us, row.best_us, row.gain) == pytest.approx((10, 8, 1.25))
    assert row.is_compared
    assert (row.library, row.library_us) == ("cuBLAS", 9)
    assert "of cuBLAS" in str(report)
    assert "1.12x" in str(report)


def test_where_nothing_ran_it_says_why(tmp_path):
    mod = memory_bound.copy(64, 256)
    given = {"builder": NoteBuilder(), "progress": False}
    bad = FormulaRunner(lambda text: None, "GPU 0: illegal address\n  at x.cu\nsomewhere")
    tvm_hopper.tune(mod, TARGET, trials=2, work_dir=tmp_path / "a", runner=bad, **given)
    report = TuningReport(tmp_path / "a")
    assert report.rows[0].failure.startswith("run: GPU 0: illegal address")
    assert "main: no trial ran; run: GPU 0: illegal address ... somewhere" in str(report)
    given["check"] = lambda problem, config: Verdict("wrong", "test")
    tvm_hopper.tune(mod, TARGET, trials=2, work_dir=tmp_path / "b", runner=FormulaRunner(), **given)
    (row,) = TuningReport(tmp_path / "b").rows
    assert (row.verdict, row.wrong, row.failure) == ("wrong", 2, "")


def test_what_a_terminal_would_obey_is_not_printed(folder, tmp_path):
    text = (folder / FILE).read_text().replace('"name":"copy"', '"name":"co\\u001b[2Jpy"')
    (tmp_path / FILE).write_text(text)
    assert "co?[2Jpy" in str(TuningReport(Database(tmp_path)))


def test_functions_of_one_name_are_told_apart(tmp_path):
    given = {"runner": FormulaRunner(), "builder": NoteBuilder(), "check": no_check}
    for rows in (64, 128):
        mod = memory_bound.copy(rows, 256)
        tvm_hopper.tune(mod, TARGET, trials=1, work_dir=tmp_path, progress=False, **given)
    names = {x.name for x in TuningReport(Database(tmp_path)).rows}
    assert names == {"main 64x256", "main 128x256"}


def test_a_table_and_a_page(folder, tmp_path):
    report = TuningReport(Database(folder))
    assert "product[0]" in str(report)
    assert "FAKE" not in str(report)
    report.html(tmp_path / "page.html")
    assert "product[0]" in (tmp_path / "page.html").read_text()


def test_a_fake_runner_is_said_to_be_one(folder, tmp_path):
    text = (folder / FILE).read_text()
    (tmp_path / FILE).write_text(text.replace('"gpus":', '"is_fake":true,"gpus":'))
    assert "FAKE runner: nothing was measured" in str(TuningReport(Database(tmp_path)))


def test_a_picture(folder, tmp_path):
    pytest.importorskip("matplotlib")
    database = Database(folder)
    figure = draw(database)
    assert len(figure.axes) == 3 * 2  # two for each, and the bar of one
    (key,) = (k for k, row in database.workloads.items() if row["name"] == "copy")
    assert len(draw(database, key).axes) == 3
    with pytest.raises(TuningError, match="found no measured trial of nothing"):
        draw(database, "nothing")


def test_the_command_report(folder, tmp_path, capsys):
    assert main(["report", str(folder), "--html", str(tmp_path / "x.html")]) == 0
    assert "product[0]" in capsys.readouterr().out
    assert (tmp_path / "x.html").is_file()
    assert main(["report", str(folder), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["rows"]) == 2
    pytest.importorskip("matplotlib")
    assert main(["report", str(folder), "--picture", str(tmp_path / "x.png")]) == 0
    assert (tmp_path / "x.png").is_file()
    assert main(["report", str(folder), "--html", str(tmp_path / "no" / "x.html")]) == 2
    assert "found no place to write at (No such file or directory); need" in capsys.readouterr().err
    assert main(["report", str(tmp_path)]) == 2
    assert "found no records" in capsys.readouterr().err


MAKE = """
from tvm_hopper.testing import memory_bound

def make():
    return memory_bound.copy(64, 256)
"""


def test_the_command_tune(tmp_path, capsys, monkeypatch):
    (tmp_path / "module.py").write_text(MAKE)
    asked = []
    made = {
        "ArtifactBuilder": NoteBuilder,
        "GpuRunner": lambda gpus: FormulaRunner(),
        "RpcRunner": lambda tracker: FormulaRunner(),
    }
    for kind in (NoteBuilder, FormulaRunner):
        monkeypatch.setattr(kind, "close", lambda self: None, raising=False)
    monkeypatch.setattr(tuning, "_measuring", made.get)
    kernel = f"{tmp_path / 'module.py'}:make"
    given = ["tune", kernel, "--trials", "3", "--work-dir", str(tmp_path / "tuned"), "--quiet"]
    assert main(given) == 0
    assert "equal" in capsys.readouterr().out
    assert main([*given, "--json", "--tracker", "127.0.0.1:9190/x", "--trials", "4"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert row["trials"] == 4
    with monkeypatch.context() as patch:
        patch.setattr(command, "fake_gpus", lambda count: asked.append(count) or FormulaRunner())
        assert main([*given, "--fake", "2", "--each", "5", "--seconds", "60", "--trials", "9"]) == 0
    assert asked == [2]
    capsys.readouterr()
    assert main([*given, "--gpus", "one"]) == 2
    assert "found 'one'; need" in capsys.readouterr().err
    assert main([*given, "--trials", "0"]) == 2


def test_ctrl_c_in_a_shell_is_a_sentence_and_an_exit_code(tmp_path, capsys, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    (tmp_path / "module.py").write_text(MAKE)
    monkeypatch.setattr(command, "tune", interrupt)
    given = ["tune", f"{tmp_path / 'module.py'}:make", "--work-dir", "tuned"]
    assert main(given) == 130
    told = "what was measured is in tuned; the same command goes on from there"
    assert capsys.readouterr().err.splitlines() == [told, "interrupted"]


def test_a_name_in_a_picture_is_no_formula(folder, tmp_path):
    pytest.importorskip("matplotlib")
    text = (folder / FILE).read_text()
    hostile = r'"name":"$\\frac{$' + "x" * 99 + '"'
    (tmp_path / FILE).write_text(text.replace('"name":"copy"', hostile))
    figure = draw(tmp_path)
    figure.savefig(tmp_path / "x.png")
    assert r"$\frac{$" + "x" * 52 in [x.get_title() for x in figure.axes]


def test_gpus_as_text():
    assert as_gpus("all") == "all"
    assert as_gpus("0, 3") == [0, 3]
