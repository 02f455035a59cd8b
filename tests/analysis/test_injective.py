"""A store's indices are injective: what is proven is true, and plain epilogues are proven."""

from __future__ import annotations

import itertools
import random

import pytest
from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.analysis.injective import is_injective

BY, BX, R, C = (ir.Var(name, "int32") for name in ("by", "bx", "r", "c"))
M, N = ir.Var("m", "int32"), ir.Var("n", "int32")
STATIC = {BY: 4, BX: 2, R: 64, C: 64}
RAGGED = {BY: (M + 63) // 64, BX: (N + 63) // 64, R: 64, C: 64}
ROW, COL = BY * 64 + R, BX * 64 + C

PROVEN = {
    "plain": ([ROW, COL], STATIC, True),
    "transposed": ([COL, ROW], STATIC, True),
    "a part of a larger tensor": ([ROW + 3, COL + M], STATIC, True),
    "every other row": ([ROW * 2 + 1, COL], STATIC, True),
    "reshaped": ([ROW // 16, ROW % 16, COL], STATIC, True),
    "flat": ([ROW * 128 + COL], STATIC, True),
    "flat with gaps": ([ROW * 1000 + COL], STATIC, True),
    "upside down": ([255 - ROW, COL], STATIC, True),
    "interleaved": ([ROW, COL * 3 + 1], STATIC, True),
    "heads in front": ([COL // 64, ROW, COL % 64], STATIC, True),
    "a dimension twice": ([ROW, COL, ROW], STATIC, True),
    "ragged": ([ROW, COL], STATIC, tirx.And(ROW < 200, COL < 100)),
    "ragged and flat": ([ROW * 100 + COL], STATIC, tirx.And(ROW < 200, COL < 100)),
    "an odd predicate": ([ROW, COL], STATIC, (ROW * COL) % 3 < 1),
    "symbolic": ([ROW, COL], RAGGED, tirx.And(ROW < M, COL < N)),
    "symbolic and reshaped": ([ROW // 16, ROW % 16, COL], RAGGED, tirx.And(ROW < M, COL < N)),
    "symbolic and flat": ([ROW * N + COL], {**RAGGED, BY: 4}, COL < N),
    "64-bit indices": ([tirx.Cast("int64", ROW), tirx.Cast("int64", COL)], STATIC, True),
    "blocks without a tile": ([R, C], STATIC, tirx.And(BY * 2 + BX < 1, True)),
    "as many iterations as bounds leave": ([BY * 0 + R, BX * 64 + C], STATIC, BY < 1),
    "a square": ([ROW * ROW, COL], STATIC, True),
    "what a simplifier made of one number": (
        [(BY * 64 + R) // 62, (BY * 64 + R) % 62],
        {BY: 4, R: 64},
        True,
    ),
    "its parts apart": (
        [(BY * 64 + R) // 352, (BY * 2 + R // 32) % 11, R % 32],
        {BY: 11, R: 64},
        True,
    ),
    "digits that a bound cuts through": (
        [R // 16, BY * 2 + R % 16 // 8, R % 8, BX * 88 + C],
        {BY: 5, BX: 3, R: 64, C: 88},
        tirx.And(R < 45, BX * 88 + C < 256),
    ),
    "boxes of pixels": (
        [
            BY // 15 * 4 + (BX * 64 + R) // 48,
            BY % 15 // 5 * 12 + (BX * 16 + R // 4) % 12,
            BY % 5 * 4 + R % 4,
            C,
        ],
        {BY: 300, BX: 2, R: 64, C: 160},
        True,
    ),
    "digits by a symbol": ([ROW // M, ROW % M, COL], STATIC, ROW < M * 2),
    "axes of one step": ([ROW, COL], {**STATIC, ir.Var("u", "int32"): 1}, True),
}
NOT_PROVEN = {
    "modulo": ([ROW % 32, COL], STATIC, True),
    "two rows in one": ([ROW // 2, COL], STATIC, True),
    "a sum": ([ROW + COL, 0], STATIC, True),
    "a constant row": ([0, COL], STATIC, True),
    "clamped": ([tirx.min(ROW, 100), COL], STATIC, True),
    "overlapping rows": ([ROW * 2 + COL, 0], STATIC, True),
    "tiles on top of each other": ([R, COL], STATIC, True),
    "two blocks on one tile": ([R, C], STATIC, BY * 2 + BX < 2),
    "a square around zero": ([(ROW - 9) * (ROW - 9), COL], STATIC, True),
    "a number that comes again": (
        [(BY * 64 + R) // 62 % 2, (BY * 64 + R) % 62],
        {BY: 4, R: 64},
        True,
    ),
    "of another variable, too": (
        [(M + BY * 64 + R) // 62, (BY * 64 + R) % 62],
        {BY: 4, R: 64},
        True,
    ),
    "boxes of pixels on top of each other": (
        [
            BY // 15 * 4 + (BX * 64 + R) // 48,
            BY % 15 // 5 * 11 + (BX * 16 + R // 4) % 12,
            BY % 5 * 4 + R % 4,
            C,
        ],
        {BY: 300, BX: 2, R: 64, C: 160},
        True,
    ),
    "below a bound that another variable has": ([R + C, BX], STATIC, R < BX),
    "digits by two symbols": ([ROW // M, ROW % N, COL], STATIC, ROW < M * 2),
    "added, but not above another": ([BX, tirx.max(COL - BX, 0)], STATIC, True),
    "divided by another": ([BX, COL // (BX + 1)], STATIC, True),
    "multiplied by another": ([BX, (1 - BX) * COL], STATIC, True),
    "narrowed": ([tirx.Cast("int8", ROW), COL], STATIC, True),
}


@pytest.mark.parametrize("name", PROVEN)
def test_proven(name: str) -> None:
    assert is_injective(*PROVEN[name])


@pytest.mark.parametrize("name", NOT_PROVEN)
def test_not_proven(name: str) -> None:
    assert not is_injective(*NOT_PROVEN[name])


def random_index(rng: random.Random, variables: list[ir.Var], depth: int = 2) -> object:
    if depth == 0 or rng.random() < 0.25:
        return rng.choice(variables)
    inner = random_index(rng, variables, depth - 1)
    number = rng.choice([2, 3, 4, 5, 8])
    other = random_index(rng, variables, depth - 1)
    return rng.choice([inner + other, inner * number, inner // number, inner % number,
                       inner * number + other, inner - other, inner + number])  # fmt: skip


def test_what_is_proven_is_true() -> None:
    """A wrong proof is a race; each is compared with all pairs of iterations."""
    rng, proven = random.Random(0), 0
    for _ in range(400):
        extents = dict(zip((BY, R, C), rng.choices([1, 2, 3, 4, 6, 8], k=3), strict=True))
        variables = list(extents)
        indices = [random_index(rng, variables) for _ in range(rng.choice([1, 2, 3]))]
        bound = random_index(rng, variables, 1) < rng.choice([2, 5, 9])
        predicate = rng.choice([True, bound])
        if not is_injective(indices, extents, predicate):
            continue
        proven += 1
        seen = set()
        for point in itertools.product(*(range(extent) for extent in extents.values())):
            at = dict(zip(extents, point, strict=True))
            if predicate is not True and not int(ir.simplify(ir.substitute(predicate, at))):
                continue
            where = tuple(int(ir.simplify(ir.substitute(index, at))) for index in indices)
            assert where not in seen, (indices, extents, predicate)
            seen.add(where)
    assert proven > 20
