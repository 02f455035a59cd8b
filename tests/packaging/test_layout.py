"""The folders at the root are packages of tvm_hopper, in place and in a wheel."""

from __future__ import annotations

import ast
import os
import re
import runpy
import subprocess
import sys
import tarfile
import zipfile
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LINKED = ("transforms", "codegen_patches")

# Who may import whom: each name may import those on the lines above its own, and its own line.
# `sim` stands low: it judges what the passes made, so it must not share their mistakes.
LAYERS = [
    {"errors", "keys", "facts", "_pins"},
    {"ir"},
    {"sim"},
    {"options", "target", "fallbacks", "stock_passes", "stock_requests", "request"},
    {"analysis"},
    {"plan"},
    {"transforms", "codegen_patches", "static_check"},
    {"pipeline"},
    {"cuda_build", "gate", "_autoload"},
    {"schedule", "meta_schedule", "explanation", "simulation", "doctor", "testing", "kernel_file"},
    {"cli", "__main__"},
]
MAY_IMPORT_SIM = {"sim", "static_check", *LAYERS[-2]}


def packages() -> set[str]:
    return runpy.run_path(str(ROOT / "setup.py"), run_name="setup")["PACKAGES"]


def python_files() -> list[Path]:
    """List the package's files under their real paths."""
    found = [
        path
        for folder in ("tvm_hopper", *LINKED)
        for path in (ROOT / folder).rglob("*.py")
        if "__pycache__" not in path.parts
        and not (folder == "tvm_hopper" and path.relative_to(ROOT).parts[1] in LINKED)
    ]
    assert len(found) > 20
    return sorted(found)


def unit(path: Path) -> str:
    """Return the name that a file has in LAYERS."""
    parts = path.relative_to(ROOT).parts
    name = parts[0] if parts[0] in LINKED else parts[1]
    return name.removesuffix(".py")


def imports(path: Path) -> set[str]:
    """Return the units of tvm_hopper that a file imports, at its top or in a function."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            if node.module == "tvm_hopper":
                found |= {alias.name for alias in node.names}
            elif node.module.startswith("tvm_hopper."):
                found.add(node.module.split(".")[1])
        elif isinstance(node, ast.Import):
            found |= {
                alias.name.split(".")[1]
                for alias in node.names
                if alias.name.startswith("tvm_hopper.")
            }
    return found


@pytest.mark.parametrize("name", LINKED)
def test_links_are_relative(name: str) -> None:
    assert os.readlink(ROOT / "tvm_hopper" / name) == f"../{name}"


def test_links_are_committed_as_links() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-s", *(f"tvm_hopper/{name}" for name in LINKED)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode or not listed.stdout:
        pytest.skip("not a git checkout")
    assert [line.split()[0] for line in listed.stdout.splitlines()] == ["120000", "120000"]


@pytest.mark.parametrize("name", LINKED)
def test_root_folder_is_not_a_package_of_its_own(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"import {name}"], cwd=ROOT, capture_output=True, text=True
    )
    assert f"import tvm_hopper.{name}" in done.stderr


def test_setup_lists_every_package() -> None:
    folders = {path.parent for path in python_files() if path.name == "__init__.py"}
    named = set()
    for folder in folders:
        parts = folder.relative_to(ROOT).parts
        named.add(".".join(parts if parts[0] == "tvm_hopper" else ("tvm_hopper", *parts)))
    assert packages() == named


@pytest.fixture(scope="module")
def wheel_names(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        points = next(name for name in archive.namelist() if name.endswith("entry_points.txt"))
        text = archive.read(points).decode()
        assert "tvm_hopper = tvm_hopper._autoload:register" in text
        assert "tvm-hopper = tvm_hopper.cli:main" in text
        return archive.namelist()


def test_wheel_holds_tvm_hopper_alone(wheel_names: list[str]) -> None:
    top = {name.split("/")[0] for name in wheel_names if ".dist-info" not in name}
    assert top == {"tvm_hopper"}
    expected = set()
    for path in python_files():
        relative = path.relative_to(ROOT).as_posix()
        expected.add(relative if relative.startswith("tvm_hopper/") else f"tvm_hopper/{relative}")
    assert {name for name in wheel_names if name.endswith(".py")} == expected
    assert "tvm_hopper/py.typed" in wheel_names


def test_an_sdist_builds_the_same_wheel(
    build: Callable[..., Path], source: Path, wheel_names: list[str], tmp_path: Path
) -> None:
    sdist = build("sdist", source, tmp_path)
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    unpacked = tmp_path / sdist.name.removesuffix(".tar.gz")
    assert not (unpacked / "tvm_hopper" / "transforms").exists()
    assert (unpacked / "tests" / "conftest.py").is_file()
    for name in ("Makefile", "SECURITY.md", "tvm_hopper/py.typed"):
        assert (unpacked / name).is_file()
    with zipfile.ZipFile(build("wheel", unpacked, tmp_path)) as archive:
        assert sorted(archive.namelist()) == sorted(wheel_names)


def test_version_is_written_once_in_each_place() -> None:
    import tvm_hopper

    text = (ROOT / "pyproject.toml").read_text()
    assert re.search(r'^version = "(.+)"$', text, re.MULTILINE).group(1) == tvm_hopper.__version__


@pytest.mark.parametrize("path", python_files(), ids=lambda p: p.relative_to(ROOT).as_posix())
def test_imports_go_one_way(path: Path) -> None:
    name = unit(path)
    if name == "__init__":
        return
    found = imports(path)
    level = next((i for i, layer in enumerate(LAYERS) if name in layer), None)
    assert level is not None, f"{name} has no place in LAYERS"
    allowed = set().union(*LAYERS[: level + 1])
    if name not in MAY_IMPORT_SIM:
        allowed.discard("sim")
    assert found <= allowed, f"{path} imports {found - allowed}"


def test_no_two_classes_have_one_name() -> None:
    places = defaultdict(list)
    for path in python_files():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(path.relative_to(ROOT).as_posix())
    assert not {name: found for name, found in places.items() if len(found) > 1}


# TVM's constructors of instructions: `T.ptx.*`, `T.cuda.*` and these two, by any name of `T`.
INSTRUCTIONS = {"ptx", "cuda", "tvm_storage_sync", "tvm_warp_shuffle_xor"}


def test_instructions_are_built_by_emitters_alone() -> None:
    found = {
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in python_files()
        if path.relative_to(ROOT).parts[:2] != ("codegen_patches", "ptx")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
        and node.attr in INSTRUCTIONS
        and isinstance(node.value, ast.Name)
        and node.value.id != "tvm"  # tvm.cuda() is a device
    }
    assert not found, "a function of codegen_patches/ptx should build these"


@pytest.mark.parametrize("path", python_files(), ids=lambda p: p.relative_to(ROOT).as_posix())
def test_files_are_short_enough_to_read(path: Path) -> None:
    lines = len(path.read_text().splitlines())
    assert lines <= 500, f"{lines} lines: is there a second room in it?"


def test_facts_need_no_tvm() -> None:
    code = (
        "import sys, types; m = types.ModuleType('tvm_hopper');"
        f"m.__path__ = [{str(ROOT / 'tvm_hopper')!r}]; sys.modules['tvm_hopper'] = m;"
        "import importlib, pkgutil, tvm_hopper.facts as facts;"
        "[importlib.import_module('tvm_hopper.facts.' + i.name)"
        " for i in pkgutil.iter_modules(facts.__path__)];"
        "assert not {'tvm', 'tvm_ffi'} & set(sys.modules), 'facts import TVM'"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, cwd="/")
