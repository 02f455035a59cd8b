"""Records of a model's functions: plain data, stored as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tvm_hopper.errors import HopperError
from tvm_hopper.transforms.common.explain_notes import ElementsNote

OURS, STOCK, GIVEN, LIBRARY, NOBODY = "tvm_hopper", "TVM", "given", "library", "nobody"


@dataclass(frozen=True)
class TensorRecord:
    """A parameter of a function: extents as text, which may name symbols, and its type."""

    name: str
    shape: tuple[str, ...]
    dtype: str


@dataclass(frozen=True)
class KernelRecord:
    """A kernel of a function.

    - `launched_for`: the condition under which the host launches it; empty: always.
    - `rows`: the rows that it was chosen for, of a size class.
    - `configuration`: how it is cut up.
    - `microseconds`: estimated, for those rows; None where nothing was.
    """

    launched_for: str
    rows: int | None
    configuration: str
    microseconds: float | None


@dataclass(frozen=True)
class ProductRecord:
    """The product in a function: what its time depends on.

    - `rows`: their number, as text.
    - `columns`, `depth`: extents of the product.
    - `dtype`, `out_dtype`: of the operands and of the output.
    - `majors`: "k" or "mn" for each operand, see `hs.choose_config`.
    """

    rows: str
    columns: int
    depth: int
    dtype: str
    out_dtype: str
    majors: tuple[str, str]


@dataclass(frozen=True)
class CallRecord:
    """Calls of one function from another, with the same shapes.

    - `caller`: the Relax function.
    - `shapes`: extents of each argument and output, as text in the caller's symbols.
    - `count`: how many there are.
    - `of_weights`: whether all tensors among the arguments are weights, or made of weights alone.
    - `flops`, `num_bytes`: work of one call, as text in the caller's symbols, where the function is
      external.
    """

    caller: str
    shapes: tuple[tuple[str, ...], ...]
    count: int
    of_weights: bool = False
    flops: str = ""
    num_bytes: str = ""


@dataclass(frozen=True)
class FunctionRecord:
    """Record of one function: who computes it, and why.

    - `name`: in the module.
    - `computed_by`: "tvm_hopper"; "TVM", by a rule of dlight's; "given" where it came scheduled;
      "library" for an external function; "nobody" where every rule refused.
    - `rule`: the rule that took it.
    - `note`: what that did next to the plain request.
    - `refused`: the rules before it that were asked, and their reasons.
    - `elements`: tensors that a kernel of ours accesses element by element.
    - `kind`: what it computes: a key of `work.RULE_OF_KIND`.
    - `flops`, `num_bytes`: work of one call, as text in the function's symbols; empty where it is
      not known.
    """

    name: str
    computed_by: str
    rule: str = ""
    note: str = ""
    tensors: tuple[TensorRecord, ...] = ()
    kernels: tuple[KernelRecord, ...] = ()
    product: ProductRecord | None = None
    refused: tuple[tuple[str, str], ...] = ()
    calls: tuple[CallRecord, ...] = ()
    elements: tuple[ElementsNote, ...] = ()
    kind: str = ""
    flops: str = ""
    num_bytes: str = ""


def to_text(records: Sequence[FunctionRecord]) -> str:
    """Write records as JSON."""
    return json.dumps([asdict(x) for x in records])


def from_text(text: str) -> tuple[FunctionRecord, ...]:
    """Read what `to_text` wrote.

    - raises HopperError: another version of the package wrote it.
    """
    try:
        return tuple(_function(x) for x in json.loads(text))
    except (KeyError, TypeError, ValueError) as error:
        raise HopperError(
            f"model: found records that another version wrote ({error}); need those of this one; "
            "build the model again"
        ) from error


def _function(said: dict[str, Any]) -> FunctionRecord:
    parts: dict[str, Any] = {
        "tensors": TensorRecord,
        "kernels": KernelRecord,
        "calls": CallRecord,
        "elements": ElementsNote,
    }
    found = {name: _tuples(value) for name, value in said.items()}
    for name, kind in parts.items():
        found[name] = tuple(kind(**x) for x in found[name])
    if found["product"] is not None:
        found["product"] = ProductRecord(**found["product"])
    return FunctionRecord(**found)


def _tuples(value: Any) -> Any:
    """Make tuples of the lists in a value of JSON."""
    if isinstance(value, dict):
        return {name: _tuples(x) for name, x in value.items()}
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
