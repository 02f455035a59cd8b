"""The lists of stages in the documents: `python -m tests.docs.stage_lists` writes them anew.

They stand between two comments and come from `tvm_hopper/transforms/stages.py`.
"""

from __future__ import annotations

from pathlib import Path

from tvm_hopper.transforms.stages import STAGES

ROOT = Path(__file__).parents[2]
DOCUMENTS = ("DESIGN.md",)
BEGIN = "<!-- stages: written by python -m tests.docs.stage_lists -->"
END = "<!-- end of stages -->"


def table() -> str:
    """Return the stages in order: what each leaves, and its passes."""
    lines = ["| stage | leaves | passes |", "|---|---|---|"]
    for stage in STAGES:
        passes = ", ".join(make.__name__ for make in stage.passes)
        lines.append(f"| {stage.name} | {stage.leaves} | {passes} |")
    return "\n".join(lines)


def written(text: str) -> str:
    """Return a document with the present list."""
    before, _, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    assert end, f"no {BEGIN} ... {END}"
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{after}"


def main() -> None:
    """Write each document anew."""
    for name in DOCUMENTS:
        path = ROOT / name
        path.write_text(written(path.read_text()))


if __name__ == "__main__":
    main()
