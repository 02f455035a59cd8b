"""Plan WGMMA: the multiply-add blocks of a kernel and all uses of their accumulators."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from tvm_hopper import ir
from tvm_hopper.analysis.divisors import divides
from tvm_hopper.errors import cannot_lower
from tvm_hopper.facts import registers, wgmma
from tvm_hopper.facts.arch import Arch
from tvm_hopper.facts.dtypes import OPERAND_DTYPES, TF32, dtype_bytes, may_multiply, sum_dtype
from tvm_hopper.requests.keys import ACCUMULATE, OPERANDS, REGISTERS, SWIZZLE, TURNS, WGMMA
from tvm_hopper.transforms.common.multiply_add import MultiplyAdd, match_multiply_add
from tvm_hopper.transforms.common.transfer import find_transfers

from .fragment_layout import AccumulatorLayout, RowLayout
from .fragment_loops_plan import FragmentNest, find_fragment_nests
from .operands.register_operand_plan import RegisterOperand, find_register_operand
from .operands.tile_operand import TileOperand, find_tile_operand
from .register_tiles import HeldTile, plan_register_tiles


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
class MmaPlan:
    """One accumulator of `m` x `n` elements per warp group.

    `nests` are those over it, and over what is `computed` with it.
    """

    product: MultiplyAdd
    left: Operand | RegisterOperand | TileOperand
    right: Operand
    nests: tuple[FragmentNest, ...]
    warp_groups: int
    m: int
    n: int
    k: int
    accumulate: str  # type of the registers; the buffer's own, or the one requested
    arch: Arch
    turns: int = 1  # sets of these warp groups, which share the registers of a thread block
    computed: tuple[HeldTile, ...] = ()  # local buffers that are computed with it

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
        """Type of the left operand, as wide as the right one."""
        return ir.dtype_of(self.left.buffer)

    @property
    def other_dtype(self) -> str:
        """Type of the right operand."""
        return ir.dtype_of(self.right.buffer)

    @property
    def in_registers(self) -> bool:
        """Whether threads compute the left operand."""
        return isinstance(self.left, RegisterOperand)

    @property
    def operand_registers(self) -> int:
        """Registers of a thread that hold the left operand."""
        return self.left.held if isinstance(self.left, RegisterOperand) else 0

    @property
    def register_dtype(self) -> str:
        """Type of a register: TVM's WGMMA has integers in words."""
        return "uint32" if self.accumulate == "int32" else self.accumulate

    @property
    def accumulator(self) -> ir.Var:
        """The buffer that the block adds to."""
        return self.product.store.buffer

    @property
    def layout(self) -> AccumulatorLayout:
        """How a warp group holds the accumulator."""
        return AccumulatorLayout(self.m, self.n, self.instruction_n)

    @property
    def held(self) -> tuple[int, ...]:
        """Registers of a thread for the accumulator and operand, and for each computed tile."""
        rows = RowLayout(self.m).count
        more = (
            rows if x.is_rows else self.layout.count * dtype_bytes(ir.dtype_of(x.buffer)) // 4
            for x in self.computed
        )
        return (self.layout.count + self.operand_registers, *more)

    @property
    def instruction_n(self) -> int:
        """Width of one instruction: the widest that ptxas has registers for."""
        most = wgmma.MAX_N
        consumers = self.warp_groups * self.turns
        if consumers in registers.DEFAULT_SPLIT:
            most = registers.widest_instruction(consumers, self.arch)
        return self.widest(most)

    def widest(self, most: int = wgmma.MAX_N) -> int:
        """Return the widest instruction up to `most` that divides n and starts where a panel does.

        A panel of the right operand divides n, so there is one.
        """
        step = self.right.layout.mn_granularity
        return max(
            width
            for width in wgmma.emitted_n(self.dtype)
            if width <= most and self.n % width == 0 and (width == self.n or width % step == 0)
        )

    @property
    def instruction(self) -> str:
        """The PTX instruction."""
        return wgmma.instruction_name(
            self.instruction_n, self.dtype, self.accumulate, self.other_dtype
        )


def plan_mma(kernel: ir.For, arch: Arch) -> tuple[MmaPlan, ...]:
    """Plan the multiply-add blocks of a kernel; every reason to refuse is raised here."""
    realizes = ir.find_all(
        kernel, ir.SBlockRealize, lambda realize: WGMMA in realize.block.annotations
    )
    plans = [_plan_block(kernel, match_multiply_add(x), arch) for x in realizes]
    _check_sums(plans)
    sums = tuple(HeldTile(x.accumulator, (x.m, x.n), x.accumulator) for x in plans)
    tiles = plan_register_tiles(kernel, sums, [x.product.store for x in plans])
    nests = find_fragment_nests(kernel, tuple(x.product for x in plans), tiles)
    plans = [_with_nests(x, nests, tiles) for x in plans]
    if plans:
        _check_room(kernel, plans)
    return tuple(plans)


def _with_nests(
    plan: MmaPlan, nests: tuple[FragmentNest, ...], tiles: tuple[HeldTile, ...]
) -> MmaPlan:
    """Return a plan with what is computed in its layout, and the nests over all of that."""
    own = [x for x in tiles if x.like.same_as(plan.accumulator)]
    touching = [x for x in nests if any(y.same_as(z.buffer) for y in x.accumulators for z in own)]
    computed = tuple(x for x in own if x.is_computed)
    return replace(plan, nests=tuple(touching), computed=computed)


