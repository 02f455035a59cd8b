"""The single steps, mixed with TVM's primitives, in legal and illegal orders.

A right schedule is written down as labelled statements; a case changes it in a few places: a
statement is inserted, replaced, left out, repeated, or exchanged with the next.
"""

from typing import Any

from ..case import Case, Step
from ..draw import Draw
from ..epilogue import draw_epilogue
from ..product import Product
from ..script import Script

WHY_DROPPED = "nothing in the kernel answers to it"
SHAPES = ((64, 64, 64), (128, 128, 128), (128, 64, 192), (100, 72, 200), (72, 136, 72))
TILES = ((64, 64, 64), (64, 64, 32), (128, 64, 64), (64, 32, 64))

# label: statements behind it; {s} is a number of stages, {c} of consumers
INSERT: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("start", 'sch.reindex(block, ("read", 0))', {}),
    ("start", "sch.decompose_reduction(block, sch.get_loops(block)[0])", {}),
    ("start", "sch.rfactor(sch.split(sch.get_loops(block)[2], [2, None])[0], 0)", {}),
    ("pad", "hs.pad(sch, block, (128, 128, 128))", {}),
    ("reorder", "_, k0 = sch.split(k0, [1, None])", {}),
    ("reorder", "_, k0 = sch.split(k0, [None, 1])", {}),
    ("reorder", "_, k0 = sch.split(k0, [2, None])", {}),
    ("reorder", "_, k0 = sch.split(k0, [None, 2])", {}),
    ("reorder", "sch.split(mt, [2, None])", {}),
    ("reorder", "sch.reorder(i0, j0, k0, part, mt, nt, k1)", {}),
    ("reorder", "sch.reorder(i0, j0, part, k0, nt, mt, k1)", {}),
    ("reorder", "sch.reorder(j0, part, i0, k0, mt, nt, k1)", {}),
    ("reorder", "sch.add_unit_loop(k0)", {}),
    ("reorder", "sch.loop_partition(k0, [1, None])", {}),
    ("bind_y", "hs.raster(sch, j0, group=2)", {"raster_group": 2}),
    ("raster", "hs.raster(sch, j0, group=4)", {"raster_group": 4}),
    ("raster", "hs.raster(sch, j0, group=2, persistent=2)", {"raster_group": 2, "persistent": 2}),
    ("raster", "hs.raster(sch, i0, group=2)", {}),
    ("bind_part", "sch.parallel(k0)", {}),
    ("store_at", 'other = sch.cache_write(block, 0, "local")', {}),
    ("async_a", "hs.async_copy(sch, copy_a, swizzle=32)", {"swizzle of A": 32}),
    ("async_b", "hs.async_copy(sch, copy_b, swizzle=64)", {"swizzle of B": 64}),
    ("async_b", "hs.async_copy(sch, copy_b)", {}),
    ("async_b", "hs.async_copy(sch, store)", {}),
    ("at_a", "sch.split(sch.get_loops(copy_a)[-1], [None, 8])", {}),
    ("at_a", "sch.fuse(*sch.get_loops(copy_a)[-2:])", {}),
    ("at_a", "sch.reorder(sch.get_loops(copy_a)[-1], sch.get_loops(copy_a)[-2])", {}),
    ("at_a", 'sch.bind(sch.get_loops(copy_a)[-2], "threadIdx.x")', {}),
    ("at_a", "sch.vectorize(sch.split(sch.get_loops(copy_a)[-1], [None, 8])[1])", {}),
    ("at_a", "sch.storage_align(copy_a, 0, -2, 32, 8)", {"!": WHY_DROPPED}),
    ("at_a", 'sch.annotate(copy_a, "double_buffer_scope", 0)', {"!": WHY_DROPPED}),
    ("at_a", 'sch.transform_layout(copy_a, ("write", 0), lambda x, y: (y, x))', {}),
    ("at_a", 'sch.set_scope(copy_a, 0, "shared")', {}),
    ("at_a", 'sch.set_scope(copy_a, 0, "local")', {}),
    ("async_a", "sch.blockize(sch.get_loops(copy_a)[-2])", {}),
    (
        "async_a",
        'sch.annotate(sch.get_loops(copy_a)[-2], "software_pipeline_stage", [0])',
        {"!": WHY_DROPPED},
    ),
    ("async_b", 'extra = sch.cache_read(block, 0, "local"); sch.compute_at(extra, k0)', {}),
    ("async_b", 'extra = sch.cache_read(block, 0, "shared.dyn"); sch.compute_at(extra, k0)', {}),
    ("async_b", "hs.pipeline(sch, k0, stages={s}, roles=hs.Roles({c}))", {}),
    ("epilogue", "sch.split(sch.get_loops(store)[-1], [None, 8])", {}),
    ("epilogue", "sch.reorder(sch.get_loops(store)[-1], sch.get_loops(store)[-2])", {}),
    ("epilogue", "sch.vectorize(sch.split(sch.get_loops(store)[-1], [None, 2])[1])", {}),
    ("epilogue", 'sch.bind(sch.get_loops(store)[-1], "threadIdx.x")', {}),
    ("epilogue", 'sch.set_scope(block, 0, "shared.dyn")', {}),
    ("epilogue", "sch.unroll(mt)", {}),
    ("epilogue", "sch.vectorize(nt)", {}),
    ("epilogue", "sch.decompose_reduction(block, part)", {}),
    ("epilogue", "sch.decompose_reduction(block, k0)", {}),
    ("wgmma", "hs.wgmma(sch, block)", {}),
    ("pipeline", "hs.pipeline(sch, k0, stages={s} + 1, roles=hs.Roles({c}))", {"stages": 1}),
    ("pipeline", "hs.pipeline(sch, k0, stages={s}, wgmma_pending=1)", {"wgmma_pending": 1}),
    ("pipeline", "hs.pipeline(sch, part, stages={s}, roles=hs.Roles({c}))", {}),
    ("pipeline", "hs.pipeline(sch, mt, stages={s})", {}),
    ("pipeline", "sch.unroll(k0)", {}),
    ("pipeline", 'sch.annotate(k0, "pragma_auto_unroll_max_step", 16)', {}),
    ("pipeline", 'sch.annotate(k0, "mykey", [1, 2])', {}),
    ("pipeline", 'sch.unannotate(k0, "software_pipeline_stage")', {}),
    ("pipeline", 'sch.unannotate(k0, "tvm_hopper.consumers")', {}),
)
# label: another statement in its place
REPLACE: tuple[tuple[str, str], ...] = (
    ("bind_y", "sch.parallel(i0)"),
    ("bind_y", "sch.unroll(i0)"),
    ("bind_y", "sch.vectorize(i0)"),
    ("bind_y", "pass"),
    ("bind_y", 'sch.bind(i0, "blockIdx.z")'),
    ("bind_x", 'sch.bind(sch.fuse(i0, j0), "blockIdx.x")'),
    ("bind_x", 'sch.bind(j0, "blockIdx.z")'),
    ("bind_x", "pass"),
    ("bind_part", 'sch.bind(part, "threadIdx.x")'),
    ("bind_part", 'sch.bind(part, "vthread.x")'),
    ("bind_part", "pass"),
    ("pad", "pass"),
    ("pad", "hs.pad(sch, block, (64, 128, 128))"),
    ("reorder", "sch.reorder(i0, j0, k0, part, mt, nt, k1)"),
    ("at_a", "sch.compute_at(copy_a, part)"),
    ("at_a", "sch.compute_at(copy_a, mt)"),
    ("at_b", "sch.compute_at(copy_b, part)"),
    ("store_at", "sch.reverse_compute_at(store, j0)"),
    ("cache_a", 'copy_a = sch.cache_read(block, 0, "shared")'),
    ("cache_b", 'copy_b = sch.cache_read(block, 0, "shared.dyn")'),
    ("store", 'store = sch.cache_write(block, 0, "shared.dyn")'),
    ("async_a", "pass"),
    ("async_a", "hs.async_copy(sch, copy_a, swizzle=16)"),
    ("async_a", 'hs.async_copy(sch, copy_a, swizzle="128")'),
    ("async_a", "hs.async_copy(sch, copy_a, swizzle=1.5)"),
    ("epilogue", "pass"),
    ("wgmma", "pass"),
    ("pipeline", "pass"),
    ("pipeline", "hs.pipeline(sch, k0, stages={s}, roles=hs.Roles({c} % 3 + 1))"),
    ("pipeline", "hs.pipeline(sch, k0, last_stage={s})"),
)


