"""What `python -m tvm_hopper verify FILE.py:NAME` says to files and names that are no module."""

import pytest

from tvm_hopper.cli import main

SOURCE = """
from tvm import s_tir
from tvm_hopper import schedule as hs
from tvm_hopper.testing import workloads

def schedule():
    sch = s_tir.Schedule(workloads.matmul(64, 64, 64))
    hs.matmul(sch, "C", hs.MatmulConfig((64, 64, 64), stages=1, consumers=1))
    return sch

def nothing():
    return None

def asks(size):
    return size
"""


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "kernels_of_a_user.py"
    path.write_text(SOURCE)
    return path


def test_a_schedule_is_as_good_as_its_module(source):
    assert main(["verify", f"{source}:schedule"]) == 0


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("nothing", "or None; need a module, a schedule, or a function that returns one"),
        ("absent", "found no 'absent' in kernels_of_a_user.py"),
        ("asks", "found arguments of asks; need a function without any"),
    ],
)
def test_a_mistake_is_one_line(source, name, told, capsys):
    assert main(["verify", f"{source}:{name}"]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert len(error.strip().splitlines()) == 1


def test_a_file_that_does_not_run(tmp_path, capsys):
    path = tmp_path / "broken_kernels.py"
    path.write_text("def f(:\n")
    assert main(["verify", f"{path}:f"]) == 2
    assert "found SyntaxError in broken_kernels.py" in capsys.readouterr().err
