"""Decide whether a product's epilogue runs beside its multiply-adds, and by which halves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.errors import cannot_lower
from tvm_hopper.facts.async_ops import ASYNC_OPS
from tvm_hopper.requests.keys import ASYNC_OP, AWAIT_FILLED, OVERLAP, RELEASE

from . import fragment
from .channel import find_calls, find_split

WGMMA = "wgmma"


@dataclass(frozen=True)
class OverlapPlan:
    """The consumers' loop over output tiles, taken apart.

    Attributes
    ----------
    tiles, loop : For
        The loops over output tiles, and over k in each of them.
    binds, epilogue : tuple
        What places a tile in front of the loop over k, and what follows behind it.
    trip, awaits, product, release
        The parts of a step of k.
    accumulator : Var
        Registers of `subtiles` rows of instructions, of which the first `half` are one half.
    steps : int
        Trips at each end of a tile that are run apart.
    """

    tiles: ir.For
    binds: tuple[tirx.Bind, ...]
    loop: ir.For
    trip: tirx.Bind
    awaits: tuple[ir.Stmt, ...]
    product: ir.SBlockRealize
    release: ir.SBlockRealize
    epilogue: tuple[ir.Stmt, ...]
    accumulator: ir.Var
    subtiles: int
    steps: int

    @property
    def completion(self) -> str:
        """By what the product is waited for."""
        return ASYNC_OPS[WGMMA].completion

    @property
    def half(self) -> int:
        """Rows of instructions of the first half."""
        return self.subtiles // 2

    @property
    def of_subtile(self) -> int:
        """Registers of one row of instructions."""
        return int(self.accumulator.shape[0]) // self.subtiles


def plan_overlap(kernel: ir.For, steps: int, is_alone: bool = False) -> OverlapPlan | None:
    """Take the consumers' loop apart; None where there is nothing to run beside.

    Parameters
    ----------
    kernel : For
        A kernel whose roles and output tiles are scheduled.
    steps : int
        Trips at each end of a tile, as asked for.
    is_alone : bool
        Whether this kernel was asked for, and not all of a function's that multiply.

    Returns
    -------
    plan : OverlapPlan or None
        None for a kernel without WGMMA of a consumer role.

    Raises
    ------
    HopperError
        The kernel multiplies by WGMMA, and its epilogue cannot be divided.
    """
    split = find_split(kernel)
    if not steps:
        return None
    if split is None or not _products(split.else_case):
        if is_alone:
            raise _refuse(
                "a kernel without products by WGMMA of a consumer role",
                "a product of which warp groups multiply what a producer loads",
                "take it out",
            )
        return None
    found = [x for x in ir.find_all(split.else_case, ir.For) if _products(x)]
    inner = [x for x in found if not any(_products(y) for y in ir.find_all(x.body, ir.For))]
    if len(found) != 2 or len(inner) != 1 or len(_products(split.else_case)) != 1:
        raise _refuse(
            f"{len(found)} loops around {len(_products(split.else_case))} products",
            "a loop over output tiles around one over k, with one product",
            "take persistent=-1 (as many blocks as the device balances), and one tile at a time",
        )
    tiles, loop = found
    before, behind = _around(tiles, loop)
    parts = ir.statements(loop.body)
    products = [x for x in parts if _is_product(x)]
    releases = [x for x in parts if isinstance(x, ir.SBlockRealize) and not _is_product(x)]
    trips = [x for x in parts if isinstance(x, tirx.Bind)]
    awaits = [x for x in parts if find_calls(x, AWAIT_FILLED)]
    plain = len(products) == len(trips) == len(releases) == 1
    plain = plain and len(parts) == 3 + len(awaits)
    if not plain or int(releases[0].block.annotations.get(RELEASE, 1)):
        raise _refuse(
            "a loop over k that does more than wait, multiply and give its slot back",
            "one product by WGMMA in each step, none left in flight over it",
            "take wgmma_pending=0, and no turns of consumers",
        )
    accumulator = products[0].block.writes[0].source
    rows = [x for x in ir.statements(products[0].block.body) if isinstance(x, ir.For)]
    subtiles = int(rows[0].extent) if rows and rows[0].loop_var.name == fragment.SUBTILES else 1
    trips_of_tile = ir.static_int(loop.extent)
    if subtiles < 2 or trips_of_tile is None or trips_of_tile < 2 * steps:
        raise _refuse(
            f"{subtiles} rows of instructions a consumer and {loop.extent} steps of k",
            f"at least 2, such as of 128 rows a consumer, and at least {2 * steps} steps",
            "take tile=(256, 160, 64) with 2 consumers, or fewer steps",
        )
    slots = int(products[0].block.reads[0].source.shape[0])
    if steps > slots:
        raise _refuse(f"{steps} steps", f"at most {slots}, as the ring has slots", "take fewer")
    binds = tuple(x for x in before if isinstance(x, tirx.Bind))
    fills = [x for x in before if not isinstance(x, tirx.Bind)]
    zeros = [x.value for fill in fills for x in ir.find_all(fill, ir.BufferStore)]
    by_rows = all(_first_loop(x) is not None for x in behind)
    if not all(ir.uses(x, accumulator) for x in fills) or not all(map(ir.is_zero, zeros)):
        raise _refuse(
            "an accumulator that begins with other values than zeros",
            "zeros, which the first instruction on each register stands for",
            "add the values in the epilogue",
        )
    if not by_rows or not behind:
        raise _refuse(
            "an epilogue that is not computed row of instructions by row",
            "results that threads store to global memory by themselves",
            "take store=None, and operand_slots=0 where the epilogue reads a tensor",
        )
    return OverlapPlan(
        tiles, binds, loop, trips[0], tuple(awaits), products[0], releases[0],
        tuple(behind), accumulator, subtiles, steps,
    )  # fmt: skip


def _products(root: Any) -> list[ir.SBlock]:
    return [x for x in ir.find_blocks(root, ASYNC_OP) if str(x.annotations[ASYNC_OP]) == WGMMA]


def _is_product(part: Any) -> bool:
    return isinstance(part, ir.SBlockRealize) and part.block in _products(part)


def _around(tiles: ir.For, loop: ir.For) -> tuple[list[ir.Stmt], list[ir.Stmt]]:
    parts = ir.statements(tiles.body)
    at = next((n for n, x in enumerate(parts) if x.same_as(loop)), None)
    if at is None:
        raise _refuse(
            "a loop over k inside of a block or a condition",
            "one right in the loop over output tiles, of consumers that take no turns",
            "take schedule=None, or overlap = 0",
        )
    return parts[:at], parts[at + 1 :]


def _first_loop(stmt: ir.Stmt) -> ir.For | None:
    """Return the loop over rows of instructions of a nest that only reads the accumulator."""
    if ir.find_blocks(stmt, ASYNC_OP) or find_calls(stmt):
        return None
    inner = ir.peel_blocks(stmt)
    parts = [x for x in ir.statements(inner) if isinstance(x, ir.For)]
    rest = [x for x in ir.statements(inner) if not isinstance(x, ir.For)]
    is_one = len(parts) == 1 and not rest and parts[0].loop_var.name == fragment.SUBTILES
    return parts[0] if is_one else None


def _refuse(found: str, need: str, fix: str) -> Exception:
    return cannot_lower(OVERLAP, found, need, fix)