def statements(tile: tuple[int, int, int], consumers: int, stages: int) -> list[tuple[str, Step]]:
    """Return the right schedule: (label, step)."""
    m, n, k = tile
    by_rows = m % (64 * consumers) == 0
    if by_rows:
        split = [f"i0, part, mt = sch.split(i, [None, {consumers}, {m // consumers}])",
                 f"j0, nt = sch.split(j, [None, {n}])"]  # fmt: skip
    else:
        split = [f"i0, mt = sch.split(i, [None, {m}])",
                 f"j0, part, nt = sch.split(j, [None, {consumers}, {n // consumers}])"]  # fmt: skip
    pipeline = f"hs.pipeline(sch, k0, stages={stages}, roles=hs.Roles({consumers}))"
    texts = [
        ("start", 'block = sch.get_sblock("C")'),
        ("prologue", "hs.fuse_prologue(sch, block)"),
        ("pad", f"hs.pad(sch, block, {tile})"),
        ("loops", "i, j, k = sch.get_loops(block)"),
        ("split_m", split[0]),
        ("split_n", split[1]),
        ("split_k", f"k0, k1 = sch.split(k, [None, {k}])"),
        ("reorder", "sch.reorder(i0, j0, part, k0, mt, nt, k1)"),
        ("bind_y", 'sch.bind(i0, "blockIdx.y")'),
        ("bind_x", 'sch.bind(j0, "blockIdx.x")'),
        ("bind_part", 'sch.bind(part, "threadIdx.y")'),
        ("raster", "hs.raster(sch, j0, group=3)"),
        ("store", 'store = sch.cache_write(block, 0, "local")'),
        ("store_at", "sch.reverse_compute_at(store, part)"),
        ("cache_a", 'copy_a = sch.cache_read(block, 0, "shared.dyn")'),
        ("at_a", "sch.compute_at(copy_a, k0)"),
        ("async_a", "hs.async_copy(sch, copy_a)"),
        ("cache_b", 'copy_b = sch.cache_read(block, 1, "shared.dyn")'),
        ("at_b", "sch.compute_at(copy_b, k0)"),
        ("async_b", "hs.async_copy(sch, copy_b)"),
        ("epilogue", "hs.fuse_epilogue(sch, store)"),
        ("wgmma", "outer = hs.wgmma(sch, block)"),
        ("pipeline", pipeline),
    ]
    asks = {
        "pipeline": {"stages": stages, "consumers": consumers},
        "raster": {"raster_group": 3},
    }
    return [(label, Step(text, asks.get(label, {}))) for label, text in texts]


