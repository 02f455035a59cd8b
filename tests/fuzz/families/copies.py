"""Copies of tensors of one to five dimensions through shared memory, each way by some mechanism.

i0, i1 = sch.get_loops("C"); o0, k0, p0 = sch.split(i0, [None, steps, 8]); ...
copy0 = sch.cache_read("C", 0, "shared.dyn"); sch.compute_at(copy0, k0)
hs.async_copy(sch, copy0, "cp_async"); hs.async_store(sch, sch.get_sblock("C"), "bulk")
hs.pipeline(sch, k0, stages=3)
"""

from typing import Any

from ..case import Case, Step
from ..draw import Draw
from ..script import Script
from .matmul import POLICIES

EVIDENCE = "cp.async"  # a part of all instructions that copy
DTYPES = ("float16", "float32", "int8", "float64", "bfloat16", "int32")
LOADS = ("tma", "bulk", "cp_async", None)
ORDERS = ("persistent=3", "group=2", "persistent=-1", "early_launch=True", "group=3, persistent=2")
INNER = (64, 32, 128, 16, 8, 40)


def make(draw: Draw) -> Case:
    """Make one case."""
    script = Script(draw.choose(("int32", "int64"), (70, 30)))
    dtype = draw.choose(DTYPES, (40, 20, 10, 10, 10, 10))
    rank = draw.choose((2, 1, 3, 4, 5), (45, 20, 20, 10, 5))
    sums = draw.chance(25)  # of several tensors: threads add what the copies bring
    tile, shape = _sizes(draw, script, rank)
    names = ["A", "B", "D"][: draw.choose((2, 3)) if sums else 1]
    for name in (*names, "C"):
        script.tensor(name, shape, dtype)
    axes = [f"i{n}" for n in range(rank)]
    index = ", ".join(f"v{axis}" for axis in axes)
    value = " + ".join(f"{name}[{index}]" for name in names)
    script.block("C", axes, shape, [f"C[{index}] = {value}"])
    return Case(
        script.program(),
        tuple(_schedule(draw, tile, len(names))),
        evidence=EVIDENCE,
        policy=draw.choose(POLICIES),
        verify=draw.chance(15),
        cubin=draw.chance(10),
    )


def _sizes(draw: Draw, script: Script, rank: int) -> tuple[list[int], list[Any]]:
    """Draw a tile, and a tensor's extents around multiples of it, the first one maybe symbolic."""
    tile = [draw.choose((4, 1, 2, 3, 8)) for _ in range(rank - 1)] + [draw.choose(INNER)]
    if rank == 1:
        tile = [draw.choose((256, 64, 128, 512))]
    shape: list[Any] = []
    for axis, size in enumerate(tile):
        most = 4 if axis == 0 else 2
        rests = (0, 8, 16, 1, size - 1, size // 2) if axis == rank - 1 else (0, 1, size - 1)
        extent = size * draw.choose(range(1, most + 1)) - draw.choose(rests)
        shape.append(max(extent, 1))
    if draw.chance(15):
        script.symbols["n"], shape[0] = shape[0], "n"
    return tile, shape


def _schedule(draw: Draw, tile: list[int], reads: int) -> list[Step]:
    rank = len(tile)
    outer, inner = [f"o{n}" for n in range(rank)], [f"p{n}" for n in range(rank)]
    (loops, blocks) = (", ".join(f"i{n}" for n in range(rank)), ", ".join(outer))
    steps = [Step(f'{loops}{"," * (rank == 1)} = sch.get_loops("C")')]
    walked = draw.choose((0, rank - 1), (80, 20))  # along which the steps go
    for n, size in enumerate(tile):
        factors = f"[None, {draw.choose((2, 1, 3, 4, 5))}, {size}]" if n == walked else ""
        into = f"{outer[n]}, k0, {inner[n]}" if factors else f"{outer[n]}, {inner[n]}"
        steps.append(Step(f"{into} = sch.split(i{n}, {factors or [None, size]})"))
    steps.append(Step(f"sch.reorder({blocks}, k0, {', '.join(inner)})"))
    bound = len(steps)
    steps.append(Step(f'sch.bind({f"sch.fuse({blocks})" if rank > 1 else blocks}, "blockIdx.x")'))
    loads = 0
    for read in range(reads):
        how = draw.choose(LOADS, (30, 30, 30, 10 if read or reads == 1 else 0))
        if how is None and reads > 1:
            continue  # from global memory
        steps.append(Step(f'copy{read} = sch.cache_read("C", {read}, "shared.dyn")'))
        steps.append(Step(f"sch.compute_at(copy{read}, k0)"))
        if how is None:
            steps += _threads(draw, f"sch.get_loops(copy{read})[-{rank}:]", rank, "t0")
            continue
        loads += 1
        swizzle = draw.maybe((0, 32, 64, 128), 15) if how == "tma" else None
        more = f", swizzle={swizzle}" if swizzle is not None else ""
        steps.append(Step(f'hs.async_copy(sch, copy{read}, "{how}"{more})'))
    steps += _store(draw, inner, reads, asked=loads > 0)
    if loads and (stages := draw.choose((2, 1, 3, 4, None), (30, 15, 25, 15, 15))) is not None:
        roles = draw.choose((None, "hs.Roles(1)"), (85, 15))
        more = f", roles={roles}" if roles else ""
        steps.append(Step(f"hs.pipeline(sch, k0, stages={stages}{more})"))
    if rank == 2 and draw.chance(30):  # tiles on two axes, in an order that is asked for
        order = f"hs.raster(sch, o1, {draw.choose(ORDERS)})"
        axes = ('sch.bind(o0, "blockIdx.y")', 'sch.bind(o1, "blockIdx.x")', order)
        steps[bound : bound + 1] = map(Step, axes)
    return steps


def _store(draw: Draw, inner: list[str], reads: int, asked: bool) -> list[Step]:
    """Draw who stores: threads, a mechanism right from the tile, or one from a tile of sums."""
    how = (
        draw.choose((None, "tma", "bulk"), (30, 35, 35)) if asked else draw.choose(("tma", "bulk"))
    )
    computes = reads > 1
    steps: list[Step] = []
    if computes or how is None:
        steps += _threads(draw, f"[{', '.join(inner)}]", len(inner), "t1")
    if how is None:
        return steps
    if not computes:
        return [*steps, Step(f'hs.async_store(sch, sch.get_sblock("C"), "{how}")')]
    return [
        *steps,
        Step('out = sch.cache_write("C", 0, "shared.dyn")'),
        Step("sch.reverse_compute_at(out, k0)"),
        Step(f'hs.async_store(sch, out, "{how}")'),
    ]


def _threads(draw: Draw, loops: str, rank: int, name: str) -> list[Step]:
    """Let threads share out the iterations of loops."""
    fused = f"sch.fuse(*{loops})" if rank > 1 else f"{loops}[0]"
    threads = draw.choose((128, 32, 64))
    vector = draw.choose((1, 2, 4, 8), (55, 15, 15, 15))
    steps = [
        Step(f"_, {name}, v = sch.split({fused}, [None, {threads}, {vector}])"),
        Step(f'sch.bind({name}, "threadIdx.x")'),
    ]
    return [*steps, Step("sch.vectorize(v)")] if vector > 1 else steps
