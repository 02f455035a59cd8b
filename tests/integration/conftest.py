"""Fresh processes in which the package is installed, whether or not it is in this one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import tvm_hopper

HOME = Path(tvm_hopper.__file__).parents[1]  # the checkout, or where a wheel is installed


@pytest.fixture(scope="session")
def installed_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Make the metadata of an installed package; return a PYTHONPATH that has it."""
    folder = tmp_path_factory.mktemp("site")
    info = folder / "tvm_hopper-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tvm_hopper\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text(
        "[tvm.backends]\ntvm_hopper = tvm_hopper.integration.autoload:register\n"
    )
    return os.pathsep.join([str(folder), str(HOME), *filter(None, [os.environ.get("PYTHONPATH")])])


@pytest.fixture(scope="session")
def fresh(installed_path: str) -> Callable[..., subprocess.CompletedProcess]:
    """Run Python in a process of its own, warnings as errors, the package installed."""

    def run(*arguments: str, check: bool = True, **env: str) -> subprocess.CompletedProcess:
        variables = {k: v for k, v in os.environ.items() if not k.startswith(("TVM_", "PYTEST_"))}
        done = subprocess.run(
            [sys.executable, "-W", "error", *arguments],
            env={**variables, "PYTHONPATH": installed_path, "TVM_HOPPER_CACHE": "0", **env},
            cwd="/",
            capture_output=True,
            text=True,
        )
        if check and done.returncode:
            pytest.fail(f"exit {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
        return done

    return run


@pytest.fixture
def plain_lowering(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave our own passes out: what is under test is the road, not what travels on it."""
    from tvm_hopper import pipeline

    for place in ("hook_passes", "late_passes", "host_passes"):
        monkeypatch.setattr(pipeline.passes, place, list, raising=False)
