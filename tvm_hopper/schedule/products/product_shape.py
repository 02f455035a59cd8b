"""The shape of a product, as the cost model needs it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tvm_hopper.facts.dtypes import dtype_bytes


@dataclass(frozen=True)
class ProductShape:
    """The product C[m, n] = A B to estimate, and the majors of its operands."""

    m: int
    n: int
    k: int
    dtype: str = "float16"
    # "k" or "mn" for each operand: along which its rows are contiguous
    majors: tuple[str, str] = ("k", "k")
    output_bytes: int = 2  # of an element of C
    # whether m runs along the rows of C in memory: elements are then stored one by one
    is_transposed: bool = False
    is_symbolic: bool = False  # whether an extent is a guess
    batch: int = 1  # how many such products a kernel computes
    # bytes in memory of an element on the tile's rows that consumers convert; 0: none is converted
    converted_bytes: float = 0

    @property
    def row_bytes(self) -> tuple[int, int]:
        """Bytes from one row of A in memory to the next, and of B."""
        left = self.k if self.majors[0] == "k" else self.m
        right = self.k if self.majors[1] == "k" else self.n
        return left * dtype_bytes(self.dtype), right * dtype_bytes(self.dtype)

    @property
    def transposed(self) -> ProductShape:
        """The same product as C^T = B^T A^T."""
        other = not self.is_transposed
        return replace(self, m=self.n, n=self.m, majors=self.majors[::-1], is_transposed=other)
