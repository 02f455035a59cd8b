"""Wheels and sdists, built from a copy of the checkout."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def _build(what: str, source: Path, out: Path) -> Path:
    code = f"import setuptools.build_meta as b, sys; print(b.build_{what}(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-c", code, str(out)],
        cwd=source,
        check=True,
        capture_output=True,
        text=True,
    )
    return out / done.stdout.splitlines()[-1]


@pytest.fixture(scope="session")
def build() -> Callable[[str, Path, Path], Path]:
    """Build a "wheel" or an "sdist" of a folder into another, without isolation."""
    return _build


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy what git knows or will know, so that a build leaves nothing in the checkout."""
    folder = tmp_path_factory.mktemp("source")
    for path in ROOT.iterdir():
        if not path.name.startswith((".", "build", "dist")) and path.suffix != ".egg-info":
            subprocess.run(["cp", "-r", str(path), str(folder)], check=True)
    return folder


@pytest.fixture(scope="session")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _build("wheel", source, tmp_path_factory.mktemp("wheel"))
