"""Postprocessors: reject sampled schedules that exceed the chip's limits before a build."""

from __future__ import annotations

from typing import Any

from tvm import s_tir
from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule as ms

from tvm_hopper import ir
from tvm_hopper.requests import keys
from tvm_hopper.schedule import MatmulConfig
from tvm_hopper.schedule.products.config import ARCH, find_violations

SIZES = 4  # samples of a product: rows, columns, depth of a tile, last stage


@derived_object
class RefuseIllegal(ms.postproc.PyPostproc):
    """Passes what `sampled_sizes` finds legal, and every schedule that it finds no sizes of."""

    def __init__(self) -> None:
        super().__init__()

    def _initialize_with_tune_context(self, context: Any) -> None:
        pass

    def apply(self, sch: Any) -> bool:
        """Tell whether a schedule is worth a build."""
        return not violations(sch)

    def clone(self) -> Any:
        """Return a postproc like this one."""
        return RefuseIllegal()


def violations(sch: s_tir.Schedule) -> list[str]:
    """Return every rule that the sampled sizes of a product break."""
    body = sch.mod["main"].body
    loops = ir.find_all(body, ir.For, lambda x: keys.CONSUMERS in x.annotations)
    sizes = sampled_sizes(sch.trace)
    if len(loops) != 1 or sizes is None:
        return []
    rows, columns, depth, last = sizes
    config = MatmulConfig(consumers=int(loops[0].annotations[keys.CONSUMERS]))
    copies = ir.find_all(body, ir.SBlock, lambda x: keys.ASYNC_COPY in x.annotations)
    dtype = ir.dtype_of(copies[0].writes[0].source) if copies else "float16"
    return find_violations((rows, columns, depth), last + 1, config, dtype, ARCH)


def sampled_sizes(trace: Any) -> tuple[int, int, int, int] | None:
    """Return what a trace of `spaces.space()` decided, None for any other trace."""
    sizes = []
    for instruction in trace.insts:
        if instruction.kind.name == "SampleCategorical":
            values = [int(x) for x in instruction.attrs[0]]
            sizes.append(values[int(trace.decisions[instruction])])
    return (sizes[0], sizes[1], sizes[2], sizes[3]) if len(sizes) == SIZES else None
