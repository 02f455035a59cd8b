"""Kernels of several rings: their loads and reads meet, with and without a producer.

Rings in a row, in one another, and loads around them: a pairwise cover of who loads and how.
"""

import pytest

from benchmarks.covering import pairwise
from tests.sim_kernels.ring_kernels import add, block, check, copy, kernel, loop, new, ring

ROLES = pytest.mark.parametrize("roles", [False, True], ids=["one-role", "producer"])
STAGES = pytest.mark.parametrize("stages", [1, 2, 4])
FACTORS = {
    "roles": (False, True),
    "persistent": (0, 1),
    "stages": (0, 1, 2, 3, 4),
    "outer_stages": (0, 2, 3),
    "a": ("tma", "bulk", "cp_async"),
    "b": ("tma", "bulk", "cp_async"),
}
ROWS = pairwise(FACTORS, lambda row: not row.get("roles") or row.get("stages") != 0)
COVER = pytest.mark.parametrize("row", ROWS, ids=lambda row: "-".join(map(str, row.values())))
PRODUCT = add("a[r, tx] * b[r, tx]")


def tiles(x, blocks=2):
    """Return a matrix as tiles of 8 rows, in order, for each thread block."""
    return x.reshape(blocks, -1, 8, 128)


def inner(stages, *parts, roles=False, trips=5, row="(i * 5 + k) * 8", by="tma"):
    """Return a loop that loads `a`, and reads it in `parts`."""
    head = f"for k in T.serial({trips}, {ring(stages, 1 + len(parts), roles)})"
    return loop(head, block(new("a"), copy("a", "A", row, by), *parts))


@pytest.mark.sampled(every=5)
@COVER
def test_a_loop_behind_a_loop(row):
    first = inner(row["stages"], add("a[r, tx]"), roles=row["roles"], by=row["a"])
    second = loop(
        f"for k2 in T.serial(3, {ring(2, roles=row['roles'])})",
        block(
            new("b"), copy("b", "B", "(i * 3 + k2) * 8", row["b"]), add("b[r, tx] * T.float32(2)")
        ),
    )
    mod = kernel(first, second, rows=(80, 48), persistent=row["persistent"])
    check(mod, lambda a, b: tiles(a).sum((1, 2)) + 2 * tiles(b).sum((1, 2)))


def nested(stages, outer_stages, roles, persistent=0, a="tma", b="tma"):
    k_loop = inner(stages, PRODUCT, roles=roles, trips=4, row="((i * 3 + n) * 4 + k) * 8", by=a)
    head = f"for n in T.serial(3, {ring(outer_stages)})"
    body = block(new("b"), copy("b", "B", "(i * 3 + n) * 8", b), k_loop)
    return kernel(loop(head, body), rows=(192, 48), persistent=persistent)


def sum_nested(a, b):
    return (a.reshape(2, 3, 4, 8, 128) * tiles(b)[:, :, None]).sum((1, 2, 3))


@pytest.mark.sampled(every=5)
@COVER
def test_a_load_around_a_loop_of_loads(row):
    """The outer tile stays where it is while the inner ring turns, and its own ring does too."""
    check(nested(**row), sum_nested)


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("policy", ["lifo", "random", "starve:consumer", "starve:producer"])
@ROLES
def test_nested_rings_under_every_policy(roles, policy):
    check(nested(2, 2, roles), sum_nested, policy)


@pytest.mark.sampled(every=5)
@COVER
def test_a_load_outside_of_loops_that_a_loop_reads(row):
    k_loop = inner(row["stages"], PRODUCT, roles=row["roles"], by=row["a"])
    brought = copy("b", "B", "i * 8", row["b"])
    mod = kernel(new("b"), brought, k_loop, rows=(80, 16), persistent=row["persistent"])
    check(mod, lambda a, b: (tiles(a) * tiles(b)).sum((1, 2)))


@ROLES
def test_loads_on_both_sides_of_a_loop(roles):
    """The later one goes to the place of the first."""
    k_loop = inner(2, PRODUCT, roles=roles, trips=2, row="((i * 3 + n) * 2 + k) * 8")
    body = block(
        new("b", "c"),
        copy("b", "B", "(i * 3 + n) * 8"),
        k_loop,
        copy("c", "B", "(5 - (i * 3 + n)) * 8"),
        add("c[r, tx]"),
    )
    mod = kernel(loop("for n in range(3)", body), rows=(96, 48))

    def want(a, b):
        products = a.reshape(2, 3, 2, 8, 128) * tiles(b)[:, :, None]
        return products.sum((1, 2, 3)) + tiles(tiles(b, 1)[:, ::-1]).sum((1, 2))

    check(mod, want)


def test_a_load_behind_a_loop_that_reads_what_it_brought_before():
    """It may not move: the loop of the next iteration reads it, that of this one another's."""
    k_loop = inner(2, add("a[r, tx] * (b[r, tx] + c[r, tx])"), trips=2)
    k_loop = k_loop.replace("(i * 5 + k)", "((i * 3 + n) * 2 + k)")
    body = block(copy("b", "B", "(i * 3 + n) * 8"), k_loop, copy("c", "B", "(i * 3 + n) * 8"))
    mod = kernel(
        new("b", "c"),
        loop("for r, s in T.grid(8, 1)", "c[r, tx] = T.float32(0)\n"),
        loop("for n in range(3)", body),
        rows=(96, 48),
    )

    def want(a, b):
        now = tiles(b)
        before = now * 0
        before[:, 1:] = now[:, :-1]
        return (a.reshape(2, 3, 2, 8, 128) * (now + before)[:, :, None]).sum((1, 2, 3))

    check(mod, want)


@ROLES
@STAGES
def test_an_address_from_a_variable_of_the_loop(roles, stages):
    """The load runs ahead of the variable, and takes a copy of it for its own iteration along."""
    bound = "half: T.let[T.int32] = (i * 5 + k) * 4\nat: T.let[T.int32] = half * 2\n"
    number = 4
    notes = ring(stages, number, roles)
    if stages > 1:
        last = str([stages - 1] * 2 + [0, stages - 1])
        notes = notes.replace(str([0] + [stages - 1] * 3), last)
    body = block(new("a"), bound, copy("a", "A", "at"), add("a[r, tx] * (1 + half)"))
    mod = kernel(loop(f"for k in T.serial(5, {notes})", body), rows=(80, 8))
    check(mod, lambda a, _: sum(
        tiles(a).sum(2)[:, k] * [[1 + (i * 5 + k) * 4] for i in range(2)] for k in range(5)
    ))  # fmt: skip


def test_a_load_under_a_condition_outside_of_loops():
    under = loop("if i < 1", new_tile := copy("b", "B", "i * 8"), add("b[r, tx]"))
    assert "load_b" in new_tile
    mod = kernel(new("b", "c"), under, copy("c", "A", "i * 8"), add("c[r, tx]"), rows=(16, 16))

    def want(a, b):
        sums = tiles(a).sum((1, 2))
        sums[0] += b[:8].sum(0)
        return sums

    check(mod, want)
