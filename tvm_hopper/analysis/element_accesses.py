"""Find tensors that a thread reads or writes element by element.

    for v in vectorized(8): X_local[v] = X[tx * 8 + v]        16 bytes at once
    for v in unroll(8):     Y_local[v] = Z[v, tx]             2 bytes at once: an element access

An access counts by how often a thread makes it, next to the vectors of the same kernel: a value of
a row is loaded once for many vectors, an element access as often as a vector has elements. A small
tensor does not count: it stays in the caches. Nor does the tail of a vector.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import prod
from typing import Any

from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.facts.dtypes import dtype_bytes

SECTOR = 32  # bytes that memory hands out at once
MANY = 8  # loads of a thread in a kernel without vectors
MANY_TIMES = 2  # as often as the vectors of a kernel: then a tensor is read element by element
SMALL_SHARE = 8  # a tensor of less than one part in so many of the largest one is small
SAMPLES = (0, 17, 330, 1001)  # values of the variables in an index
DIVISIONS = (tirx.FloorDiv, tirx.FloorMod, tirx.Div, tirx.Mod)
SYMBOL = 4096  # stands for an extent that is known at run time only


@dataclass(frozen=True)
class ElementAccess:
    """A tensor that is accessed element by element.

    - `tensor`: its name.
    - `num_bytes`: bytes that a thread accesses at once.
    - `fetched`: bytes of memory after each access: no more than a sector, fewer where a thread's
      elements are neighbors.
    - `is_store`: it is written.
    """

    tensor: str
    num_bytes: int
    fetched: int
    is_store: bool


@dataclass(frozen=True)
class _Site:
    buffer: Any
    lanes: int  # elements at once
    count: int  # accesses of a thread
    step: int | None  # elements from one access to the next one; None: uneven
    is_store: bool
    indices: Any

    @property
    def num_bytes(self) -> int:
        return self.lanes * dtype_bytes(ir.dtype_of(self.buffer))


def find_element_accesses(
    kernel: ir.For, arguments: list[Any], fragments: bool = False
) -> list[ElementAccess]:
    """Return the arguments of a function that a kernel's threads access element by element.

    - `kernel`: where vectors are loops yet.
    - `arguments` (list of buffer): the tensors of the function.
    - `fragments`: its threads have fragments of a product: loads count alone, without a vector,
      too, since stores of fragments have notes of their own.
    """
    sites: list[_Site] = []
    _walk(_with_numbers(kernel), (), [], sites)
    vectors = max((x.count for x in sites if x.lanes > 1), default=0)
    if not vectors and not fragments:
        return []
    most = max(map(_size, arguments), default=0)
    accesses: dict[tuple[str, bool], ElementAccess] = {}
    for site in sites:
        if fragments and site.is_store:
            continue
        # each element of a fragment is a site
        count = _of_elements(site.buffer, sites) if fragments else site.count
        if count < (MANY_TIMES * vectors or MANY):
            continue
        is_small = _size(site.buffer) * SMALL_SHARE < most
        if is_small or not any(site.buffer.same_as(x) for x in arguments):
            continue
        if fragments and _is_pair(site, sites):
            continue
        distance = abs(site.step or SECTOR) * dtype_bytes(ir.dtype_of(site.buffer))
        name = str(site.buffer.name)
        fetched = min(SECTOR, max(distance, site.num_bytes))
        access = ElementAccess(name, site.num_bytes, fetched, site.is_store)
        before = accesses.get((name, site.is_store))
        if before is None or before.fetched < fetched:
            accesses[name, site.is_store] = access
    return list(accesses.values())


def _with_numbers(kernel: ir.For) -> ir.For:
    """Put integers that registers hold where an index reads them."""
    known: dict[Any, Any] = {}

    def store(node: ir.BufferStore, mutator: Any) -> Any:
        node = mutator.default_mutate(node)
        is_number = ir.dtype_of(node.buffer) in ("int32", "int64")
        is_one = is_number and all(ir.is_const(x, 1) for x in node.buffer.shape)
        if is_one and str(node.buffer.scope()) == "local":
            loads = ir.find_all(node.value, ir.TensorLoad)
            known.pop(node.buffer, None)
            if not loads:
                known[node.buffer] = node.value
        return node

    def load(node: ir.TensorLoad, mutator: Any) -> Any:
        node = mutator.default_mutate(node)
        return known.get(node.source, node)

    return ir.mutate(kernel, [(ir.BufferStore, store), (ir.TensorLoad, load)])


def _of_elements(buffer: Any, sites: list[_Site]) -> int:
    """Return how often a buffer is accessed without a vector."""
    return sum(x.count for x in sites if x.buffer.same_as(buffer) and x.lanes == 1)


def _is_pair(site: _Site, sites: list[_Site]) -> bool:
    """Tell an element whose neighbor a thread loads as well: four threads fill a sector."""
    places = [_first(x) for x in sites if x.buffer.same_as(site.buffer)]
    first = _first(site)
    return first is not None and not {first - 1, first + 1}.isdisjoint(places)


def _first(site: _Site) -> int | None:
    place = _place(site.buffer, site.indices)
    return _value(place, dict.fromkeys(ir.find_all(place, ir.Var), 0))


def _size(buffer: Any) -> int:
    """Return the bytes of a tensor, with a number for each symbol."""
    extents = [ir.static_int(x) for x in buffer.shape]
    return prod(SYMBOL if x is None else x for x in extents) * dtype_bytes(ir.dtype_of(buffer))


def _walk(stmt: Any, loops: tuple[ir.For, ...], tails: list[Any], sites: list[_Site]) -> None:
    """List the accesses below a statement; those of `tails` are left out."""
    if isinstance(stmt, ir.For):
        _walk(stmt.body, (*loops, stmt), tails, sites)
    elif isinstance(stmt, ir.SeqStmt):
        for part in stmt.seq:
            _walk(part, loops, tails, sites)
    elif isinstance(stmt, ir.IfThenElse):
        _collect(stmt.condition, loops, tails, sites)
        first = len(sites)
        _walk(stmt.then_case, loops, tails, sites)
        if stmt.else_case is not None:  # elements of a vector that is not whole
            whole = [x.buffer for x in sites[first:] if x.lanes > 1]
            _walk(stmt.else_case, loops, [*tails, *whole], sites)
    elif isinstance(stmt, ir.SBlockRealize):
        _collect(stmt.predicate, loops, tails, sites)
        _walk(stmt.block.body, loops, tails, sites)
    elif isinstance(getattr(stmt, "body", None), ir.Stmt):
        _walk(stmt.body, loops, tails, sites)
    else:
        _collect(stmt, loops, tails, sites)


def _collect(node: Any, loops: tuple[ir.For, ...], tails: list[Any], sites: list[_Site]) -> None:
    addresses = ir.find_all(node, ir.Call, lambda x: str(x.op.name).endswith("address_of"))
    copied = [x.args[0] for x in addresses]  # by an instruction, which says how much
    for load in ir.find_all(node, ir.TensorLoad):
        if any(load.same_as(x) for x in copied):
            continue
        _add(load.source, load.indices, False, loops, tails, sites)
    if isinstance(node, ir.BufferStore):
        _add(node.buffer, node.indices, True, loops, tails, sites)


def _add(
    buffer: Any,
    indices: Any,
    is_store: bool,
    loops: tuple[ir.For, ...],
    tails: list[Any],
    sites: list[_Site],
) -> None:
    if buffer.scope() not in ("", "global") or any(buffer.same_as(x) for x in tails):
        return
    own = [x for x in loops if x.kind != ir.ForKind.THREAD_BINDING]
    moving = [x for x in own if ir.depends_on(list(indices), [x.loop_var])]
    count = prod(ir.static_int(x.extent) or 1 for x in moving)
    lanes, step = 1, None
    inner = next((x for x in reversed(moving) if not ir.is_const(x.extent, 1)), None)
    if inner is not None:
        step = _step(buffer, indices, inner, loops)
        if inner.kind == ir.ForKind.VECTORIZED and step == 1:
            lanes = int(inner.extent)
            count //= lanes
    sites.append(_Site(buffer, lanes, count, step, is_store, indices))


def _step(buffer: Any, indices: Any, loop: ir.For, around: tuple[ir.For, ...]) -> int | None:
    """Return by how many elements a loop moves in memory, None if not evenly.

    The index is evaluated at a few places, since a remainder is more than a simplifier proves.
    Where it wraps between some elements, most of them decide, but for a vector.
    """
    extent = ir.static_int(loop.extent)
    read = ir.find_all(list(indices), ir.TensorLoad)
    if extent is None or any(ir.depends_on(x, [loop.loop_var]) for x in read):
        return None
    place = _place(buffer, indices)
    steps: Counter[int | None] = Counter()
    for at in _samples(place, loop, around):
        first, second, last = (_value(place, {**at, loop.loop_var: x}) for x in (0, 1, extent - 1))
        if first is None or second is None or last is None:
            return None
        steps[second - first if last - first == (extent - 1) * (second - first) else None] += 1
    if loop.kind == ir.ForKind.VECTORIZED and len(steps) > 1:
        return None
    return steps.most_common(1)[0][0] if steps else None


def _samples(place: Any, loop: ir.For, around: tuple[ir.For, ...]) -> list[dict[Any, int]]:
    """Return values of all variables but a loop's, each within the range of its own loop."""
    others = dict.fromkeys(x for x in ir.find_all(place, ir.Var) if not x.same_as(loop.loop_var))
    divided = [x for kind in DIVISIONS for x in ir.find_all(place, kind)]
    divisors = {x for node in divided for x in ir.find_all(node.b, ir.Var)}  # never zero
    extents = {x.loop_var: ir.static_int(x.extent) for x in around}
    found = []
    for sample in SAMPLES:
        at = {x: max((i + 1) * sample, int(x in divisors)) for i, x in enumerate(others)}
        at = {x: y % (extents.get(x) or y + 1) for x, y in at.items()}
        if all(_value(node.b, at) != 0 for node in divided):
            found.append(at)
    return found


def _place(buffer: Any, indices: Any) -> Any:
    """Return the number of an element in memory; what is read for its index counts as zero."""
    plain = [
        ir.replace(x, ir.TensorLoad, lambda y: tirx.IntImm(ir.dtype_of(y), 0)) for x in indices
    ]
    if buffer.ty.strides:
        return sum(x * step for x, step in zip(plain, buffer.ty.strides, strict=True))
    place: Any = tirx.IntImm("int64", 0)
    for index, size in zip(plain, buffer.shape, strict=True):
        place = place * size + index
    return place


def _value(place: Any, at: dict[Any, int]) -> int | None:
    return ir.static_int(ir.simplify(ir.substitute(place, at)))
