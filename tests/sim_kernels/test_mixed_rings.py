"""Rings that different mechanisms fill side by side, and trips of each.

Rings in a row and in one another are in `test_several_rings.py`.
"""

import itertools

import pytest

from tests.sim_kernels.ring_kernels import add, block, check, copy, kernel, loop, new, ring

MECHANISMS = ("tma", "bulk", "cp_async")
PRODUCT = add("a[r, tx] * b[r, tx]")
PAIRS = [
    pytest.param(
        a,
        b,
        marks=[] if (a, b) in {("cp_async", "tma"), ("bulk", "cp_async")} else pytest.mark.slow,
    )
    for a, b in itertools.product(MECHANISMS, MECHANISMS)
]
STAGES = [pytest.param(n, marks=[] if n == 2 else pytest.mark.slow) for n in (0, 1, 2, 3, 4)]


def tiles(x, blocks=2):
    """Return a matrix as tiles of 8 rows, in order, for each thread block."""
    return x.reshape(blocks, -1, 8, 128)


def several(stages: int, copies: int) -> str:
    """Return the annotations of a loop of some loads and of one statement that reads them."""
    notes = ring(stages, copies + 1)
    return notes.replace(str([0] + [stages - 1] * copies), str([0] * copies + [stages - 1]))


def turns(name: str, tile: str, source: str, how: str, stages: int, trips: int, *parts: str):
    """Return a loop that loads a tile in each turn, and reads it in `parts`."""
    row = f"(i * {trips} + {name}) * 8"
    head = f"for {name} in T.serial({trips}, {ring(stages, 1 + len(parts))})"
    return loop(head, block(new(tile), copy(tile, source, row, how), *parts))


@pytest.mark.parametrize("stages", STAGES)
@pytest.mark.parametrize(("a", "b"), PAIRS)
def test_two_kinds_of_loads_in_one_loop(a, b, stages):
    row = "(i * 5 + k) * 8"
    body = block(new("a", "b"), copy("a", "A", row, a), copy("b", "B", row, b), PRODUCT)
    mod = kernel(loop(f"for k in T.serial(5, {several(stages, 2)})", body), rows=(80, 80))
    check(mod, lambda x, y: (tiles(x) * tiles(y)).sum((1, 2)))


@pytest.mark.parametrize("stages", STAGES)
@pytest.mark.parametrize(
    "order", [MECHANISMS, pytest.param(MECHANISMS[::-1], marks=pytest.mark.slow)]
)
def test_three_kinds_of_loads_in_one_loop(order, stages):
    row = "(i * 5 + k) * 8"
    brought = [
        copy(tile, source, row, how)
        for tile, source, how in zip("abc", ("A", "B", "A"), order, strict=True)
    ]
    body = block(new("a", "b", "c"), *brought, add("a[r, tx] * b[r, tx] + c[r, tx]"))
    mod = kernel(loop(f"for k in T.serial(5, {several(stages, 3)})", body), rows=(80, 80))
    check(mod, lambda x, y: (tiles(x) * tiles(y) + tiles(x)).sum((1, 2)))


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["lifo", "random", "starve:consumer", "starve:producer"])
@pytest.mark.parametrize("a", ["bulk", "cp_async"])
def test_under_every_policy(a, policy):
    mod = kernel(turns("k", "a", "A", a, 3, 7, add("a[r, tx]")), rows=(112, 8))
    check(mod, lambda x, _: tiles(x).sum((1, 2)), policy)


@pytest.mark.slow
@pytest.mark.parametrize("stages", [1, 2, 3, 4])
@pytest.mark.parametrize("a", MECHANISMS)
def test_trips(a, stages):
    for trips in sorted({1, 2, stages, stages + 1, 2 * stages, 2 * stages + 1}):
        mod = kernel(turns("k", "a", "A", a, stages, trips, add("a[r, tx]")), rows=(16 * trips, 8))
        check(mod, lambda x, _: tiles(x).sum((1, 2)))
