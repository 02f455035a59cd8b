"""Plan the first operand of a product that stays in registers: what computes it at each step.

    for k in ...:
        for i, kk in grid(64, 64): F[i, kk] = float16(W_shared[w * 64 + i, kk]) * S[m + i]
        with sblock(annotations={"tvm_hopper.wgmma": 1}):
            for i, j, kk in grid(64, 256, 64): acc[i, j] += F[i, kk] * X_shared[j, kk]

The buffer is the block's own rows and depth, one nest computes it, and one product reads it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import tvm_ffi
from tvm import ir as tvm_ir, sym

from tvm_hopper import ir
from tvm_hopper.analysis.effects import writes
from tvm_hopper.errors import cannot_lower
from tvm_hopper.facts import wgmma
from tvm_hopper.facts.dtypes import HALF_DTYPES, dtype_bytes
from tvm_hopper.facts.programming_model import WARP_GROUP_THREADS, WORD_BYTES
from tvm_hopper.transforms.common.multiply_add import MultiplyAdd


@dataclass(frozen=True)
class RowLoad:
    """A load of one element for neighbours of a row, and the registers that have it instead.

    - `load`: as the program has it.
    - `registers`: `groups` of them for each row of a thread.
    - `run`: how many neighbours along the depth read the same element.
    - `in_step`: whether steps change it; else it is loaded before the loop.
    - `guard`: the condition that keeps it in bounds; it is zero beyond. None: it is always in
      bounds.
    """

    load: ir.TensorLoad
    registers: ir.Var
    run: int
    groups: int
    in_step: bool
    guard: Any = None

    def place(self, row: Any, step: Any) -> Any:
        """Return its register at a thread's row and a step of the instruction."""
        depth = wgmma.instruction_k(HALF_DTYPES[0])
        return row * self.groups + (step * depth // self.run if self.groups > 1 else 0)


@dataclass(frozen=True)
class RegisterOperand:
    """The first operand of a product, which one nest computes into a local buffer.

    - `buffer`: as the program indexes it, by `m` rows and `k` of a step.
    - `nest`, `realize`: the statement that computes it.
    - `row`, `depth`, `units`: its loops; the last ones have one iteration.
    - `before`: the loop over steps, before which loads are made that no step changes; None: one
      step.
    - `rows`: loads of what neighbours of a row have in common.
    - `registers`: a thread's part of it, of the same type: two elements of 16 bits are one 32-bit
      register.
    """

    buffer: ir.Var
    nest: ir.For
    realize: ir.SBlockRealize
    row: ir.For
    depth: ir.For
    units: tuple[ir.For, ...]
    before: ir.For | None
    registers: ir.Var
    rows: tuple[RowLoad, ...] = ()

    @property
    def k(self) -> int:
        """Columns of a step."""
        return int(self.depth.extent)

    @property
    def words(self) -> int:
        """32-bit registers of a thread that the operand takes."""
        return words_in(self.registers)

    @property
    def held(self) -> int:
        """The same with what was loaded for rows: a register for each element."""
        return self.words + sum(int(x.registers.shape[0]) for x in self.rows)


def words_in(registers: ir.Var) -> int:
    """Return how many 32-bit registers a thread's part of a tile takes."""
    (count,) = (int(x) for x in registers.shape)
    return count * dtype_bytes(ir.dtype_of(registers)) // WORD_BYTES


def find_register_operand(kernel: ir.For, product: MultiplyAdd) -> RegisterOperand:
    """Plan the operand that a product reads from a local buffer; reasons to refuse are raised."""
    load = product.left
    buffer, where = load.source, f"{product.where}, operand {load.source.name}"
    dtype = ir.dtype_of(buffer)
    if dtype not in HALF_DTYPES:
        raise cannot_lower(where, f"{dtype} in registers", " or ".join(HALF_DTYPES))
    m, k = int(product.m.extent), int(product.k.extent)
    shape = [ir.static_int(x) for x in buffer.shape if not ir.is_const(x, 1)]
    wanted = [product.m.loop_var, product.k.loop_var]
    if shape != [m, k] or not are_plain(load.indices, wanted):
        raise cannot_lower(
            where,
            f"{buffer.name}{shape} read at {list(load.indices)}",
            f"a buffer of exactly the block's {m} rows and depth of {k}",
            "compute_at the operand at the pipelined loop",
        )
    nest, realize = _computed(kernel, product, buffer, where)
    loops, _ = ir.loop_nest(nest)
    axes = [x for x in loops if not ir.is_const(x.extent, 1)]
    units = tuple(x for x in loops if ir.is_const(x.extent, 1))
    store = realize.block.body
    axes = _in_order(axes, store.indices)  # a packed tensor may be walked the other way
    own = [x.loop_var for x in axes]
    whole = [ir.static_int(x.extent) for x in axes if ir.is_const(x.min, 0)] == shape
    always = ir.is_const(realize.predicate, 1)
    if not (whole and always and are_plain(store.indices, own)):
        raise cannot_lower(
            f"block {realize.block.name_hint}",
            f"a store into {buffer.name}{list(store.indices)} in loops over {own}",
            f"all of its {m}x{k} elements, one after the other",
            "choose a tile that divides the operand: compute_at then leaves two plain loops",
        )
    around = ir.find_all(
        kernel,
        ir.For,
        lambda x: x.kind != ir.ForKind.THREAD_BINDING and ir.uses_node(x.body, nest),
    )
    before = around[-1] if around else None
    registers = ir.new_buffer(buffer.name, (m * k // WARP_GROUP_THREADS,), dtype, "local")
    found = RegisterOperand(buffer, nest, realize, axes[0], axes[1], units, before, registers)
    return replace(found, rows=_find_row_loads(kernel, found))


def _find_row_loads(kernel: ir.For, operand: RegisterOperand) -> tuple[RowLoad, ...]:
    """Return the loads of which neighbours of a row read one element, each once."""
    value = operand.realize.block.body.value
    inside = ir.find_all(operand.before, ir.For) if operand.before is not None else []
    moving = [x.loop_var for x in inside if not x.loop_var.same_as(operand.row.loop_var)]
    rows = int(operand.row.extent) // wgmma.INSTRUCTION_M * wgmma.ROWS_OF_THREAD
    found: list[RowLoad] = []
    for load in ir.find_all(value, ir.TensorLoad):
        known = any(tvm_ffi.structural_equal(load, x.load) for x in found)
        nested = ir.find_all(list(load.indices), ir.TensorLoad)
        run = 0 if known or nested else _run(load, operand.depth)
        guards = _guards(value, load)
        if not run or guards is None or not _runs(guards, operand.depth, run):
            continue
        is_tile = ir.is_shared(load.source)
        if not is_tile and (str(load.source.scope()) != "global" or writes(kernel, load.source)):
            continue
        in_step = is_tile or operand.before is None or ir.depends_on([load, *guards], moving)
        groups = int(operand.depth.extent) // run
        name, dtype = f"{load.source.name}_rows", ir.dtype_of(load)
        registers = ir.new_buffer(name, (rows * groups,), dtype, "local")
        found.append(RowLoad(load, registers, run, groups, in_step, *guards))
    return tuple(found)


def _guards(value: Any, load: ir.TensorLoad) -> list[Any] | None:
    """Return a pad's condition on a load, [] without a choice, None for other choices."""
    if not ir.is_by_choice(value, load):
        return []
    around = [x for x in ir.find_all(value, ir.Call, ir.is_choice) if ir.uses_node(x, load)]
    if len(around) != 1:
        return None
    (choice,) = around
    condition, inside, beyond = choice.args
    same = [x for x in ir.find_all(value, ir.TensorLoad) if tvm_ffi.structural_equal(x, load)]
    is_pad = ir.is_zero(beyond) and not ir.uses_node(condition, load)
    is_pad = is_pad and all(ir.uses_node(choice, x) for x in same)
    return [condition] if is_pad and not ir.is_by_choice(inside, load) else None


def _run(load: ir.TensorLoad, depth: ir.For) -> int:
    """Return how many neighbours read one element, whole instructions of them; 0: fewer."""
    run, least = int(depth.extent), wgmma.instruction_k(HALF_DTYPES[0])
    while run % least == 0:
        if _runs(list(load.indices), depth, run):
            return run
        run = run // 2 if run % 2 == 0 else 1
    return 0


def _runs(values: list[Any], depth: ir.For, run: int) -> bool:
    """Tell whether values are the same for neighbours along the depth, in runs of some length."""
    group, inside = (ir.Var(x, ir.dtype_of(depth.loop_var)) for x in ("group", "inside"))
    analyzer = sym.Analyzer()
    analyzer.bind(group, tvm_ir.Range(0, int(depth.extent) // run))
    analyzer.bind(inside, tvm_ir.Range(0, run))
    moved = ir.substitute(values, {depth.loop_var: group * run + inside})
    return not ir.depends_on([ir.simplify(x, analyzer) for x in moved], [inside])


def _in_order(loops: list[ir.For], indices: Any) -> list[ir.For]:
    """Return loops in the order of the indices that they move, as they are if they are not that."""
    own = [x for i in indices for x in loops if isinstance(i, ir.Var) and i.same_as(x.loop_var)]
    return own if len(own) == len(loops) else loops


def are_plain(indices: Any, wanted: list[ir.Var]) -> bool:
    """Tell whether indices are two variables, next to zeros."""
    moving = [x for x in indices if not ir.is_const(x, 0)]
    return len(moving) == len(wanted) and all(
        isinstance(x, ir.Var) and x.same_as(v) for x, v in zip(moving, wanted, strict=True)
    )


def _computed(
    kernel: ir.For, product: MultiplyAdd, buffer: ir.Var, where: str
) -> tuple[ir.For, ir.SBlockRealize]:
    """Return the one nest that computes a local operand, next to the product that reads it."""

    def is_own(store: ir.BufferStore) -> bool:
        return bool(store.buffer.same_as(buffer))

    stores = ir.find_all(kernel, ir.BufferStore, is_own)
    loads = ir.find_all(kernel, ir.TensorLoad, lambda x: x.source.same_as(buffer))
    bodies = [ir.statements(x) for x in ir.find_all(kernel, ir.SeqStmt)]
    beside = [x for x in bodies if any(ir.uses_node(part, product.realize) for part in x)]
    nests = [part for body in beside for part in body if ir.find_all(part, ir.BufferStore, is_own)]
    nests = [x for x in nests if isinstance(x, ir.For) and not ir.uses_node(x, product.realize)]
    inner = [ir.loop_nest(x)[1] for x in nests]
    if (
        (len(loads), len(stores), len(inner)) != (1, 1, 1)
        or not isinstance(inner[0], ir.SBlockRealize)
        or not isinstance(inner[0].block.body, ir.BufferStore)
    ):
        raise cannot_lower(
            where,
            f"a local buffer with {len(stores)} stores and {len(loads)} loads",
            "one loop nest that computes it, in the loop of the product, its one reader",
            'cache_read the operand to "shared.dyn", or compute it at the pipelined loop',
        )
    return nests[0], inner[0]
