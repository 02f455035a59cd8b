"""The families of cases: name to a function that makes one case out of decisions, and its share."""

from collections.abc import Callable

from ..case import Case
from ..draw import Draw
from . import (
    bare_annotations,
    configurations,
    copies,
    hostile,
    matmul,
    pipelines,
    plain_loops,
    programs,
    steps,
)

FAMILIES: dict[str, Callable[[Draw], Case]] = {
    "matmul": matmul.make,
    "steps": steps.make,
    "annotations": bare_annotations.make,
    "programs": programs.make,
    "hostile": hostile.make,
    "configurations": configurations.make,
    "loops": plain_loops.make,
    "copies": copies.make,
    "pipelines": pipelines.make,
}
# how often each comes, spread evenly: of 32 cases so many
SHARES = {
    "matmul": 8, "steps": 3, "annotations": 3, "programs": 3, "configurations": 2, "hostile": 1,
    "loops": 4, "copies": 4, "pipelines": 4,
}  # fmt: skip
