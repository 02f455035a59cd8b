"""A consumer's type checker sees the types of an installed wheel."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

import tvm_hopper

CONSUMER = """
import numpy as np

import tvm_hopper
from tvm_hopper import schedule as hs
from tvm_hopper.facts.arch import SM_90A

config = hs.MatmulConfig(tile=(128, 128, 64), stages=3, consumers=2)
reveal_type(config.swizzle)
result = tvm_hopper.simulate(None, {"A": np.zeros((2, 2))})
reveal_type(result)
reveal_type(tvm_hopper.verify(None).verdict)
reveal_type(tvm_hopper.explain(None))
reveal_type(tvm_hopper.cubin(None))
reveal_type(SM_90A.smem_per_block)
try:
    result.require_clean()
except tvm_hopper.VerifyError as error:
    print(error)

# mistakes, one a line
hs.MatmulConfig(stage=3)
tvm_hopper.simulate(None)
tvm_hopper.verify(None, max_ctas="8")
tvm_hopper.simulat
"""


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make an environment that has the wheel and numpy; without TVM a check takes seconds."""
    home = tmp_path_factory.mktemp("env")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True)
    python = home / ("Scripts" if os.name == "nt" else "bin") / Path(sys.executable).name
    ask = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    packages = Path(subprocess.run(ask, check=True, capture_output=True, text=True).stdout.strip())
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    (packages / "numpy").symlink_to(Path(np.__file__).parent)
    return python


def test_a_consumer_sees_types_and_mistakes(python: Path, tmp_path: Path) -> None:
    (tmp_path / "consumer.py").write_text(CONSUMER)
    hidden = ("PYTHONPATH", "MYPYPATH")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", f"--python-executable={python}", "consumer.py"],
        cwd=tmp_path,
        env={name: text for name, text in os.environ.items() if name not in hidden},
        capture_output=True,
        text=True,
    )
    said = [line.split(": ", 2)[1:] for line in done.stdout.splitlines() if "consumer.py:" in line]
    shown = [re.sub(r'.* is "(.*)"', r"\1", text) for kind, text in said if kind == "note"]
    assert [text.replace("builtins.", "") for text in shown] == [
        "int | None",
        "tvm_hopper.sim.result.Result",
        "str",
        "tvm_hopper.reports.explanation.Explanation",
        "bytes",
        "int",
    ]
    errors = [text for kind, text in said if kind == "error"]
    for text, error in zip(
        (
            'Unexpected keyword argument "stage" for "MatmulConfig"',
            'Missing positional argument "inputs" in call to "simulate"',
            'Argument "max_ctas" to "verify" has incompatible type "str"; expected "int"',
            'Module has no attribute "simulat"',
        ),
        errors,
        strict=True,
    ):
        assert text in error


def test_type_checkers_see_the_public_names() -> None:
    """`__getattr__` finds the names at run time; a checker reads the imports beside it."""
    names = {}
    tree = ast.parse(Path(tvm_hopper.__file__).read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            for each in node.body:
                assert isinstance(each, ast.ImportFrom)
                names |= {alias.asname or alias.name: each.module for alias in each.names}
    modules = {
        name: ".".join(["tvm_hopper", *path.split(".")[:-1]])
        for name, path in tvm_hopper._MODULES.items()
    }
    assert names == {n: f"tvm_hopper.{m}" for n, m in tvm_hopper._NAMES.items()} | modules
    assert sorted(tvm_hopper.__all__) == sorted(names)
