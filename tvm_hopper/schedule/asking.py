"""Annotate blocks and loops, and refuse conflicting requests."""

from __future__ import annotations

from typing import Any

from tvm import s_tir
from tvm.ir import Expr

from tvm_hopper import ir
from tvm_hopper.errors import cannot_schedule
from tvm_hopper.requests import options


def ask(
    sch: s_tir.Schedule, where: str, thing: Any, key: str, value: Any, default: Any = None
) -> None:
    """Annotate a block or a loop, unless it says the same already; refuse to say another thing.

    TVM's own `annotate` keeps the value that is there, without a word. A `default` is what no
    annotation means, and leaves none.
    """
    old = sch.get(thing).annotations.get(key)
    if old is None:
        if value != default:
            sch.annotate(thing, key, value)
        return
    old = options.plain(old)
    sampled = any(isinstance(x, Expr) for x in (value if isinstance(value, list) else [value]))
    if sampled or old != value:
        raise cannot_schedule(
            where,
            f"a second request, {key} = {value}, next to {key} = {old}",
            "one of them",
            f'take the first one back: sch.unannotate(..., "{key}")',
        )


def check_serial(where: str, loop: ir.For, most: int, what: str, fix: str) -> None:
    """Refuse a loop whose iterations cannot be thread blocks: a serial one of 2 to `most`."""
    extent = ir.static_int(loop.extent)
    if loop.kind != ir.ForKind.SERIAL or extent is None or not 2 <= extent <= most:
        found = f"a loop of kind {ir.ForKind(loop.kind).name.lower()} and {loop.extent} iterations"
        raise cannot_schedule(where, found, f"a serial loop of 2 to {most} iterations{what}", fix)
