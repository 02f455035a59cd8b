"""Mark plain copies out of shared memory, in kernels with asynchronous loads.

    B[tx, i] = a[tx, i]          ->          with sblock("B", async_copy): B[tx, i] = a[tx, i]

Nothing in a schedule of TVM's says that such a copy may be asynchronous, but nothing forbids it:
its values are those of the tile, and the lowering waits for it. A condition around nothing but the
copy is one on it, which says how many rows there are of a tile. Whether hardware is the better one
to make it is for SelectCopyMechanisms to say.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.requests import keys

ASKING = {keys.ASYNC_COPY: keys.AUTO, keys.BY_OPTION: 1}


def ask_for_stores(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Let the plain copies to global memory request a mechanism, in kernels with others that do."""

    def ask(kernel: ir.For) -> ir.For:
        if not ir.find_blocks(kernel, keys.ASYNC_COPY):
            return kernel
        return ir.mutate(
            kernel, [(ir.SBlock, _block), (ir.IfThenElse, _guarded), (ir.BufferStore, _bare)]
        )

    return ir.map_kernels(func, ask)


def withdraw_stores(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Let copies to global memory that ask by the option alone ask no more.

    What no schedule has requested must not cost a function its asynchronous copies, where a pass
    cannot serve it.
    """

    def silent(block: ir.SBlock) -> ir.SBlock:
        if keys.BY_OPTION not in block.annotations or not _is_copy_out(block.body):
            return block
        notes = {k: v for k, v in block.annotations.items() if k not in ASKING}
        return ir.with_block(block, annotations=notes)

    return ir.replace(func, ir.SBlock, silent)


def _block(block: ir.SBlock, mutator: Any) -> ir.SBlock:
    if not _is_copy_out(block.body):
        return mutator.default_mutate(block)
    return ir.with_block(block, annotations={**block.annotations, **ASKING})


def _bare(store: ir.BufferStore, _mutator: Any) -> ir.Stmt:
    """Put a copy that has no block of its own into one."""
    if not _is_copy_out(store):
        return store

    return ir.block_of_store(store, [store.value], ASKING)


def _guarded(branch: ir.IfThenElse, mutator: Any) -> ir.Stmt:
    """Let a copy that stands alone under a condition carry it: that is which part to copy."""
    loops, store = ir.loop_nest(branch.then_case)
    alone = branch.else_case is None and _is_copy_out(store)
    reads = [x for kind in (ir.TensorLoad, ir.Call) for x in ir.find_all(branch.condition, kind)]
    if not alone or reads:
        return mutator.default_mutate(branch)
    block = ir.block_of_store(store, [store.value], ASKING).block
    nest: ir.Stmt = ir.SBlockRealize([], branch.condition, block)
    for loop in reversed(loops):
        nest = ir.with_body(loop, nest)
    return nest


def _is_copy_out(store: Any) -> bool:
    if not isinstance(store, ir.BufferStore) or str(store.buffer.scope()) not in ("", "global"):
        return False
    return isinstance(store.value, ir.TensorLoad) and ir.is_shared(store.value.source)
