"""Configurations through the CUDA compiler and the judge of its log, with `verify`.

Plain products, so that what is tried is the configuration: large tiles, one trip or few of the k
loop, every number of consumers and stages.
"""

from typing import Any

from ..case import Case
from ..draw import Draw
from ..epilogue import draw_epilogue
from ..product import COLUMNS, ROWS, Product
from ..script import Script
from .matmul import POLICIES, draw_registers, matmul_step

TILE_ROWS = (64, 128, 192, 256)
TILE_COLUMNS = (64, 128, 8, 24, 32, 48, 88, 96, 176, 192, 208, 256)
TILE_DEPTHS = (64, 16, 32, 48, 128)


def make(draw: Draw) -> Case:
    """Make one case."""
    tile = tuple(draw.choose(sizes) for sizes in (TILE_ROWS, TILE_COLUMNS, TILE_DEPTHS))
    config: dict[str, Any] = {"tile": tile}
    fitting = [c for c in (1, 2, 3) if tile[0] % (64 * c) == 0 or tile[1] % (8 * c) == 0]
    config["consumers"] = draw.choose(fitting if draw.chance(90) else (1, 2, 3))
    config["stages"] = draw.choose((1, 2, 3, 5))
    asked: dict[str, Any] = {
        "swizzle": draw.maybe((128, 64, 32, 0), 40),
        "wgmma_pending": draw.maybe((0, 1), 30),
        "raster_group": draw.maybe((1, 2, 3), 30),
        "persistent": draw.maybe((0, 1, 2, 132), 40),
        "registers": draw_registers(draw, config["consumers"], 20),
    }
    config.update((name, value) for name, value in asked.items() if value is not None)
    layout = draw.choose(("NT", "NN", "TN", "TT"))
    m, n = (_size(draw, t, sizes) for t, sizes in zip(tile, (ROWS, COLUMNS), strict=False))
    k = tile[2] * draw.choose((1, 2, 3)) - draw.choose((0, 8, 4))
    m -= m % 8 if layout[0] == "T" else 0
    n -= n % 8 if layout[1] == "N" else 0
    if layout != "TN" and k % 8:
        k += 4
    script = Script()
    product = Product(script, max(m, 8), max(n, 8), max(k, 8), layout)
    product.dtype = draw.choose(("float16", "bfloat16"))
    draw_epilogue(draw, product, 2, plain=True)
    return Case(
        script.program(),
        (matmul_step("C", config),),
        policy=draw.choose(POLICIES),
        verify=draw.chance(40),
        cubin=True,
    )


def _size(draw: Draw, tile: int, sizes: tuple[int, ...]) -> int:
    """Return one tile, a little more or less than one, or any size."""
    form = draw.index(4)
    return (tile, tile + 8, max(8, tile - 8), draw.choose(sizes))[form] if form else tile
