"""Take a register tile as the first operand of a product.

    for i, j in grid(64, 128): P[i, j] = float16(S[i, j])              S is an accumulator
    with sblock(annotations={"tvm_hopper.wgmma": 1}):
        for i, x, j in grid(64, 64, 128): acc[i, x] += P[i, j] * V_shared[j, x]
  ->
    for g, h, e in unroll(16, 2, 2): P[4 g + 2 h + e] = float16(S[4 g + 2 h + e])
    for step in unroll(8): wgmma.mma_async(acc, P[step * 8 ...], descriptor_v + ..)

Of 16-bit elements a thread holds the same ones of an operand as of an accumulator, in the same
order (PTX ISA 9.1, 9.7.15.5.1.1 and 9.7.15.5.1.2): nothing is exchanged.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm_hopper import ir
from tvm_hopper.errors import cannot_lower
from tvm_hopper.facts.dtypes import HALF_DTYPES
from tvm_hopper.transforms.common.multiply_add import MultiplyAdd

from .register_operand_plan import are_plain


@dataclass(frozen=True)
class TileOperand:
    """The first operand of a product, of `k` columns: a register tile of 16-bit elements."""

    buffer: ir.Var
    k: int


def find_tile_operand(kernel: ir.For, product: MultiplyAdd) -> TileOperand | None:
    """Return the operand if it is computed from what threads hold; None if it is from memory."""
    load = product.left
    buffer, where = load.source, f"{product.where}, operand {load.source.name}"
    makers = ir.find_all(kernel, ir.BufferStore, lambda x: x.buffer.same_as(buffer))
    from_registers = [
        x
        for store in makers
        for x in ir.find_all(store.value, ir.TensorLoad)
        if str(x.source.scope()) == "local" and not x.source.same_as(buffer)
    ]
    if not from_registers:
        return None
    dtype = ir.dtype_of(buffer)
    if dtype not in HALF_DTYPES:
        raise cannot_lower(
            where,
            f"{dtype} in registers",
            " or ".join(HALF_DTYPES),
            "cast it where it is computed: WGMMA takes other types from other threads",
        )
    m, k = int(product.m.extent), int(product.k.extent)
    shape = [ir.static_int(x) for x in buffer.shape if not ir.is_const(x, 1)]
    if shape != [m, k] or not are_plain(load.indices, [product.m.loop_var, product.k.loop_var]):
        raise cannot_lower(
            where,
            f"{buffer.name}{shape} read at {list(load.indices)}",
            f"a register tile of exactly the block's {m} rows and depth of {k}",
            "let one step multiply the whole tile",
        )
    return TileOperand(buffer, k)
