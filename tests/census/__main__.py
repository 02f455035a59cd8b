"""`python -m tests.census`: print the census, or write it."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path

from .kernels import KERNELS
from .record import record

DATA = Path(__file__).with_name("census.json")


def main() -> None:
    """Record each kernel."""
    parser = argparse.ArgumentParser(prog="python -m tests.census")
    parser.add_argument("--write", action="store_true", help=f"write {DATA.name} again")
    parser.add_argument("--texts", type=Path, help="a folder for the final TIR of each kernel")
    given = parser.parse_args()
    census = {}
    for name, subject in KERNELS.items():
        census[name], text = record(subject)
        print(f"{name}: {' '.join(census[name]['passes'])}")
        if given.texts:
            given.texts.mkdir(parents=True, exist_ok=True)
            file = re.sub(r"\W+", "_", name)
            (given.texts / f"{file}.txt").write_text(text)
    if given.write:
        lines = (f"  {json.dumps(name)}: {json.dumps(one)}" for name, one in census.items())
        DATA.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
