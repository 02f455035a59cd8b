"""Notebooks and their texts say the same, and hold no stale output."""

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TUTORIALS = sorted((ROOT / "tutorials").glob("*.md"))


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda p: p.stem)
def test_the_notebook_is_its_text(path):
    jupytext = pytest.importorskip("jupytext")
    want = jupytext.read(path)
    have = jupytext.read(path.with_suffix(".ipynb"))
    assert [(c.cell_type, c.source) for c in have.cells] == [
        (c.cell_type, c.source) for c in want.cells
    ]


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda p: p.stem)
def test_the_notebook_holds_no_output(path):
    cells = json.loads(path.with_suffix(".ipynb").read_text())["cells"]
    assert not any(cell.get("outputs") for cell in cells)


def test_the_index_links_all_of_them():
    assert TUTORIALS[0].stem == "01_first_matmul"
    for page in ("README.md", "docs/index.md", "docs/contents.rst"):
        text = (ROOT / page).read_text()
        assert all(f"tutorials/{path.stem}" in text for path in TUTORIALS)
