"""Plain loops over tiles that TMA brings: elementwise programs, and sums over rows of tiles.

i, j = sch.get_loops("C"); i0, k0, i1 = sch.split(i, [None, steps, rows]); ...
copy = sch.cache_read("C", 0, "shared.dyn"); sch.compute_at(copy, k0); hs.async_copy(sch, copy)
hs.pipeline(sch, k0, stages=3)
"""

from typing import Any

from ..case import Case, Step
from ..draw import Draw
from ..script import Script
from .matmul import POLICIES

LOAD = "cp.async.bulk.tensor"
DTYPES = ("float32", "float16", "int32", "int8", "bfloat16")


def make(draw: Draw) -> Case:
    """Make one case."""
    script = Script(draw.choose(("int32", "int64"), (70, 30)))
    dtype = draw.choose(DTYPES, (60, 20, 10, 5, 5))
    kind = draw.choose(("map", "line", "sum"), (60, 15, 25))
    steps = {"map": _map, "line": _line, "sum": _sum}[kind](draw, script, dtype)
    return Case(
        script.program(),
        tuple(steps),
        evidence=LOAD,
        policy=draw.choose(POLICIES),
        verify=draw.chance(10),
        cubin=draw.chance(10),
    )


def _extent(draw: Draw, script: Script, tile: int, name: str) -> Any:
    """Draw an extent around a tile's: a multiple, one with a rest, or a symbolic one."""
    # a rest of 8, by which rows stay multiples of 16 bytes, and others
    rests = (2 * tile, tile, 4 * tile, 3 * tile + 8, tile + 8, tile + 1, 3 * tile - 1)
    value = draw.choose(rests, (30, 10, 10, 25, 15, 5, 5))
    if draw.chance(10):
        script.symbols[name] = value
        return name
    return value


def _value(draw: Draw, terms: list[str], dtype: str) -> str:
    """Draw what becomes of the loads: small integers stay small integers."""
    two = f"T.{dtype}(2)"
    text = terms[0]
    for term in terms[1:]:
        text = draw.choose((f"{text} + {term}", f"{text} * {term}", f"T.max({text}, {term})"))
    return draw.choose(
        (text, f"({text}) * {two}", f"T.if_then_else({terms[0]} > T.{dtype}(0), {text}, {two})")
    )


def _pipeline(draw: Draw, loop: str, threads: int) -> list[Step]:
    """Draw the request for a ring, or none."""
    stages = draw.choose((2, 1, 3, 4, 7, None), (30, 15, 20, 15, 5, 15))
    own = f"hs.Roles({threads // 128})" if threads % 128 == 0 else None
    roles = draw.choose((None, own, "hs.Roles(3)"), (60, 37, 3))
    if stages is None:
        return []
    more = f", roles={roles}" if roles else ""
    return [Step(f"hs.pipeline(sch, {loop}, stages={stages}{more})")]


def _copies(draw: Draw, block: str, reads: list[int], loop: str) -> list[Step]:
    """Bring some of the reads through shared memory, the first one for certain."""
    steps = []
    for n, read in enumerate(reads):
        if n and not draw.chance(70):
            continue
        swizzle = draw.maybe((0, 32, 64, 128), 25)
        more = f", swizzle={swizzle}" if swizzle is not None else ""
        steps += [
            Step(f'copy{n} = sch.cache_read("{block}", {read}, "shared.dyn")'),
            Step(f"sch.compute_at(copy{n}, {loop})"),
            Step(f"hs.async_copy(sch, copy{n}{more})"),
        ]
    return steps


