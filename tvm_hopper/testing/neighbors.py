"""Programs that read neighbors, or along columns: a stencil and a transpose, for tests.

    C[i, j] = (A[i, j + 1] + A[i + 1, j] + A[i + 1, j + 2] + A[i + 2, j + 1]) / 4 + A[i + 1, j + 1]
    C[j, i] = A[i, j]

Schedule them with `pointwise.schedule`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import te

from .pointwise import BLOCK, Extent
from .tiling import module_of


def five_point(
    rows: Extent, columns: Extent, dtype: str = "float32", spare: int = 2
) -> tvm.IRModule:
    """Build the stencil; A has two rows more than C, and `spare` columns."""
    rows, columns = (te.var(x) if isinstance(x, str) else x for x in (rows, columns))
    a = te.placeholder((rows + 2, columns + spare), dtype, name="A")

    def value(i, j):
        around = a(i, j + 1) + a(i + 1, j) + a(i + 1, j + 2) + a(i + 2, j + 1)
        return around * te.const(0.25, dtype) + a(i + 1, j + 1)

    return module_of(a, te.compute((rows, columns), value, name=BLOCK))


def transpose(rows: Extent, columns: Extent, dtype: str = "float32") -> tvm.IRModule:
    """Build C = A^T; `rows` and `columns` are those of A."""
    rows, columns = (te.var(x) if isinstance(x, str) else x for x in (rows, columns))
    a = te.placeholder((rows, columns), dtype, name="A")
    return module_of(a, te.compute((columns, rows), lambda j, i: a(i, j), name=BLOCK))


def reference(name: str, a: np.ndarray) -> np.ndarray:
    """Compute a program, by its function's name, in float64."""
    a = a.astype(np.float64)
    if name == "transpose":
        return a.T
    return stencil_of(a)


def stencil_of(a: Any) -> Any:
    """Compute the stencil of an array, or of a tensor, in its own type."""
    around = a[:-2, 1:-1] + a[1:-1, :-2] + a[1:-1, 2:] + a[2:, 1:-1]
    return around * 0.25 + a[1:-1, 1:-1]
