"""Products with weights of a few bits in words, and values of groups of them, as programs."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import te, tirx

from tvm_hopper.facts.dtypes import dtype_bytes

from .workloads import Extent, _extent


def grouped_weight(
    m: Extent,
    n: int,
    k: int,
    bits: int = 4,
    group: int = 32,
    dtype: str = "float16",
    along: str = "k",
    is_kn: bool = False,
    zeros: str = "",
    order: str = "plain",
    stored: str = "uint32",
    rows_of_group: int = 1,
) -> tvm.IRModule:
    """Return D[i, j] = sum of X[i, k] F[j, k], F[j, k] = (field of W - zero) * S[j, k // group].

    Parameters
    ----------
    m, n, k : int or str
        Rows of X, rows of F, and the depth; `m` may be the name of a symbol.
    bits, stored : int, str
        Of a field, and the type of the words that hold them; a float8 is an element, without zero.
    group, rows_of_group : int
        Neighbours along k that have one scale, and rows.
    dtype : str
        Type of X, S, F and D; sums are float32.
    along : str
        "k" or "n": which neighbours are in a word.
    is_kn : bool
        Whether words and values are stored as [k, n], and not as [n, k].
    zeros : str
        "": 2^(bits - 1) - 1, as MLC-LLM has it; "values": a tensor Z of `dtype`, one element for
        each scale; "packed": fields along n, as AWQ and GPTQ have them.
    order : str
        Where in a word each of its elements is: "plain", or "awq".

    Returns
    -------
    mod : IRModule
        `main(X, W, S, Z, D)`, Z if there is one.
    """
    rows, columns, depth = (_extent(x, "int64") for x in (m, n, k))
    is_float = stored.startswith("float8")
    per_word = 1 if is_float else dtype_bytes(stored) * 8 // bits
    mask = (1 << bits) - 1
    by_k, by_n = (per_word, 1) if along == "k" else (1, per_word)

    def shape(a: int, b: int) -> tuple[int, int]:  # of what has its rows along n, or turned
        return (b, a) if is_kn else (a, b)

    def at(tensor: Any, j: Any, r: Any) -> Any:
        return tensor(*shape(j, r))

    def field(word: Any, place: Any) -> Any:
        number = place % per_word
        if order == "awq":  # even ones in the lower half
            number = number // 2 + number % 2 * (per_word // 2)
        moved = tirx.shift_right(word, (number * bits).astype(stored))
        return tirx.bitwise_and(moved, tirx.const(mask, stored)).astype(dtype)

    groups = -(-k // group)
    x = te.placeholder((rows, depth), dtype, "X")
    w = te.placeholder(shape(-(-n // by_n), -(-k // by_k)), stored, "W")
    s = te.placeholder(shape(-(-n // rows_of_group), groups), dtype, "S")
    packed = zeros == "packed"
    z = te.placeholder(
        shape(-(-n // per_word), groups) if packed else shape(n, groups),
        stored if packed else dtype,
        "Z",
    )
    middle = tirx.const((1 << (bits - 1)) - 1, dtype)

    def decode(j: Any, r: Any) -> Any:
        scale = at(s, j // rows_of_group, r // group)
        if is_float:
            return at(w, j, r).astype(dtype) * scale
        place = r if along == "k" else j
        value = field(at(w, j // by_n, r // by_k), place)
        if packed:
            zero = field(at(z, j // per_word, r // group), j)
        else:
            zero = at(z, j, r // group) if zeros else middle
        return (value - zero) * scale

    f = te.compute(shape(columns, depth), lambda a, b: decode(*shape(a, b)), name="dequantize")
    axis = te.reduce_axis((0, depth), "k")

    def term(i: Any, j: Any) -> Any:
        return te.sum(x[i, axis].astype("float32") * at(f, j, axis).astype("float32"), [axis])

    c = te.compute((rows, columns), term, "C")
    d = te.compute((rows, columns), lambda *i: c(*i).astype(dtype), "D")
    func: tirx.PrimFunc = te.create_prim_func(
        [x, w, s, *([z] if zeros else []), d], index_dtype_override="int64"
    )
    return tvm.IRModule({"main": func})
