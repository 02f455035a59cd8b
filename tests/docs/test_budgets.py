"""The documents stay within the limits of tests/packaging/budgets.toml."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:  # Python 3.10
    tomllib = pytest.importorskip("tomli")

BUDGETS = tomllib.loads((ROOT / "tests/packaging/budgets.toml").read_text())["docs"]
RESULTS = ROOT / "benchmarks" / "results"


def prose(text: str) -> str:
    """Return the text of a page without code, tables, comments and headings."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    lines = [x for x in text.splitlines() if not x.lstrip().startswith(("|", "#", "<!--"))]
    return "\n".join(lines)


def sentences(text: str) -> list[str]:
    """Return the sentences of running text; an item of a list ends one, too."""
    found = []
    for paragraph in re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )", prose(text)):
        found += re.split(r"(?<=[.?!])\s+", re.sub(r"`[^`]*`", "code", paragraph))
    return [x.strip() for x in found if x.strip()]


def test_the_readme_is_short() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= BUDGETS["readme_lines"]
    assert [x for x in lines if len(x) > BUDGETS["readme_line_characters"]] == []


def test_the_changes_are_one_page() -> None:
    assert (ROOT / "CHANGELOG.md").stat().st_size <= BUDGETS["changelog_bytes"]


def test_the_documents_are_within_their_lines() -> None:
    pages = [ROOT / "README.md", ROOT / "DESIGN.md", *(ROOT / "docs").glob("*.md")]
    counts = {path.name: len(path.read_text().splitlines()) for path in pages}
    assert sum(counts.values()) <= BUDGETS["lines"], counts


def test_no_sentence_of_the_design_is_long() -> None:
    found = sentences((ROOT / "DESIGN.md").read_text())
    assert [x for x in found if len(x.split()) > BUDGETS["design_sentence_words"]] == []


def test_results_are_few_and_in_the_index() -> None:
    files = [path for path in RESULTS.iterdir() if path.is_file()]
    assert len(files) <= BUDGETS["result_files"]
    assert sum(path.stat().st_size for path in files) <= BUDGETS["result_bytes"]
    index = (RESULTS / "README.md").read_text()
    assert [x.name for x in files if x.name != "README.md" and f"({x.name})" not in index] == []


@pytest.mark.parametrize(
    "path", sorted((ROOT / "tutorials").glob("*.ipynb")), ids=lambda path: Path(path).stem
)
def test_a_notebook_with_outputs_is_small(path: Path) -> None:
    assert path.stat().st_size <= BUDGETS["tutorial_bytes"]


def test_a_long_sentence_is_noticed() -> None:
    assert sentences("# Head\n\nOne two.\nThree `a b c` four.\n\n| a table |\n") == [
        "One two.",
        "Three code four.",
    ]
