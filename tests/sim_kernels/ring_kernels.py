"""Kernels of several rings, as TVMScript: loops in a row, loops in loops, loads outside of loops.

Each thread sums its own column of tiles of 8 rows by 128 columns.
"""

import numpy as np
import tvm
from tvm.script import tirx as T

from tests.sim_kernels.kernels import RUNS
from tvm_hopper.simulation import load, simulate, verify
from tvm_hopper.testing import workloads

BLOCKS, THREADS, ROWS = 2, 128, 8
PERSISTENT = "tvm_hopper.persistent"


def ring(stages: int, num_statements: int = 2, roles: bool = False, **notes: int) -> str:
    """Return the annotations of a loop of one load and of what reads it; none for no stages."""
    found: dict[str, object] = {f"tvm_hopper.{key}": value for key, value in notes.items()}
    if stages:
        found["software_pipeline_stage"] = [0] + [stages - 1] * (num_statements - 1)
        found["software_pipeline_order"] = list(range(num_statements))
        found["software_pipeline_async_stages"] = [0]
    if roles:
        found["tvm_hopper.consumers"] = 1
    return f"annotations={found!r}"


def copy(tile: str, source: str, row: str, mechanism: str = "tma") -> str:
    """Return the lines that bring 8 rows of a matrix."""
    return f"""\
for r_{tile}, c_{tile} in T.grid(8, 128):
    with T.sblock("load_{tile}"):
        T.reads({source}[{row} + r_{tile}, c_{tile}])
        T.writes({tile}[r_{tile}, c_{tile}])
        T.sblock_attr({{"tvm_hopper.async_copy": "{mechanism}"}})
        {tile}[r_{tile}, c_{tile}] = {source}[{row} + r_{tile}, c_{tile}]
"""


def add(value: str) -> str:
    """Return the lines that add a value for each row `r` of a tile."""
    return f"for r in range(8):\n    acc[0] = acc[0] + {value}\n"


def new(*tiles: str) -> str:
    """Return the lines that allocate tiles."""
    return "".join(
        f'{tile} = T.sblock_alloc_buffer((8, 128), "float32", scope="shared.dyn")\n'
        for tile in tiles
    )


def block(*parts: str) -> str:
    """Return a block around lines."""
    return 'with T.sblock(""):\n' + indent("".join(("T.reads()\n", "T.writes()\n", *parts)))


def loop(head: str, *parts: str) -> str:
    """Return a loop, or a branch, around lines."""
    return f"{head}:\n" + indent("".join(parts))


def indent(text: str) -> str:
    return "".join("    " + line for line in text.splitlines(keepends=True))


def kernel(*body: str, rows: tuple[int, int], persistent: int = 0) -> tvm.IRModule:
    """Build a kernel out of lines: `i` is the row of output tiles, `acc` each thread's sum."""
    notes = {PERSISTENT: persistent} if persistent else {}
    axes = (
        f'for i in T.thread_binding({BLOCKS}, thread="blockIdx.x")'
        if not persistent
        else f'for i in T.thread_binding({BLOCKS}, thread="blockIdx.y")'
    )
    columns = f'for j in T.thread_binding(1, thread="blockIdx.x", annotations={notes!r})'
    lines = loop(
        'for tx in T.thread_binding(128, thread="threadIdx.x")',
        block(
            'acc = T.sblock_alloc_buffer((1,), "float32", scope="local")\n',
            "acc[0] = T.float32(0)\n",
            *body,
            "C[i, tx] = acc[0]\n",
        ),
    )
    if persistent:
        lines = loop(columns, lines)
    text = "@T.prim_func(s_tir=True)\n" + loop(
        f'def main(A: T.Buffer(({rows[0]}, 128), "float32"), '
        f'B: T.Buffer(({rows[1]}, 128), "float32"), C: T.Buffer(({BLOCKS}, 128), "float32"))',
        block(loop(axes, lines)),
    )
    return tvm.IRModule({"main": tvm.script.from_source(text, extra_vars={"T": T})})


def counted(*body: str, tensors: str = "A") -> tvm.IRModule:
    """Build a kernel of lines whose turns the symbol `n`, or the tensor `L`, counts."""
    given = [f'{x}: T.Buffer((80, 128), "float32")' for x in tensors]
    given += ['L: T.Buffer((2,), "int32")', "n: T.int32", 'C: T.Buffer((2, 128), "float32")']
    inside = block(
        'acc = T.sblock_alloc_buffer((1,), "float32", scope="local")\n',
        "acc[0] = T.float32(0)\n",
        *body,
        "C[i, tx] = acc[0]\n",
    )
    text = "@T.prim_func(s_tir=True)\n" + loop(
        f"def main({', '.join(given)})",
        'T.func_attr({"global_symbol": "main"})\n',
        loop(
            'for i in T.thread_binding(2, thread="blockIdx.x")',
            loop('for tx in T.thread_binding(128, thread="threadIdx.x")', inside),
        ),
    )
    return tvm.IRModule({"main": tvm.script.from_source(text, extra_vars={"T": T})})


def check(mod: tvm.IRModule, want, policy: str = "on_wait") -> None:
    """Run a kernel on small integers: the values of `want(a, b)`, and a clean verdict."""
    program = load(mod)
    rng = np.random.default_rng(1)
    shapes = [shape for shape, _ in workloads.argument_types(mod)]
    a, b = (rng.integers(-3, 4, shape).astype("float32") for shape in shapes[:2])
    result = simulate(program, {"A": a, "B": b}, policy, 0)
    assert not result.findings, "\n".join(map(str, result.findings))
    np.testing.assert_array_equal(result.outputs["C"], want(a, b))
    verify(program, {"A": a, "B": b}, RUNS, max_ctas=2).require_clean()
