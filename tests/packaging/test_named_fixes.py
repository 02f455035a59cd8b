"""What a message tells a user to call, ask for or run exists."""

from __future__ import annotations

import ast
import functools
import inspect
import re
from collections.abc import Iterator

import pytest

import tvm_hopper
from tests.packaging.test_layout import ROOT, modules, python_files
from tvm_hopper import cli, schedule as hs
from tvm_hopper.relax.options import ModelOptions
from tvm_hopper.requests import keys

NAME = r"\b(?:hs|tvm_hopper)\.[A-Za-z_][\w.]*\w"
CALL = re.compile(NAME + r"\(")
FIELD = re.compile(r"\b([a-z_]{3,})=(?!=)")
COMMAND = re.compile(r"python -m tvm_hopper ([a-z]\w*)")


def texts_of(node: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the texts below a node but its docstrings: (line, text), parts of one joined."""
    if isinstance(node, ast.JoinedStr):
        parts = [x.value if isinstance(x, ast.Constant) else "{}" for x in node.values]
        yield node.lineno, "".join(map(str, parts))
    elif isinstance(node, ast.Constant):
        if isinstance(node.value, str) and " " in node.value:
            yield node.lineno, node.value
    elif not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
        for child in ast.iter_child_nodes(node):
            yield from texts_of(child)


@functools.cache
def messages() -> tuple[tuple[str, str], ...]:
    """Return the texts of each module with their places."""
    return tuple(
        (f"{path.relative_to(ROOT)}:{line}", text)
        for path in python_files()
        for line, text in texts_of(ast.parse(path.read_text()))
    )


@functools.cache
def passes() -> set[str]:
    """Return such names as TVM lists passes and registered errors by."""
    found = (re.findall(r'"(tvm_hopper\.[A-Z]\w+)"', path.read_text()) for path in python_files())
    return {name for names in found for name in names}


def resolve(name: str) -> object:
    """Return what a dotted name stands for; keys of ours stand for themselves."""
    if name in keys.KEYS or name in passes() or name in modules():
        return name
    root, *parts = name.split(".")
    found = {"hs": hs, "tvm_hopper": tvm_hopper}[root]
    for part in parts:
        found = getattr(found, part)
    return found


def test_names_and_their_arguments():
    wrong = []
    for place, text in messages():
        for match in re.finditer(NAME + r"(\([^()]*\))?", text):
            name = match[0].partition("(")[0]
            try:
                found = resolve(name)
            except AttributeError:
                wrong.append((place, name))
                continue
            known = inspect.signature(found).parameters if callable(found) else {}
            asked = FIELD.findall(match[1] or "")
            open_ended = any(x.kind is x.VAR_KEYWORD for x in known.values()) if known else False
            wrong += [(place, name, x) for x in asked if x not in known and not open_ended]
    assert not wrong
    assert len(messages()) > 500


CONFIGS = [getattr(hs, x) for x in dir(hs) if x.endswith("Config")]
CALLABLES = [
    *CONFIGS, ModelOptions, hs.Roles, tvm_hopper.simulate, tvm_hopper.verify, tvm_hopper.tune,
    *(x for x in map(hs.__dict__.get, hs.__all__) if inspect.isfunction(x)),
]  # fmt: skip


def test_fields_that_a_fix_asks_for():
    known = {x for each in CALLABLES for x in inspect.signature(each).parameters}
    wrong = []
    for place, text in messages():
        for said in re.findall(r"(?:leave|give|take|request|without|with) ([a-z_]{4,})=", text):
            if said not in known:
                wrong.append((place, said))
    assert not wrong


def test_commands():
    known = [name for name in vars(cli) if name.startswith("add_")]
    asked = {x for _, text in messages() for x in COMMAND.findall(text)}
    assert asked
    assert {f"add_{x}" for x in asked} <= set(known)


def test_packages_are_installed_by_their_own_names():
    """No index has tvm_hopper itself: pip would find nothing, with extras or without."""
    texts = [(place, text) for place, text in messages() if "pip install" in text]
    assert texts
    assert not [x for x in texts if re.search(r"pip install [\"']?tvm[_-]hopper", x[1])]


@pytest.mark.parametrize("name", ["hs.nothing", "tvm_hopper.dlight.nothing"])
def test_a_name_that_is_none(name):
    with pytest.raises(AttributeError):
        resolve(name)
