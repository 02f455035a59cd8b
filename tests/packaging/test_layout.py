"""The folders at the root are packages of tvm_hopper, in place and in a wheel."""

from __future__ import annotations

import ast
import functools
import graphlib
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

# Who may import whom: a name imports those on the lines above its own, and none of its own line or
# below. Imports inside of functions count: they hide circles. "__init__" is tvm_hopper itself.
LAYERS = [
    ("errors", "facts", "disk_cache"),
    ("ir", "sync", "sim", "reference"),
    ("requests", "codegen_patches", "static_check"),
    ("analysis",),
    ("transforms.common",),
    (
        "transforms.kernel_pass",
        "transforms.mechanisms",
    ),
    (
        "transforms.launch",
        "transforms.legalize",
        "transforms.math",
        "transforms.mma_sync",
        "transforms.pipeline",
        "transforms.prepare",
        "transforms.reductions",
        "transforms.split_k",
    ),
    (
        "transforms.layouts",
        "transforms.mbarriers",
        "transforms.memory_bound",
        "transforms.tile_scheduling",
        "transforms.warp_specialization",
        "transforms.wgmma",
    ),
    (
        "transforms.copies",
        "transforms.sync",
    ),
    ("transforms.inject_bulk_async_copy",),
    ("transforms.inject_barrier_pipeline",),
    ("transforms.inject_tma_store_groups", "transforms.stages"),
    ("transforms",),
    ("pipeline",),
    ("cuda_build", "schedule"),
    ("dlight",),
    ("relax",),
    ("testing",),
    ("verification",),
    ("simulation",),
    ("integration",),
    ("meta_schedule", "torch"),
    ("reports",),
    ("saved",),
    ("__init__",),
    ("cli",),
    ("__main__",),
]
# Narrower than their place: tables and pure functions, and the judge, which must not share mistakes
# with what it judges.
ONLY = {
    "facts": set(),
    "sync": {"facts"},
    "sim": {"errors", "facts"},
    "reference": {"errors", "facts"},
    "codegen_patches": {"facts", "ir"},
}
MAY_IMPORT_SIM = {"static_check", "verification", "simulation"}
# Of the facts the judge takes limits alone. Where bytes and fragments lie it decodes by itself
# (sim/layouts): a wrong layout in `facts` would else be right in both places.
FACTS_OF_SIM = {
    *("arch", "devices", "instruction_archs", "programming_model", "registers", "tensor_map"),
}
# (module, imported module): why it has to reach upwards.
EXCEPTIONS: dict[tuple[str, str], str] = {}


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


def module(path: Path) -> str:
    """Return the name under which a file is imported."""
    parts = list(path.relative_to(ROOT).with_suffix("").parts)
    if parts[0] in LINKED:
        parts.insert(0, "tvm_hopper")
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def unit(name: str) -> str:
    """Return the name that a module has in LAYERS: folders of transforms/ have a name each."""
    parts = [*name.split("."), "__init__"]
    if parts[1] == "transforms" and len(parts) > 3:
        return ".".join(parts[1:3])
    return parts[1]


@functools.cache
def modules() -> dict[str, Path]:
    """Map the names of the package's modules to their files."""
    return {module(path): path for path in python_files()}


@functools.cache
def imports(name: str) -> frozenset[str]:
    """Return the modules of tvm_hopper that one imports, at its top or in a function."""
    path = modules()[name]
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            parts = name.split(".")
            up = node.level - (path.name == "__init__.py")  # a package counts itself
            around = parts[: len(parts) - up] if node.level else []
            base = ".".join([*around, *([node.module] if node.module else [])])
            inner = {f"{base}.{alias.name}" for alias in node.names}
            found |= {x if x in modules() else base for x in inner}
    return frozenset(x for x in found if x in modules() and x != name)


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
        assert "tvm_hopper = tvm_hopper.integration.autoload:register" in text
        assert "tvm-hopper = tvm_hopper.cli:main" in text
        assert "tvm_hopper = tvm_hopper.torch.dynamo_backend:backend" in text
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


def test_every_module_has_one_layer() -> None:
    named = [name for layer in LAYERS for name in layer]
    assert sorted(named) == sorted({unit(name) for name in modules()})


def allowed(own: str) -> set[str]:
    """Return what modules of a unit may import from."""
    level = next(i for i, layer in enumerate(LAYERS) if own in layer)
    above = {x for layer in LAYERS[:level] for x in layer}
    return {own} | ONLY.get(own, above if own in MAY_IMPORT_SIM else above - {"sim"})


def test_imports_go_one_way() -> None:
    upwards = [
        f"{name} imports {x}"
        for name in modules()
        for x in imports(name)
        if unit(x) not in allowed(unit(name)) and (name, x) not in EXCEPTIONS
    ]
    assert not upwards


def test_the_judge_decodes_layouts_by_itself() -> None:
    taken = {
        x.split(".")[2]
        for name in modules()
        if unit(name) == "sim"
        for x in imports(name)
        if unit(x) == "facts" and x.count(".") > 1
    }
    assert taken == FACTS_OF_SIM
    decoders = [x for x in modules() if x.startswith("tvm_hopper.sim.layouts.")]
    assert decoders
    assert not {x for name in decoders for x in imports(name) if unit(x) != "sim"}


def test_exceptions_are_needed() -> None:
    assert not {(name, x) for name, x in EXCEPTIONS if x not in imports(name)}


def test_no_circle_of_modules() -> None:
    """Folders have an order inside as well, which nobody has to write down."""
    graph = {name: imports(name) for name in modules()}
    assert len(list(graphlib.TopologicalSorter(graph).static_order())) == len(graph)


def test_imports_are_found_wherever_they_stand() -> None:
    assert "tvm_hopper.cuda_build.records" in imports(
        "tvm_hopper.reports.explanation"
    )  # in a function
    assert "tvm_hopper.facts.registers" in imports(
        "tvm_hopper.transforms.warp_specialization.specialize_warps_plan"
    )  # a part of a folder
    assert "tvm_hopper.transforms.common.channel" in imports(
        "tvm_hopper.transforms.warp_specialization.specialize_warps_plan"
    )  # relative
    assert "tvm_hopper.sync.place" in imports("tvm_hopper.sync")  # from a package itself
    assert "tvm_hopper" in imports("tvm_hopper.cli")


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
        and node.value.id not in ("tvm", "torch")  # tvm.cuda() is a device, torch.cuda a module
    }
    assert not found, "a function of codegen_patches/ptx should build these"


def test_only_emitters_speak_of_tvms_instructions() -> None:
    """Not even in words, but for kernels of the tests that are written by hand."""
    found = [
        path.relative_to(ROOT).as_posix()
        for path in python_files()
        if "T.ptx" in path.read_text()
        and path.relative_to(ROOT).parts[:2]
        not in (("codegen_patches", "ptx"), ("tvm_hopper", "testing"))
    ]
    assert not found


def test_files_are_short_enough_to_read() -> None:
    lines = {path: len(path.read_text().splitlines()) for path in python_files()}
    assert not {path for path in lines if lines[path] > 500}, "is there a second room in it?"


def test_one_pass_knows_the_tensor_core_s_instruction() -> None:
    """What others have to know of an operation stands in the table, as a row like any other."""
    built = "tvm_hopper.codegen_patches.ptx.wgmma"
    builders = {unit(x) for x in modules() if built in imports(x)}
    assert builders == {"codegen_patches", "transforms.wgmma"}


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
