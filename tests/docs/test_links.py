"""Every relative link of every Markdown file leads somewhere, its anchor included."""

from __future__ import annotations

import functools
import re
from pathlib import Path

from tests.docs.blocks import ROOT

OUTSIDE = {"build", "dist", "node_modules"}
FILES = [
    path
    for path in sorted(ROOT.glob("**/*.md"))
    if not any(part.startswith(".") or part in OUTSIDE for part in path.relative_to(ROOT).parts)
]


def prose(path: Path) -> str:
    """Return the text without code."""
    text = re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.M | re.S)
    return re.sub(r"`[^`\n]*`", "", text)


@functools.cache
def anchors(path: Path) -> set[str]:
    """Return what a heading's link is called, as code hosts and the site have it."""
    text = re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.M | re.S)
    headings = re.findall(r"^#{1,6} (.*)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", h.lower().strip()).replace(" ", "-") for h in headings}


def dead(path: Path) -> list[str]:
    """Return the links of a file that lead nowhere."""
    found = []
    for link in re.findall(r"\]\(<?([^)\s>]+)>?\)", prose(path)):
        if re.match(r"[a-z]+:", link):
            continue  # of another site: not fetched
        name, _, anchor = link.partition("#")
        target = (path.parent / name).resolve() if name else path
        page = target.is_file()  # the site has none for a folder
        checked = page and anchor and target.suffix == ".md"
        if not page or (checked and anchor not in anchors(target)):
            found.append(link)
    return found


def test_links_lead_somewhere() -> None:
    found = {path.relative_to(ROOT).as_posix(): dead(path) for path in FILES}
    assert not {name: links for name, links in found.items() if links}


def test_dead_links_are_noticed(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("# One: `two` and three\n")
    path = tmp_path / "some.md"
    path.write_text(
        "# Top\n[a](other.md) [b](other.md#one-two-and-three) [c](#top) [d](https://x.example)\n"
        "`[code](none.md)`\n\n```text\n[code](none.md)\n```\n"
        "[e](none.md) [f](other.md#four) [g](#bottom) [h](.)\n"
    )
    assert dead(path) == ["none.md", "other.md#four", "#bottom", "."]
