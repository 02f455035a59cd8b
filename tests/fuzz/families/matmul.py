"""`hs.matmul` over forms of the product, epilogues and configurations."""

from typing import Any

from ..case import Case, Step
from ..draw import Draw
from ..epilogue import draw_epilogue
from ..product import draw_product
from ..script import Script

POLICIES = ("on_wait", "lifo", "random", "eager", "starve:consumer")
SPLITS = {1: (40, 256), 2: (40, 232), 3: (32, 160)}  # registers that a block may be split into
REGISTERS = ((40, 232), (24, 240), (40, 152), (56, 100), (24, 504), (120, 160), (8, 8))
GROUPS = (1, 2, 3, 16) * 4 + (1 << 24, 1 << 30, (1 << 31) - 1)


def draw_config(draw: Draw) -> dict[str, Any]:
    """Draw the arguments of a MatmulConfig; an empty dict is the default configuration.

    The number of decisions is always the same, so that a shrinker can take one away alone.
    """
    config: dict[str, Any] = {}
    has_tile = draw.chance(85)
    tile = [
        draw.choose((64, 128), (70, 30)),
        draw.choose((64, 8, 16, 24, 32, 48, 96, 128), (40, 8, 8, 8, 8, 8, 10, 10)),
        draw.choose((64, 16, 32, 48, 128), (60, 10, 12, 8, 10)),
    ]
    odd, place = draw.maybe((256, 1, 7, 20, 100, 512), 5), draw.index(3)
    if odd is not None:
        tile[place] = odd
    asked: dict[str, Any] = {
        "tile": tuple(tile) if has_tile else None,
        "stages": draw.maybe((1, 2, 3, 4, 7), 70),
        "consumers": draw.maybe((1, 1, 2, 2, 1, 2, 3), 50),
        "swizzle": draw.maybe((128, 64, 32, 0), 25),
        "wgmma_pending": draw.maybe((0, 1), 20),
        "persistent": draw.maybe((0, 1, 2, 3, 132), 35),
        "raster_group": draw.maybe(GROUPS, 35),
    }
    registers = draw_registers(draw, asked["consumers"] or 1, 15)
    if asked["consumers"] is not None:
        asked["registers"] = registers
    config.update((name, value) for name, value in asked.items() if value is not None)
    return config


def draw_registers(draw: Draw, consumers: int, percent: float) -> tuple[int, int] | None:
    """Draw registers of a producer and of a consumer thread, or None; mostly such as fit."""
    fitting = SPLITS[consumers]
    return draw.maybe((*(fitting,) * 12, *REGISTERS), percent)


def config_text(config: dict[str, Any]) -> str:
    """Return the call that makes a configuration."""
    return f"hs.MatmulConfig({', '.join(f'{k}={v!r}' for k, v in config.items())})"


def matmul_step(block: str, config: dict[str, Any]) -> Step:
    """Return the call of `hs.matmul`, with what it asks of the kernel."""
    names = ("stages", "consumers", "swizzle", "wgmma_pending", "raster_group", "persistent")
    asks = {name: config[name] for name in names if name in config}
    argument = f", {config_text(config)}" if config else ""
    return Step(f'hs.matmul(sch, "{block}"{argument})', asks)


def make(draw: Draw) -> Case:
    """Make one case."""
    config = draw_config(draw)
    script = Script(draw.choose(("int32", "int64"), (70, 30)))
    product = draw_product(draw, script)
    if product.acc != "float32" and draw.chance(60):
        config["accumulate"] = "float32"
    draw_epilogue(draw, product)
    if "accumulate" in config and script.facts.get("must_note", "") == "":
        script.facts["must_note"] = "a sum in float32 that the program makes in a narrower type"
    return Case(
        script.program(),
        (matmul_step("C", config),),
        policy=draw.choose(POLICIES),
        verify=draw.chance(6),
        cubin=draw.chance(10),
    )
