"""The shell commands: exit codes, help, mistakes, and what they import."""

from __future__ import annotations

import argparse
import json
import re

import pytest

from tvm_hopper import cli, simulation
from tvm_hopper.errors import VerifyError
from tvm_hopper.reports import doctor

FILE = """
from tvm import s_tir
from tvm.script import tirx as T
from tvm_hopper import schedule as hs
from tvm_hopper.testing import workloads

def scheduled():
    sch = s_tir.Schedule(workloads.matmul(64, 64, 64))
    hs.matmul(sch, "C", hs.MatmulConfig((64, 64, 64), stages=1, consumers=1))
    return sch

plain = workloads.matmul(64, 64, 64)


@T.prim_func(s_tir=True)
def broken(A: T.Buffer((32,), "float32"), C: T.Buffer((32,), "float32")):
    for i in T.thread_binding(32, thread="threadIdx.x"):
        with T.sblock("C"):
            vi = T.axis.spatial(32, i)
            C[vi + 64] = A[vi]

def symbolic():
    sch = s_tir.Schedule(workloads.matmul("m", 64, 64))
    hs.matmul(sch, "C", hs.MatmulConfig((64, 64, 64), stages=1, consumers=1))
    return sch
"""


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("kernels") / "tvm.py"  # named as what it imports
    path.write_text(FILE)
    return str(path)


def test_help_lists_every_command(capsys) -> None:
    assert cli.main(["--help"]) == 0
    out = capsys.readouterr().out
    for command, text in (
        ("doctor", "what this machine has and lacks, and what fixes it"),
        ("verify", "simulate a kernel and judge its synchronization and values"),
        ("explain", "what the lowering makes of a kernel"),
    ):
        assert re.search(rf"^ +{command} +{text}$", out, re.M)


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("doctor", ["--json", "exit code: 0 all is there, 1 something"]),
        ("verify", ["FILE.py:NAME", "--json", "--target", "--entry", "exit code: 0 clean, 3"]),
        ("explain", ["FILE.py:NAME", "--json", "--target", "exit code: 0"]),
    ],
)
def test_help_of_a_command(command: str, told: list[str], capsys) -> None:
    assert cli.main([command, "--help"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert all(text in out for text in told)


def test_the_version(capsys) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == "tvm_hopper 0.1.0, for apache-tvm 0.27.0.post1\n"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["docter"], "invalid choice: 'docter'"),
        (["doctor", "--loud"], "unrecognized arguments: --loud"),
        (["doctor", "--js"], "unrecognized arguments: --js"),
        (["verify"], "the following arguments are required: FILE.py:NAME"),
        (["verify", "nowhere.py:f"], "found no file nowhere.py; need the FILE.py:NAME of a kernel"),
        (["verify", __file__], "need the FILE.py:NAME of a kernel"),
        (["explain", f"{__file__}:"], "need the FILE.py:NAME of a kernel"),
        (["verify", f"{__file__}:f", "--max-ctas", "0"], "found 0; need a number above 0"),
        (["verify", f"{__file__}:f", "--max-ctas", "x"], "invalid int value: 'x'"),
        (["verify", f"{__file__}:f", "--budget", "-1"], "found -1; need a number above 0"),
    ],
)
def test_a_mistake_is_the_usage_and_one_line(words: list[str], told: str, capsys) -> None:
    assert cli.main(words) == 2
    captured = capsys.readouterr()
    *usage, line = captured.err.splitlines()
    assert usage[0].startswith("usage: python -m tvm_hopper")
    assert not captured.out
    assert told in line
    assert line.startswith("python -m tvm_hopper")


def test_a_work_folder_has_a_name(capsys) -> None:
    assert cli.main(["report", ""]) == 2
    assert "found '', of type str; need the work_dir of a tuning run" in capsys.readouterr().err


