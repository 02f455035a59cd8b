"""`make docs` builds the site without a warning, and the reference holds every public name."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import tvm_hopper
from tests.docs.blocks import ROOT
from tvm_hopper import dlight, relax, schedule

FACTS = sorted(path.stem for path in (ROOT / "tvm_hopper" / "facts").glob("[a-z]*.py"))


def makefile() -> str:
    return (ROOT / "Makefile").read_text()


def every_page_is_there(site: Path) -> None:
    for page in ("index", "README", "DESIGN", "CHANGELOG", "docs/schedule", "docs/simulator"):
        assert (site / f"{page}.html").is_file()
    assert "docs/index.html" in (site / "index.html").read_text()


def the_first_page_shows_what_it_is(site: Path) -> None:
    text = (site / "docs" / "index.html").read_text()
    for shown in ("hs", "timeline_product.png", "<table", "get_started.html"):
        assert shown in text
    sidebar = text.partition('<div class="sidebar-tree">')[2].partition("</aside>")[0]
    assert "schedule.html" in sidebar
    assert "benchmarks/results" not in sidebar


def tutorials_show_what_they_print_and_draw(site: Path) -> None:
    for tutorial in (ROOT / "tutorials").glob("*.md"):
        text = (site / "tutorials" / f"{tutorial.stem}.html").read_text()
        assert "<pre class='output'>" in text or "data:image/png" in text
    assert "data:image/png" in (site / "tutorials" / "01_first_matmul.html").read_text()


def lines_of_code_are_not_cut(site: Path) -> None:
    sheet = (site / "_static" / "site.css").read_text()
    assert "white-space: pre-wrap" in sheet
    assert "site.css" in (site / "docs" / "schedule.html").read_text()


def nothing_is_fetched_from_elsewhere(site: Path) -> None:
    for page in site.glob("**/*.html"):
        text = page.read_text()
        assert not re.search(r'<(?:script|link|img|iframe)[^>]* (?:src|href)="(?:https?:)?//', text)
    for sheet in site.glob("_static/**/*.css"):
        assert not re.search(r"@import|url\([\"']?(?:https?:)?//", sheet.read_text())


def the_reference_holds_every_public_name(site: Path) -> None:
    text = "".join(page.read_text() for page in (site / "docs" / "reference").glob("*.html"))
    shown = set(re.findall(r'<dt class="sig[^"]*" id="([\w.]+)"', text))
    wanted = {f"tvm_hopper.schedule.{name}" for name in schedule.__all__}
    for name, module in tvm_hopper._NAMES.items():
        wanted.add(f"tvm_hopper.errors.{name}" if module == "errors" else f"tvm_hopper.{name}")
    wanted |= {f"tvm_hopper.relax.{name}" for name in relax.__all__}
    wanted |= {f"tvm_hopper.dlight.{name}" for name in dlight.__all__}
    assert wanted <= shown
    modules = set(re.findall(r'id="module-([\w.]+)"', text))
    assert {f"tvm_hopper.facts.{name}" for name in FACTS} <= modules
    assert {"tvm_hopper.keys", "tvm_hopper.schedule"} <= modules


@pytest.mark.slow  # `make docs` is a job of its own; test_links.py looks for dead links
def test_the_site_is_whole(tmp_path: Path) -> None:
    """Run what `make docs` runs, into another folder: once, since it takes half a minute."""
    (line,) = re.findall(r"^\t\$\(PY\) (-m sphinx .*) build/docs$", makefile(), re.M)
    assert "-W" in line.split()
    done = subprocess.run(
        [sys.executable, *line.split(), str(tmp_path)], cwd=ROOT, capture_output=True, text=True
    )
    assert not done.returncode, done.stderr
    for check in (
        every_page_is_there,
        the_first_page_shows_what_it_is,
        tutorials_show_what_they_print_and_draw,
        lines_of_code_are_not_cut,
        nothing_is_fetched_from_elsewhere,
        the_reference_holds_every_public_name,
    ):
        check(tmp_path)
