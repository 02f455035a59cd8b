"""Emit the instructions of a product: its operands by descriptors, or in registers.

    descriptor_a, descriptor_b = ...                         of the operands' first elements
    for kk in unroll(4): wgmma.mma_async(acc, descriptor_a + .., descriptor_b + ..)

Part of LowerWgmma.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.script import tirx as T

from tvm_hopper import ir
from tvm_hopper.codegen_patches.ptx import wgmma as ptx_wgmma
from tvm_hopper.codegen_patches.ptx.address import generic_to_shared
from tvm_hopper.facts import wgmma
from tvm_hopper.requests.keys import ASYNC_OP

from .fragment_layout import FragmentTile
from .lower_wgmma_plan import MmaPlan, Operand
from .operands.register_operand import words_of
from .operands.register_operand_plan import RegisterOperand
from .operands.tile_operand import TileOperand


@dataclass(frozen=True)
class Source:
    """An operand as its instructions take it."""

    defined: ir.Stmt  # what is in front of them
    at: Callable[[Any, Any], Any]  # the operand of the instruction at a row and a step
    is_transposed: int
    region: Any = None  # what is read in place of the program's buffer


def find_source(
    operand: Operand | RegisterOperand | TileOperand,
    name: str,
    tiles: Sequence[FragmentTile] = (),
) -> Source:
    """Return how instructions take an operand: by descriptors, or in registers."""
    if not isinstance(operand, Operand):
        held = (x.registers for x in tiles if x.buffer.same_as(operand.buffer))
        registers = operand.registers if isinstance(operand, RegisterOperand) else next(held)
        return Source(*words_of(registers, operand.k), 0, ir.full_region(registers))
    descriptor = ir.Var(f"descriptor_{name}", "uint64")
    defined = tirx.Bind(descriptor, _descriptor(operand))
    is_transposed = int(operand.layout.major == "mn")
    return Source(
        defined, lambda row, step: _advance(descriptor, operand, row, step), is_transposed
    )


def _descriptor(operand: Operand) -> Any:
    """Build the matrix descriptor of the operand's first element.

    The address is that of the tile: a swizzled row or k offset is not an element's address, it is
    added to the descriptor (PTX ISA 9.1, 9.7.15.5.1.2.2).
    """
    layout = operand.layout
    fixed = wgmma.Descriptor(
        0, layout.leading_bytes, layout.stride_bytes, swizzle_bytes=layout.swizzle_bytes
    ).encode()
    tile = tirx.address_of(tirx.BufferLoad(operand.buffer, [0] * len(operand.buffer.shape)))
    address = generic_to_shared(tile)
    units = tirx.Cast(
        "uint64", T.shift_right(T.bitwise_and(address, T.uint32(0x3FFFF)), T.uint32(4))
    )
    k_steps = operand.k // wgmma.instruction_k(layout.dtype)
    offset = layout.mn_offset(operand.row) + layout.k_offset(k_steps)
    return T.bitwise_or(units, tirx.const(fixed, "uint64")) + _units(offset)


def _advance(descriptor: ir.Var, operand: Operand, row: Any, step: Any) -> Any:
    offset = operand.layout.mn_offset(row) + operand.layout.k_offset(step)
    return descriptor + _units(offset)


def _units(offset_bytes: Any) -> Any:
    """Turn a byte offset into a descriptor's units of 16 B."""
    return tirx.Cast("uint64", ir.simplify(tirx.convert(offset_bytes) // 16))


def emit_instructions(
    plan: MmaPlan, left: Source, registers: ir.Var, overwrites: bool
) -> ir.SBlockRealize:
    """Return the block that issues a product; nothing waits for it, or tells of it, yet."""
    layout = plan.layout
    width, depth = layout.width, wgmma.instruction_k(plan.dtype)
    right = find_source(plan.right, "b")
    transposed = (left.is_transposed, right.is_transposed)

    def one(subtile: Any, chunk: Any, step: Any) -> Any:
        a = left.at(subtile * wgmma.INSTRUCTION_M, step)
        b = right.at(chunk * width, step)
        values = [
            tirx.BufferLoad(registers, [ir.simplify(layout.register(subtile, chunk, i))])
            for i in range(width // 2)
        ]
        adds = ir.simplify(tirx.NE(step, 0)) if overwrites else T.bool(True)
        return ptx_wgmma.mma(
            width, (plan.dtype, plan.other_dtype), plan.accumulate, values, a, b, adds, transposed
        )

    loops = ir.make_loop("subtile", plan.m // wgmma.INSTRUCTION_M, lambda subtile:
        ir.make_loop("chunk", plan.n // width, lambda chunk:
            ir.make_loop("step", plan.k // depth, lambda step:
                one(subtile, chunk, step), unroll=True), unroll=True), unroll=True)  # fmt: skip
    body = ir.seq(left.defined, right.defined, loops)
    block = plan.product.block
    replaced = [plan.accumulator] if left.region is None else [plan.accumulator, plan.left.buffer]
    reads = [r for r in block.reads if not any(r.source.same_as(x) for x in replaced)]
    reads += [] if left.region is None else [left.region]
    acc = ir.full_region(registers)
    return ir.opaque_block(
        block.name_hint, body, reads=[*reads, acc], writes=[acc], annotations={ASYNC_OP: "wgmma"}
    )