def _check_sums(plans: list[MmaPlan]) -> None:
    """Refuse products that are summed in one buffer: each has registers of its own."""
    for number, plan in enumerate(plans):
        for other in plans[:number]:
            if plan.accumulator.same_as(other.accumulator):
                names = f"{other.product.block.name_hint}, {plan.product.block.name_hint}"
                raise cannot_lower(
                    f"blocks {names}",
                    f"two products that are summed in {plan.accumulator.name}",
                    "an accumulator for each product of a kernel",
                    "sum one of them in a buffer of its own, and add the two in the store",
                )


def _plan_block(kernel: ir.For, product: MultiplyAdd, arch: Arch) -> MmaPlan:
    warp_groups = _warp_groups(kernel, product)
    m, n, k = (_extent(product, loop) for loop in (product.m, product.n, product.k))
    left = _left(kernel, product)
    right = _operand(kernel, product, product.right, product.n)
    kinds = [ir.dtype_of(x.buffer) for x in (left, right)]
    if not may_multiply(*kinds):
        need = "operands of one type, two of float8, or two of 8-bit integers"
        raise cannot_lower(product.where, f"operands of types {sorted(kinds)}", need)
    accumulate = _accumulate(product, kinds[0])
    _check_accumulator(product, m, n)
    asked = ir.find_all(kernel, ir.For, lambda loop: TURNS in loop.annotations)
    around = [loop for loop in asked if ir.uses_node(loop, product.realize)]
    turns = int(around[0].annotations[TURNS]) if around else 1
    return MmaPlan(product, left, right, (), warp_groups, m, n, k, accumulate, arch, turns)


def _check_room(kernel: ir.For, plans: list[MmaPlan]) -> None:
    """Refuse accumulators that leave a consumer too few registers for anything else."""
    plan = plans[0]
    loops = ir.find_all(kernel, ir.For, lambda loop: REGISTERS in loop.annotations)
    around = [loop for loop in loops if ir.uses_node(loop, plan.product.realize)]
    consumer = int(list(around[0].annotations[REGISTERS])[-1]) if around else None
    held = [y for x in plans for y in x.held]
    groups = plan.warp_groups * plan.turns
    is_chained = any(isinstance(x.left, TileOperand) for x in plans)
    budget = registers.accumulator_budget(held, groups, plan.arch, consumer, is_chained)
    if not budget.fits:
        tiles = [f"an accumulator of {x.m}x{x.n}" for x in plans]
        for tile in (y for x in plans for y in x.computed):
            rows, columns = tile.sides
            tiles.append(f"{tile.buffer.name} of {rows}{'' if tile.is_rows else f'x{columns}'}")
        tiles += [f"{x.left.buffer.name} of {x.m}x{x.k}" for x in plans if x.in_registers]
        sizes = " and ".join(tiles)
        raise cannot_lower(
            plan.product.where,
            f"{sizes}: {budget.held} registers a thread",
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
                "threadIdx.y alone (one step a warp group): the lowering distributes the threads",
            )
    if "threadIdx.y" not in axes:
        return 1
    extent = ir.static_int(axes["threadIdx.y"].extent)
    if extent is None:
        raise cannot_lower(product.where, "a symbolic extent of threadIdx.y", "a static one")
    return extent


def _accumulate(product: MultiplyAdd, operand: str) -> str:
    dtype, need = ir.dtype_of(product.store.buffer), sum_dtype(operand)
    asked = product.block.annotations.get(ACCUMULATE)
    if dtype == need:
        return dtype
    if asked is None or str(asked) != need:
        raise cannot_lower(
            product.where,
            f"an accumulator of type {dtype}",
            need,
            f'pass accumulate="float32" (annotation {ACCUMULATE}) to sum in float32 registers'
            if need == "float32"
            else f"sum products of {operand} in {need}",
        )
    return need


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


def _left(kernel: ir.For, product: MultiplyAdd) -> Operand | RegisterOperand | TileOperand:
    if product.left.source.scope().startswith("local"):
        return find_tile_operand(kernel, product) or find_register_operand(kernel, product)
    return _operand(kernel, product, product.left, product.m)


def _operand(kernel: ir.For, product: MultiplyAdd, load: ir.TensorLoad, outer: ir.For) -> Operand:
    buffer = load.source
    where = f"{product.where}, operand {buffer.name}"
    dtype = ir.dtype_of(buffer)
    if dtype not in OPERAND_DTYPES:
        raise cannot_lower(where, f"type {dtype}", " or ".join(OPERAND_DTYPES))
    if dtype == "float32" and product.block.annotations.get(OPERANDS) != TF32:
        fix = f'pass operands="{TF32}" (annotation {OPERANDS}): 10 bits of each mantissa count'
        raise cannot_lower(where, f"type {dtype}", "a type that WGMMA multiplies as it is", fix)
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
        if not divides(step, offset):
            raise cannot_lower(
                where,
                f"a start at {name} = {offset} with a {swizzle} B swizzle",
                f"a multiple of {step} elements, where an instruction can start",
                "request a narrower swizzle, or choose another tile or number of consumers",
            )
    return Operand(buffer, layout, row, k)


def _offset(index: Any, loop: ir.For) -> Any:
    """Return `index - loop_var` if the loop variable appears in it once and alone, else None."""
    offset = ir.simplify(index - ir.cast_like(loop.loop_var, index))
    return None if ir.depends_on(offset, [loop.loop_var]) else offset
