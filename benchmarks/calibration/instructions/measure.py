"""Try all forms of some instructions; a row for each form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .forms import Form, forms_of
from .judge import judge
from .operands import draw

# Runs a form on operands: bits of each register operand -> bits of each result.
Run = Callable[[Form, list[np.ndarray]], list[np.ndarray]]
Load = Callable[[list[Form]], Run]

AT_ONCE = 100  # forms of one file


def measure(names: list[str], load: Load, seed: int = 0) -> list[dict[str, Any]]:
    """Return a row for each form of the instructions of these names."""
    rows = []
    forms = [form for name in names for form in forms_of(name)]
    for start in range(0, len(forms), AT_ONCE):
        some = forms[start : start + AT_ONCE]
        run = load(some)
        for form in some:
            columns = draw(form, seed)
            rows.append(judge(form, columns, run(form, columns)))
    return rows


def shares(names: list[str], count: int) -> list[list[str]]:
    """Split the instructions into lists of about as many forms."""
    found: list[list[str]] = [[] for _ in range(count)]
    sizes = [0] * count
    for name in sorted(names, key=lambda n: -len(forms_of(n))):
        place = sizes.index(min(sizes))
        found[place].append(name)
        sizes[place] += len(forms_of(name))
    return [names for names in found if names]
