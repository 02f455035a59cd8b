"""Decide how a multiply-add block and everything that touches its accumulator become WGMMA code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import sym

from tvm_hopper import ir
from tvm_hopper.analysis.injective import is_injective
from tvm_hopper.errors import cannot_lower
from tvm_hopper.facts import registers, wgmma
from tvm_hopper.facts.arch import Arch
from tvm_hopper.facts.dtypes import OPERAND_DTYPES
from tvm_hopper.requests.keys import ACCUMULATE, REGISTERS, SWIZZLE, WGMMA

from .multiply_add import MultiplyAdd, match_multiply_add
from .transfer import find_transfers


@dataclass(frozen=True)
class Operand:
    """One operand of the instruction: where its rows start in the shared tile, and its layout.

    `row` and `k` are TIR expressions in elements, constant over the block's own loops.
    """

    buffer: ir.Var
    layout: wgmma.OperandLayout
    row: Any
    k: Any


@dataclass(frozen=True)
class FragmentNest:
    """A loop nest over the accumulator's elements (fill or epilogue), to run over registers."""

    nest: ir.Stmt
    realize: ir.SBlockRealize
    row: ir.For
    column: ir.For
    units: tuple[ir.For, ...]


@dataclass(frozen=True)
class MmaPlan:
    """One accumulator of `m` x `n` elements per warp group, what fills it and what reads it."""

    product: MultiplyAdd
    left: Operand
    right: Operand
    nests: tuple[FragmentNest, ...]
    warp_groups: int
    m: int
    n: int
    k: int
    accumulate: str  # type of the registers; the buffer's own, or the one asked for
    arch: Arch

    def __post_init__(self) -> None:
        where = self.product.where
        if self.m % wgmma.INSTRUCTION_M:
            raise cannot_lower(
                where,
                f"{self.m} rows per warp group",
                "a multiple of 64 rows",
                "choose another tile or number of consumers",
            )
        if self.n % 8:
            raise cannot_lower(where, f"{self.n} columns per warp group", "a multiple of 8 columns")
        depth = wgmma.instruction_k(self.dtype)
        if self.k % depth:
            raise cannot_lower(where, f"a depth of {self.k}", f"a multiple of {depth}")

    @property
    def dtype(self) -> str:
        """Type of both operands."""
        return ir.dtype_of(self.left.buffer)

    @property
    def accumulator(self) -> ir.Var:
        """The buffer that the block adds to."""
        return self.product.store.buffer

    @property
    def registers(self) -> int:
        """Accumulator registers of a thread."""
        return registers.accumulator_registers(self.m, self.n, 1)

    @property
    def instruction_n(self) -> int:
        """Width of one instruction: the widest that ptxas has registers for."""
        most = wgmma.MAX_N
        if self.warp_groups in registers.DEFAULT_SPLIT:
            most = registers.widest_instruction(self.warp_groups, self.arch)
        return self.widest(most)

    def widest(self, most: int = wgmma.MAX_N) -> int:
        """Return the widest instruction up to `most` that divides n and starts where a panel does.

        A panel of the right operand divides n, so there is one.
        """
        step = self.right.layout.mn_granularity
        return max(
            width
            for width in wgmma.legal_n(self.dtype)
            if width <= most and self.n % width == 0 and (width == self.n or width % step == 0)
        )

    @property
    def instruction(self) -> str:
        """The PTX instruction."""
        return wgmma.instruction_name(self.instruction_n, self.dtype, self.accumulate)

    def register(self, subtile: Any, chunk: Any, i: Any) -> Any:
        """Return the index of register `i` of an instruction: 64-row `subtile`, column `chunk`."""
        chunks = self.n // self.instruction_n
        return (subtile * chunks + chunk) * (self.instruction_n // 2) + i


def plan_mma(kernel: ir.For, arch: Arch) -> tuple[MmaPlan, ...]:
    """Plan the multiply-add block of a kernel; every reason to refuse is raised here."""
    realizes = ir.find_all(
        kernel, ir.SBlockRealize, lambda realize: WGMMA in realize.block.annotations
    )
    if len(realizes) > 1:
        names = ", ".join(realize.block.name_hint for realize in realizes)
        raise cannot_lower(f"blocks {names}", f"{len(realizes)} {WGMMA} blocks", "one per kernel")
    return tuple(_plan_block(kernel, realize, arch) for realize in realizes)


def _plan_block(kernel: ir.For, realize: ir.SBlockRealize, arch: Arch) -> MmaPlan:
    product = match_multiply_add(realize)
    warp_groups = _warp_groups(kernel, product)
    accumulate = _accumulate(product)
    m, n, k = (_extent(product, loop) for loop in (product.m, product.n, product.k))
    left = _operand(kernel, product, product.left, product.m)
    right = _operand(kernel, product, product.right, product.n)
    kinds = {ir.dtype_of(left.buffer), ir.dtype_of(right.buffer)}
    if len(kinds) != 1:
        raise cannot_lower(
            product.where, f"operands of types {sorted(kinds)}", "operands of one type"
        )
    _check_accumulator(product, m, n)
    nests = _fragment_nests(kernel, product, (m, n))
    for nest in nests:
        _check_store(kernel, nest, product.store.buffer)
    plan = MmaPlan(product, left, right, nests, warp_groups, m, n, k, accumulate, arch)
    _check_room(kernel, plan)
    return plan


def _check_room(kernel: ir.For, plan: MmaPlan) -> None:
    """Refuse an accumulator that leaves a consumer too few registers for anything else."""
    loops = ir.find_all(kernel, ir.For, lambda loop: REGISTERS in loop.annotations)
    around = [loop for loop in loops if ir.uses_node(loop, plan.product.realize)]
    consumer = int(list(around[0].annotations[REGISTERS])[-1]) if around else None
    rows = plan.m * plan.warp_groups
    budget = registers.accumulator_budget(rows, plan.n, plan.warp_groups, plan.arch, consumer)
    if not budget.fits:
        raise cannot_lower(
            plan.product.where,
            f"an accumulator of {plan.m}x{plan.n}: {budget.held} registers a thread",
            f"at most {budget.room} of the consumer's {budget.consumer}, the rest being needed for "
            "addresses",
            "choose a smaller tile, more consumers, or give them more registers",
        )


def _warp_groups(kernel: ir.For, product: MultiplyAdd) -> int:
    axes = ir.thread_axes(kernel)
    for tag in ("threadIdx.x", "threadIdx.z"):
        if tag in axes:
            raise cannot_lower(
                product.where,
                f"loop {axes[tag].loop_var.name} bound to {tag}",
                "threadIdx.y alone (one step a warp group): threads are dealt out by the lowering",
            )
    if "threadIdx.y" not in axes:
        return 1
    extent = ir.static_int(axes["threadIdx.y"].extent)
    if extent is None:
        raise cannot_lower(product.where, "a symbolic extent of threadIdx.y", "a static one")
    return extent


def _accumulate(product: MultiplyAdd) -> str:
    dtype = ir.dtype_of(product.store.buffer)
    asked = product.block.annotations.get(ACCUMULATE)
    if dtype == "float32":
        return dtype
    if asked is None:
        raise cannot_lower(
            product.where,
            f"an accumulator of type {dtype}",
            "float32",
            f'pass accumulate="float32" (annotation {ACCUMULATE}) to sum in float32 registers',
        )
    return str(asked)


def _extent(product: MultiplyAdd, loop: ir.For) -> int:
    extent = ir.static_int(loop.extent)
    if extent is None or not ir.is_const(loop.min, 0):
        raise cannot_lower(
            product.where,
            f"loop {loop.loop_var.name} over [{loop.min}, +{loop.extent})",
            "static loops from 0",
        )
    return extent


def _check_accumulator(product: MultiplyAdd, m: int, n: int) -> None:
    buffer = product.store.buffer
    if not buffer.scope().startswith("local"):
        raise cannot_lower(
            product.where,
            f"an accumulator in scope {buffer.scope()!r}",
            "registers",
            'cache_write(block, 0, "local")',
        )
    shape = [ir.static_int(x) for x in buffer.shape if not ir.is_const(x, 1)]
    indices = [x for x in product.store.indices if not ir.is_const(x, 0)]
    want = [product.m.loop_var, product.n.loop_var]
    plain = len(indices) == 2 and all(
        isinstance(x, ir.Var) and x.same_as(v) for x, v in zip(indices, want, strict=True)
    )
    if shape != [m, n] or not plain:
        raise cannot_lower(
            product.where,
            f"an accumulator {buffer.name}{shape} written at {list(product.store.indices)}",
            f"one of exactly the block's {m}x{n} elements",
            "compute the cache_write at the loop of the warp group and blockize the loops below it",
        )


def _operand(kernel: ir.For, product: MultiplyAdd, load: ir.TensorLoad, outer: ir.For) -> Operand:
    buffer = load.source
    where = f"{product.where}, operand {buffer.name}"
    dtype = ir.dtype_of(buffer)
    if dtype not in OPERAND_DTYPES:
        raise cannot_lower(where, f"type {dtype}", " or ".join(OPERAND_DTYPES))
    copies = [copy for copy in find_transfers(kernel) if copy.tile.buffer.same_as(buffer)]
    if not copies:
        raise cannot_lower(
            where,
            f"a tile in scope {buffer.scope()!r} that no async_copy fills",
            "shared memory filled by an asynchronous copy",
            "cache_read the operand and pass its block to async_copy",
        )
    panels, rows, span = (int(extent) for extent in buffer.shape)
    panel, line, inside = load.indices
    column = ir.simplify(panel * span + inside)
    along_k = ir.depends_on(column, [product.k.loop_var])
    major = "k" if along_k else "mn"
    mn_index, k_index = (line, column) if along_k else (column, line)
    mn_size, k_size = (rows, panels * span) if along_k else (panels * span, rows)
    row, k = _offset(mn_index, outer), _offset(k_index, product.k)
    own = [outer.loop_var, product.k.loop_var]
    if row is None or k is None or any(ir.depends_on(x, own) for x in (row, k)):
        raise cannot_lower(
            where,
            f"index {list(load.indices)}",
            f"{outer.loop_var.name} and {product.k.loop_var.name} each alone in one dimension",
        )
    swizzle = int(copies[0].block.annotations[SWIZZLE])
    try:
        layout = wgmma.operand_layout(major, mn_size, k_size, dtype, swizzle)
    except ValueError as error:
        raise cannot_lower(where, str(error), "a tile that WGMMA can read") from error
    for name, offset, step in (
        (outer.loop_var.name, row, layout.mn_granularity),
        (product.k.loop_var.name, k, wgmma.instruction_k(dtype)),
    ):
        if not _is_multiple(offset, step):
            raise cannot_lower(
                where,
                f"a start at {name} = {offset} with a {swizzle} B swizzle",
                f"a multiple of {step} elements, where an instruction can start",
                "ask for a narrower swizzle, or choose another tile or number of consumers",
            )
    return Operand(buffer, layout, row, k)


def _is_multiple(expr: Any, step: int) -> bool:
    known = sym.Analyzer().modular_set(ir.simplify(expr))
    return int(known.coeff) % step == 0 and int(known.base) % step == 0


def _offset(index: Any, loop: ir.For) -> Any:
    """Return `index - loop_var` if the loop variable appears in it once and alone, else None."""
    offset = ir.simplify(index - ir.cast_like(loop.loop_var, index))
    return None if ir.depends_on(offset, [loop.loop_var]) else offset


def _fragment_nests(
    kernel: ir.For, product: MultiplyAdd, sides: tuple[int, int]
) -> tuple[FragmentNest, ...]:
    accumulator = product.store.buffer
    nests: list[FragmentNest] = []
    seen: set[Any] = set()
    for loop in ir.find_all(kernel, ir.For, lambda x: x.kind != ir.ForKind.THREAD_BINDING):
        loops, body = ir.loop_nest(loop)
        if not isinstance(body, ir.SBlockRealize) or body in seen:
            continue
        if isinstance(body.block.body, ir.BufferStore) and ir.uses(body.block.body, accumulator):
            seen.add(body)
            if body.block.same_as(product.block) or ir.uses(product.block, loops[0].loop_var):
                continue
            nests.append(_fragment_nest(loop, loops, body, product, sides))
    _check_no_other_use(kernel, product, nests)
    _check_statements(kernel, product, nests)
    return tuple(nests)


def _fragment_nest(
    nest: ir.For,
    loops: list[ir.For],
    realize: ir.SBlockRealize,
    product: MultiplyAdd,
    sides: tuple[int, int],
) -> FragmentNest:
    accumulator, store = product.store.buffer, realize.block.body
    accesses = [
        list(load.indices)
        for load in ir.find_all(store.value, ir.TensorLoad, lambda x: x.source.same_as(accumulator))
    ]
    if store.buffer.same_as(accumulator):
        accesses.append(list(store.indices))
    found = {tuple(str(i) for i in access) for access in accesses}
    axes = [loop for loop in loops if not ir.is_const(loop.extent, 1)]
    units = tuple(loop for loop in loops if ir.is_const(loop.extent, 1))
    wanted = [x for x in accesses[0] if not ir.is_const(x, 0)]
    by_var = [loop for x in wanted for loop in axes if loop.loop_var.same_as(x)]
    plain = len(found) == 1 and len(axes) == len(wanted) == len(by_var) == 2
    if not plain or tuple(ir.static_int(loop.extent) for loop in by_var) != sides:
        raise cannot_lower(
            f"block {realize.block.name_hint}",
            f"loops {[f'{x.loop_var.name}<{x.extent}' for x in loops]} over accumulator elements "
            f"{sorted(found)}",
            f"one loop over {sides[0]} rows and one over {sides[1]} columns, element by element",
            "leave the loops of the fill and of the epilogue as they are: registers are dealt out "
            "by the lowering",
        )
    row, column = by_var
    return FragmentNest(nest, realize, row, column, units)


def _check_store(kernel: ir.For, nest: FragmentNest, accumulator: ir.Var) -> None:
    """Refuse stores that meet in one element: threads hold different ones of the accumulator."""
    block, store = nest.realize.block, nest.realize.block.body
    indices = [str(x) for x in store.indices]
    own = [
        load
        for load in ir.find_all(store.value, ir.TensorLoad)
        if load.source.same_as(store.buffer) and [str(x) for x in load.indices] != indices
    ]
    fix = "reduce in a kernel of its own"
    if own:
        raise cannot_lower(
            f"block {block.name_hint}",
            f"a read of other elements of {store.buffer.name} than the one it stores",
            "one element of the output for each of the accumulator's",
            fix,
        )
    axes = [nest.row, nest.column]
    if not store.buffer.same_as(accumulator):  # of that each tile has registers of its own
        around = ir.find_all(kernel, ir.For, lambda loop: ir.uses_node(loop, nest.nest))
        axes += [
            loop
            for loop in around
            if loop.kind == ir.ForKind.THREAD_BINDING
            or ir.depends_on(list(store.indices), [loop.loop_var])
        ]
    extents = {loop.loop_var: loop.extent for loop in axes}
    extents.update({loop.loop_var: loop.extent for loop in nest.units})
    if not is_injective(list(store.indices), extents, nest.realize.predicate):
        raise cannot_lower(
            f"block {block.name_hint}",
            f"a store into {store.buffer.name}{list(store.indices)}, in which several elements of "
            "the product can meet",
            "one element of the output for each of the accumulator's, in all tiles",
            f"index the output by a permutation of the product's rows and columns, or {fix}",
        )


def _check_no_other_use(kernel: ir.For, product: MultiplyAdd, nests: list[FragmentNest]) -> None:
    """Refuse accumulator accesses that stand in no nest: their threads would see no element."""
    accumulator = product.store.buffer
    handled = [nest.realize.block for nest in nests] + [product.block]

    def rest(block: ir.SBlock) -> bool:
        inside = isinstance(block.body, ir.BufferStore) and ir.uses(block.body, accumulator)
        return inside and not any(
            block.same_as(x) or ir.find_all(x, ir.SBlock, block.same_as) for x in handled
        )

    for block in ir.find_all(kernel, ir.SBlock, rest):
        raise cannot_lower(
            f"block {block.name_hint}",
            f"an access of accumulator {accumulator.name} outside of loops over its elements",
            "loops over its rows and columns",
        )


def _check_statements(kernel: ir.For, product: MultiplyAdd, nests: list[FragmentNest]) -> None:
    """Refuse what a warp group's threads would each do in full: they share fragments only."""
    accumulator = product.store.buffer
    owners = [
        block
        for block in ir.find_all(kernel, ir.SBlock)
        if any(buffer.same_as(accumulator) for buffer in block.alloc_buffers)
    ]
    if not owners:
        raise cannot_lower(
            product.where,
            f"accumulator {accumulator.name} allocated outside of the kernel",
            "registers of a warp group",
            "reverse_compute_at the cache_write at the loop of the warp group",
        )
    for nest in nests:
        target = nest.realize.block.body.buffer
        if not target.same_as(accumulator) and target.scope() not in ("", "global"):
            raise cannot_lower(
                f"block {nest.realize.block.name_hint}",
                f"a store of accumulator elements into {target.name} in scope {target.scope()!r}",
                "a store into global memory",
                "inline what follows into the store (fuse_epilogue)",
            )
    for part in ir.statements(owners[0].body):
        known = [product.realize, *(nest.realize for nest in nests)]
        if not any(ir.uses_node(part, realize) for realize in known) and not find_transfers(part):
            names = [b.name_hint for b in ir.find_all(part, ir.SBlock)] or [type(part).__name__]
            raise cannot_lower(
                f"block {names[0]}",
                "a statement beside the k loop that is no fill or store of the accumulator",
                "the accumulator's fill, the k loop and stores of its elements",
                "inline it into the store (fuse_epilogue), or make it a kernel of its own",
            )
