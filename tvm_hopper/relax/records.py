"""Records of a model's functions: plain data, stored as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tvm_hopper.transforms.common.explain_notes import ElementsNote

OURS, STOCK, GIVEN, LIBRARY, NOBODY = "tvm_hopper", "TVM", "given", "library", "nobody"
COMPUTED_BY = (OURS, STOCK, GIVEN, LIBRARY, NOBODY)


@dataclass(frozen=True)
class TensorRecord:
    """A parameter of a function: extents as text, which may name symbols, and its type."""

    name: str
    shape: tuple[str, ...]
    dtype: str


@dataclass(frozen=True)
class KernelRecord:
    """A kernel of a function.

    Attributes
    ----------
    launched_for : str
        The condition under which the host launches it; empty: always.
    rows : int or None
        The rows that it was chosen for, of a size class.
    configuration : str
        How it is cut up.
    microseconds : float or None
        Estimated, for those rows; None where nothing was.
    """

    launched_for: str
    rows: int | None
    configuration: str
    microseconds: float | None


@dataclass(frozen=True)
class ProductRecord:
    """The product in a function: what its time depends on.

    Attributes
    ----------
    rows : str
        Their number, as text.
    columns, depth : int
        Extents of the product.
    dtype, out_dtype : str
        Of the operands and of the output.
    majors : tuple of str
        "k" or "mn" for each operand, see `hs.choose_config`.
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

    Attributes
    ----------
    caller : str
        The Relax function.
    shapes : tuple
        Extents of each argument and output, as text in the caller's symbols.
    count : int
        How many there are.
    """

    caller: str
    shapes: tuple[tuple[str, ...], ...]
    count: int


@dataclass(frozen=True)
class FunctionRecord:
    """Record of one function: who computes it, and why.

    Attributes
    ----------
    name : str
        In the module.
    computed_by : str
        "tvm_hopper"; "TVM", by a rule of dlight's; "given" where it came scheduled; "library" for
        an external function; "nobody" where every rule refused.
    rule : str
        The rule that took it.
    note : str
        What that did next to the plain request.
    operations : int
        Elements that its loops compute or add up, a symbolic extent counted as one.
    refused : tuple of (str, str)
        The rules before it that were asked, and their reasons.
    elements : tuple of ElementsNote
        Tensors that a kernel of ours accesses element by element.
    """

    name: str
    computed_by: str
    rule: str = ""
    note: str = ""
    operations: int = 0
    tensors: tuple[TensorRecord, ...] = ()
    kernels: tuple[KernelRecord, ...] = ()
    product: ProductRecord | None = None
    refused: tuple[tuple[str, str], ...] = ()
    calls: tuple[CallRecord, ...] = ()
    elements: tuple[ElementsNote, ...] = ()


def to_text(records: Sequence[FunctionRecord]) -> str:
    """Write records as JSON."""
    return json.dumps([asdict(x) for x in records])


def from_text(text: str) -> tuple[FunctionRecord, ...]:
    """Read what `to_text` wrote."""
    return tuple(map(_function, json.loads(text)))


def _function(fields: dict[str, Any]) -> FunctionRecord:
    product = fields.pop("product")
    if product is not None:
        product = ProductRecord(**{**product, "majors": tuple(product["majors"])})
    calls = fields.pop("calls")
    return FunctionRecord(
        tensors=tuple(
            TensorRecord(**{**x, "shape": tuple(x["shape"])}) for x in fields.pop("tensors")
        ),
        kernels=tuple(KernelRecord(**x) for x in fields.pop("kernels")),
        product=product,
        elements=tuple(ElementsNote(**x) for x in fields.pop("elements")),
        refused=tuple((rule, why) for rule, why in fields.pop("refused")),
        calls=tuple(
            CallRecord(**{**x, "shapes": tuple(tuple(shape) for shape in x["shapes"])})
            for x in calls
        ),
        **fields,
    )
