"""Pipelines of plain loops: a slice is copied, computed with and stored, in any stages and order.

Y = f(A[step * i + first, j], B[i, j]); C = g(Y, D[i, j])        each may be a statement of the loop

sch.compute_at("X", k0); hs.async_copy(sch, sch.get_sblock("X"), "tma", cache_hint="evict_first")
sch.annotate(k0, "software_pipeline_stage", [0, 1, 2, 4])
sch.annotate(k0, "software_pipeline_order", [0, 2, 1, 3])
"""

from typing import Any

from ..case import Case, Step
from ..draw import Draw
from ..script import Script
from .matmul import POLICIES

EVIDENCE = "cp.async"  # a part of all instructions that copy
DTYPES = ("float32", "float16", "int32", "int8")
HOW = ("tma", "bulk", "cp_async", "auto")


def make(draw: Draw) -> Case:
    """Make one case."""
    script = Script(draw.choose(("int32", "int64"), (70, 30)))
    dtype = draw.choose(DTYPES, (50, 25, 15, 10))
    rows, columns = draw.choose((8, 1, 4, 16)), draw.choose((64, 32, 128, 16, 40))
    between = draw.choose((None, "shared.dyn", "local"), (30, 35, 35))
    m, n = _extent(draw, rows), _extent(draw, columns)
    if between == "local":  # registers of the thread that reads them: of whole tiles alone
        m, n = -(-m // rows) * rows, -(-n // columns) * columns
    step, first = draw.choose((1, 2, 3, 8, 4, 7, 9)), draw.choose((0, 1, 5))
    apart = draw.choose((1, 2, 4), (90, 5, 5))  # columns
    more = draw.choose((0, 1, step - 1, 17))  # rows of A behind the last that is read
    tall: Any = (m - 1) * step + first + 1 + more
    if draw.chance(10) and between != "local":
        script.symbols["m"], m = m, "m"
        tall = f"m * {step} + {first + more}"
    stages = ["X"]  # the statements of the loop
    script.tensor("A", [tall, n * apart], dtype)
    script.tensor("X", [m, n], dtype, scope="inside")
    second = draw.chance(40)
    if second:
        script.tensor("B", [m, n], dtype)
        stages.append("B")
    axes, index = ["i", "j"], "vi, vj"
    source = f"A[vi * {step} + {first}, vj * {apart}]"
    script.block("X", axes, [m, n], [f"X[{index}] = {source}"])
    value = f"X[{index}] + B[{index}]" if second else f"X[{index}]"
    if between is not None:
        script.tensor("Y", [m, n], dtype, scope="inside")
        script.block("Y", axes, [m, n], [f"Y[{index}] = {value} + T.{dtype}(1)"])
        value = f"Y[{index}]"
        stages.append("Y")
    stages.append("C")
    script.tensor("C", [m, n], dtype)
    script.block("C", axes, [m, n], [f"C[{index}] = {value} * T.{dtype}(2)"])
    return Case(
        script.program(),
        tuple(_schedule(draw, rows, columns, stages, between)),
        evidence=EVIDENCE,
        policy=draw.choose(POLICIES),
        verify=draw.chance(15),
        cubin=draw.chance(10),
    )


def _extent(draw: Draw, tile: int) -> int:
    """Draw an extent of no, one, or several tiles, whole or not."""
    tiles = draw.choose((2, 1, 3, 5, 7))
    return max(tile * tiles - draw.choose((0, 1, tile // 2, 8)), 1)


def _schedule(
    draw: Draw, rows: int, columns: int, stages: list[str], between: str | None
) -> list[Step]:
    threads, vector = draw.choose((32, 64, 128)), draw.choose((1, 2, 4), (70, 15, 15))
    steps = [
        Step('i, j = sch.get_loops("C")'),
        Step(f"i0, k0, i1 = sch.split(i, [None, {draw.choose((3, 2, 1, 4, 5))}, {rows}])"),
        Step(f"j0, j1 = sch.split(j, [None, {columns}])"),
        Step("sch.reorder(i0, j0, k0, i1, j1)"),
        Step('sch.bind(sch.fuse(i0, j0), "blockIdx.x")'),
    ]
    if between is not None:
        steps += [Step(f'sch.set_scope("Y", 0, "{between}")'), Step('sch.compute_at("Y", k0)')]
        steps += _threads("sch.get_loops('Y')[-2:]", threads, vector, "t0")
    how, hint, swizzle = _mechanism(draw)
    steps += [
        Step('sch.set_scope("X", 0, "shared.dyn")'),
        Step('sch.compute_at("X", k0)'),
        Step(f'hs.async_copy(sch, sch.get_sblock("X"), "{how}"{swizzle}{hint})'),
    ]
    if "B" in stages:
        how, hint, swizzle = _mechanism(draw)
        block = "Y" if between is not None else "C"
        steps += [
            Step(f'copy = sch.cache_read("{block}", 1, "shared.dyn")'),
            Step("sch.compute_at(copy, k0)"),
            Step(f'hs.async_copy(sch, copy, "{how}"{swizzle}{hint})'),
        ]
    steps += _threads("[i1, j1]", threads, vector, "t1")
    return [*steps, *_pipeline(draw, stages, threads)]


def _mechanism(draw: Draw) -> tuple[str, str, str]:
    how = draw.choose(HOW, (40, 20, 25, 15))
    hint = draw.maybe(("evict_first", "evict_last"), 20)  # by cp.async refused
    swizzle = draw.maybe((0, 32, 64, 128), 15) if how in ("tma", "cp_async") else None
    told = f', cache_hint="{hint}"' if hint is not None else ""
    return how, told, f", swizzle={swizzle}" if swizzle is not None else ""


def _threads(loops: str, threads: int, vector: int, name: str) -> list[Step]:
    """Let threads share out the iterations of loops."""
    steps = [
        Step(f"_, {name}, v = sch.split(sch.fuse(*{loops}), [None, {threads}, {vector}])"),
        Step(f'sch.bind({name}, "threadIdx.x")'),
    ]
    return [*steps, Step("sch.vectorize(v)")] if vector > 1 else steps


def _pipeline(draw: Draw, statements: list[str], threads: int) -> list[Step]:
    """Ask for a pipeline in TVM's words: stages that rise with what is computed, or any."""
    count = len(statements)
    if draw.chance(10):
        return []
    loads = [name in "XB" for name in statements]
    stage, found = 0, []
    for is_load in loads:
        stage = draw.choose((0, 1), (75, 25)) if is_load else stage + draw.choose((1, 0, 2, 3))
        found.append(stage)
    if draw.chance(5):  # anything
        found = [draw.choose((0, 1, 2, 3)) for _ in statements]
    order = list(range(count))
    if draw.chance(20):
        a, b = draw.index(count), draw.index(count)
        order[a], order[b] = order[b], order[a]
    told = sorted({at for at, is_load in zip(found, loads, strict=True) if is_load})
    steps = [
        Step(f'sch.annotate(k0, "software_pipeline_stage", {found})'),
        Step(f'sch.annotate(k0, "software_pipeline_order", {order})'),
        Step(f'sch.annotate(k0, "software_pipeline_async_stages", {told})'),
    ]
    if threads % 128 == 0 and draw.chance(40):
        steps.append(Step(f'sch.annotate(k0, "tvm_hopper.consumers", {threads // 128})'))
    return steps
