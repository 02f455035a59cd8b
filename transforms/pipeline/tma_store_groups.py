"""TMA store groups: fire-and-forget stores from the slots of a ring buffer."""

from __future__ import annotations

from typing import Any

from tvm_hopper import ir
from tvm_hopper.requests.keys import CHANNEL, STORE_RING, STORE_SLOT, STORE_SLOTS
from tvm_hopper.transforms.common.channel import is_store, make_call, parse_call


def find_rings(kernel: ir.For) -> list[ir.SBlock]:
    """Return the blocks that use the slots of a ring."""
    return [*ir.find_blocks(kernel, CHANNEL), *ir.find_blocks(kernel, STORE_RING)]


def put_first(first: list[ir.Stmt], body: ir.Stmt) -> ir.Stmt:
    """Put statements before others, inside of the one block that allocates for them."""
    if not first:
        return body
    if isinstance(body, ir.SBlockRealize) and body.block.alloc_buffers:
        inner = ir.with_block(body.block, body=put_first(first, body.block.body))
        return ir.SBlockRealize([], body.predicate, inner)
    return ir.seq(first, body)


def leave_slot(store: ir.SBlockRealize, number: int, trip: ir.Var) -> ir.SBlockRealize:
    """Say from which slot of a ring the stores of a block leave."""
    block = store.block
    body = ir.seq(make_call(STORE_SLOT, number, trip), block.body)
    notes = {**block.annotations, STORE_RING: number}
    return ir.SBlockRealize([], store.predicate, ir.with_block(block, body=body, annotations=notes))


def without_requests(kernel: ir.For) -> ir.For:
    """Take away what stores have requested, once it is planned."""

    def served(realize: ir.SBlockRealize) -> ir.SBlockRealize:
        block = realize.block
        if not is_store(realize) or STORE_SLOTS not in block.annotations:
            return realize
        notes = {k: v for k, v in block.annotations.items() if k != STORE_SLOTS}
        block = ir.with_block(block, annotations=notes)
        return ir.SBlockRealize(realize.iter_values, realize.predicate, block)

    return ir.replace(kernel, ir.SBlockRealize, served)


def without_slots(kernel: ir.For) -> ir.For:
    """Take away what says of stores which slots they leave from, once accesses have indices."""

    def block(node: ir.SBlock, mutator: Any) -> ir.SBlock:
        new = mutator.default_mutate(node)
        if STORE_RING not in new.annotations:
            return new
        rest = [x for x in ir.statements(new.body) if not _names_slot(x)]
        notes = {k: v for k, v in new.annotations.items() if k != STORE_RING}
        return ir.with_block(new, body=ir.seq(rest), annotations=notes)

    return ir.mutate(kernel, [(ir.SBlock, block)])


def _names_slot(stmt: ir.Stmt) -> bool:
    call = parse_call(stmt.value) if isinstance(stmt, ir.Evaluate) else None
    return call is not None and call.name == STORE_SLOT
