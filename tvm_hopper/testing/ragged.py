"""Products of experts whose numbers of rows a tensor says, in plain loops."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tvm
from tvm.script import tirx as T

from tvm_hopper.facts.dtypes import sum_dtype

OFFSETS = {"rows": "P[e + 1] - P[e]", "A": "P[e] + i", "at": "", "shape": "{rows}"}
COUNTS = {"rows": "P[e]", "A": "i", "at": "ve, ", "shape": "{groups}, {rows}"}
LAYOUTS = {"offsets": OFFSETS, "counts": COUNTS}
# what stores a sum in another type: over all rows, or over those of groups
CAST = """
    for i, j in T.grid({rows}, {columns}):
        with T.sblock("D"):
            v, vj = T.axis.remap("SS", [i, j])
            D[v, vj] = T.Cast("{out_dtype}", T.max(C[v, vj], 0))
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
    index: str = "int32",
) -> tvm.IRModule:
    """Build a product of groups of rows, each with a matrix of its own.

    C[P[e] + i, j] is the sum of A[P[e] + i, k] * B[e, j, k] for i below P[e + 1] - P[e].

    Parameters
    ----------
    rows : int
        Of all groups, or of the largest one with `layout` "counts".
    out_dtype : str, optional
        Of what is stored; None: that of sums.
    layout : str
        "offsets": P holds where groups begin, and the end of the last one. "counts": group e has
        the first P[e] rows of A[e] and C[e].
    epilogue : str
        "": sums are stored. "cast": max(sum, 0) in another type, over all rows. "bias": a sum and
        Y[e, j], over the rows of groups.
    index : str
        Type of P.
    """
    total = sum_dtype(dtype)
    known = {
        "rows": rows, "columns": columns, "depth": depth, "groups": groups, "dtype": dtype,
        "out_dtype": out_dtype or total, "total": total, "index": index,
    }  # fmt: skip
    words = LAYOUTS[layout]
    shape = words["shape"].format(**known)
    place = words["A"] if index == "int32" else 'T.Cast("int32", P[e]) + i'
    count = words["rows"] if index == "int32" else f'T.Cast("int32", {words["rows"]})'
    result = "D" if epilogue else "C"
    more = f'\n         Y: T.Buffer(({groups}, {columns}), "float32"),' if epilogue == "bias" else ""
    more += f'\n         {result}: T.Buffer(({shape}, {columns}), "{known["out_dtype"]}")'
    known |= {
        "shape": shape,
        "place": "i" if layout == "counts" else place,
        "count": count,
        "at": words["at"],
        "offsets": groups + (layout == "offsets"),
        "more": more,
        "sum": f'C = T.sblock_alloc_buffer(({shape}, {columns}), "{total}")' if epilogue else "",
    }
    text = PROGRAM + {"": "", "cast": CAST, "bias": BIAS}[epilogue]
    func = tvm.script.from_source(text.format(**known), extra_vars={"T": T})
    return tvm.IRModule({"main": func.with_attr("global_symbol", "main")})


def reference(
    a: np.ndarray, b: np.ndarray, counts: Sequence[int], first: Sequence[int] | None = None
) -> np.ndarray:
    """Compute the sums of the rows of all groups in float64, one group after another.

    Parameters
    ----------
    a : ndarray
        [rows, depth] with `first`, else [groups, rows, depth].
    b : ndarray
        [groups, columns, depth].
    counts : sequence of int
        Rows of each group.
    first : sequence of int, optional
        Where groups begin.
    """
    parts = [
        (a[e, :n] if first is None else a[first[e] : first[e] + n]).astype("float64")
        @ b[e].astype("float64").T
        for e, n in enumerate(counts)
    ]
    return np.concatenate(parts)
