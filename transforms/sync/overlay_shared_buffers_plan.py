"""Find shared arrays that may use the same bytes: one is dead before the other is written.

    for k: load(ring[..]); use(ring[..])            ring      statement 0
    staging[...] = ...                              staging   statements 1 and 2
    C[...] = staging[...]

Nothing is given the same bytes as long as a kernel's arrays have room next to each other: whoever
writes to bytes that others read a moment ago has to wait for them. That is left to the sync engine,
which is told of the pairs. Here is decided whose values do not have to survive.

Two arrays are never alive at once if their accesses are in different statements of a sequence, all
of one before all of the other. Where loops are around that sequence, each array has to begin again
in each iteration: it is allocated in there, or it is a ring that is read only after copies in
there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.analysis.effects import find_effects
from tvm_hopper.facts.arch import Arch
from tvm_hopper.facts.programming_model import MBARRIER_BYTES
from tvm_hopper.requests.keys import ASYNC_OP
from tvm_hopper.sync import reads_its_own_copies
from tvm_hopper.transforms.common.channel import find_channels, find_loads, find_split
from tvm_hopper.transforms.common.overlay_pairs import Overlay, find_overlays
from tvm_hopper.transforms.common.shared_memory_size import SharedArray, SharedMemory, shared_array

from .sync_body import BodyReader
from .sync_items import flatten


def plan_overlays(kernel: ir.For, arch: Arch) -> tuple[Overlay, ...]:
    """Return the pairs that must share bytes for a kernel's arrays to fit.

    If the pairs that overlap are enough to place the arrays, only these are returned.

    Empty if they fit next to each other, if even overlays do not suffice, and if pairs
    are planned already.
    """
    arrays = _arrays(kernel)
    if find_overlays(kernel) or not all(map(_is_static, arrays)):
        return ()
    barriers = [
        SharedArray("barriers", channel.num_slots * MBARRIER_BYTES)
        for channel in find_channels(kernel)
        for _ in range(2 if channel.num_arrivals else 1)
        if not channel.by_group
    ]
    every = (*map(shared_array, arrays), *barriers)
    if SharedMemory(every).fits_on(arch):
        return ()
    apart = _Lifetimes(kernel)
    pairs = {
        frozenset((i, j))
        for (i, a), (j, b) in combinations(enumerate(arrays), 2)
        if apart.never_alive_at_once(a, b)
    }
    memory = SharedMemory(every, frozenset(pairs))
    if not memory.fits_on(arch):
        return ()
    meet = frozenset(pair for pair in pairs if memory.overlap(*sorted(pair)))
    if not SharedMemory(every, meet).fits_on(arch):
        meet = frozenset(pairs)  # the arrays may not overlap, so one is placed after the other
    return tuple((arrays[i], arrays[j]) for i, j in sorted(map(sorted, meet)))


def _arrays(kernel: ir.For) -> list[ir.Var]:
    blocks = ir.find_all(kernel, ir.SBlock)
    return [x for block in blocks for x in block.alloc_buffers if x.scope() == "shared.dyn"]


def _is_static(array: ir.Var) -> bool:
    return None not in map(ir.static_int, array.shape)


@dataclass(frozen=True)
class _Apart:
    """A sequence in which two arrays are used by different statements, the first one first.

    `anew` are the arrays that the blocks between the innermost loop around it and the sequence
    allocate; `is_repeated` tells whether there is such a loop.
    """

    first: ir.Var
    used_first: tuple[ir.Stmt, ...]
    used_second: tuple[ir.Stmt, ...]
    anew: tuple[ir.Var, ...]
    is_repeated: bool


class _Lifetimes:
    """Answers for pairs of arrays of one kernel."""

    def __init__(self, kernel: ir.For) -> None:
        self.kernel = kernel
        self.split = find_split(kernel)
        self.root: ir.Stmt = kernel
        # Pointers that have a separate name are followed no further. One that an operation's
        # block names (a matrix descriptor) is used in there alone, next to the array itself.
        known = ir.replace(kernel, ir.SBlock, _without_operation)
        names = [*ir.find_all(known, tirx.Bind), *ir.find_all(known, tirx.DeclBuffer)]
        self.named = [x.buffer for name in names for x in find_effects(name) if x.by_pointer]
        self.outside: ir.Stmt = ir.seq()
        if self.split is not None:
            self.root = self.split.else_case
            self.outside = ir.replace_nodes(kernel, ir.Stmt, {self.split: ir.seq()})

    def never_alive_at_once(self, a: ir.Var, b: ir.Var) -> bool:
        """Tell whether no value of one array has to survive an access of the other one."""
        if any(x.same_as(y) for x in (a, b) for y in self.named):
            return False
        if ir.accesses(self.outside, a) or ir.accesses(self.outside, b):
            return False
        apart = _separate(self.root, a, b)
        if apart is None:
            return False
        second = b if apart.first.same_as(a) else a
        if self.split is not None:
            # The producer runs ahead: it may fill what is used later, or used again.
            loaded = [x for x in (a, b) if ir.uses(self.split.then_case, x)]
            if loaded and (apart.is_repeated or not all(x.same_as(apart.first) for x in loaded)):
                return False
        if not apart.is_repeated:
            return True
        return self._begins_anew(apart, apart.first, apart.used_first) and self._begins_anew(
            apart, second, apart.used_second
        )

    def _begins_anew(self, apart: _Apart, array: ir.Var, used: tuple[ir.Stmt, ...]) -> bool:
        """Tell whether what an array holds before some statements is not read by them."""
        statements = ir.seq(list(used))
        inner = [x for block in ir.find_all(statements, ir.SBlock) for x in block.alloc_buffers]
        if any(array.same_as(x) for x in (*apart.anew, *inner)):
            return True
        if not any(ir.uses(load, array) for load in find_loads(statements)):
            return False
        axis = ir.thread_axes(self.kernel)["threadIdx.x"]
        reader = BodyReader(self.kernel, axis.loop_var, hands_over=self.split is not None)
        return reads_its_own_copies(flatten(reader.sequence(statements)), reader.buffer(array))


def _without_operation(block: ir.SBlock) -> ir.SBlock:
    return ir.with_block(block, body=ir.seq()) if ASYNC_OP in block.annotations else block


def _separate(root: ir.Stmt, a: ir.Var, b: ir.Var) -> _Apart | None:
    """Find the sequence below `root` in which different statements use two arrays."""
    anew: tuple[ir.Var, ...] = ()
    is_repeated = False
    stmt = root
    while True:
        parts = ir.statements(stmt)
        with_a = [n for n, part in enumerate(parts) if ir.uses(part, a)]
        with_b = [n for n, part in enumerate(parts) if ir.uses(part, b)]
        if not with_a or not with_b:
            return None  # one of them is nowhere: there is nothing to save
        if with_a[-1] < with_b[0] or with_b[-1] < with_a[0]:
            is_first = with_a[0] < with_b[0]
            early, late = (with_a, with_b) if is_first else (with_b, with_a)
            first, second = (tuple(parts[n] for n in x) for x in (early, late))
            return _Apart(a if is_first else b, first, second, anew, is_repeated)
        if {*with_a, *with_b} != {with_a[0]}:
            return None
        part = parts[with_a[0]]
        inner = [x for x in _below(part) if any(ir.uses(x, y) for y in (a, b))]
        if len(inner) != 1:
            return None  # a statement that uses both, or arms of a branch
        if isinstance(part, ir.For) and part.kind != ir.ForKind.THREAD_BINDING:
            anew, is_repeated = (), True
        elif isinstance(part, ir.SBlockRealize):
            anew = (*anew, *part.block.alloc_buffers)
        (stmt,) = inner


def _below(stmt: ir.Stmt) -> Iterator[ir.Stmt]:
    """Yield the statements right inside of one that only holds others."""
    if isinstance(stmt, (ir.For, tirx.AttrStmt)):
        yield stmt.body
    elif isinstance(stmt, ir.SBlockRealize):
        yield stmt.block.body
    elif isinstance(stmt, ir.IfThenElse):
        yield stmt.then_case
        if stmt.else_case is not None:
            yield stmt.else_case
