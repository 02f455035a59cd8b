"""The table of rules in docs/verification.md is that of the code, and what it names exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT
from tests.seeded.catalogue import BY_ID, FAMILIES
from tvm_hopper.sim.findings import RULES

PAGE = ROOT / "docs" / "verification.md"
GAPS = ("opaque bodies", "bytes of copies", "barriers by hand", "exchange between CTAs")
SECTION = r"\b\d+(?:\.\d+)+\b|^\d+\b"


def rows(text: str) -> list[list[str]]:
    """Return the cells of each row of the table of rules."""
    table = text.partition("\n## Rules\n")[2].partition("\n## ")[0]
    lines = [line for line in table.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def named(cell: str) -> str:
    """Return the rule of a row's first cell."""
    return re.match(r"`(\w+)`", cell.lstrip("| ")).group(1)


ROWS = {named(row[0]): row for row in rows(PAGE.read_text())}


def test_every_rule_has_one_row() -> None:
    found = [named(row[0]) for row in rows(PAGE.read_text())]
    assert sorted(found) == sorted(RULES)


@pytest.mark.parametrize("rule", RULES)
def test_a_row_says_severity_and_section_of_the_findings(rule: str) -> None:
    first, says, section, shown = ROWS[rule]
    known = RULES[rule]
    assert ("(" in first) == (known.severity != "error")
    assert known.severity == "error" or f"({known.severity})" in first
    assert says
    assert shown
    cited = re.findall(SECTION, known.ptx_section)
    told = re.findall(SECTION, section)
    for one in cited:  # itself, or a part of it
        assert any(f"{other}.".startswith(f"{one}.") for other in told), (one, section)
    assert cited or known.ptx_section in section


@pytest.mark.parametrize("rule", RULES)
def test_what_shows_a_rule_asks_for_it(rule: str) -> None:
    shown = ROWS[rule][3]
    ids = re.findall(r"\b[A-Z]\d\d\b", shown)
    files = re.findall(r"`(tests/[\w/]+\.py)`", shown)
    assert ids or files
    for one in ids:
        assert rule in frozenset().union(*BY_ID[one].expected), one
    for path in files:
        assert re.search(rf"\b{rule}\b", Path(ROOT, path).read_text()), path


def test_the_score_counts_what_there_is() -> None:
    text = PAGE.read_text().partition("\n## Score\n")[2].partition("\n## ")[0]
    rights_of = {f.name: len(f.golden) + len(f.controls) for f in FAMILIES}
    bugs_of = {f.name: len(f.mutations) for f in FAMILIES}
    found_of = {f.name: len(f.mutations) for f in FAMILIES}
    told = re.findall(r"^\| ([\w -]+) \| (\d+) of (\d+) \| (\d+) of (\d+) \|", text, re.M)
    assert {"Hopper matmuls", *GAPS} <= {row[0] for row in told}
    for name, *numbers in told:
        clean, rights, found, bugs = map(int, numbers)
        assert clean == rights == rights_of[name], name
        assert (found, bugs) == (found_of[name], bugs_of[name]), name
    sums = [sum(int(row[column]) for row in told) for column in range(1, 5)]
    assert f"{sums[0]} of {sums[1]}" in text
    assert f"{sums[2]} of {sums[3]}" in text