def _map(draw: Draw, script: Script, dtype: str) -> list[Step]:
    """Write an elementwise program of two dimensions."""
    rows, columns = draw.choose((8, 1, 4, 16)), draw.choose((64, 128, 32, 16, 40, 256))
    m, n = _extent(draw, script, rows, "m"), _extent(draw, script, columns, "n")
    terms, whole = [], []
    for number, name in enumerate(["A", "B", "D"][: draw.choose((1, 2, 3), (40, 40, 20))]):
        form = "whole" if not number else draw.choose(("whole", "row", "column"), (60, 20, 20))
        shape, index = {"whole": ([m, n], "vi, vj"), "row": ([m], "vi"), "column": ([n], "vj")}[
            form
        ]
        script.tensor(name, shape, dtype)
        terms.append(f"{name}[{index}]")
        whole += [number] * (form == "whole")
    script.tensor("C", [m, n], dtype)
    script.block("C", ["i", "j"], [m, n], [f"C[vi, vj] = {_value(draw, terms, dtype)}"])
    threads, vector = draw.choose((128, 32, 64, 256)), draw.choose((1, 2, 4, 8), (50, 15, 25, 10))
    loops = "sch.reorder(i0, j0, k0, i1, j1)"
    if draw.chance(10):
        loops = "sch.reorder(j0, i0, k0, i1, j1)"
    steps = [
        Step('i, j = sch.get_loops("C")'),
        Step(f"i0, k0, i1 = sch.split(i, [None, {draw.choose((2, 1, 4, 5))}, {rows}])"),
        Step(f"j0, j1 = sch.split(j, [None, {columns}])"),
        Step(loops),
        Step('sch.bind(i0, "blockIdx.y")'),
        Step('sch.bind(j0, "blockIdx.x")'),
        *_copies(draw, "C", whole, "k0"),
        Step(f"_, tx, v = sch.split(sch.fuse(i1, j1), [None, {threads}, {vector}])"),
        Step('sch.bind(tx, "threadIdx.x")'),
    ]
    if vector > 1:
        steps.append(Step("sch.vectorize(v)"))
    return [*steps, *_store(draw), *_pipeline(draw, "k0", threads)]


def _store(draw: Draw) -> list[Step]:
    """Let the output leave through a tile of its own, in some slots, or let threads store it."""
    mechanism = draw.maybe(("tma", "bulk"), 30)
    if mechanism is None:
        return []
    slots = draw.choose((None, 1, 2, 3, 4))
    return [
        Step('out = sch.cache_write("C", 0, "shared.dyn")'),
        Step("sch.reverse_compute_at(out, k0)"),
        Step(f'hs.async_store(sch, out, "{mechanism}", slots={slots})'),
    ]


def _line(draw: Draw, script: Script, dtype: str) -> list[Step]:
    """Write an elementwise program of one dimension."""
    tile = draw.choose((128, 256, 64, 1024, 40))
    n = _extent(draw, script, tile, "n")
    for name in "AC":
        script.tensor(name, [n], dtype)
    script.block("C", ["i"], [n], [f"C[vi] = {_value(draw, ['A[vi]'], dtype)}"])
    threads = draw.choose((128, 32, 256))
    return [
        Step('(i,) = sch.get_loops("C")'),
        Step(f"i0, k0, i1 = sch.split(i, [None, {draw.choose((2, 1, 3))}, {tile}])"),
        Step('sch.bind(i0, "blockIdx.x")'),
        *_copies(draw, "C", [0], "k0"),
        Step(f"_, tx = sch.split(i1, [None, {threads}])"),
        Step('sch.bind(tx, "threadIdx.x")'),
        *_pipeline(draw, "k0", threads),
    ]


def _sum(draw: Draw, script: Script, dtype: str) -> list[Step]:
    """Write sums over rows, a thread a row, over a ring of tiles."""
    rows, depth = draw.choose((32, 64, 128)), draw.choose((16, 32, 64, 8))
    m, k = _extent(draw, script, rows, "m"), _extent(draw, script, depth, "depth_")
    script.tensor("A", [m, k], dtype)
    terms = ["A[vi, vk]"]
    if draw.chance(40):
        script.tensor("w", [k], dtype)
        terms.append("w[vk]")
    script.tensor("S", [m], dtype)
    zero = f"T.{dtype}(0)"
    script.block(
        "S",
        ["i", "k"],
        [m, k],
        ["with T.init():", f"    S[vi] = {zero}", f"S[vi] = S[vi] + {' * '.join(terms)}"],
        kinds="SR",
    )
    steps = [
        Step('i, k = sch.get_loops("S")'),
        Step(f"i0, tx = sch.split(i, [None, {rows}])"),
        Step(f"k0, k1 = sch.split(k, [None, {depth}])"),
        Step('sch.bind(i0, "blockIdx.x")'),
        Step('sch.bind(tx, "threadIdx.x")'),
    ]
    if draw.chance(60):
        steps += [
            Step('total = sch.cache_write("S", 0, "local")'),
            Step("sch.reverse_compute_at(total, tx)"),
        ]
    if draw.chance(80):
        steps.append(Step('sch.decompose_reduction("S", k0)'))
        block = "S_update"
    else:
        block = "S"
    # the sum itself is the first of what its update reads
    return [
        *steps,
        *_copies(draw, block, [1 if block == "S_update" else 0], "k0"),
        *_pipeline(draw, "k0", rows),
    ]
