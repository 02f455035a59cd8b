"""Problems of attention as users have them, drawn, and the grid that libraries are compared on."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

# (query heads, heads of keys, columns) of models
LANGUAGE = [
    *[(32, 8, 128), (28, 4, 128), (40, 8, 128), (16, 8, 256), (8, 4, 256), (32, 32, 128)],
    *[(32, 32, 64), (12, 12, 64), (14, 2, 64), (32, 32, 96), (16, 16, 80), (71, 1, 64)],
]
VISION = [(12, 12, 64), (16, 16, 64), (16, 16, 72), (6, 6, 64), (16, 16, 88), (24, 24, 64)]
DIFFUSION = [(8, 8, 40), (8, 8, 80), (8, 8, 160), (24, 24, 64), (24, 24, 128), (10, 10, 64)]
LENGTHS = (512, 1024, 2048, 4096, 8192)
PATCHES = (196, 197, 256, 257, 576, 577, 1024, 1025)
PIXELS = (256, 1024, 1536, 4096)
SHARES = {"language": 45, "vision": 20, "diffusion": 15, "long": 10, "odd": 10}
MOST_FLOPS = 6e12


@dataclass(frozen=True)
class AttentionProblem:
    """One problem; `rows` of queries, `keys`, `columns` of both; `window` 0: all keys."""

    batch: int
    heads: int
    key_heads: int
    rows: int
    keys: int
    depth: int
    columns: int
    causal: bool = False
    window: int = 0
    dtype: str = "bfloat16"

    @property
    def name(self) -> str:
        """All of it in a word."""
        width = f"{self.depth}" if self.depth == self.columns else f"{self.depth}/{self.columns}"
        mask = f" window {self.window}" if self.window else " causal" if self.causal else ""
        heads = (
            f"{self.heads}" if self.heads == self.key_heads else f"{self.heads}/{self.key_heads}"
        )
        return f"{self.batch}x{heads}x{self.rows}x{self.keys} d {width}{mask} {self.dtype}"

    @property
    def flops(self) -> float:
        """Operations of both products, without pairs of a row and a key that a mask hides."""
        seen = float(self.rows * self.keys)
        if self.window:
            seen = float(self.rows * min(self.window, self.keys))
        elif self.causal:
            seen -= self.rows * (self.rows - 1) / 2
        return 2 * self.batch * self.heads * seen * (self.depth + self.columns)


def problems(seed: int, count: int) -> list[AttentionProblem]:
    """Draw problems; the same for a seed."""
    draw = random.Random(f"attention {seed}")
    found: list[AttentionProblem] = []
    while len(found) < count:
        kind = draw.choices(list(SHARES), list(SHARES.values()))[0]
        problem = _draw(kind, draw)
        if problem.flops <= MOST_FLOPS and problem not in found:
            found.append(problem)
    return found


def _draw(kind: str, draw: random.Random) -> AttentionProblem:
    dtype = draw.choice(("bfloat16", "float16"))
    if kind == "vision":
        heads, few, width = draw.choice(VISION)
        length = draw.choice(PATCHES)
        return AttentionProblem(
            draw.choice((1, 8, 32, 64)), heads, few, length, length, width, width, dtype=dtype
        )
    if kind == "diffusion":
        heads, few, width = draw.choice(DIFFUSION)
        rows = draw.choice(PIXELS)
        keys = draw.choice((rows, rows, 77, 154, 256))
        return AttentionProblem(
            draw.choice((1, 2, 8)), heads, few, rows, keys, width, width, dtype=dtype
        )
    heads, few, width = draw.choice(LANGUAGE)
    length = draw.choice((16384, 32768)) if kind == "long" else draw.choice(LENGTHS)
    if kind == "odd":
        length = draw.randrange(100, 4000)
    batch = 1 if kind == "long" else draw.choice((1, 2, 4, 8, 16))
    window = draw.choice((0, 0, 0, 0, 512, 1024, 4096))
    window = 0 if window >= length else window
    columns = 128 if width == 128 and draw.random() < 0.1 else width
    depth = 192 if columns == 128 and draw.random() < 0.1 else width
    causal = draw.random() < 0.85
    return AttentionProblem(
        batch, heads, few, length, length, depth, columns, causal, window if causal else 0, dtype
    )


def marks() -> Iterator[AttentionProblem]:
    """Give the grid of head dimensions and lengths, 16384 rows in all."""
    for depth, columns in ((64, 64), (96, 96), (128, 128), (192, 128), (256, 256)):
        for length in (512, 1024, 2048, 4096, 8192, 16384):
            for causal in (False, True):
                for few in (1, 4):
                    heads = max(4, 2048 // depth // 4 * 4)
                    yield AttentionProblem(
                        max(1, 16384 // length),
                        heads,
                        heads // few,
                        length,
                        length,
                        depth,
                        columns,
                        causal,
                    )
