"""Accumulate in float32 a product whose program sums in 16 bits.

    C[i, j] = C[i, j] + A[i, k] * B[j, k]                              float16
  ->
    C_wide[i, j] = C_wide[i, j] + float32(A[i, k]) * float32(B[j, k])  float32
    C[i, j] = float16(C_wide[i, j])                                    rounded once

Tensor cores sum in float32 whatever the program says (`accumulate="float32"`); threads compute what
is there.  No primitive changes the type of a sum, so that the schedule begins again.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import s_tir, tirx

from tvm_hopper import ir

from .recognize import loops_around, product_loads

WIDE = "float32"


def widen_product(sch: s_tir.Schedule, block: Any) -> Any:
    """Let a product be summed in float32, and rounded in a block after it; return its block.

    - `sch`: stands for another one afterwards, without a trace of what was before.
    - `block` (SBlockRV): the multiply-add, in plain loops.
    """
    name = str(sch.get(block).name_hint)
    rounded = sch.cache_write(block, 0, "global")
    node = sch.get(block)
    old = node.writes[0].source
    wide = ir.new_buffer(f"{old.name}_wide", tuple(old.shape), WIDE, "global")
    summed = _summed(name, node, wide)
    copied = _rounded(sch.get(rounded), old, wide)
    nests = {
        loops_around(sch, x)[0]: {sch.get(x): new}
        for x, new in ((block, summed), (rounded, copied))
    }
    target = sch.func_working_on
    func = sch.mod[target]
    body = ir.replace_nodes(
        func.body,
        ir.For,
        {nest: ir.replace_nodes(nest, ir.SBlock, new) for nest, new in nests.items()},
    )
    module = tvm.IRModule(sch.mod.functions, attrs=sch.mod.attrs, global_infos=sch.mod.global_infos)
    module.update_func(
        sch.mod.get_global_var(target.name_hint), func.with_body(ir.reallocate(body, old, wide))
    )
    fresh = s_tir.Schedule(module)
    fresh.work_on(target.name_hint)
    ir.replace_schedule(sch, fresh)
    return sch.get_sblock(name)


def _summed(name: str, node: Any, wide: Any) -> Any:
    """Return the product's block, summing into another tensor."""
    store = node.body
    x, y = (tirx.Cast(WIDE, load) for load in product_loads(f"block {name}", node))
    value = tirx.BufferLoad(wide, list(store.indices)) + x * y
    start = ir.BufferStore(wide, tirx.const(0, WIDE), list(node.init.indices))
    region = tirx.BufferRegion(wide, list(node.writes[0].region))
    return ir.with_block(
        node, body=ir.BufferStore(wide, value, list(store.indices)), init=start, writes=[region]
    )


def _rounded(node: Any, old: Any, wide: Any) -> Any:
    """Return the block that reads the sum, rounding it as its tensor needs."""
    store = node.body
    load = tirx.BufferLoad(wide, list(store.value.indices))
    value = tirx.Cast(ir.dtype_of(old), load)
    region = tirx.BufferRegion(wide, list(node.reads[0].region))
    return ir.with_block(
        node, body=ir.BufferStore(store.buffer, value, list(store.indices)), reads=[region]
    )
