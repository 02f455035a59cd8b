"""What runs elsewhere says the same as pyproject.toml: CI jobs, hooks, pins."""

from __future__ import annotations

import re
import stat
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from tvm_hopper.requests import pins

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10, where pytest brings it
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
TARGETS = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M))
JOBS = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())["jobs"]
HOOKS = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]


def pinned() -> dict[str, str]:
    """Return what pyproject.toml pins to one version, dependency or extra."""
    found = {}
    for text in chain(PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()):
        requirement = Requirement(text)
        for each in requirement.specifier:
            if each.operator == "==" and not each.version.endswith("*"):
                found[requirement.name] = each.version
    return found


def pythons() -> list[str]:
    """Return the versions that the classifiers name."""
    names = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    assert names
    return names


def commands(job: dict[str, Any]) -> list[str]:
    return [step["run"] for step in job["steps"] if "run" in step]


def test_the_classifiers_are_what_the_package_installs_on() -> None:
    allowed = SpecifierSet(PROJECT["requires-python"])
    assert pythons() == [f"3.{minor}" for minor in range(30) if f"3.{minor}.5" in allowed]


@pytest.mark.parametrize("name", ["test", "wheel"])
def test_the_jobs_run_on_every_python(name: str) -> None:
    assert JOBS[name]["strategy"]["matrix"]["python"] == pythons()
    assert JOBS[name]["strategy"]["fail-fast"] is False


@pytest.mark.parametrize("name", JOBS)
def test_what_a_job_runs_is_there(name: str) -> None:
    job = JOBS[name]
    assert commands(job)
    for command in commands(job):
        assert set(re.findall(r"\bmake ([\w-]+)", command)) <= TARGETS
        for path in re.findall(r"\btests/\w+", command):
            assert (ROOT / path).is_dir()
    for step in job["steps"]:
        version = step.get("with", {}).get("python-version")
        assert version in (None, "${{ matrix.python }}", *pythons())
        assert re.fullmatch(r"[\w-]+/[\w-]+@v\d+\.\d+\.\d+", step.get("uses", "a/b@v1.2.3"))


@pytest.mark.parametrize("name", JOBS)
def test_untried_jobs_fail_nothing_else(name: str) -> None:
    tried = JOBS[name]["runs-on"].startswith("ubuntu-")
    assert JOBS[name].get("continue-on-error", False) is not tried


@pytest.mark.parametrize("path", [".github/workflows/ci.yml", ".ci/run", "Makefile"])
def test_no_host_and_no_machine_is_named(path: str) -> None:
    text = (ROOT / path).read_text()
    assert not re.search(r"https?:|index-url|(?<![\w.}])/(?:home|work|tmp|root|opt)\b", text)


def test_a_change_is_linted_before_it_is_tested() -> None:
    path = ROOT / ".ci" / "run"
    lines = path.read_text().splitlines()
    assert lines.index("make lint") < lines.index("make test")
    assert path.stat().st_mode & stat.S_IXUSR


def test_make_explains_every_target() -> None:
    text = (ROOT / "Makefile").read_text()
    assert set(re.findall(r"^([\w-]+):.*## \w", text, re.M)) == TARGETS


def test_hooks_are_pinned_to_the_versions_of_the_project() -> None:
    hooks = [hook for repo in HOOKS for hook in repo["hooks"]]
    assert {repo["repo"] for repo in HOOKS} == {"local"}  # another would need a `rev`
    assert [hook["id"] for hook in hooks] == ["ruff-check", "ruff-format", "mypy"]
    for hook in hooks:
        if hook["language"] == "system":  # of .venv, where pyproject.toml pins it
            tool = hook["entry"].removeprefix(".venv/bin/python -m ").split()[0]
            assert tool in pinned()
            continue
        (dependency,) = map(Requirement, hook["additional_dependencies"])
        assert str(dependency.specifier) == f"=={pinned()[dependency.name]}"
        assert hook["entry"].split()[0] == dependency.name


def test_hooks_run_what_lint_runs() -> None:
    text = (ROOT / "Makefile").read_text()
    lint = re.findall(r"^\t\$\(PY\) -m (.*)$", text[text.index("\nlint:") :].split("\n\n")[0], re.M)
    entries = [hook["entry"] for repo in HOOKS for hook in repo["hooks"]]
    short = [re.sub(r"\.venv/bin/python -m | --force-exclude", "", entry) for entry in entries]
    assert short == [re.sub(r" --check| \.", "", command) for command in lint]


def test_the_pins_at_run_time_are_those_of_the_package() -> None:
    found = {r.name: r.specifier for r in map(Requirement, PROJECT["dependencies"])}
    assert str(found["apache-tvm"]) == f"=={pins.TVM}"
    assert pins.is_release("0.1.14.post0", pins.FFI)
    assert f'"apache-tvm=={pins.TVM}"' in pins.REMEDY
    told = SpecifierSet(re.search(r'"apache-tvm-ffi([^"]*)"', pins.REMEDY).group(1))
    assert told == found["apache-tvm-ffi"]
