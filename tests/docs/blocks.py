"""Fenced blocks of the documents, and what a comment above one says of it.

<!-- continues ../README.md -->   runs with the names that the blocks of that document left
<!-- not run: REASON -->          is only compiled
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [
    *sorted(path for path in ROOT.glob("*.md") if path.name != "CLAUDE.md"),  # which names another
    *sorted((ROOT / "docs").glob("**/*.md")),
]
TUTORIALS = sorted((ROOT / "tutorials").glob("*.md"))


@dataclass(frozen=True)
class Block:
    """One fenced block; `line` is that of its first fence."""

    path: Path
    line: int
    language: str
    text: str
    comment: str  # the HTML comment above it

    @property
    def not_run(self) -> str:
        """The reason why it is not run, or nothing."""
        return self.comment.removeprefix("not run: ") if "not run:" in self.comment else ""

    @property
    def continues(self) -> Path | None:
        """The document whose names it starts from."""
        found = re.fullmatch(r"continues (\S+)", self.comment)
        return (self.path.parent / found.group(1)).resolve() if found else None

    def run(self, names: dict[str, Any]) -> None:
        """Execute it; a traceback shows the document and its line."""
        source = "\n" * self.line + self.text
        exec(compile(source, str(self.path.relative_to(ROOT)), "exec"), names)


@lru_cache
def blocks(path: Path) -> tuple[Block, ...]:
    """Return the fenced blocks of a document."""
    found = []
    text = path.read_text()
    for match in re.finditer(r"^```(\S*)\n(.*?)^```$", text, re.M | re.S):
        before = text[: match.start()].rstrip("\n")
        comment = re.search(r"<!-- (.*) -->\Z", before.splitlines()[-1] if before else "")
        line = text.count("\n", 0, match.start()) + 1
        said = comment.group(1) if comment else ""
        found.append(Block(path, line, match.group(1), match.group(2), said))
    return tuple(found)


@lru_cache
def names_after(path: Path) -> dict[str, Any]:
    """Run every block of a document from top to bottom; return the names that it leaves."""
    names: dict[str, Any] = {}
    for block in blocks(path):
        if block.language == "python":
            if block.continues:
                names |= names_after(block.continues)
            if not block.not_run:
                block.run(names)
    return names
