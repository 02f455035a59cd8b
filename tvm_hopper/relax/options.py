"""Options of the Relax pipeline, checked at once."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass, fields
from typing import Any

from tvm_hopper.errors import OptionError, cannot_configure
from tvm_hopper.schedule.arguments import as_bounds, as_ranges
from tvm_hopper.schedule.products.class_choice import MOST_CLASSES
from tvm_hopper.schedule.products.config import ACCUMULATE

WHERE = "relax pipeline tvm_hopper"
CLASSES = (1, 8, 16, 64, 128, 512, 4096)  # decoding of one and of many, prefill


@dataclass(frozen=True)
class ModelOptions:
    """Options of a model's lowering.

    Parameters
    ----------
    accumulate : str, optional
        "float32": accumulate 16-bit sums in float32. None: as the model says; TVM's own rules then
        compute products that sum in 16 bits.
    classes : sequence of int, or mapping of int to int, optional
        Size classes of products with symbolic rows, as for `hs.matmul`. None: chosen by the cost
        model (`hs.choose_ranges`), mostly eight; a kernel takes 0.3 s to build. Empty: one kernel.
    database : str or Database, optional
        Tuned configurations: a folder, or an open database of `tvm_hopper.meta_schedule`.
    batch_invariant : bool
        True: the bits of a product's row do not depend on the number of rows, see
        `hs.MatmulConfig`. Norms with symbolic rows always behave so.
    graph : bool
        True: calls with static shapes between whose arguments and results the model plans memory
        are captured as CUDA graphs when they first run, and replayed. Calls that read an input or
        write the result are launched as before, as TVM cannot tell where these lie.
    """

    accumulate: str | None = "float32"
    classes: Sequence[int] | Mapping[int, int] | None = CLASSES
    database: Any = None
    batch_invariant: bool = False
    graph: bool = False

    def __post_init__(self) -> None:
        if self.accumulate is not None and self.accumulate not in ACCUMULATE:
            need = f"{' or '.join(map(repr, ACCUMULATE))}, or None"
            raise cannot_configure(WHERE, f"accumulate={self.accumulate!r}", need)
        if isinstance(self.classes, Mapping) and self.classes:
            ranges = as_ranges(WHERE, "classes", self.classes)
            as_bounds(WHERE, "classes", tuple(sorted(set(ranges.values()))), MOST_CLASSES)
            object.__setattr__(self, "classes", ranges)
        elif self.classes is not None and not _is_empty(self.classes):
            bounds = as_bounds(WHERE, "classes", self.classes, MOST_CLASSES)
            object.__setattr__(self, "classes", bounds)
        if isinstance(self.database, (str, os.PathLike)) and not os.path.isdir(self.database):
            found = f"database={str(self.database)!r}, which is no folder"
            raise cannot_configure(WHERE, found, "the work_dir of a tuning that was run")
        if self.database is not None and not _is_database(self.database):
            found = f"database={self.database!r}, of type {type(self.database).__name__}"
            need = "the work_dir of a tuning that was run, or a tvm_hopper.meta_schedule.Database"
            raise cannot_configure(WHERE, found, need)
        for name in ("batch_invariant", "graph"):
            if not isinstance(value := getattr(self, name), bool):
                raise cannot_configure(WHERE, f"{name}={value!r}", "True or False")


def _is_empty(classes: Any) -> bool:
    return isinstance(classes, Sized) and not len(classes)


def _is_database(value: Any) -> bool:
    """Tell a folder's name, or whatever answers like a database, which is not imported here."""
    return isinstance(value, (str, os.PathLike)) or callable(getattr(value, "winner", None))


def as_options(given: dict[str, Any]) -> ModelOptions:
    """Check options by name.

    - raises OptionError: an option is unknown.
    """
    known = [field.name for field in fields(ModelOptions)]
    unknown = [name for name in given if name not in known]
    if unknown:
        raise cannot_configure(WHERE, f"option {', '.join(unknown)}", f"one of {', '.join(known)}")
    return ModelOptions(**given)


__all__ = ["ModelOptions", "OptionError", "as_options"]
