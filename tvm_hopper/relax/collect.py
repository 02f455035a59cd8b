"""Collect what became of a function: its kernels, its product, its calls."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from tvm import s_tir, tirx
from tvm.target import Target

from tvm_hopper import ir
from tvm_hopper.analysis.host_code import host_code, touched_elements
from tvm_hopper.analysis.launches import as_text, conditions_around
from tvm_hopper.dlight import Decision
from tvm_hopper.dlight.product import products
from tvm_hopper.errors import HopperError
from tvm_hopper.requests import keys
from tvm_hopper.schedule.products.branches import look_at

from .calls import PAGED_ATTENTION
from .fuse_decoders import ALONE
from .records import (
    GIVEN,
    LIBRARY,
    NOBODY,
    OURS,
    STOCK,
    FunctionRecord,
    KernelRecord,
    ProductRecord,
    TensorRecord,
)
from .tuned import TunedChoice, describe
from .work import count_work, extent_text

STOCK_RULE = "dl.gpu."
KEYS_OF_OURS = "tvm_hopper."
ESTIMATE = re.compile(r": ([0-9.]+) us\b")  # behind a configuration


def of_scheduled(
    name: str,
    plain: tirx.PrimFunc,
    now: tirx.PrimFunc | None,
    decisions: Sequence[Decision],
    tuned: TunedChoice | None = None,
) -> FunctionRecord:
    """Record what rules made of a function.

    - `name`: in the module.
    - `plain`: as the rules were given it.
    - `now`: as the last of them left it; None where all refused.
    - `said` (sequence of Decision): theirs, in order.
    - `tuned`: what a database decided of it.
    """
    taken = next((x for x in decisions if x.taken), None)
    if taken is None or now is None:
        by, rule = _without_rule(plain)
    else:
        by, rule = STOCK if taken.rule.startswith(STOCK_RULE) else OURS, taken.rule
    return FunctionRecord(
        name=name,
        computed_by=by,
        rule=rule,
        note="; ".join(filter(None, [_why_alone(plain), taken.reason if taken else ""])),
        **_work(plain),
        tensors=_tensors(plain),
        kernels=_kernels(now, tuned) if now is not None and by == OURS else (),
        product=_product(plain) if by == OURS else None,
        elements=taken.elements if taken else (),
        refused=tuple((x.rule, x.reason or "") for x in decisions if not x.taken),
    )


def _why_alone(func: tirx.PrimFunc) -> str:
    """Say why a function was not fused into those that read what it makes; empty if it may not."""
    return str((func.attrs or {}).get(ALONE, ""))


def _without_rule(func: tirx.PrimFunc) -> tuple[str, str]:
    """Tell who computes what no rule takes, and how: TVM writes out threads of some operators."""
    if any(x.attr_key == "thread_extent" for x in ir.find_all(func.body, tirx.AttrStmt)):
        return GIVEN, "its own threads"
    blocks = ir.find_all(func.body, ir.SBlock, lambda x: len(x.iter_vars) > 0)
    if blocks and all(any(ir.is_const(x.dom.extent, 0) for x in b.iter_vars) for b in blocks):
        return GIVEN, "no elements"
    if not touched_elements(host_code(func)):
        return GIVEN, "calls of other functions"
    return NOBODY, ""


def is_for_host(func: tirx.PrimFunc, target: Target) -> bool:
    """Tell a function that is meant for the host."""
    return bool(func.attrs and func.attrs.get("tirx.is_host_func", False)) or "cpu" in target.keys


def of_given(name: str, func: tirx.PrimFunc, rule: str = "scheduled already") -> FunctionRecord:
    """Record a function that stays as it came."""
    by = GIVEN if not any(map(_is_ours, ir.kernels(func))) else OURS
    return FunctionRecord(name, by, rule, tensors=_tensors(func), **_work(func))


def of_library(name: str) -> FunctionRecord:
    """Record an external function."""
    if name == PAGED_ATTENTION:
        return FunctionRecord(name, STOCK, "paged cache", kind="attention")
    return FunctionRecord(name, LIBRARY)


def _work(func: tirx.PrimFunc) -> dict[str, Any]:
    return asdict(count_work(func))


def _tensors(func: tirx.PrimFunc) -> tuple[TensorRecord, ...]:
    return tuple(
        TensorRecord(str(x.name), tuple(map(extent_text, x.ty.shape)), ir.dtype_of(x))
        for x in func.params
        if tirx.is_buffer_var(x)
    )


def _is_ours(kernel: Any) -> bool:
    """Tell whether something in a kernel requests our lowering."""
    nodes = [*ir.find_all(kernel, ir.For), *ir.find_all(kernel, ir.SBlock)]
    return any(str(key).startswith(KEYS_OF_OURS) for x in nodes for key in x.annotations)


def _kernels(func: tirx.PrimFunc, tuned: TunedChoice | None) -> tuple[KernelRecord, ...]:
    """Read what the schedule noted on a function's kernels."""
    given = tuned.configs if tuned is not None else {}
    records = []
    for kernel in ir.kernels(func):
        loops = ir.find_all(kernel, ir.For)
        rows, tenths = next(
            (x.annotations[keys.CHOSEN_FOR] for x in loops if keys.CHOSEN_FOR in x.annotations),
            (None, None),
        )
        texts = [str(x.annotations[keys.CHOSEN]) for x in ir.find_blocks(kernel, keys.CHOSEN)]
        texts += [str(x.annotations[keys.CHOSEN]) for x in loops if keys.CHOSEN in x.annotations]
        best = re.split(r"\n|; then ", texts[0])[0] if texts else ""
        text, *time = ESTIMATE.split(best)[:2]
        if tenths is None and time:
            tenths = round(10 * float(time[0]))
        rows = None if rows is None else int(rows)
        if rows in given:
            text = f"{text or describe(given[rows])}, tuned"
        records.append(
            KernelRecord(
                launched_for=as_text(conditions_around(func.body, kernel)),
                rows=rows,
                configuration=text,
                microseconds=None if tenths is None else int(tenths) / 10,
            )
        )
    return tuple(records)


def _product(func: tirx.PrimFunc) -> ProductRecord | None:
    """Describe the product of a function of ours; None where it has none."""
    sch = s_tir.Schedule(func.with_attr("global_symbol", "main"))
    names = products(sch)
    if len(names) != 1:
        return None
    try:
        site = look_at(sch, names[0])
    except HopperError:
        return None
    problem = site.problem
    if problem.has_batch:
        return None  # its time is that of its bytes, mostly
    columns, depth = problem.n.extent, problem.k.extent
    if not isinstance(columns, int) or not isinstance(depth, int):
        return None
    majors = problem.lhs.major, problem.rhs.major
    dtype, out = problem.lhs.dtype, site.out_dtype
    return ProductRecord(extent_text(problem.m.extent), columns, depth, dtype, out, majors)