def test_explain_prints_text_and_json(kernel: str, capsys) -> None:
    assert cli.main(["explain", f"{kernel}:scheduled"]) == 0
    assert "wgmma.mma_async" in capsys.readouterr().out
    assert cli.main(["explain", f"{kernel}:scheduled", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["kernels"]
    assert found["product"]["tile"] == [64, 64, 64]


def test_passes_prints_those_that_acted_by_stage(kernel: str, capsys) -> None:
    assert cli.main(["passes", f"{kernel}:scheduled", "--diff", "RemoveRestrict"]) == 0
    out = capsys.readouterr().out
    assert "instructions: LowerWgmma, LowerAsyncCopies\n" in out
    assert "LowerSplitK" not in out
    assert '"tirx.noalias": True' in out  # taken away
    assert cli.main(["passes", f"{kernel}:scheduled", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["copies"] == ["SwizzleSharedTiles"]
    assert cli.main(["passes", f"{kernel}:scheduled", "--diff", "LowerMm"]) == 2
    assert "found no pass named 'LowerMm'; need one of" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["explain", "{kernel}:plain"], "explain: found no kernel of ours"),
        (["explain", "{kernel}:scheduled", "--target", "soap"], "soap"),
        (
            ["verify", "{kernel}:scheduled", "--target", "cuda"],
            "need a cuda target with arch sm_90",
        ),
    ],
)
def test_a_kernel_that_cannot_be_worked_on_is_one_line(words, told, kernel, capsys) -> None:
    assert cli.main([word.replace("{kernel}", kernel) for word in words]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert len(error.splitlines()) == 1


@pytest.mark.parametrize(
    ("said", "code"), [("clean", 0), ("review", 3), ("incomplete", 4), ("error", 5)]
)
def test_the_exit_code_of_verify_tells_the_verdict(
    said: str, code: int, kernel: str, monkeypatch, capsys
) -> None:
    seen = {}

    class Report:
        verdict = said

        def to_json(self) -> dict:
            return {"verdict": self.verdict}

    def verify(made: object, **options: object) -> Report:
        seen.update(options)
        return Report()

    monkeypatch.setattr(simulation, "verify", verify)
    words = ["verify", f"{kernel}:plain", "--json", "--entry", "main", "--max-ctas", "3"]
    assert cli.main([*words, "--budget", "2.5", "--target", "cuda"]) == code
    options = {"target": "cuda", "entry": "main", "max_ctas": 3, "budget_s": 2.5}
    assert seen == {**options, "against": None}
    assert json.loads(capsys.readouterr().out)["verdict"] == said


def test_an_error_of_ours_is_one_line_and_one_of_python_a_traceback(monkeypatch, capsys) -> None:
    def fail(error: BaseException):
        def run(arguments: argparse.Namespace) -> int:
            raise error

        return run

    monkeypatch.setattr(doctor, "doctor_command", fail(VerifyError("found soap")))
    assert cli.main(["doctor"]) == 2
    assert capsys.readouterr().err == "found soap\n"
    monkeypatch.setattr(doctor, "doctor_command", fail(KeyError("soap")))
    with pytest.raises(KeyError, match="soap"):
        cli.main(["doctor"])
    monkeypatch.setattr(doctor, "doctor_command", fail(KeyboardInterrupt()))
    assert cli.main(["doctor"]) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_a_command_is_one_function(monkeypatch) -> None:
    def add_greet(commands) -> None:
        commands.add_parser("greet").set_defaults(run=lambda arguments: 7)

    monkeypatch.setattr(cli, "COMMANDS", (*cli.COMMANDS, add_greet))
    assert cli.main(["greet"]) == 7


# -- fresh processes ------------------------------------------------------------------------------


@pytest.mark.parametrize(("words", "code"), [(["--help"], 0), (["docter"], 2), (["verify"], 2)])
def test_help_and_mistakes_need_no_tvm(fresh, words: list[str], code: int) -> None:
    check = (
        "import sys\n"
        f"sys.argv = ['tvm-hopper', *{words!r}]\n"
        "from tvm_hopper.cli import main\n"
        f"assert main() == {code}\n"
        "print([name for name in ('tvm', 'tvm_ffi', 'numpy', 'rich') if name in sys.modules])"
    )
    assert fresh("-c", check).stdout.splitlines()[-1] == "[]"


def test_the_module_is_a_command(fresh) -> None:
    done = fresh("-X", "importtime", "-m", "tvm_hopper", "--version")
    assert done.stdout == "tvm_hopper 0.1.0, for apache-tvm 0.27.0.post1\n"
    assert "tvm_ffi" not in done.stderr
    assert fresh("-m", "tvm_hopper", "--soap", check=False).returncode == 2


def test_doctor_lowers_nothing(fresh) -> None:
    check = (
        "import sys\n"
        "sys.argv = ['tvm-hopper', 'doctor', '--json']\n"
        "from tvm_hopper.cli import main\n"
        "main()\n"
        "heavy = ('tvm.s_tir.tensor_intrin', 'tvm_hopper.pipeline', 'tvm_hopper.simulation',"
        " 'tvm_hopper.schedule', 'rich')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    assert fresh("-c", check).stdout.splitlines()[-1] == "[]"


def test_doctor_runs_where_tvm_must_not(fresh) -> None:
    check = (
        "import sys, tvm_ffi\n"
        "tvm_ffi.__version__ = '0.1.16'\n"
        "sys.argv = ['tvm-hopper', {!r}, *{!r}]\n"
        "from tvm_hopper.cli import main\n"
        "sys.exit(main())"
    )
    done = fresh("-W", "ignore", "-c", check.format("doctor", ["--json"]), check=False)
    assert done.returncode == 1
    rows = {row["what"]: row for row in json.loads(done.stdout)}
    assert "0.1.16" in rows["gate in the default pipeline"]["found"]
    words = ["explain", f"{__file__}:FILE"]
    done = fresh("-W", "ignore", "-c", check.format(words[0], words[1:]), check=False)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "found apache-tvm-ffi 0.1.16" in line


def test_the_code_of_a_kernel(kernel: str, capsys) -> None:
    assert cli.main(["cuda", f"{kernel}:scheduled"]) == 0
    assert "__global__ void __launch_bounds__(256, 1) main_kernel(" in capsys.readouterr().out
    assert cli.main(["cuda", f"{kernel}:scheduled", "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)) == ["main_kernel"]
    assert cli.main(["sass", f"{kernel}:scheduled"]) == 0
    assert "HGMMA" in capsys.readouterr().out
    assert cli.main(["cuda", f"{kernel}:broken"]) == 2
    assert "found 1 CUDA module(s) that this process did not lower" in capsys.readouterr().err


def test_simulate_runs_and_draws(kernel: str, tmp_path, capsys) -> None:
    page, trace = tmp_path / "page.html", tmp_path / "trace.json"
    assert cli.main(["simulate", f"{kernel}:scheduled", "--timeline", str(page)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("verdict: clean (policy 'on_wait', seed 0, 1 CTAs")
    assert page.read_text().startswith("<!DOCTYPE html>")
    words = ["--timeline", str(trace), "--json", "--policy", "random", "--seed", "3"]
    assert cli.main(["simulate", f"{kernel}:scheduled", *words]) == 0
    assert json.loads(trace.read_text())["traceEvents"]
    words = ["--sizes", "m=640", "--max-ctas", "2"]
    assert cli.main(["simulate", f"{kernel}:symbolic", *words]) == 0
    line = r"(\d+) of 10 thread blocks ran, in [\d.]+ s; all would take about \d+ s: --max-ctas 10"
    assert re.search(line, capsys.readouterr().out)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["symbolic"], "found no value for A, whose shape has ['m']"),
        (["broken"], "OOB_ACCESS"),
        (["scheduled", "--policy", "none"], "policy"),
        (["scheduled", "--timeline", "absent/page.html"], "found no place to write at (No such"),
    ],
)
def test_what_simulate_says(kernel: str, words: list[str], told: str, capsys) -> None:
    code = cli.main(["simulate", f"{kernel}:{words[0]}", *words[1:]])
    said = capsys.readouterr()
    assert code == (5 if words[0] == "broken" else 2)
    assert told in said.out + said.err


def test_without_bokeh_nothing_is_simulated(kernel: str, monkeypatch, capsys) -> None:
    import importlib.util

    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda x: None if x == "bokeh" else found(x))
    assert cli.main(["simulate", f"{kernel}:scheduled", "--timeline", "page.html"]) == 2
    assert capsys.readouterr().err.strip().endswith("need it installed; pip install bokeh")
