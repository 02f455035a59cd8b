"""Split-K by atomics: thread blocks add partial sums by the hardware's reductions.

    kernel:
        acc[...] = 0
        for part in serial(12, annotations={"tvm_hopper.across_cluster": 5}): acc[...] += ...
        tile[...] = acc[...]
        with sblock(async_copy="tma"): D[...] = tile[...]
  ->
    for i in thread_binding(...): D[i] = 0                          a kernel in front
    kernel:
        for part in serial(12, annotations={"tvm_hopper.across_blocks": "blockIdx.z"}):
            acc[...] = 0
            acc[...] += ...
            tile[...] = acc[...]
            with sblock(async_copy="tma", reduce="add"): D[...] = D[...] + tile[...]

Nothing is allocated and no block waits for another one: the parts are added in the output. So each
part is rounded to the output's type, and bits differ from run to run.

Before: copies are requests yet.  After: each part's sum is a reduction (LowerSplitK).
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.errors import cannot_lower
from tvm_hopper.requests.keys import ACROSS_BLOCKS, ACROSS_CLUSTER, ASYNC_COPY, BY_ATOMICS, REDUCE
from tvm_hopper.transforms.kernel_pass import kernel_step

from .epilogue_shares import of_first
from .lower_split_k_plan import statements_around
from .zero_kernels import zero_kernel

AXIS = "blockIdx.z"


@dataclass(frozen=True)
class AtomicSplitK:
    """A split-K loop, the statements around it, and the blocks that store the sum.

    - `loop`: over the parts.
    - `block`: what each thread block executes: the initial value, the loop, the stores.
    - `before`, `after`: its statements.
    - `copies`: the blocks that copy tiles to the outputs.
    """

    loop: ir.For
    block: ir.SBlockRealize
    before: tuple[ir.Stmt, ...]
    behind: tuple[ir.Stmt, ...]
    copies: tuple[ir.SBlock, ...]

    @property
    def outputs(self) -> list[ir.Var]:
        """Tensors that the sum is added to."""
        return ir.once([x.writes[0].source for x in self.copies])


def plan_atomic_split_k(kernel: ir.For) -> AtomicSplitK | None:
    """Find a sum whose parts are to be added in any order; reasons to refuse are raised here."""
    loops = ir.find_all(kernel, ir.For, lambda x: ACROSS_CLUSTER in x.annotations)
    loops = [x for x in loops if int(x.annotations[ACROSS_CLUSTER]) == BY_ATOMICS]
    if not loops:
        return None
    loop = loops[0]
    where = f"loop {loop.loop_var.name}, {ACROSS_CLUSTER}"
    before, behind = statements_around(kernel, loop, where)
    copies = [x for stmt in behind for x in ir.find_blocks(stmt, ASYNC_COPY)]
    blocks = [x for x in ir.find_all(kernel, ir.SBlockRealize) if ir.uses_node(x.block.body, loop)]
    if not copies or not blocks:
        raise cannot_lower(
            where,
            "a sum that threads store to memory themselves",
            "tiles in shared memory that are copied out: the hardware adds them to the output",
            'take store="tma"',
        )
    made = ir.find_all(ir.seq(*behind), ir.BufferStore)
    for store in made:
        value = store.value.value if isinstance(store.value, tirx.Cast) else store.value
        if not isinstance(value, ir.TensorLoad):
            raise cannot_lower(
                where,
                f"an epilogue, what is stored to {store.buffer.name}",
                "the sum itself, or rounded: each part is added to the output by itself",
                "put the epilogue into a kernel after it, or take another way to share the sum",
            )
    return AtomicSplitK(loop, blocks[-1], tuple(before), tuple(behind), tuple(copies))


def rewrite_atomic_split_k(kernel: ir.For, plan: AtomicSplitK) -> ir.Stmt:
    """Put the kernel that sets the outputs to zero in front, and add each part."""
    part = plan.loop.loop_var
    start = [ir.replace(x, ir.BufferStore, of_first(part)) for x in plan.before]
    stores = [
        ir.replace_nodes(x, ir.SBlock, {copy: _adding(copy) for copy in plan.copies})
        for x in plan.behind
    ]
    block = plan.block.block
    touched = [ir.full_region(x) for x in plan.outputs]
    inside = ir.with_block(
        block, body=ir.seq(*start, plan.loop.body, *stores), reads=[*block.reads, *touched]
    )
    notes = {k: v for k, v in plan.loop.annotations.items() if k != ACROSS_CLUSTER}
    notes[ACROSS_BLOCKS] = AXIS
    each = ir.SBlockRealize(plan.block.iter_values, plan.block.predicate, inside)
    loop = ir.with_body(plan.loop, each, annotations=notes)
    adding = ir.replace_nodes(kernel, ir.SBlockRealize, {plan.block: loop})
    return ir.seq(*map(zero_kernel, plan.outputs), adding)


def _adding(copy: ir.SBlock) -> ir.SBlock:
    """Return a block that adds a tile to what is there."""

    def add(store: ir.BufferStore) -> ir.BufferStore:
        if isinstance(store.value, tirx.Add):  # this function's own result
            return store
        indices = list(store.indices)
        total = tirx.BufferLoad(store.buffer, indices) + store.value
        return ir.BufferStore(store.buffer, total, indices)

    (region,) = copy.writes
    return ir.with_block(
        copy,
        body=ir.replace(copy.body, ir.BufferStore, add),
        reads=[region, *copy.reads],
        annotations={**copy.annotations, REDUCE: "add"},
    )


split_k_by_atomics = kernel_step(plan_atomic_split_k, rewrite_atomic_split_k)
