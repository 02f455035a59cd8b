"""Products of other types and batches as users have them, drawn from a seed.

    fp8, fp8 rows, int8, tf32    layers of language models, anything up to 8192, deep sums
    bmm                          scores and values of attention, small products by thousands
    grouped                      experts: m rows in b groups, equal ones, ragged ones or few rows
    w4a16, w8a16, fp8w           layers of language models with weights of 4 and 8 bits

Operands are A[b, m, k] and B[b, n, k], or B[b, k, n] where the layout says NN; A[m, k] of groups.
Rows are multiples of 16 bytes wherever TMA needs it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from .population import _draw_shape, _even_in_logarithm

DTYPES = {
    "fp8": "float8_e4m3fn",
    "fp8 rows": "float8_e4m3fn",
    "int8": "int8",
    "tf32": "float32",
    "bmm": "bfloat16",
    "grouped": "bfloat16",
    "w4a16": "uint32",
    "w8a16": "int8",
    "fp8w": "float8_e4m3fn",
}
WEIGHTS = {  # scales: of groups along k, of rows (int8), or as the name says
    "w4a16": ("g32", "g128"),
    "w8a16": ("g32", "int8"),
    "fp8w": ("tensor", "rows"),
}
ROWS = (1, 1, 2, 4, 8, 16, 64, 256, 512, 2048)
LAYERS = (  # n and k of models of 1 to 72 billion parameters
    *((3072, 2048), (16384, 2048), (2048, 8192), (2048, 1536), (17920, 1536), (1536, 8960)),
    *((9216, 3072), (3072, 3072), (16384, 3072), (3072, 8192), (4608, 3584), (37888, 3584)),
    *((3584, 18944), (6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (4096, 11008)),
    *((7168, 5120), (5120, 5120), (27648, 5120), (5120, 13824), (15360, 5120), (10240, 8192)),
    *((8192, 8192), (57344, 8192), (8192, 28672)),
)
GROUPS = ("equal", "ragged", "few")  # how many rows groups have
FORMS = tuple(DTYPES)
HEADS = (8, 12, 16, 32, 64)
BATCHES = (1, 2, 4, 8, 16, 32)
LENGTHS = (49, 128, 197, 256, 257, 384, 512, 577, 1024, 2048)
HEAD_WIDTHS = (32, 64, 80, 96, 128)
SMALL = (16, 32, 48, 64, 96, 128)
LEAST_ROWS = 17  # of an operand of `torch._int_mm`
MOST_BYTES, MOST_WORK = 2 << 30, 2e12  # of one problem: operands and output; multiply-adds
FIXED = {  # problems that marks are stated for
    "bmm": ((1024, 64, 64, 64, "NT"), (384, 197, 197, 64, "NT")),
    "fp8": ((1, 4096, 4096, 4096, "NT"),),
    "w4a16": ((1, 1, 8192, 8192, "g32"),),
}


@dataclass(frozen=True)
class FormProblem:
    """One problem: C[b, m, n] = A B, in one of `FORMS`."""

    form: str
    b: int
    m: int
    n: int
    k: int
    layout: str = "NT"

    @property
    def dtype(self) -> str:
        """Type of the operands; of words of a weight, or of its elements."""
        in_words = self.form in WEIGHTS and self.layout.startswith("g")
        return "uint32" if in_words else DTYPES[self.form]

    @property
    def name(self) -> str:
        """A text that tells the problem from every other."""
        batch = f"{self.b}x" if self.form in ("bmm", "grouped") else ""
        return f"{self.form} {batch}{self.m}x{self.n}x{self.k} {self.layout}"


def problems(form: str, seed: int, count: int) -> list[FormProblem]:
    """Return `count` different problems of a form, those with stated marks in front."""
    fixed = [FormProblem(form, *extents) for extents in FIXED.get(form, ())]
    return list(islice(_unlike(form, random.Random(f"{form}/{seed}"), fixed), count))


def _unlike(form: str, source: random.Random, fixed: list[FormProblem]) -> Iterator[FormProblem]:
    yield from fixed
    seen = set(fixed)
    draw = {"bmm": _draw_batch, "grouped": _draw_groups}.get(form, _draw_product)
    draw = _draw_weight if form in WEIGHTS else draw
    while True:
        found = draw(form, source)
        size = 4 if form == "tf32" else 2
        num_bytes = size * found.b * (found.m + found.n) * found.k
        num_bytes += 4 * found.b * found.m * found.n
        work = found.b * found.m * found.n * found.k
        if found not in seen and num_bytes < MOST_BYTES and work < MOST_WORK:
            seen.add(found)
            yield found


def _draw_groups(form: str, source: random.Random) -> FormProblem:
    """Draw a layer of experts: up to 1024 rows for each, or up to 32."""
    way = source.choice(GROUPS)
    groups = source.choice((4, 8, 16, 32, 64, 128, 256))
    each = source.randint(1, 32) if way == "few" else source.choice((64, 128, 256, 512, 1024))
    n, k = (_even_in_logarithm(source, 256, 8192, 64) for _ in range(2))
    return FormProblem(form, groups, groups * each, n, k, way)


def _draw_weight(form: str, source: random.Random) -> FormProblem:
    layer, rows = source.choice(LAYERS), source.choice(ROWS)
    return FormProblem(form, 1, rows, *layer, source.choice(WEIGHTS[form]))


def _draw_product(form: str, source: random.Random) -> FormProblem:
    m, n, k = _draw_shape(source)
    if form == "int8":
        m = max(m, LEAST_ROWS)
    return FormProblem(form, 1, m, -(-n // 16) * 16, -(-k // 16) * 16)


def _draw_batch(form: str, source: random.Random) -> FormProblem:
    """Draw products of attention, of small matrices, or of any sizes."""
    kind = source.choice(("scores", "values", "small", "any"))
    if kind == "small":
        m, n, k = (source.choice(SMALL) for _ in range(3))
        return FormProblem(form, source.choice((256, 1024, 4096)), m, n, k)
    if kind == "any":
        m, n, k = (_even_in_logarithm(source, 64, 2048, 8) for _ in range(3))
        return FormProblem(form, source.randint(2, 64), m, n, k, source.choice(("NT", "NN")))
    batch = source.choice(HEADS) * source.choice(BATCHES)
    length, width = source.choice(LENGTHS), source.choice(HEAD_WIDTHS)
    if kind == "scores":
        return FormProblem(form, batch, length, length, width)
    return FormProblem(form, batch, length, width, -(-length // 8) * 8, "NN")
