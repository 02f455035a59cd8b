"""Configurations that a tuning found, asked for by function.

`tvm_hopper.meta_schedule.lookup(database, func, target)` answers with one configuration, with one
for each size class as (bound, configuration), ascending, or with None.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.target import Target

from tvm_hopper.errors import cannot_configure
from tvm_hopper.schedule.products.config import MatmulConfig

from .options import WHERE

LOOKUP = "tvm_hopper.meta_schedule"


@dataclass(frozen=True)
class TunedChoice:
    """What is decided of one function: nothing, a configuration, or one for each class."""

    config: MatmulConfig | None = None
    classes: Mapping[int, MatmulConfig] | None = None

    @property
    def configs(self) -> dict[int | None, MatmulConfig]:
        """The configuration of each class by its bound; None stands for all rows."""
        found: dict[int | None, MatmulConfig] = {}
        found.update((self.classes or {}).items())
        if self.config is not None:
            found[None] = self.config
        return found


def describe(config: MatmulConfig) -> str:
    """Write what a configuration says of tile, consumers and stages."""
    tile = "x".join(map(str, config.tile or ()))
    parts = [tile, "transposed" if config.transposed else ""]
    parts += [f"{config.consumers} consumers"] if config.consumers else []
    parts += [f"{config.stages} stages"] if config.stages else []
    return ", ".join(x for x in parts if x)


def find_tuned(database: Any, name: str, func: tirx.PrimFunc, target: Target) -> TunedChoice:
    """Ask a database for the configuration of a function.

    Raises
    ------
    OptionError
        There is a database and nothing that reads it, or its answer is no configuration.
    """
    if database is None:
        return TunedChoice()
    try:
        lookup = importlib.import_module(LOOKUP).lookup
    except (ImportError, AttributeError) as error:
        need = f"{LOOKUP}.lookup, which this installation has not ({error})"
        raise cannot_configure(WHERE, f"database={database!r}", need) from error
    found = lookup(database, func, target)
    if found is None:
        return TunedChoice()
    if isinstance(found, MatmulConfig):
        return TunedChoice(config=found)
    try:
        classes = {int(bound): config for bound, config in found}
    except (TypeError, ValueError):
        classes = {}
    if not classes or not all(isinstance(x, MatmulConfig) for x in classes.values()):
        what = f"{found!r} for function {name} in database={database!r}"
        raise cannot_configure(WHERE, what, "an hs.MatmulConfig, or (bound, MatmulConfig) pairs")
    return TunedChoice(classes=classes)
