"""Products of experts whose numbers of rows a tensor says, in plain loops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import tvm
from tvm import tirx
from tvm.script import tirx as T

from tvm_hopper import ir
from tvm_hopper.facts.dtypes import sum_dtype

OFFSETS = {"rows": "P[e + 1] - P[e]", "A": "P[e] + i", "at": "", "shape": "{rows}"}
COUNTS = {"rows": "P[e]", "A": "i", "at": "ve, ", "shape": "{groups}, {rows}"}
LAYOUTS = {"offsets": OFFSETS, "offsets64": OFFSETS, "counts": COUNTS}
# what stores a sum in another type: over all rows, or over those of groups
CAST = """
    for i, j in T.grid({rows}, {columns}):
        with T.sblock("D"):
            v, vj = T.axis.remap("SS", [i, j])
            D[v, vj] = T.Cast("{out_dtype}", {value})
"""
BIAS = """
    for e in range({groups}):
        for i, j in T.grid({count}, {columns}):
            with T.sblock("D"):
                v = T.axis.spatial({rows}, {place})
                ve, vj = T.axis.remap("SS", [e, j])
                D[{at}v, vj] = T.Cast("{out_dtype}", C[{at}v, vj] + Y[ve, vj])
"""
PROGRAM = """
@T.prim_func(s_tir=True)
def main(A: T.Buffer(({shape}, {depth}), "{dtype}"),
         B: T.Buffer(({groups}, {columns}, {depth}), "{dtype}"),
         P: T.Buffer(({offsets},), "{index}"),{more}):
    {sum}
    for e in range({groups}):
        for i, j, k in T.grid({count}, {columns}, {depth}):
            with T.sblock("C"):
                v = T.axis.spatial({rows}, {place})
                ve, vj, vk = T.axis.remap("SSR", [e, j, k])
                with T.init():
                    C[{at}v, vj] = T.{total}(0)
                C[{at}v, vj] = C[{at}v, vj] + T.Cast("{total}", A[{at}v, vk]) * T.Cast(
                    "{total}", B[ve, vj, vk])
"""


def ragged(
    rows: int,
    columns: int,
    depth: int,
    groups: int,
    dtype: str = "float16",
    *,
    out_dtype: str | None = None,
    layout: str = "offsets",
    epilogue: str = "",
) -> tvm.IRModule:
    """Build a product of groups of rows, each with a matrix of its own.

    C[P[e] + i, j] is the sum of A[P[e] + i, k] * B[e, j, k] for i below P[e + 1] - P[e].

    - `rows`: of all groups, or of the largest one with `layout` "counts".
    - `out_dtype`: of what is stored; None: that of sums.
    - `layout`: "offsets": P holds where groups begin, and the end of the last one; "offsets64" in
      int64. "counts": group e has the first P[e] rows of A[e] and C[e].
    - `epilogue`: "": sums are stored. "cast", "relu": sums in another type, or max(sum, 0), over
      all rows. "bias": a sum and Y[e, j], over the rows of groups.
    """
    total, index = sum_dtype(dtype), "int64" if layout.endswith("64") else "int32"
    known = {
        "rows": rows, "columns": columns, "depth": depth, "groups": groups, "dtype": dtype,
        "out_dtype": out_dtype or total, "total": total, "index": index,
    }  # fmt: skip
    words = LAYOUTS[layout]
    shape = words["shape"].format(**known)
    place = words["A"] if index == "int32" else 'T.Cast("int32", P[e]) + i'
    count = words["rows"] if index == "int32" else f'T.Cast("int32", {words["rows"]})'
    result = "D" if epilogue else "C"
    more = (
        f'\n         Y: T.Buffer(({groups}, {columns}), "float32"),' if epilogue == "bias" else ""
    )
    more += f'\n         {result}: T.Buffer(({shape}, {columns}), "{known["out_dtype"]}")'
    known |= {
        "shape": shape,
        "place": "i" if layout == "counts" else place,
        "count": count,
        "at": words["at"],
        "offsets": groups + (layout != "counts"),
        "more": more,
        "value": "T.max(C[v, vj], 0)" if epilogue == "relu" else "C[v, vj]",
        "sum": f'C = T.sblock_alloc_buffer(({shape}, {columns}), "{total}")' if epilogue else "",
    }
    text = PROGRAM + {"": "", "cast": CAST, "relu": CAST, "bias": BIAS}[epilogue]
    func = tvm.script.from_source(text.format(**known), extra_vars={"T": T})
    return tvm.IRModule({"main": func.with_attr("global_symbol", "main")})


@dataclass(frozen=True)
class Drawn:
    """Tensors of a program of `ragged`, by name, and which rows of the result it stores.

    - `tensors` (dict): small integers; the result holds `untouched` everywhere.
    - `want` (ndarray): in float64, and `untouched` in rows of no group.
    """

    tensors: dict[str, np.ndarray]
    result: str
    want: np.ndarray


UNTOUCHED = 7


def draw(mod: tvm.IRModule, places: Sequence[int], seed: int = 0) -> Drawn:
    """Draw the tensors of a program of `ragged`.

    Parameters
    ----------
    places : sequence of int
        The elements of P.
    """
    rng = np.random.default_rng(seed)
    tensors = {}
    for x in mod["main"].params:
        kind = ml_dtype(ir.dtype_of(x))
        tensors[str(x.name)] = rng.integers(-2, 3, [int(n) for n in x.shape]).astype(kind)
    result = next(x for x in ("D", "C") if x in tensors)
    is_relu = bool(ir.find_all(mod["main"].body, tirx.Max))
    tensors["P"][...] = places
    tensors[result][...] = UNTOUCHED
    a, b, want = (tensors[x].astype("float64") for x in ("A", "B", result))
    by_offsets = len(places) > len(b)
    for e, weights in enumerate(b):
        rows = slice(places[e], places[e + 1]) if by_offsets else (e, slice(places[e]))
        want[rows] = a[rows] @ weights.T
        if "Y" in tensors:
            want[rows] += tensors["Y"][e]
        if is_relu:
            want[rows] = np.maximum(want[rows], 0)
    return Drawn(tensors, result, want)


def ml_dtype(name: str) -> np.dtype:
    """Return numpy's type for one of TVM's, float8 and bfloat16 too."""
    return np.dtype(getattr(ml_dtypes, name, name))
