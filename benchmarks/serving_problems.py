"""Problems of serving on a paged cache: decoding and prefill, of equal and of drawn lengths."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

DECODE, PREFILL, RAGGED = "decode", "prefill", "ragged"
MOST_BYTES = 24e9  # of keys and values; PyTorch and the copy need as many again


@dataclass(frozen=True)
class ServingProblem:
    """Attention of some sequences on keys that lie in pages, or, if ragged, behind each other.

    `keys` is the length of each sequence, or the mean where `drawn`; `rows` the queries of each: 1
    when decoding, 0 for as many as keys.
    """

    kind: str
    sequences: int
    keys: int
    rows: int = 0
    depth: int = 128
    kv_heads: int = 8
    group: int = 4
    page: int = 16
    drawn: bool = False
    dtype: str = "bfloat16"

    @property
    def name(self) -> str:
        """All of it in a word."""
        many = f"{self.sequences} x {'about ' if self.drawn else ''}{self.keys}"
        rows = f" by {self.rows}" if self.rows > 1 else ""
        pages = "" if self.kind == RAGGED else f", pages of {self.page}"
        heads = f"heads {self.kv_heads * self.group}/{self.kv_heads} d {self.depth}"
        return f"{self.kind} {many}{rows}, {heads}{pages} {self.dtype}"

    @property
    def heads(self) -> int:
        """Heads of queries."""
        return self.kv_heads * self.group

    @property
    def kernel(self) -> ServingProblem:
        """A problem that stands for all that take the same kernel."""
        page = 0 if self.kind == RAGGED else self.page
        return replace(self, sequences=1, keys=1, rows=0, page=page, drawn=False)

    def lengths(self) -> list[int]:
        """Return the keys of each sequence; the same for a problem."""
        if not self.drawn:
            return [self.keys] * self.sequences
        draw = random.Random(f"serving {self.name}")
        return [draw.randint(1, 2 * self.keys - 1) for _ in range(self.sequences)]

    def queries(self) -> list[int]:
        """Return the rows of each sequence."""
        if self.kind == DECODE:
            return [1] * self.sequences
        return [min(self.rows, x) if self.rows else x for x in self.lengths()]

    @property
    def num_bytes(self) -> int:
        """Bytes that are read or written once."""
        keys, rows = sum(self.lengths()), sum(self.queries())
        return 2 * 2 * self.depth * (keys * self.kv_heads + rows * self.heads)

    @property
    def flops(self) -> float:
        """Operations of both products, of pairs of a row and a key that it sees."""
        pairs = sum(
            r * n - r * (r - 1) / 2 for r, n in zip(self.queries(), self.lengths(), strict=True)
        )
        return 4.0 * self.heads * self.depth * pairs


def problems() -> dict[str, list[ServingProblem]]:
    """Return the groups of problems by name, those first that floors are stated for."""
    groups = {
        "many": list(_decoding((16, 32, 64, 128, 256), (1024, 4096, 16384))),
        "few": list(_decoding((1, 4, 8), (128, 1024, 4096, 16384, 65536))),
        "pages": [
            ServingProblem(DECODE, x, y, page=z)
            for x, y in ((1, 16384), (16, 4096), (128, 1024))
            for z in (1, 16, 64, 1024)
        ],
        "prefill": list(_prefill()),
        "short": list(_decoding((16, 64, 256), (128, 512))),
        "drawn": [
            replace(x, drawn=True) for x in _decoding((4, 16, 64, 256), (128, 1024, 4096, 16384))
        ],
        "heads": [
            replace(x, depth=d, kv_heads=kv_heads, group=group)
            for d in (64, 128, 256)
            for kv_heads, group in ((32, 1), (16, 2), (4, 8), (2, 16))
            for x in _decoding((1, 16, 128), (2048,))
        ],
        "widths": [
            replace(x, depth=d) for d in (64, 256) for x in _decoding((1, 16, 128), (1024, 8192))
        ],
        "float16": [replace(x, dtype="float16") for x in _decoding((1, 16, 128), (1024, 8192))],
    }
    return {name: [x for x in group if x.num_bytes <= MOST_BYTES] for name, group in groups.items()}


def _decoding(sequences: tuple[int, ...], keys: tuple[int, ...]) -> Iterator[ServingProblem]:
    for many in sequences:
        for length in keys:
            yield ServingProblem(DECODE, many, length)


def _prefill() -> Iterator[ServingProblem]:
    for kind in (RAGGED, PREFILL):
        for depth, kv_heads in ((128, 8), (64, 8), (256, 4)):
            for length in (128, 512, 2048, 8192, 32768):
                yield ServingProblem(kind, 1, length, depth=depth, kv_heads=kv_heads)
        yield ServingProblem(kind, 16, 512)
        yield ServingProblem(kind, 16, 512, drawn=True)
    for length in (2048, 32768):
        yield ServingProblem(PREFILL, 4, length, rows=512)
