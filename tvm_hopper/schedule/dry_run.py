"""Lower a scheduled kernel on trial, so that the schedule call raises what a build would.

    def main(A, B, D):                           def main(A, B, D, C):
        C = alloc_buffer(...)              ->        for ... in thread_binding(...):
        for ...: C[...] = ...                            the product, which reads C
        for ... in thread_binding(...):
            the product, which reads C

Only the statement that holds the product is lowered: blocks next to it may still be plain loops, or
be scheduled later.  Tensors in global memory between them become arguments of it.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.ir.transform import PassContext
from tvm.tirx import IterVar

from tvm_hopper import ir, pipeline
from tvm_hopper.analysis.contraction import may_be_product
from tvm_hopper.errors import LoweringError, ScheduleError, cannot_schedule

from . import reasons
from .trial import raised

TARGET = "nvidia/nvidia-h200"  # every request is lowered for sm_90a
LAST = "tvm_hopper.MergeSharedBuffers"  # the last pass that can refuse a kernel


_left: ContextVar[bool] = ContextVar("tvm_hopper.schedule.dry_run.left", default=False)


def left_to_the_build() -> AbstractContextManager[None]:
    """Skip the trial lowering, for callers that build each candidate elsewhere."""
    return raised(_left)


def check_lowering(sch: s_tir.Schedule, block: Any) -> None:
    """Refuse a kernel that our passes would refuse, with their own words.

    Options of the PassContext are those of a build and left out; attributes of the function count.

    - `sch`: only read.
    - `block` (SBlockRV): a block of the kernel.
    - raises ScheduleError: what the build would raise as a LoweringError.
    """
    if _left.get():
        return
    func = extract_kernel(sch, block)
    if func is None:
        return
    where = f"block {sch.get(block).name_hint}"
    try:
        with PassContext():
            pipeline.lower(tvm.IRModule({"main": func}), TARGET, until=LAST)
    except LoweringError as error:
        raise ScheduleError(str(error)) from error
    except reasons.TVM_ERRORS as error:
        found = f"what TVM cannot lower{reasons.in_words(error)}"
        raise cannot_schedule(where, found, "a kernel that TVM's own passes take") from error


def extract_kernel(sch: s_tir.Schedule, block: Any) -> tirx.PrimFunc | None:
    """Return a function of the kernel around a block alone; None inside of another block.

    A block without axes between the function's and the kernel, as each size class has one, is a
    part of the host's code.
    """
    around = _blocks_around(sch, block)
    if any(node.iter_vars for node in around):
        return None
    root, scope = around[-1], around[0]
    func = next(f for f in sch.mod.functions.values() if _is_root(f, root))
    node = sch.get(block)
    part = next(s for s in ir.statements(scope.body) if ir.uses_node(s, node))
    own = [b for each in around for b in each.alloc_buffers if ir.uses(part, b)]
    between = [b for b in own if b.scope() in ("", "global")]
    kept = [b for b in own if b not in between]
    attrs = {k: v for k, v in func.attrs.items() if str(k) != "target"}
    body = ir.opaque_block(root.name_hint, part, alloc_buffers=kept, annotations=root.annotations)
    alone = tirx.PrimFunc([*func.params, *between], body, func.ret_type)
    return alone.with_attrs(attrs)


def cut_kernel(sch: s_tir.Schedule, block: Any) -> str:
    """Name a block that stores under a condition in a kernel next to a block, or nothing."""
    scope, *_ = _blocks_around(sch, block)
    for part in ir.statements(scope.body):
        if isinstance(part, ir.For) and part.kind == ir.ForKind.THREAD_BINDING:
            for one in ir.find_all(part, ir.SBlockRealize):
                if not ir.is_const(one.predicate, 1):
                    return str(one.block.name_hint)
    return ""


def block_names(sch: s_tir.Schedule) -> frozenset[str]:
    """Return the names of all blocks of a schedule."""
    functions = [f for f in sch.mod.functions.values() if isinstance(f, tirx.PrimFunc)]
    return frozenset(str(b.name_hint) for f in functions for b in ir.find_all(f.body, ir.SBlock))


def check_nothing_left(sch: s_tir.Schedule, block: Any, before: frozenset[str]) -> None:
    """Refuse blocks that scheduling made outside of the kernel of a block, and other reductions.

    Products and elementwise blocks next to it may be scheduled later.
    """
    node = sch.get(block)
    parts = [part for scope in _blocks_around(sch, block) for part in ir.statements(scope.body)]
    for part in parts:
        if ir.uses_node(part, node):
            continue
        for left in ir.find_all(part, ir.SBlock, lambda x: str(x.name_hint) not in before):
            raise cannot_schedule(
                f"block {left.name_hint}",
                f"{reasons.formula_of(left)}, left next to the kernel of {node.name_hint}",
                "pads and copies that can be a part of the kernel",
                "choose a tile that divides the matmul",
            )
    func = next(
        f for f in sch.mod.functions.values() if _is_root(f, _blocks_around(sch, block)[-1])
    )
    for left in outside_of_kernels(func):
        is_reduction = any(x.iter_type == IterVar.CommReduce for x in left.iter_vars)
        if is_reduction and not may_be_product(left):
            raise cannot_schedule(
                f"block {left.name_hint}",
                f"a reduction that is no part of the kernel of {node.name_hint}",
                "one product, and elementwise blocks around it; other reductions in kernels",
                "bind its loops to threads first, or keep it in a separate function",
            )


def outside_of_kernels(func: tirx.PrimFunc) -> list[ir.SBlock]:
    """Return the innermost blocks that no kernel computes."""
    inside = [block for kernel in ir.kernels(func) for block in ir.find_all(kernel, ir.SBlock)]
    return [
        block
        for block in ir.find_all(func.body, ir.SBlock)
        if block not in inside and not ir.find_all(block.body, ir.SBlock)
    ]


def _blocks_around(sch: s_tir.Schedule, block: Any) -> list[Any]:
    place, found = sch.get_sref(block).parent, []
    while place is not None:
        if isinstance(place.stmt, ir.SBlock):
            found.append(place.stmt)
        place = place.parent
    return found


def _is_root(func: Any, root: Any) -> bool:
    return isinstance(func, tirx.PrimFunc) and (
        isinstance(func.body, ir.SBlockRealize) and func.body.block.same_as(root)
    )
