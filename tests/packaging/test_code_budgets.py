"""The size of the code: lines, passes, files of a folder, long functions, words of the interface.

`python -m tests.packaging.test_code_budgets` prints what there is beside each limit.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

from tvm_hopper.pipeline import passes
from tvm_hopper.relax.options import ModelOptions
from tvm_hopper.requests.keys import KEYS
from tvm_hopper.schedule.column_reduction.config import ColumnReductionConfig
from tvm_hopper.schedule.pointwise.config import PointwiseConfig
from tvm_hopper.schedule.products.config import MatmulConfig
from tvm_hopper.schedule.row_reduction.config import RowReductionConfig

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = ("tvm_hopper", "transforms", "codegen_patches")
LINKED = {ROOT / "tvm_hopper" / name for name in LIBRARY[1:]}
CONFIGS = (
    *(MatmulConfig, PointwiseConfig, RowReductionConfig, ColumnReductionConfig),
    ModelOptions,
)
LONG, COMPLEX, MANY = 80, 20, 8  # lines, branches and parameters of a function, at most
FREE_OF_PARAMETERS = ROOT / "tvm_hopper" / "sim" / "ops"  # one for each operand of an instruction
PASS = re.compile(r"\b(?:prim_func_pass|module_pass|function_pass|kernel_pass|planned_pass)\(")
KEY = re.compile(r'"(tvm_hopper\.[a-z0-9_]+)"')
BRANCHES = (ast.If, ast.IfExp, ast.For, ast.While, ast.ExceptHandler, ast.Assert, ast.match_case)


def limits() -> dict[str, int]:
    """Read the section of the file, which has one number a line (Python 3.10 has no tomllib)."""
    text = (ROOT / "tests/packaging/budgets.toml").read_text().partition("[code]")[2]
    rows = re.findall(r"^(\w+) = ([\d_]+)", text.partition("\n[")[0], re.MULTILINE)
    return {name: int(number) for name, number in rows}


@functools.cache
def library() -> tuple[tuple[Path, str], ...]:
    """Return the sources of the library, each once: links to folders are left out."""
    found = [path for name in LIBRARY for path in (ROOT / name).rglob("*.py")]
    own = sorted(path for path in found if not LINKED & {*path.parents})
    return tuple((path, path.read_text()) for path in own)


def complexity(function: ast.AST) -> int:
    """Count the ways through a function, as McCabe does, those of inner functions included."""
    count = 1
    for node in ast.walk(function):
        if isinstance(node, BRANCHES):
            count += 1
        elif isinstance(node, ast.BoolOp):
            count += len(node.values) - 1
        elif isinstance(node, ast.comprehension):
            count += 1 + len(node.ifs)
    return count


@functools.cache
def functions() -> tuple[tuple[Path, ast.FunctionDef], ...]:
    return tuple(
        (path, node)
        for path, text in library()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef)
    )


def parameters(function: ast.FunctionDef) -> int:
    return len([*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs])


def files_of_folders() -> Iterator[int]:
    for folder in {path.parent for path, _ in library() if ROOT / "transforms" in path.parents}:
        yield len(list(folder.glob("*.py")))


MEASURES = {
    "library_lines": lambda: sum(len(text.splitlines()) for _, text in library()),
    "test_lines": lambda: sum(
        len(path.read_text().splitlines()) for path in (ROOT / "tests").rglob("*.py")
    ),
    "passes": lambda: sum(
        len(found())
        for found in (
            *(passes.early_passes, passes.hook_passes),
            *(passes.late_passes, passes.host_passes),
        )
    ),
    "entries_of_transforms": lambda: len(
        {path.relative_to(ROOT / "transforms").parts[0] for path, _ in library() if in_passes(path)}
    ),
    "files_of_a_folder_of_passes": lambda: max(files_of_folders()),
    "lines_of_a_pass_file": lambda: max(
        len(text.splitlines()) for path, text in library() if in_passes(path) and PASS.search(text)
    ),
    "lines_of_a_file": lambda: max(len(text.splitlines()) for _, text in library()),
    "functions_over_80_lines": lambda: sum(
        node.end_lineno - node.lineno >= LONG for _, node in functions()
    ),
    "functions_above_complexity_20": lambda: sum(
        complexity(node) > COMPLEX for _, node in functions()
    ),
    "functions_of_more_than_8_parameters": lambda: sum(
        parameters(node) > MANY
        for path, node in functions()
        if FREE_OF_PARAMETERS not in path.parents
    ),
    "fields_of_a_config": lambda: max(len(fields(config)) for config in CONFIGS),
    "annotation_keys": lambda: len({key for _, text in library() for key in KEY.findall(text)}),
    "pass_context_options": lambda: sum(key.option for key in KEYS.values()),
}


def in_passes(path: Path) -> bool:
    return ROOT / "transforms" in path.parents


def test_every_limit_is_measured() -> None:
    assert {*limits()} == {*MEASURES}


@pytest.mark.parametrize("name", MEASURES)
def test_the_code_keeps_its_limits(name: str) -> None:
    found = MEASURES[name]()
    assert found <= limits()[name], (
        f"{name}: found {found}; need at most {limits()[name]}, or a higher limit in "
        "tests/packaging/budgets.toml and a sentence in DESIGN.md that says why"
    )


def test_branches_are_counted_as_one_reads_them() -> None:
    text = "def f(x):\n    if x and x > 1:\n        return [y for y in x if y]\n    return 0\n"
    (node,) = ast.parse(text).body
    assert complexity(node) == 5


if __name__ == "__main__":
    for name, measure in MEASURES.items():
        print(f"{name:40}{measure():8}  of {limits()[name]}")
