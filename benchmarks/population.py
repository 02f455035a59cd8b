"""Matmul problems as users have them, drawn from a seed: a default is judged by these.

    half      layers of language models: tokens from decode to prefill, ragged ones too
    a quarter anything between 128 and 8192
    the rest  deep sums of few outputs, and shallow sums of many

Rows are multiples of 16 bytes wherever TMA needs it. On an H200 none takes much under 2 us or over
2 ms.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

WIDTHS = (
    *(768, 1024, 1152, 1280, 1536, 2048, 2112, 2560, 2816, 3072, 3584, 4096, 4608, 5120, 5632),
    *(6144, 7168, 8192, 9216, 10240, 11008, 12288, 13824, 14336, 16384, 18432, 24576, 28672, 29568),
)  # of layers of published models
TOKENS = (
    *(1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768),
    *(1024, 1536, 2048, 3072, 4096, 6144, 8192, 16384),
)
SHALLOW = (32, 64, 96, 128, 256, 384, 512)
RAGGED = 0.3  # share of the token counts above 16 that are no round number
LAYOUTS = {"NT": 70, "NN": 15, "TN": 10, "TT": 5}  # in percent
DTYPES = {"bfloat16": 60, "float16": 40}
FLOPS, BYTES = 6.5e14, 4.2e12  # a second, of an H200
SHORTEST, LONGEST = 2e-6, 2e-3  # seconds at these rates


@dataclass(frozen=True)
class Problem:
    """C[m, n] = A B; the layout says of A and of B whether rows lie as in the formula ("N")."""

    m: int
    n: int
    k: int
    layout: str
    dtype: str

    @property
    def name(self) -> str:
        """A text that tells the problem from every other."""
        return f"{self.m}x{self.n}x{self.k} {self.layout} {self.dtype}"

    @property
    def seconds(self) -> float:
        """The least time on an H200, by its rates."""
        num_bytes = 2 * (self.m * self.k + self.n * self.k + self.m * self.n)
        return max(2 * self.m * self.n * self.k / FLOPS, num_bytes / BYTES)

    @property
    def is_deep(self) -> bool:
        """Whether the sum is at least four times as long as the output is wide or high."""
        return self.k >= 4 * max(self.m, self.n)


def population(seed: int, count: int) -> list[Problem]:
    """Return `count` different problems; a longer list of one seed begins like a shorter one."""
    return list(islice(_unlike(random.Random(seed)), count))


def _unlike(source: random.Random) -> Iterator[Problem]:
    seen: set[Problem] = set()
    while True:
        m, n, k = _draw_shape(source)
        (layout,) = source.choices(list(LAYOUTS), list(LAYOUTS.values()))
        (dtype,) = source.choices(list(DTYPES), list(DTYPES.values()))
        if layout.startswith("T"):
            m = math.ceil(m / 8) * 8  # its rows run along m
        problem = Problem(m, n, k, layout, dtype)
        if SHORTEST < problem.seconds < LONGEST and problem not in seen:
            seen.add(problem)
            yield problem


def _draw_shape(source: random.Random) -> tuple[int, int, int]:
    kinds: list[Callable[[random.Random], tuple[int, int, int]]]
    kinds = [_layer, _anything, _deep, _shallow]
    (kind,) = source.choices(kinds, (50, 25, 15, 10))
    return kind(source)


def _layer(source: random.Random) -> tuple[int, int, int]:
    m = source.choice(TOKENS)
    if m > 16 and source.random() < RAGGED:
        m = int(m * source.uniform(0.55, 0.99))
    return m, source.choice(WIDTHS), source.choice(WIDTHS)


def _anything(source: random.Random) -> tuple[int, int, int]:
    m, n, k = (_even_in_logarithm(source, 128, 8192, 8) for _ in range(3))
    return m, n, k


def _deep(source: random.Random) -> tuple[int, int, int]:
    m, n = (_even_in_logarithm(source, 64, 1024, 8) for _ in range(2))
    return m, n, _even_in_logarithm(source, 4096, 65536, 64)


def _shallow(source: random.Random) -> tuple[int, int, int]:
    m, n = (_even_in_logarithm(source, 1024, 16384, 8) for _ in range(2))
    return m, n, source.choice(SHALLOW)


def _even_in_logarithm(source: random.Random, low: int, high: int, step: int) -> int:
    value = math.exp(source.uniform(math.log(low), math.log(high)))
    return max(step, round(value / step) * step)
