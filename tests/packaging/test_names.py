"""Names that stand in one place: those of copy mechanisms, of instructions, of an architecture."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.packaging.test_code_budgets import ROOT, library
from tvm_hopper.facts.async_ops import MECHANISMS
from tvm_hopper.transforms.mechanisms import table

OF_MECHANISMS = ("transforms/mechanisms", "codegen_patches")
OF_INSTRUCTIONS = (*OF_MECHANISMS, "tvm_hopper/facts/op_names.py", "tvm_hopper/sim/tir.py")


def outside(*folders: str) -> list[tuple[Path, str]]:
    """Return the sources that lie in none of some folders."""
    kept = [(path.relative_to(ROOT), text) for path, text in library()]
    return [(path, text) for path, text in kept if not str(path).startswith(folders)]


def compared_names(text: str) -> Iterator[int]:
    """Yield the lines that compare something with a mechanism, by name or by its object."""
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Compare | ast.MatchValue):
            continue
        for part in ast.walk(node):
            is_name = isinstance(part, ast.Constant) and part.value in MECHANISMS
            if is_name or (isinstance(part, ast.Name) and part.id in ("TMA", "BULK", "DMA")):
                yield node.lineno


def test_the_table_has_every_mechanism_in_the_order_of_auto() -> None:
    assert tuple(table.MECHANISMS) == MECHANISMS


def test_nothing_is_compared_with_the_name_of_a_mechanism() -> None:
    found = [(str(path), x) for path, text in outside(*OF_MECHANISMS) for x in compared_names(text)]
    assert not found, "ask for what it can do: transforms/mechanisms/mechanism.py"


@pytest.mark.parametrize(
    "text", ['x == "tma"', '"bulk" in x', 'x in ("dma", "auto")', "x == BULK.name"]
)
def test_a_comparison_is_found(text: str) -> None:
    assert [*compared_names(text)] == [1]


def op_texts(text: str) -> Iterator[int]:
    """Yield the lines with a text that begins as the name of an instruction's operation does."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and str(node.value).startswith(("tirx.ptx", "tirx.cuda")):
            yield node.lineno


def test_names_of_instructions_stand_in_one_table() -> None:
    found = [(str(path), x) for path, text in outside(*OF_INSTRUCTIONS) for x in op_texts(text)]
    found = [x for x in found if x[0] != "transforms/memory_bound/pipeline_row_loop.py"]
    assert not found, "take it from facts/op_names.py, or sim/tir.py"


def test_a_text_of_an_operation_is_found() -> None:
    assert [*op_texts('f"tirx.ptx.{x}"\nx.startswith("tirx.cuda.y")')] == [1, 2]


def test_the_architecture_comes_from_the_target() -> None:
    """Whoever needs a default takes `facts.arch.DEFAULT_ARCH`, or asks `requests.targets`."""
    texts = outside("tvm_hopper/facts")
    found = [str(path) for path, text in texts for x in text.splitlines() if "SM_90A" in x]
    assert len(found) <= 8, found
