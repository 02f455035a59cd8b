"""Products with weights of a few bits in words, and values of groups of them, as programs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tvm
from tvm import te, tirx

from tvm_hopper.facts.dtypes import dtype_bytes

from .workloads import Extent, _extent


@dataclass(frozen=True)
class WeightFormat:
    """How a weight F[j, k] = (field of W - zero) * S[j, k // group] lies in memory.

    - `bits`, `stored`: of a field, and the type of the words that hold them; a float8 is an
      element, without zero.
    - `group`, `rows_of_group`: neighbours along k that have one scale, and rows.
    - `dtype`: type of scales and of F.
    - `along`: "k" or "n": which neighbours are in a word.
    - `is_kn`: whether words and values are stored as [k, n], and not as [n, k].
    - `zeros`: "": 2^(bits - 1) - 1, as MLC-LLM has it; "values": a tensor Z of `dtype`, one element
      for each scale; "packed": fields along n, as AWQ and GPTQ have them.
    - `order`: where in a word each of its elements is: "plain", or "awq".
    """

    bits: int = 4
    group: int = 32
    dtype: str = "float16"
    along: str = "k"
    is_kn: bool = False
    zeros: str = ""
    order: str = "plain"
    stored: str = "uint32"
    rows_of_group: int = 1

    @property
    def per_word(self) -> int:
        """Elements in a word."""
        return 1 if self.is_float else dtype_bytes(self.stored) * 8 // self.bits

    @property
    def is_float(self) -> bool:
        """Whether elements are float8."""
        return self.stored.startswith("float8")

    def places(self, n: int, k: int) -> tuple[int, int]:
        """Return a place, or a shape, as it is stored."""
        return (k, n) if self.is_kn else (n, k)

    def tensors(self, n: int, k: int) -> list[Any]:
        """Return W, S and Z, the latter if there is one."""
        groups, count = -(-k // self.group), self.per_word
        words = (n, -(-k // count)) if self.along == "k" else (-(-n // count), k)
        w = te.placeholder(self.places(*words), self.stored, "W")
        rows = -(-n // self.rows_of_group)
        s = te.placeholder(self.places(rows, groups), self.dtype, "S")
        if not self.zeros:
            return [w, s]
        is_packed = self.zeros == "packed"
        shape = self.places(-(-n // count) if is_packed else n, groups)
        return [w, s, te.placeholder(shape, self.stored if is_packed else self.dtype, "Z")]

    def field(self, word: Any, place: Any) -> Any:
        """Return an element of a word, by its place along the axis that is packed."""
        number = place % self.per_word
        if self.order == "awq":  # even ones in the lower half
            number = number // 2 + number % 2 * (self.per_word // 2)
        moved = tirx.shift_right(word, (number * self.bits).astype(self.stored))
        mask = tirx.const((1 << self.bits) - 1, self.stored)
        return tirx.bitwise_and(moved, mask).astype(self.dtype)

    def decoded(self, tensors: list[Any], j: Any, k: Any) -> Any:
        """Return an element of F."""
        w, s, *zeros = tensors
        scale = s(*self.places(j // self.rows_of_group, k // self.group))
        if self.is_float:
            return w(*self.places(j, k)).astype(self.dtype) * scale
        in_k, in_n = (self.per_word, 1) if self.along == "k" else (1, self.per_word)
        word = w(*self.places(j // in_n, k // in_k))
        zero = tirx.const((1 << (self.bits - 1)) - 1, self.dtype)
        if self.zeros == "packed":
            zero = self.field(zeros[0](*self.places(j // self.per_word, k // self.group)), j)
        elif self.zeros:
            zero = zeros[0](*self.places(j, k // self.group))
        return (self.field(word, k if self.along == "k" else j) - zero) * scale


def grouped_weight(m: Extent, n: int, k: int, **form: Any) -> tvm.IRModule:
    """Return D[i, j] = sum of X[i, k] F[j, k].

    - `m`, `n`, `k`: rows of X, rows of F, and the depth; `m` may be the name of a symbol.
    - `form`: of the weight, see `WeightFormat`; sums are float32.
    - returns: `main(X, W, S, Z, D)`, Z if there is one.
    """
    kind = WeightFormat(**form)
    rows, columns, depth = (_extent(x, "int64") for x in (m, n, k))
    x = te.placeholder((rows, depth), kind.dtype, "X")
    tensors = kind.tensors(n, k)
    f = te.compute(
        kind.places(columns, depth),
        lambda *at: kind.decoded(tensors, *kind.places(*at)),
        name="dequantize",
    )
    axis = te.reduce_axis((0, depth), "k")

    def term(i: Any, j: Any) -> Any:
        left, right = x[i, axis], f(*kind.places(j, axis))
        return te.sum(left.astype("float32") * right.astype("float32"), [axis])

    c = te.compute((rows, columns), term, "C")
    d = te.compute((rows, columns), lambda *i: c(*i).astype(kind.dtype), "D")
    func: tirx.PrimFunc = te.create_prim_func([x, *tensors, d], index_dtype_override="int64")
    return tvm.IRModule({"main": func})
