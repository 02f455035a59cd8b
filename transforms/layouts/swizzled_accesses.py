"""Redirect plain loads and stores of a swizzled tile to where its elements lie.

Used as soon as hardware touches a tile: TMA and the tensor cores apply the swizzle themselves.
Until then the tile is an array like any other.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tvm import sym

from tvm_hopper import ir
from tvm_hopper.requests.keys import ASYNC_OP, SWIZZLE
from tvm_hopper.transforms.common.multiply_add import product_blocks
from tvm_hopper.transforms.common.shared_layout import SharedLayout, layout_of
from tvm_hopper.transforms.common.transfer import Transfer, find_transfers


def swizzle_accesses(kernel: Any, copies: Iterable[Transfer]) -> Any:
    """XOR every access of the copies' tiles that no hardware makes."""
    analyzer = sym.Analyzer()
    for var, loop in {loop.loop_var: loop for loop in ir.find_all(kernel, ir.For)}.items():
        analyzer.bind(var, ir.range_of(loop))
    for copy in copies:
        layout = layout_of(copy)
        if not layout.swizzle:
            continue

        def index(indices: list[Any], layout: SharedLayout = layout) -> list[Any]:
            # with the loops' ranges, so that a vector inside of 16 bytes stays one
            return [analyzer.simplify(x) for x in layout.swizzled(*indices)]

        hardware = [*product_blocks(kernel), *ir.find_blocks(kernel, ASYNC_OP)]
        kernel = ir.reindex(
            kernel, copy.tile.buffer, copy.tile.buffer, index, lambda region: region, but=hardware
        )
    return kernel


def swizzle_plain_copies(kernel: ir.For) -> ir.For:
    """XOR the accesses of tiles that plain copies fill and hardware reads."""
    operations = ir.find_blocks(kernel, ASYNC_OP)
    copies = [
        copy
        for copy in find_transfers(kernel)
        if SWIZZLE in copy.block.annotations
        and any(ir.uses(x, copy.tile.buffer) for x in operations)
    ]
    return swizzle_accesses(kernel, copies)
