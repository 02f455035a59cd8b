"""Notebooks and their texts say the same, and notebooks hold what their cells print and draw."""

import json
import re
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
def test_the_notebook_holds_its_outputs(path):
    text = path.with_suffix(".ipynb").read_text()
    cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert len(outputs) >= 3, "run: make notebooks"
    assert not any(output["output_type"] == "error" for output in outputs)
    assert str(ROOT) not in text


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda p: p.stem)
def test_a_tutorial_has_one_title_of_its_own(path):
    titles = {other: headings(other) for other in TUTORIALS}
    assert len(titles[path]) == 1
    assert sum(titles[path] == other for other in titles.values()) == 1


def headings(path):
    """Return the headings of the first level."""
    text = re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.M | re.S)
    return re.findall(r"^# (.*)$", text, re.M)


def test_the_index_links_all_of_them():
    assert TUTORIALS[0].stem == "01_first_matmul"
    for page in ("README.md", "docs/index.md"):
        text = (ROOT / page).read_text()
        assert all(f"tutorials/{path.stem}" in text for path in TUTORIALS)
