"""Turns a notebook with outputs into a page of the site: `docs/conf.py` calls it for tutorials."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

ESCAPES = re.compile(r"\x1b\[[0-9;]*m")  # colours of a terminal


def page(path: Path) -> str:
    """Return the Markdown of a notebook: text, code, and what each cell printed and drew."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return "\n\n".join(part for cell in cells for part in _parts(cell)) + "\n"


def _parts(cell: dict[str, Any]) -> Iterator[str]:
    source = _text(cell["source"])
    if cell["cell_type"] == "markdown":
        yield source
    elif cell["cell_type"] == "code":
        yield f"````python\n{source}\n````"
        for output in cell["outputs"]:
            yield from _shown(output)


def _shown(output: dict[str, Any]) -> Iterator[str]:
    data = output.get("data", {})
    if output["output_type"] == "stream":
        yield _printed(_text(output["text"]))
    elif "image/png" in data:
        yield _raw(f'<img alt="" src="data:image/png;base64,{_text(data["image/png"]).strip()}">')
    elif "text/html" in data:
        yield _raw(_text(data["text/html"]))
    elif "text/plain" in data:
        yield _printed(_text(data["text/plain"]))


def _text(value: str | Iterable[str]) -> str:
    return value if isinstance(value, str) else "".join(value)


def _printed(text: str) -> str:
    return _raw(f"<pre class='output'>{html.escape(ESCAPES.sub('', text.rstrip()))}</pre>")


def _raw(text: str) -> str:
    return f"````{{raw}} html\n{text}\n````"
