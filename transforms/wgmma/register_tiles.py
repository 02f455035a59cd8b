"""Plan register tiles: which local buffers warp groups hold, and who holds which element.

    P[i, j] = P[i, j] + A[i, k] * B[j, k]     a product: its instructions demand a layout of P
    S[i, j] = S[i, j] + P[i, j]               so S has the layout of P
    D[i, j] = f(S[i, j], R[i, j])             and R, if it is local, that of S
    Q[i] = Q[i] + S[i, j]                     Q has the rows of S, each with all threads of the row

Each statement demands that one thread holds the elements that it combines. A fixpoint over the
statements gives each local buffer one layout; two accesses that disagree are an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm_hopper import ir
from tvm_hopper.errors import cannot_lower


@dataclass(frozen=True)
class HeldTile:
    """A local buffer that warp groups hold in registers.

    - `buffer`: as the program indexes it.
    - `sides`: rows and columns of a warp group.
    - `like`: the accumulator of the product whose layout it has: of a product its own.
    - `is_rows`: whether it has an element for each row.
    """

    buffer: ir.Var
    sides: tuple[int, int]
    like: ir.Var
    is_rows: bool = False

    @property
    def is_computed(self) -> bool:
        """Whether statements write it, and no product does."""
        return not self.buffer.same_as(self.like)


def plan_register_tiles(
    kernel: ir.For, sums: tuple[HeldTile, ...], products: Sequence[ir.BufferStore] = ()
) -> tuple[HeldTile, ...]:
    """Return the accumulators of products, and after them what is computed with them.

    `products`: their own statements, whose operands have layouts of their own.
    """
    tiles = list(sums)
    realizes = [
        x
        for x in ir.find_all(kernel, ir.SBlockRealize)
        if isinstance(x.block.body, ir.BufferStore)
        and not any(x.block.body.same_as(y) for y in products)
    ]
    num_known = 0
    while num_known < len(tiles):
        num_known = len(tiles)
        for realize in realizes:
            known = touched(realize.block.body, tiles)
            for buffer in _local_buffers(realize.block.body) if known else ():
                if not any(buffer.same_as(x.buffer) for x in tiles):
                    tiles.append(_computed(realize, buffer, known[0]))
    loops = ir.find_all(kernel, ir.For)
    units: dict[Any, Any] = {x.loop_var: 0 for x in loops if ir.is_const(x.extent, 1)}
    for realize in realizes:
        _check_one_layout(realize, touched(realize.block.body, tiles), units)
    return tuple(tiles)


def touched(store: ir.BufferStore, tiles: Sequence[HeldTile]) -> tuple[HeldTile, ...]:
    """Return the register tiles that a statement touches: what it writes first, rows last."""
    found = [x for x in tiles if ir.uses(store, x.buffer)]
    return tuple(sorted(found, key=lambda x: (not x.buffer.same_as(store.buffer), x.is_rows)))


def accesses_of(buffer: ir.Var, store: ir.BufferStore) -> list[list[Any]]:
    """Return the indices at which a statement touches a buffer."""
    loads = ir.find_all(store.value, ir.TensorLoad, lambda x: x.source.same_as(buffer))
    own = [store] if store.buffer.same_as(buffer) else []
    return [list(x.indices) for x in (*loads, *own)]


def _local_buffers(store: ir.BufferStore) -> list[ir.Var]:
    found = [store.buffer, *(x.source for x in ir.find_all(store.value, ir.TensorLoad))]
    return [x for x in ir.once(found) if str(x.scope()) == "local"]


def _computed(realize: ir.SBlockRealize, buffer: ir.Var, known: HeldTile) -> HeldTile:
    """Give a buffer the layout of the tile that it meets."""
    shape = [ir.static_int(x) for x in buffer.shape if not ir.is_const(x, 1)]
    most = known.sides[0]
    is_rows = not shape or (len(shape) == 1 and (shape[0] or most + 1) <= most)
    if not is_rows and shape != list(known.sides):
        raise cannot_lower(
            f"block {realize.block.name_hint}",
            f"a local buffer {buffer.name}{shape} next to {known.buffer.name} of "
            f"{'x'.join(map(str, known.sides))}",
            "a tile of the same rows and columns, or an element for each row: a thread holds the "
            "elements that meet",
            "compute it element by element from the product, or reduce rows",
        )
    return HeldTile(buffer, known.sides, known.like, is_rows)


def _check_one_layout(
    realize: ir.SBlockRealize, found: tuple[HeldTile, ...], units: dict[Any, Any]
) -> None:
    """Refuse accesses of two tiles of which no thread holds both elements."""
    if len(found) < 2:
        return
    store = realize.block.body
    first, *others = found
    indices = _places(first.buffer, store, units)
    for other in others:
        places = _places(other.buffer, store, units)
        length = 1 if first.is_rows or other.is_rows else 2
        if first.sides[:length] == other.sides[:length] and _meet(indices, places):
            continue
        one, two = (
            f"{x.buffer.name}[{', '.join(min(y))}] of {'x'.join(map(str, x.sides))}"
            for x, y in ((first, indices), (other, places))
        )
        raise cannot_lower(
            f"block {realize.block.name_hint}",
            f"an access of {one} next to one of {two}",
            "the same elements of accumulators of one shape: a thread has those of one layout",
            "give the products equal tiles, and combine them element by element",
        )


def _places(buffer: ir.Var, store: ir.BufferStore, units: dict[Any, Any]) -> set[tuple[str, ...]]:
    """Return where a statement touches a buffer, without dimensions of one element.

    Loops of one iteration, the `units`, are at their start.
    """
    found = set()
    for access in accesses_of(buffer, store):
        indices = [ir.substitute(x, units) for x in access]
        pairs = zip(indices, buffer.shape, strict=True)
        found.add(tuple(str(x) for x, n in pairs if not (ir.is_const(n, 1) and ir.is_const(x, 0))))
    return found


def _meet(one: set[tuple[str, ...]], other: set[tuple[str, ...]]) -> bool:
    """Tell whether two tiles are touched at the same elements, or rows if one has rows only."""
    length = min(len(x) for x in (*one, *other))
    if not length:  # of one row
        return all(x[:1] in ((), ("0",)) for x in (*one, *other))
    return {x[:length] for x in one} == {x[:length] for x in other}
