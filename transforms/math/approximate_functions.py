"""Compute float32 functions in fewer instructions, most where the result is rounded to 16 bits.

    D[i, j] = float16(0.5 * x * (1 + tanh(u)))
  ->
    D[i, j] = float16(x * rcp(1 + ex2(-2.885 * u)))

`approximate_functions_plan.py` lists the forms, with the error of each.  What runs after a product
keeps the tensor cores waiting: 1 + tanhf(u) takes 17 instructions, the form above 4. With
`tvm_hopper.functions` = "approximate" tanh(u) is the chip's, one instruction of 11 bits.

In kernels that are bound by memory exponentials and quotients are shortened, too; there they also
wait in registers of float32, or are summed up, before all that the kernel stores has 16 bits. So do
they where rows of 16 bits are read, and one value of each is stored, as a loss: what is in the
exponential was rounded to 2^-9 of itself or 2^-12 before.

Values that stay float32 have sigmoid and silu by the chip's 1/x there, within 2^-21. In kernels of
products 2^x is the chip's: as exact as CUDA's, but subnormal numbers are zero.

Left alone: other functions of such values, vectorized loops (TVM would scalarize them), kernels
that are neither memory-bound nor copy asynchronously, and functions with `tvm_hopper.functions` =
"library" or TVM's `tirx.enable_fast_math`.

Before: plain stores.  After: the same stores, and a note for `explain`.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.codegen_patches.activations import BESIDE
from tvm_hopper.codegen_patches.approximations import EX2, RCP, reciprocal_in_turns
from tvm_hopper.requests import options
from tvm_hopper.requests.bodies import is_memory_bound
from tvm_hopper.requests.keys import ASYNC_COPY, FUNCTIONS
from tvm_hopper.transforms.common.explain_notes import Note, RemarkNote
from tvm_hopper.transforms.kernel_pass import map_noted

from .activations import Activation
from .approximate_functions_plan import (
    FIRST_OF_MEMORY_BOUND,
    HALVES,
    OF_FLOAT32,
    OF_MEMORY_BOUND,
    OF_PRODUCTS,
    SHORT_FUNCTIONS,
    ShortFunction,
    ShortValue,
    shorten,
)


def plan_functions(
    kernel: ir.For, rows: tuple[ShortFunction, ...]
) -> dict[ir.BufferStore, ShortValue]:
    """Return the stores whose values have a shorter form."""
    whole = rows is SHORT_FUNCTIONS["short"]
    rounded = is_memory_bound(kernel) and (_stores_halves(kernel) or _reduces_halves(kernel))
    if is_memory_bound(kernel):
        rows = (*FIRST_OF_MEMORY_BOUND, *rows, *OF_MEMORY_BOUND)
    vectors = ir.find_all(kernel, ir.For, lambda x: x.kind == ir.ForKind.VECTORIZED)
    kept = [store for loop in vectors for store in ir.find_all(loop, ir.BufferStore)]
    found = {}
    for store in ir.find_all(kernel, ir.BufferStore):
        short = shorten(store.value, rows, rounded, whole)
        if short is None:
            wide = OF_FLOAT32 if is_memory_bound(kernel) else OF_PRODUCTS
            short = shorten(store.value, wide, rounded_later=True)
        if short is not None and not any(store.same_as(x) for x in kept):
            found[store] = short
    return found


def _stores_halves(kernel: ir.For) -> bool:
    """Tell whether all that a kernel leaves in memory is rounded to 16 bits."""
    stored = [x.buffer for x in ir.find_all(kernel, ir.BufferStore)]
    return all(ir.dtype_of(x) in HALVES for x in stored if str(x.scope()) == "global")


def _reduces_halves(kernel: ir.For) -> bool:
    """Tell a kernel that reads rows of 16 bits, and leaves nothing that has an element of them."""
    axes = ir.thread_axes(kernel)
    along = [axes[tag].loop_var for tag in ("threadIdx.x", "threadIdx.z") if tag in axes]
    if "threadIdx.x" in axes and ir.is_const(axes["threadIdx.x"].extent, 1):
        rows = [axes[tag].loop_var for tag in ("blockIdx.x", "threadIdx.y") if tag in axes]
        loops = [x.loop_var for x in ir.find_all(kernel, ir.For)]
        along = [x for x in loops if not any(x.same_as(y) for y in rows)]
    stores = ir.find_all(kernel, ir.BufferStore)
    left = [x for x in stores if str(x.buffer.scope()) == "global"]
    if not left or any(ir.depends_on(list(x.indices), along) for x in left):
        return False
    loads = ir.find_all(kernel, ir.TensorLoad, lambda x: str(x.source.scope()) == "global")
    read = [x.source for x in loads if ir.depends_on(list(x.indices), along)]
    return bool(read) and all(ir.dtype_of(x) in HALVES for x in read)


def rewrite_functions(kernel: ir.For, plan: dict[ir.BufferStore, ShortValue]) -> Any:
    """Store the shorter values."""
    by_turns = not is_memory_bound(kernel)

    def store(node: ir.BufferStore, mutator: Any) -> ir.BufferStore:
        short = plan.get(node)
        if short is None:
            return mutator.default_mutate(node)
        value = _in_turns(short.value, node.indices[-1]) if by_turns else short.value
        return ir.BufferStore(node.buffer, value, node.indices)

    return ir.mutate(kernel, [(ir.BufferStore, store)])


def _in_turns(value: Any, column: Any) -> Any:
    """Take reciprocals of sums with a power by multiply-adds in every other column.

    Such sums are one or more. What else has a reciprocal (erf) has more sums than the chip's
    functions leave time for. Columns decide also where a product is multiplied transposed and each
    thread computes both: the bits of an element do not depend on how many rows there are.

    Whose turn it is is before the other names that a value has: what TVM's
    CommonSubexprElim finds after such a name, and again below, it would use before it is there.
    TVM puts integers back in their place, but no truth values.
    """
    odd = ir.Var("odd", "bool")
    found: list[ir.Call] = []

    def is_call(node: Any, *names: str) -> bool:
        return str(getattr(node.op, "name", "")) in [f"tirx.{x}" for x in names]

    def call(node: ir.Call, mutator: Any) -> Any:
        new = mutator.default_mutate(node)
        powers = ir.find_all(list(new.args), ir.Call, lambda x: is_call(x, EX2, "exp"))
        if not is_call(new, RCP) or not powers:
            return new
        found.append(new)
        return reciprocal_in_turns(new.args[0], odd)

    after = ir.mutate(value, [(ir.Call, call)])
    if not found:
        return value
    is_odd = (column % 2).equal(1)
    if isinstance(after, tirx.Cast):
        return tirx.Cast(ir.dtype_of(after), tirx.Let(odd, is_odd, after.value))
    return tirx.Let(odd, is_odd, after)


def _remark(plan: dict[ir.BufferStore, ShortValue]) -> RemarkNote:
    """Say what was replaced, and how far it may be off."""
    rows = {row.form: row for short in plan.values() for row in short.rows}
    error = max(row.error for row in rows.values())
    beside = any(isinstance(row, Activation) for row in rows.values())
    return RemarkNote(
        f"{', '.join(rows)} in fewer instructions, within {error:.1e} relative"
        f"{f' and {BESIDE:.1e} absolute' if beside else ''} error "
        f'before rounding; {FUNCTIONS} = "library" uses CUDA\'s functions'
    )


def approximate_functions(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Shorten the functions that one function's kernels compute."""
    rows = SHORT_FUNCTIONS.get(str(options.read(FUNCTIONS, func)))
    if rows is None or options.fast_math():
        return func

    def build(kernel: ir.For, notes: list[Note]) -> Any:
        is_ours = is_memory_bound(kernel) or ir.find_blocks(kernel, ASYNC_COPY)
        if not is_ours or not (plan := plan_functions(kernel, rows)):
            return kernel
        notes += [_remark(plan)]
        after = rewrite_functions(kernel, plan)
        assert not plan_functions(after, rows), "approximate_functions left a form behind"
        return after

    return map_noted(func, build)
