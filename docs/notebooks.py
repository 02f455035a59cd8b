"""Run the tutorials and keep their outputs: `make notebooks`.

The text of a tutorial is `tutorials/NAME.md`. This writes `tutorials/NAME.ipynb` with the same
cells and what they print and draw. The site shows both (`docs/conf.py`).
"""

from __future__ import annotations

import base64
import io
import re
import sys
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient
from PIL import Image

TUTORIALS = Path(__file__).resolve().parents[1] / "tutorials"
SECONDS = 900  # for one cell
PICTURE = re.compile(r"(data:image/png;base64,)([A-Za-z0-9+/=]+)")
PATHS = {str(Path.home()): "~", str(TUTORIALS.parent): "."}


def run(path: Path) -> None:
    """Execute one tutorial and write its notebook with outputs."""
    notebook = jupytext.read(path)
    client = NotebookClient(
        notebook,
        timeout=SECONDS,
        kernel_name="python3",
        record_timing=False,
        resources={"metadata": {"path": str(TUTORIALS)}},
    )
    client.execute()
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{number}"  # the same in each run
        cell["metadata"].pop("execution", None)
        for output in cell.get("outputs", ()):
            _clean(output)
    notebook["metadata"].pop("language_info", None)
    nbformat.validate(notebook)
    nbformat.write(notebook, path.with_suffix(".ipynb"))


def _clean(output: dict) -> None:
    """Remove what belongs to this machine or is shown twice."""
    data = output.get("data", {})
    if "image/png" in data:  # the picture says it
        data.pop("text/html", None)
        data["text/plain"] = ""
        data["image/png"] = _smaller(data["image/png"])
    if "text/html" in data:
        data["text/html"] = PICTURE.sub(lambda x: x[1] + _smaller(x[2]), data["text/html"])
    for holder, key in ((output, "text"), (data, "text/plain"), (data, "text/html")):
        if isinstance(holder.get(key), str):
            for found, shown in PATHS.items():
                holder[key] = holder[key].replace(found, shown)


def _smaller(picture: str) -> str:
    """Return a picture in 64 colours: a third of the bytes."""
    image = Image.open(io.BytesIO(base64.b64decode(picture))).convert("RGB")
    out = io.BytesIO()
    image.quantize(64, dither=Image.Dither.NONE).save(out, "PNG", optimize=True)
    return base64.b64encode(out.getvalue()).decode()


if __name__ == "__main__":
    for text in map(Path, sys.argv[1:] or sorted(map(str, TUTORIALS.glob("*.md")))):
        run(text)
        print(text.with_suffix(".ipynb"), text.with_suffix(".ipynb").stat().st_size, "bytes")
