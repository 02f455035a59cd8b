"""Look up tuned configurations by function.

`tvm_hopper.meta_schedule.lookup(database, func, target)` answers with one configuration, with one
for each size class as (bound, configuration), ascending, or with None.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.target import Target

from tvm_hopper.dlight import Decision
from tvm_hopper.errors import cannot_configure
from tvm_hopper.schedule import (
    AttentionConfig,
    ColumnReductionConfig,
    MatmulConfig,
    PointwiseConfig,
    RowReductionConfig,
)

from .options import WHERE

LOOKUP = "tvm_hopper.meta_schedule"
RULES = {  # by which rule a configuration is taken
    MatmulConfig: "Matmul",
    AttentionConfig: "Attention",
    RowReductionConfig: "RowReduction",
    PointwiseConfig: "Pointwise",
    ColumnReductionConfig: "ColumnReduction",
}


@dataclass(frozen=True)
class TunedChoice:
    """The choice for one function: none, a configuration, or one per class."""

    config: Any = None
    classes: Mapping[int, MatmulConfig] | None = None

    @property
    def configs(self) -> dict[int | None, Any]:
        """The configuration of each class by its bound; None stands for all rows."""
        configs: dict[int | None, Any] = {}
        configs.update((self.classes or {}).items())
        if self.config is not None:
            configs[None] = self.config
        return configs

    @property
    def rule(self) -> str:
        """The rule that such configurations are for; empty where nothing is decided."""
        kinds = {type(x) for x in self.configs.values()}
        return RULES[kinds.pop()] if kinds else ""

    def refusal(self, decisions: Sequence[Decision]) -> str:
        """Say why the rule did not take what was decided, for the report."""
        reasons = (x.reason for x in decisions if x.rule == self.rule and not x.taken)
        return f"tuned configuration not used: {next(reasons, 'another rule came first')}"


def describe(config: Any) -> str:
    """Write what a configuration says of tile, consumers and stages, or all that it says."""
    if not isinstance(config, MatmulConfig):
        return ", ".join(f"{name}={value}" for name, value in config.given.items())
    tile = "x".join(map(str, config.tile or ()))
    parts = [tile, "transposed" if config.transposed else ""]
    parts += [f"{config.consumers} consumers"] if config.consumers else []
    parts += [f"{config.stages} stages"] if config.stages else []
    return ", ".join(x for x in parts if x)


def open_records(database: Any) -> Any:
    """Open the records of a folder once for all functions of a model.

    - raises OptionError: there is nothing that reads databases.
    - raises TuningError: there are no records in the folder, or they cannot be read.
    """
    is_folder = isinstance(database, (str, os.PathLike))
    return _reader(database).Database(database) if is_folder else database


def _reader(database: Any) -> Any:
    try:
        module = importlib.import_module(LOOKUP)
        module.lookup  # noqa: B018 - loaded on first use
    except (ImportError, AttributeError) as error:
        need = f"{LOOKUP}.lookup, which this installation has not ({error})"
        raise cannot_configure(WHERE, f"database={database!r}", need) from error
    return module


def find_tuned(database: Any, name: str, func: tirx.PrimFunc, target: Target) -> TunedChoice:
    """Ask a database for the configuration of a function.

    - raises OptionError: there is a database and nothing that reads it, or its answer is no
      configuration.
    """
    if database is None:
        return TunedChoice()
    answer = _reader(database).lookup(database, func, target)
    if answer is None:
        return TunedChoice()
    if isinstance(answer, tuple(RULES)):
        return TunedChoice(config=answer)
    try:
        classes = {int(bound): config for bound, config in answer}
    except (TypeError, ValueError):
        classes = {}
    if not classes or not all(isinstance(x, MatmulConfig) for x in classes.values()):
        what = f"{answer!r} for function {name} in database={database!r}"
        raise cannot_configure(WHERE, what, "a configuration, or (bound, MatmulConfig) pairs")
    return TunedChoice(classes=classes)
