"""Draw small kernels: a right one of some family, and wrong ones that differ from it a little."""

import random
from collections.abc import Callable

from tests.sim.coverage.small_kernels import SmallKernel

Draw = Callable[[random.Random], SmallKernel]


def pointwise(rng: random.Random) -> SmallKernel:
    """Let each thread copy some elements, the last CTA fewer."""
    threads, trips, width = rng.choice([4, 6, 8]), rng.choice([1, 2, 3]), rng.choice([1, 1, 2, 4])
    size = width * rng.randint(1, 60)
    tile = threads * trips * width
    grid = -(-size // tile)
    place = f"bx * {tile} + i * {threads * width} + tx * {width}"
    if rng.random() < 0.3:
        place = f"bx * {tile} + tx * {trips * width} + i * {width}"
    guard = "" if size % tile == 0 and rng.random() < 0.5 else f"{place} < {size}"
    return SmallKernel(
        (grid, 1), (threads, 1), size, size, place, place,
        loops=[("i", str(trips))], guard=guard, width=width,
    )  # fmt: skip


def tiled(rng: random.Random) -> SmallKernel:
    """Let each CTA copy a tile of a matrix, with ragged edges, in some order of tiles."""
    tile_m, tile_n, width = rng.choice([2, 3, 4]), rng.choice([4, 8]), rng.choice([1, 1, 2])
    rows, columns = rng.randint(1, 14), width * rng.randint(1, 12)
    grid_m, grid_n = -(-rows // tile_m), -(-columns // tile_n)
    per_row = tile_n // width
    threads = rng.choice([2, 4, per_row])
    trips = -(-tile_m * per_row // threads)
    lets = [("m0", "by"), ("n0", "bx")]
    grid = (grid_n, grid_m)
    if rng.random() < 0.5:  # groups of rows of tiles, one after the other
        group = rng.randint(1, grid_m)
        grid = (grid_n * grid_m, 1)
        lets = [
            ("first", f"bx // {group * grid_n} * {group}"),
            ("high", f"min({grid_m} - first, {group})"),
            ("m0", f"first + bx % {group * grid_n} % high"),
            ("n0", f"bx % {group * grid_n} // high"),
        ]
    inner = [
        ("p", f"i * {threads} + tx"),
        ("row", f"m0 * {tile_m} + p // {per_row}"),
        ("col", f"n0 * {tile_n} + p % {per_row} * {width}"),
    ]
    guard = f"row < {rows} and col < {columns} and p < {tile_m * per_row}"
    load = f"row * {columns} + col"
    size = rows * columns
    if rng.random() < 0.25 and width == 1:  # transposed
        load = f"col * {rows} + row"
    return SmallKernel(
        grid, (threads, 1), size, size, f"row * {columns} + col", load,
        lets=lets, loops=[("i", str(trips))], inner=inner, guard=guard, width=width,
    )  # fmt: skip


def fused(rng: random.Random) -> SmallKernel:
    """Let threads be numbered through, and take their number apart into a permuted index."""
    extents = [rng.randint(1, 5) for _ in range(3)]
    size = extents[0] * extents[1] * extents[2]
    threads = rng.choice([4, 8])
    a, b, c = extents
    inner = [
        ("p", f"bx * {threads} + tx"),
        ("i0", f"p // {b * c}"),
        ("i1", f"p // {c} % {b}"),
        ("i2", f"p % {c}"),
    ]
    stores = ["p", f"i2 * {a * b} + i1 * {a} + i0", f"i0 * {b * c} + i2 * {b} + i1"]
    return SmallKernel(
        (-(-size // threads), 1), (threads, 1), size, size, rng.choice(stores), rng.choice(stores),
        inner=inner, guard=f"p < {size}",
    )  # fmt: skip


def persistent(rng: random.Random) -> SmallKernel:
    """Let CTAs share tiles, each in turns."""
    tiles_m, tiles_n, tile = rng.randint(1, 4), rng.randint(1, 4), 4
    tiles, blocks = tiles_m * tiles_n, rng.randint(1, 6)
    trips = f"({tiles} - bx + {blocks} - 1) // {blocks}"
    guard = ""
    if rng.random() < 0.4:  # as many turns everywhere
        trips, guard = str(-(-tiles // blocks)), f"t * {blocks} + bx < {tiles}"
    columns = tiles_n * tile
    inner = [
        ("tile", f"t * {blocks} + bx"),
        ("m0", f"tile % {tiles_m}"),
        ("n0", f"tile // {tiles_m}"),
    ]
    place = f"(m0 * 2 + ty) * {columns} + n0 * {tile} + tx"
    size = tiles_m * 2 * columns
    return SmallKernel(
        (blocks, 1), (tile, 2), size, size, place, place,
        loops=[("t", trips)], inner=inner, guard=guard,
    )  # fmt: skip


def triangular(rng: random.Random) -> SmallKernel:
    """Let the extent of a loop depend on the CTA and on the thread."""
    threads, blocks = rng.choice([3, 4]), rng.randint(1, 4)
    rows = threads * blocks
    extent = rng.choice([f"bx * {threads} + tx + 1", "bx + 1", f"min(bx * 2 + 1, {rows})"])
    place = f"(bx * {threads} + tx) * {rows} + j"
    size = rows * rows
    return SmallKernel(
        (blocks, 1), (threads, 1), size, size, place, f"j * {rows} + bx * {threads} + tx",
        loops=[("j", extent)],
    )  # fmt: skip


FAMILIES: tuple[Draw, ...] = (pointwise, tiled, fused, persistent, triangular)


def _numbers(text: str) -> list[tuple[int, int]]:
    found, start = [], None
    for at, letter in enumerate(text + " "):
        if letter.isdigit() and (start is not None or at == 0 or not text[at - 1].isalnum()):
            start = at if start is None else start
        elif start is not None:
            found.append((start, at))
            start = None
    return found


def _change(rng: random.Random, text: str) -> str:
    """Change one number of a text by one or by a factor, or shift the whole."""
    places = _numbers(text)
    if not places or rng.random() < 0.3:
        return f"{text} {rng.choice(['+ 1', '- 1', '+ 2'])}"
    low, high = rng.choice(places)
    number = int(text[low:high])
    changed = rng.choice([number + 1, max(number - 1, 1), number * 2])
    return text[:low] + str(changed) + text[high:]


def wrong(rng: random.Random, kernel: SmallKernel) -> SmallKernel:
    """Change one thing of a kernel, which may make it wrong."""
    what = rng.choice(["store", "load", "guard", "no guard", "grid", "inner", "missing", "size"])
    if what in ("store", "load"):
        setattr(kernel, what, _change(rng, getattr(kernel, what)))
    elif what == "guard" and kernel.guard:
        kernel.guard = _change(rng, kernel.guard)
    elif what == "no guard":
        kernel.guard = ""
    elif what == "grid":
        x, y = kernel.grid
        kernel.grid = (max(x + rng.choice([-1, 1]), 1), y)
    elif what == "inner" and kernel.inner:
        at = rng.randrange(len(kernel.inner))
        name, text = kernel.inner[at]
        kernel.inner[at] = (name, _change(rng, text))
    elif what == "missing":
        skipped = f"bx != {rng.randrange(kernel.grid[0])}"
        kernel.guard = f"{kernel.guard} and {skipped}" if kernel.guard else skipped
    elif what == "size":
        kernel.c_size += rng.choice([-1, 1, 4])
    return kernel
