"""Schedule a function with a given configuration.

    sch = schedule_with(func, hs.MatmulConfig(tile=(128, 256, 64)))
    sch = schedule_with(func, [(16, small), (4096, large)])         symbolic rows: a kernel each

The schedule begins at the function itself, or, where TVM's primitives cannot tile it as it is, at
what `hs.normalize` makes of it. Reductions in 16 bits are made in 32, as the rules for Relax do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import tvm
from tvm import s_tir, tirx

from tvm_hopper import ir, schedule as hs
from tvm_hopper.dlight.attention import AttentionRule
from tvm_hopper.errors import HopperError, ScheduleError, cannot_schedule, cannot_tune
from tvm_hopper.schedule import (
    BY_DEVICE,
    AttentionConfig,
    ColumnReductionConfig,
    MatmulConfig,
    PointwiseConfig,
    RowReductionConfig,
)
from tvm_hopper.schedule.dry_run import outside_of_kernels
from tvm_hopper.schedule.products.parts import without_allocator

from .annotations import annotate
from .configurations import Configuration

KEPT = ("s_tir",)  # attributes that say how a body is to be read
Classes = Sequence[tuple[int, MatmulConfig]]


def canonical(func: tirx.PrimFunc) -> tvm.IRModule:
    """Return the module that MetaSchedule knows a function by: one function called main.

    Attributes that say nothing of what is computed are left out, as TVM's own look-up does.
    """
    plain = tirx.PrimFunc(func.params, func.body, func.ret_type)
    for name in KEPT:
        if func.attrs and name in func.attrs:
            plain = plain.with_attr(name, func.attrs[name])
    plain = plain.with_attr("global_symbol", "main").with_attr("tirx.noalias", True)
    return tvm.IRModule({"main": plain})


def reductions_of(sch: s_tir.Schedule) -> list[str]:
    """List the names of the blocks that reduce, in the order of the program."""
    blocks = sch.get_child_blocks(sch.get_sblock("root"))
    nodes = [sch.get(block) for block in blocks]
    return [
        str(node.name_hint)
        for node in nodes
        if any(int(x.iter_type) == tirx.IterVar.CommReduce for x in node.iter_vars)
    ]


def schedule_with(
    func: tirx.PrimFunc | tvm.IRModule, found: Configuration | Classes
) -> s_tir.Schedule:
    """Schedule a function with a configuration, or one for each size class of its rows.

    Parameters
    ----------
    func : PrimFunc or IRModule
        Plain loops, static or with symbolic rows; a module holds this one function.
    found : configuration, or sequence of (int, MatmulConfig)
        What `lookup` returned: rows up to which each is launched, ascending; the last one also runs
        above its own.

    Returns
    -------
    sch : Schedule
        Each kernel carries its configuration.

    Raises
    ------
    ScheduleError
        The configuration does not fit the function.
    TuningError
        `found` is no configuration.
    """
    mod = func if isinstance(func, tvm.IRModule) else canonical(func)
    if isinstance(found, (list, tuple)):
        return _schedule_classes(mod, list(found))
    sch = s_tir.Schedule(mod if isinstance(found, MatmulConfig) else hs.widen_sums(mod))
    if isinstance(found, RowReductionConfig):
        hs.row_reduction(sch, config=found)
    elif isinstance(found, PointwiseConfig):
        hs.pointwise(sch, config=found)
    elif isinstance(found, ColumnReductionConfig):
        hs.column_reduction(sch, config=found)
    elif isinstance(found, AttentionConfig):
        AttentionRule(found).schedule(sch)
    elif isinstance(found, MatmulConfig):
        _schedule_product(sch, found)
    else:
        need = "a MatmulConfig, AttentionConfig, RowReductionConfig, PointwiseConfig or "
        need += "ColumnReductionConfig, or (rows, config) pairs"
        raise cannot_tune("schedule_with", f"{type(found).__name__}", need)
    _check_all_bound(sch)
    annotate(sch, found)
    return sch


def _schedule_product(sch: s_tir.Schedule, config: MatmulConfig) -> None:
    """Schedule the first block that is a product; say why the last one is none otherwise."""
    error: HopperError = cannot_schedule("function", "no reduction", "a product")
    for name in reductions_of(sch):
        try:
            hs.matmul(sch, name, without_allocator(config))  # runners call so, and Relax models
        except ScheduleError as refused:
            error = refused
            continue
        return
    raise error


def _schedule_classes(mod: tvm.IRModule, pairs: list[tuple[int, MatmulConfig]]) -> s_tir.Schedule:
    """Schedule a kernel for each class; the one above all others balances by the device."""
    if not pairs or not all(isinstance(config, MatmulConfig) for _, config in pairs):
        raise cannot_tune("schedule_with", f"{pairs!r}", "(rows, MatmulConfig) pairs, at least one")
    bound, last = pairs[-1]
    if last.tile is not None and last.parts == 1:
        last = replace(last, persistent=BY_DEVICE)
    last = without_allocator(last)
    classes = {rows: without_allocator(x) for rows, x in [*pairs[:-1], (bound, last)]}
    sch = s_tir.Schedule(mod)
    error: HopperError = cannot_schedule("function", "no reduction", "a product")
    for name in reductions_of(sch):
        try:
            if len(classes) == 1 and last.tile is None:
                hs.matmul(sch, name, last, rows=bound)
            else:
                hs.matmul(sch, name, classes=classes)
        except ScheduleError as refused:
            error = refused
            continue
        _check_all_bound(sch)
        _annotate_classes(sch, list(classes.values()))
        return sch
    raise error


def _annotate_classes(sch: s_tir.Schedule, configs: list[MatmulConfig]) -> None:
    """Annotate the kernels of the branches: their blocks are below the root's own children."""
    kernels = [loop for loop in ir.find_all(sch.mod["main"].body, ir.For) if _is_grid(loop)]
    if len(kernels) != len(configs):
        return  # kernels next to the product: `explain` tells tiles, records are by class
    for config in configs:
        annotate(sch, config)


def _is_grid(loop: Any) -> bool:
    return loop.thread_binding is not None and str(loop.thread_binding.thread_tag) == "blockIdx.x"


def _check_all_bound(sch: s_tir.Schedule) -> None:
    """Refuse a function of which a block is in no kernel: TVM would refuse the build."""
    for func in sch.mod.functions.values():
        for block in outside_of_kernels(func):
            raise cannot_schedule(
                f"block {block.name_hint}",
                "a block outside of every kernel",
                "a function that one configuration schedules as a whole",
                "schedule it by hand, or leave the function to TVM",
            )
