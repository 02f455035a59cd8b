"""What `recognize` says of softmax attention."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tvm_hopper import ir

from .scores import FLOAT32


@dataclass(frozen=True)
class LoopAxis:
    """An axis of the attention: its variable and its extent."""

    var: Any
    extent: Any


@dataclass(frozen=True)
class StoredResult:
    """A tensor that is stored: the index of an element, and its float32 value."""

    buffer: Any
    indices: tuple[Any, ...]
    value: Any


@dataclass(frozen=True)
class States:
    """Variables that stand for running values: of an element of the scores, a row, an output."""

    product: Any
    row_max: Any
    row_sum: Any
    accumulator: Any

    @staticmethod
    def make() -> States:
        """Return new variables."""
        names = "product", "row_max", "row_sum", "accumulator"
        return States(*(ir.Var(x, FLOAT32) for x in names))


@dataclass(frozen=True)
class KeyLimits:
    """Which keys rows see, where device memory tells; in the variables of leads and row.

    - `of_row`: the first key that a row does not see.
    - `full`: the first key that some row of the leads does not see.
    - `end`: the first key that no row of the leads sees.
    - `steps`: the first step of keys of a part, and how many it takes; None: parts share them.
    - `from_row`: the first key that a row sees, where a window hides earlier ones.
    - `begin`, `all_from`: the first key that some row sees, and the first that all rows do.
    """

    of_row: Any
    full: Any
    end: Any
    steps: Callable[[Any], tuple[Any, Any]] | None = None
    from_row: Any = None
    begin: Any = None
    all_from: Any = None


@dataclass(frozen=True)
class Attention:
    """Softmax attention; expressions are in the variables of the axes and of `states`.

    Attributes
    ----------
    leads : tuple of LoopAxis
        Batches and heads, in the order of the output.
    row, key, column, depth : LoopAxis
        Rows of queries; keys; columns of the output; terms of a score.
    query, keys, values : TensorLoad
        The operands' elements.
    states : States
        What the sums and the maximum are called in the expressions.
    score : Expr
        The scores divided by `scale`.
    scale : float or Expr
        A positive number, or a float32 expression of the function's arguments.
    base_two : bool
        Whether weights are powers of two, not of e.
    sink : Expr or None
        The score of one more key without a value, divided by `scale`.
    probabilities : str
        The type to which the program rounds weights before they multiply values.
    output : StoredResult
        What is stored for each element.
    log_sum : StoredResult or None
        What is stored for each row.
    conditions : mapping of Var to Expr
        By tensor, when an element of it is read; it counts as zero otherwise.
    row_count : Expr or None
        How many rows exist, where device memory tells; the row axis has at least as many.
    limits : KeyLimits or None
        The keys that rows see, next to what masks in `score` say.
    """

    leads: tuple[LoopAxis, ...]
    row: LoopAxis
    key: LoopAxis
    column: LoopAxis
    depth: LoopAxis
    query: Any
    keys: Any
    values: Any
    states: States
    score: Any
    scale: Any
    base_two: bool
    sink: Any
    probabilities: str
    output: StoredResult
    log_sum: StoredResult | None
    conditions: Mapping[Any, Any] = field(default_factory=dict)
    row_count: Any = None
    limits: KeyLimits | None = None

    @property
    def exponent_scale(self) -> Any:
        """The factor that makes scores exponents of two: a float or a float32 expression."""
        return self.scale * (1.0 if self.base_two else math.log2(math.e))
