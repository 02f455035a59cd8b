"""Lower a kernel given as text and look at the indices of all of its CTAs."""

import textwrap
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm

from tests.sim.kernels import lower
from tvm_hopper.sim import Finding, run_host
from tvm_hopper.sim.coverage import check_every_cta, check_outputs

HEAD = """
@T.prim_func(s_tir=True)
def main({params}):
    T.func_attr({{"global_symbol": "main"}})
{before}
    bx = T.launch_thread("blockIdx.x", {grid})
    by = T.launch_thread("blockIdx.y", {grid_y})
{cluster}
    tx = T.launch_thread("threadIdx.x", {threads})
    with T.attr(T.int32(0), "hand_threaded", 1):
        smem = T.alloc_buffer((8192,), "uint8", scope="shared.dyn", align=1024)
        sf = T.decl_buffer((2048,), "float32", data=smem.data, scope="shared.dyn")
        bar = T.decl_buffer((1024,), "uint64", data=smem.data, scope="shared.dyn")
{body}
"""
XY = 'X: T.Buffer((1024,), "float32"), Y: T.Buffer((1024,), "float32")'


@dataclass
class Proof:
    """What the pass says of one kernel."""

    findings: list[Finding]
    text: str
    covered: list[str]

    @property
    def rules(self) -> set[str]:
        """Rules of the findings."""
        return {found.rule for found in self.findings}

    @property
    def messages(self) -> str:
        """All messages in one string."""
        return "\n".join(found.message for found in self.findings)


def prove(
    body: str,
    params: str = XY,
    grid: int = 8,
    threads: int = 128,
    *,
    grid_y: int = 1,
    before: str = "",
    cluster: str = "",
    arrays: dict[str, np.ndarray] | None = None,
    outputs: tuple[str, ...] = ("Y",),
    **options: Any,
) -> Proof:
    """Check all CTAs of a kernel on float32 tensors of 1024 elements, or on `arrays`."""

    def indented(text: str, depth: int) -> str:
        return textwrap.indent(textwrap.dedent(text).strip("\n"), " " * depth)

    script = HEAD.format(
        params=params,
        before=indented(before, 4),
        grid=grid,
        grid_y=grid_y,
        cluster=f'    cr = T.launch_thread("clusterCtaIdx.x", {cluster})' if cluster else "",
        threads=threads,
        body=indented(body, 8),
    )
    program = lower(tvm.script.from_source(script.strip()))
    if arrays is None:
        arrays = {name: np.zeros(1024, "float32") for name in "XY"}
    (launch,) = run_host(program.host, arrays)
    func = program.kernels[launch.kernel]
    coverage = check_every_cta(func, launch.bind(func), arrays, **options)
    holes, covered = check_outputs([coverage], outputs, arrays, options.get("all_run", False))
    return Proof([*coverage.findings, *holes], coverage.text, covered)
