"""Record which rule scheduled a function, and why others did not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import tvm
from tvm import tirx

from tvm_hopper.transforms.common.explain_notes import ElementsNote

NOT_APPLICABLE = "not applicable"  # the reason of a rule for other functions


@dataclass(frozen=True)
class Decision:
    """The decision of one rule about one function.

    Attributes
    ----------
    function : str
        Its `global_symbol`; empty for a private one, which dlight hands over without a name.
    rule : str
        "Matmul", "RowReduction", "Pointwise", or "dl.gpu." and the name of a rule of TVM's.
    taken : bool
        Whether it scheduled the function.
    reason : str
        If taken: what it changed, as to sum in another type. Else: why it did not take it.
    func : PrimFunc
        The original function, to find it in its module.
    elements : tuple of ElementsNote
        Tensors that kernels of ours access element by element.
    """

    function: str
    rule: str
    taken: bool
    reason: str
    func: Any = field(repr=False, compare=False)
    elements: tuple[ElementsNote, ...] = ()


def name_of(func: tirx.PrimFunc) -> str:
    """Return the name that a function carries, or an empty string."""
    return str(func.attrs.get("global_symbol", "")) if func.attrs else ""


def is_scheduled(func: Any) -> bool:
    """Tell a function that is no matter for rules any more: scheduled, or no PrimFunc."""
    return not isinstance(func, tirx.PrimFunc) or bool(
        func.attrs and func.attrs.get("tirx.is_scheduled", False)
    )


def crash_text(error: Exception) -> str:
    """Return the reason of a rule that crashed."""
    lines = str(error).strip().splitlines() or [""]
    return f"crashed: {type(error).__name__} {lines[-1]}".rstrip()


def by_name(
    functions: Mapping[tvm.ir.GlobalVar, Any], decisions: list[Decision]
) -> dict[str, list[Decision]]:
    """Sort decisions by the names that functions had in their module.

    Parameters
    ----------
    functions : mapping of GlobalVar to function
        `dict(mod.functions_items())` of the module before the rules were applied to it: dlight
        changes a module in place.
    decisions : list of Decision
        In the order in which they were made.

    Returns
    -------
    by_name : dict of str to list of Decision
        One entry for each function that a rule was asked about.
    """
    found: dict[str, list[Decision]] = {}
    for gv, func in functions.items():
        of_it = [x for x in decisions if x.func.same_as(func)]
        if of_it:
            found[str(gv.name_hint)] = of_it
    return found
