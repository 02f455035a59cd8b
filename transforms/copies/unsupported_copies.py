"""Raise an error for copies that neither hardware nor threads can make."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd
from typing import Any

from tvm_hopper import ir
from tvm_hopper.analysis.access import AffineAccess
from tvm_hopper.errors import LoweringError, cannot_lower
from tvm_hopper.facts.dtypes import dtype_bytes
from tvm_hopper.requests.keys import CONSUMERS, REDUCE, WGMMA
from tvm_hopper.transforms.common.copy_nests import CopyNest, fills_tile
from tvm_hopper.transforms.mechanisms.table import MECHANISMS

UNITS = sorted({unit for x in MECHANISMS.values() for unit in x.row_units})


def threads_may_copy(kernel: ir.For) -> bool:
    """Tell whether a kernel has threads to make copies: the lowering distributes those of WGMMA."""
    return not ir.find_blocks(kernel, WGMMA)


def no_mechanism(copy: CopyNest, reasons: Sequence[str]) -> LoweringError:
    """Say that nothing can make a copy in a kernel whose threads the lowering distributes.

    - `reasons`: why each mechanism cannot, the last one first to be read.
    """
    tensor = _tensor(copy)
    where = f"copy {copy.realize.block.name_hint}"
    where += "" if tensor is None else f" of {tensor.name}"
    first, *others = (x for x in MECHANISMS.values() if x.row_units)
    need = (
        f"rows at multiples of {first.units} bytes ({first.title})"
        + "".join(f", or of {x.units} ({x.title})" for x in others)
        + ": in a kernel by WGMMA hardware makes all copies of shared tiles"
    )
    inner = None if tensor is None else ir.static_int(tensor.shape[-1])
    apart = None if tensor is None else _row_bytes(tensor)
    if tensor is not None and inner is None:
        return cannot_lower(
            where,
            f"rows of {tensor.shape[-1]} elements, a number that is not known now",
            need,
            "make every dimension but the first static",
        )
    if tensor is None or apart is None or apart % UNITS[0] == 0:
        found = "no mechanism for it" + "".join(f"; not {reason}" for reason in reasons[-1:])
        return cannot_lower(where, found, need, "copy the tensor into one of another shape")
    size = dtype_bytes(ir.dtype_of(tensor))
    fix = "copy it into a tensor whose rows are, in a kernel before this one"
    if inner is not None and not tensor.ty.strides:
        step = UNITS[-1] // gcd(UNITS[-1], size)
        fix = f"pad the last dimension of {tensor.name} from {inner} to {-(-inner // step) * step}"
    return cannot_lower(where, f"rows that are {apart} bytes apart", need, fix)


def check_not_reduced(copy: CopyNest, reasons: Sequence[str]) -> None:
    """Refuse to leave a reduction to threads: their updates of one element would race."""
    if REDUCE not in copy.realize.block.annotations:
        return
    found = "a reduction that no mechanism can make" + "".join(f"; not {x}" for x in reasons)
    raise cannot_lower(
        f"store {copy.realize.block.name_hint}, {REDUCE}",
        found,
        "one that TMA or a bulk copy can make: updates by threads would race",
        f"remove {REDUCE} where no other thread block updates the same elements",
    )


def check_roles_have_loads(
    kernel: ir.For, by_threads: Sequence[tuple[CopyNest, Sequence[str]]], others: Sequence[CopyNest]
) -> None:
    """Refuse roles whose producer has nothing to load, since threads make all of the copies.

    - `by_threads`: the copies that are left to threads, and why.
    - `others`: the copies that hardware makes.
    """
    for loop in ir.find_all(kernel, ir.For, lambda x: CONSUMERS in x.annotations):
        left = [x for x in by_threads if ir.uses_node(loop, x[0].realize) and fills_tile(x[0])]
        if not left or any(ir.uses_node(loop, x.realize) for x in others if fills_tile(x)):
            continue
        names = ", ".join(copy.realize.block.name_hint for copy, _ in left)
        raise cannot_lower(
            f"loop {loop.loop_var.name}, {CONSUMERS}",
            f"nothing for a producer to load: threads make the copies {names}"
            + "".join(f"; not {reason}" for reason in left[0][1]),
            "a copy that hardware can make",
            f"remove {CONSUMERS} (roles=None): then every thread loads and computes",
        )


def _tensor(copy: CopyNest) -> Any:
    """Return the end of a copy in global memory."""
    store = copy.realize.block.body
    if not isinstance(store, ir.BufferStore):
        return None
    ends = [store.buffer, *(x.source for x in ir.find_all(store.value, ir.TensorLoad))]
    return next((x for x in ends if str(x.scope()) in ("", "global")), None)


def _row_bytes(tensor: ir.Var) -> int | None:
    """Return the bytes of whose multiples all rows start, None where that is not known now."""
    strides = AffineAccess(tensor, (), ()).strides[:-1]
    if not strides or not all(isinstance(x, int) for x in strides):
        return None
    return gcd(*strides) * dtype_bytes(ir.dtype_of(tensor))
