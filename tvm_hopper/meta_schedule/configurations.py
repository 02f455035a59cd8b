"""Serialise configurations to text for records and annotations.

    matmul consumers=2 form=transposed split_k=parts:4,mode:workspace tile=128x256x64
    row_reduction threads=128
    pointwise

What a configuration leaves open is left out: the kind alone is the choice of the package. A text
is data and is read as such; anything else than a configuration in it is one error. It has no
quotation marks, which TVM does not escape where it writes a trace.
"""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Any

from tvm_hopper.errors import HopperError, cannot_tune
from tvm_hopper.schedule import (
    AttentionConfig,
    ColumnReductionConfig,
    DirectShape,
    DotShape,
    MatmulConfig,
    PointwiseConfig,
    Raster,
    RowReductionConfig,
    SplitK,
    TmaStore,
)
from tvm_hopper.schedule.given_fields import GivenFields

Configuration = (
    MatmulConfig | AttentionConfig | RowReductionConfig | PointwiseConfig | ColumnReductionConfig
)
CLASSES: dict[str, type[Any]] = {
    "matmul": MatmulConfig,
    "attention": AttentionConfig,
    "row_reduction": RowReductionConfig,
    "pointwise": PointwiseConfig,
    "column_reduction": ColumnReductionConfig,
}
PARTS: dict[str, tuple[type[Any], ...]] = {  # classes of fields that consist of several values
    "raster": (Raster,),
    "split_k": (SplitK,),
    "store": (TmaStore,),
    "form": (DotShape, DirectShape),
}
_KINDS = {made: kind for kind, made in CLASSES.items()}
MOST_TEXT = 4096  # characters; a configuration has a few hundred
_WORDS = {  # how a field reads in a table
    "stages": "{} stages",
    "consumers": "{} consumers",
    "threads": "{} threads",
    "rows": "{} rows",
    "chunks": "{} vectors",
    "flight": "{} rows at once",
    "blocks": "{} blocks",
    "vector": "of {}",
    "split_k": "{} parts",
    "wgmma_pending": "{} pending",
    "form": "{}",
    "accumulate": "",  # goes without saying: there is no other
}
_WORD = re.compile(r"([a-z_]+)=([a-z0-9_:,-]+)")
_NUMBER = re.compile(r"-?[0-9]{1,18}")


def kind_of(config: Configuration) -> str:
    """Return the kind of kernel that a configuration is for."""
    return _KINDS[type(config)]


def as_text(config: Configuration) -> str:
    """Return a configuration as one line; `from_text` reads it back exactly."""
    given = [f"{name}={_plain(value)}" for name, value in sorted(config.given.items())]
    return " ".join([kind_of(config), *given])


def is_built_in(config: Configuration) -> bool:
    """Tell whether a configuration leaves every choice to the package.

    The type of sums belongs to the function, and is no choice.
    """
    made: type[Any] = type(config)
    given = {"accumulate": config.accumulate} if isinstance(config, MatmulConfig) else {}
    return bool(config == made(**given))


def from_text(text: Any, where: str = "configuration") -> Configuration:
    """Read a configuration.

    - `text` (str): what `as_text` returned.
    - `where`: names the place of the text in an error message.
    - raises TuningError: the text is no configuration, or one that the package refuses.
    """
    need = "a kind of kernel and its fields, e.g. matmul stages=4 tile=128x256x64"
    if not isinstance(text, str) or len(text) > MOST_TEXT:
        raise cannot_tune(where, f"{str(text)[:80]!r}", need)
    kind, *words = text.split(" ")
    made = CLASSES.get(kind)
    if made is None:
        raise cannot_tune(where, f"{text[:80]!r}", f"one of the kinds {', '.join(CLASSES)}")
    known = _names(made)
    values: dict[str, Any] = {}
    for word in words:
        match = _WORD.fullmatch(word)
        if match is None or match[1] in values:
            raise cannot_tune(where, f"{text[:80]!r}", need)
        if match[1] not in known:
            fields_of = f"fields of a {made.__name__}: {', '.join(sorted(known))}"
            raise cannot_tune(where, f"{match[1]!r} in {text[:80]!r}", fields_of)
        values[match[1]] = _value(match[2])
    try:
        values = {name: as_value(name, value) for name, value in values.items()}
        config: Configuration = made(**values)
    except (HopperError, TypeError, ValueError) as error:
        raise cannot_tune(where, f"{text[:200]!r} ({error})", "a legal configuration") from error
    return config


def say(config: Configuration) -> str:
    """Return a configuration in words, for tables."""
    given = config.given
    tile = given.pop("tile", None)
    words = ["x".join(map(str, tile))] if tile else []
    for name, value in given.items():
        if isinstance(value, GivenFields):
            words.append(str(value))
            continue
        plain = name.replace("_", " ")
        form = _WORDS.get(name, plain if value is True else f"{plain} {{}}")
        word = form.format(_plain(value))
        words.append(word.removesuffix("s") if word.startswith("1 ") else word)
    return ", ".join(filter(None, words)) or "built-in choice"


def as_value(field: str, value: Any) -> Any:
    """Return what a field holds: of a mapping of names to values an object of the field's class."""
    if not isinstance(value, dict):
        return value
    made = next((x for x in PARTS.get(field, ()) if _names(x).issuperset(value)), None)
    if made is None:
        raise ValueError(f"{field} has no parts {', '.join(value)}")
    return made(**value)


def _names(made: type[Any]) -> set[str]:
    return {field.name for field in fields(made)}


def _plain(value: Any) -> str:
    if isinstance(value, GivenFields):
        return ",".join(f"{name}:{_plain(x)}" for name, x in value.given.items())
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "x".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _value(text: str) -> Any:
    """Read a value as `_plain` writes it; several with names as a dictionary."""
    if ":" in text:
        words = (word.partition(":") for word in text.split(","))
        return {name: _value(value) for name, _, value in words}
    if text in ("yes", "no"):
        return text == "yes"
    parts = text.split("x")
    if all(_NUMBER.fullmatch(x) for x in parts):
        numbers = tuple(map(int, parts))
        return numbers if len(numbers) > 1 else numbers[0]
    return text