def _change(draw: Draw, found: list[tuple[str, Step]], stages: int, consumers: int) -> None:
    """Change the schedule in one place."""
    labels = [label for label, _ in found]
    kind = draw.choose(("insert", "replace", "drop", "repeat", "exchange"), (50, 30, 5, 8, 7))
    if kind == "insert":
        label, text, asks = draw.choose(INSERT)
        more = dict(asks)
        why = more.pop("!", "")
        text = text.format(s=stages, c=consumers)
        if "stages" in more:
            more = {"stages": stages + 1, "consumers": consumers}
        if label in labels:
            found.insert(labels.index(label) + 1, ("", Step(text, more, why)))
    elif kind == "replace":
        label, text = draw.choose(REPLACE)
        if label in labels:
            text = text.format(s=stages, c=consumers)
            found[labels.index(label)] = ("", Step(text))
    else:
        at = draw.index(len(found))
        if kind == "drop":
            del found[at]
        elif kind == "repeat":
            found.insert(at, found[at])
        elif at + 1 < len(found):
            found[at], found[at + 1] = found[at + 1], found[at]


def draw_plain(draw: Draw, shape: tuple[int, int, int]) -> Script:
    """Write a plain product with at most two steps behind it."""
    script = Script()
    layout = draw.choose(("NT", "NN", "TN", "TT"))
    m = shape[0] if layout[0] == "N" else shape[0] // 8 * 8
    draw_epilogue(draw, Product(script, m, *shape[1:], layout), 2, plain=True)
    return script


def make(draw: Draw) -> Case:
    """Make one case."""
    tile, consumers = draw.choose(TILES), draw.choose((1, 2), (65, 35))
    stages = draw.choose((1, 2, 3))
    found = statements(tile, consumers, stages)
    if not draw.chance(30):
        found = [(label, step) for label, step in found if label != "raster"]
    for _ in range(draw.choose((1, 2, 0), (70, 22, 8))):
        _change(draw, found, stages, consumers)
    script = draw_plain(draw, draw.choose(SHAPES))
    # what a statement leaves out is refused by the build: the next statement may still bring it
    why = "a schedule is not finished before it is built"
    texts = [step.text for _, step in found]
    is_asked = any("hs.wgmma(" in text for text in texts)
    return Case(
        script.program(),
        tuple(step for _, step in found),
        kernels=int(is_asked),
        judged_at_build=why,
        verify=draw.chance(6),
        cubin=draw.chance(10),
    )
