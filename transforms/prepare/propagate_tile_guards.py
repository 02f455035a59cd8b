"""Read a tile only under the guard under which it was filled.

    for bx in thread_binding(3, "blockIdx.x"):
        tile = alloc((8, 64), "shared.dyn")
        for i, j in grid(8, 64): where bx < 1: tile[i, j] = A[i, j] * 2
        for i, j in grid(8, 64): C[i, j] = tile[i, j]
  ->
        for i, j in grid(8, 64): where bx < 1: tile[i, j] = A[i, j] * 2
        for i, j in grid(8, 64): where bx < 1: C[i, j] = tile[i, j]

More thread blocks than tiles are such a loop.  TVM's `reverse_compute_at` derives the condition on
an iteration from the elements that it stores, and forgets it where a tensor has one tile alone:
blocks without a tile then store memory that they never wrote, over what another one stores.

A block that is one store under a condition has the condition before that:

    for i, j in grid(64, 32): if i < n: C[i, j] = tile[i, j]
  ->
    for i, j in grid(64, 32): where i < n: C[i, j] = tile[i, j]

A tile that is filled under a condition on iterations is uninitialised otherwise, so its reads may
be guarded, too: no value that the program defines depends on it.

Before: each tile is allocated in the iteration that it lives in.  After: a statement that reads
what is filled under a condition on loops around the tile has that condition, too.
Not here: conditions on threads, tiles that calls fill, reads under a condition of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tvm_ffi
from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.transforms.kernel_pass import function_pass, kernel_step

Added = dict[ir.SBlockRealize, list[Any]]


def plan_guarded(kernel: ir.For) -> list[ir.SBlockRealize]:
    """Find blocks of which all is under a condition."""
    found = ir.find_all(kernel, ir.SBlockRealize)
    return [x for x in found if isinstance(x.block.body, ir.IfThenElse) and _is_guarded(x.block)]


def _is_guarded(block: ir.SBlock) -> bool:
    branch = block.body
    stores = isinstance(branch.then_case, ir.BufferStore) and branch.else_case is None
    return stores and not block.alloc_buffers and block.init is None


def rewrite_guarded(kernel: ir.For, plan: list[ir.SBlockRealize]) -> ir.For:
    """Make the condition the block's own."""

    def visit(realize: ir.SBlockRealize, mutator: Any) -> Any:
        new = mutator.default_mutate(realize)
        if realize not in plan:
            return new
        branch, block = new.block.body, new.block
        at = {x.var: y for x, y in zip(block.iter_vars, new.iter_values, strict=True)}
        terms = [*ir.conjuncts(new.predicate), *ir.conjuncts(ir.substitute(branch.condition, at))]
        return ir.SBlockRealize(
            new.iter_values, ir.conjunction(terms), ir.with_block(block, body=branch.then_case)
        )

    return ir.mutate(kernel, [(ir.SBlockRealize, visit)])


def plan_conditions(kernel: ir.For) -> Added:
    """Map blocks that read tiles to the conditions under which these tiles are filled."""
    realizes = ir.find_all(kernel, ir.SBlockRealize)
    threads = thread_variables(kernel)
    terms: Added = {
        x: [t for t in ir.conjuncts(x.predicate) if is_of_iterations(t, threads)] for x in realizes
    }
    added: Added = {}
    while any(terms.values()):
        more: Added = {}
        for owner in realizes:
            for tile in owner.block.alloc_buffers:
                for reader, new in _of_tile(owner.block, tile, terms).items():
                    more.setdefault(reader, []).extend(new)
        if not more:
            break
        for reader, new in more.items():
            terms[reader] = [*terms[reader], *new]
            added[reader] = [*added.get(reader, []), *new]
    return added


def thread_variables(kernel: ir.For) -> list[ir.Var]:
    """Return the variables that differ from thread to thread."""
    axes = ir.find_all(kernel, ir.For, lambda x: x.kind == ir.ForKind.THREAD_BINDING)
    return [x.loop_var for x in axes if str(x.thread_binding.thread_tag).startswith("threadIdx")]


def is_of_iterations(term: Any, moving: list[ir.Var]) -> bool:
    """Tell a term that is the same wherever some variables are, and that no tensor decides."""
    return not ir.depends_on(term, moving) and not ir.find_all(term, ir.TensorLoad)


def _of_tile(owner: ir.SBlock, tile: ir.Var, terms: Mapping[ir.SBlockRealize, list[Any]]) -> Added:
    inner = [x.loop_var for x in ir.find_all(owner.body, ir.For)]
    parts = [x for x in ir.find_all(owner.body, ir.SBlockRealize) if _is_leaf(x)]
    writers = [x for x in parts if _stores(x, tile)]
    if not writers or len(_stores(owner.body, tile)) != sum(len(_stores(x, tile)) for x in writers):
        return {}  # some are in no block of their own
    common = [
        term
        for term in terms[writers[0]]
        if not ir.depends_on(term, inner) and all(_has(terms[x], term) for x in writers)
    ]
    if not common or ir.find_all(owner.body, ir.Call, lambda x: tile.same_as(ir.pointer_of(x))):
        return {}
    readers = [x for x in parts if _reads_always(x.block.body, tile)]
    lacking = {x: [t for t in common if not _has(terms[x], t)] for x in readers}
    return {reader: new for reader, new in lacking.items() if new}


def _is_leaf(realize: ir.SBlockRealize) -> bool:
    return not ir.find_all(realize.block.body, ir.SBlockRealize)


def _stores(root: Any, tile: ir.Var) -> list[ir.BufferStore]:
    return ir.find_all(root, ir.BufferStore, lambda x: x.buffer.same_as(tile))


def _has(terms: list[Any], term: Any) -> bool:
    return any(tvm_ffi.structural_equal(x, term) for x in terms)


def _reads_always(body: ir.Stmt, tile: ir.Var) -> bool:
    """Tell a single store of a value that needs an element of the tile, whatever the others are."""
    if not isinstance(body, ir.BufferStore) or body.buffer.same_as(tile):
        return False
    choices = [
        *ir.find_all(body, ir.Call, lambda x: x.op.name.endswith("if_then_else")),
        *ir.find_all(body, tirx.Select),
    ]
    loads = ir.find_all(body, ir.TensorLoad, lambda x: x.source.same_as(tile))
    return bool(loads) and not choices


def rewrite_conditions(kernel: ir.For, plan: Added) -> ir.For:
    """Put the conditions on the blocks."""

    def visit(realize: ir.SBlockRealize, mutator: Any) -> Any:
        new = mutator.default_mutate(realize)
        if realize not in plan:
            return new
        condition = ir.conjunction([*ir.conjuncts(realize.predicate), *plan[realize]])
        return ir.SBlockRealize(new.iter_values, condition, new.block)

    return ir.mutate(kernel, [(ir.SBlockRealize, visit)])


PropagateTileGuards = function_pass(
    "PropagateTileGuards",
    kernel_step(plan_guarded, rewrite_guarded),
    kernel_step(plan_conditions, rewrite_conditions),
)
