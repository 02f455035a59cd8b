"""What configuration classes share: their given fields, a short repr, and checks of fields.

repr(MatmulConfig(stages=4))  ->  "MatmulConfig(stages=4)"        only the fields that are given
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

from tvm_hopper.errors import cannot_schedule

from .arguments import as_int, check_type


class GivenFields:
    """Base of a frozen dataclass whose fields default to "chosen by the package"."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in self.given.items())})"

    @property
    def given(self) -> dict[str, Any]:
        """Fields whose values differ from their defaults, in the order of the class."""
        values = ((x, getattr(self, x.name)) for x in fields(self))  # type: ignore[arg-type]
        return {x.name: value for x, value in values if value is not x.default}

    def set_fields(self, **values: Any) -> None:
        """Set fields of a frozen dataclass, while it is being made."""
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def set_ints(self, where: str, bounds: Mapping[str, tuple[int, int | None]]) -> None:
        """Make fields plain ints, each between two bounds, or None unless the class needs it."""
        required = {x.name for x in fields(self) if x.default is MISSING}  # type: ignore[arg-type]
        for name, (least, most) in bounds.items():
            number = as_int(where, name, getattr(self, name), least, most)
            if number is None and name in required:
                raise cannot_schedule(where, f"{name}=None", "an int")
            self.set_fields(**{name: number})

    def check_flags(self, where: str, *names: str) -> None:
        """Refuse fields that are neither a bool nor None."""
        for name in names:
            check_type(where, name, getattr(self, name), bool, "a bool")


def shortest(value: GivenFields) -> Any:
    """Return the only field that is given in place of a value; the value if there are several."""
    given = value.given
    return value if len(given) > 1 else next(iter(given.values()), None)
