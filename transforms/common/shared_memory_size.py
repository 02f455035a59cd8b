"""Add up a kernel's shared memory.

    ring of A, 3 slots x 16384       0    alignment 1024
    ring of B, 3 slots x 16384   49152    alignment 1024
    full, 3 x 8                  98304    alignment 16
    empty, 3 x 8                 98336    alignment 16
                                 98360

The schedule's choice of tiles, the pipeline's plan and the final placement all use it, so they
agree. Arrays of which one is dead before the other one lives may lie in the same bytes, see
`lifetimes`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from tvm_hopper import ir
from tvm_hopper.facts.arch import Processor
from tvm_hopper.facts.dtypes import dtype_bytes
from tvm_hopper.facts.programming_model import MBARRIER_BYTES, THREAD_ACCESS_BYTES
from tvm_hopper.facts.swizzle import alignment

TILE_ALIGNMENT = alignment(128)  # of a tile in the widest swizzle, and of the whole allocation
MIN_ALIGNMENT = THREAD_ACCESS_BYTES  # of every array
BARRIER_BYTES = 2 * MBARRIER_BYTES  # of a slot: one full and one empty barrier


@dataclass(frozen=True)
class SharedArray:
    """One array in shared memory, or one slot of a ring.

    - `name`: for messages and `explain`.
    - `num_bytes`: size.
    - `alignment`: bytes; less than `MIN_ALIGNMENT` counts as that.
    """

    name: str
    num_bytes: int
    alignment: int = MIN_ALIGNMENT


def shared_array(buffer: ir.Var, noted_alignment: int = 0) -> SharedArray:
    """Describe a buffer of static shape by what it takes.

    - `noted_alignment`: bytes of an alignment that its allocation requests next to its type.
    """
    num_bytes = prod(int(extent) for extent in buffer.shape) * dtype_bytes(ir.dtype_of(buffer))
    return SharedArray(buffer.name, num_bytes, max(noted_alignment, int(buffer.ty.data_alignment)))


@dataclass(frozen=True)
class SharedMemory:
    """Arrays of one kernel; two of them overlap where both are never alive at once.

    - `arrays`: in any order.
    - `overlays`: pairs of positions in `arrays` that may lie in the same bytes (`lifetimes`).
    """

    arrays: tuple[SharedArray, ...]
    overlays: frozenset[frozenset[int]] = frozenset()

    @property
    def order(self) -> tuple[int, ...]:
        """Positions in `arrays` as they are placed: the most aligned first, which leaves no holes.

        Where some may overlap, large ones are placed before small ones.
        """

        def key(i: int) -> tuple[int, int]:
            size = self.arrays[i].num_bytes if self.overlays else 0
            return (-_alignment(self.arrays[i]), -size)

        return tuple(sorted(range(len(self.arrays)), key=key))

    @property
    def offsets(self) -> tuple[int, ...]:
        """Offset of each of `arrays` in bytes: after all arrays that it must not overlap."""
        found: dict[int, int] = {}
        for i in self.order:
            apart = [j for j in found if frozenset((i, j)) not in self.overlays]
            found[i] = self._first_place(i, {j: found[j] for j in apart})
        return tuple(found[i] for i in range(len(self.arrays)))

    def _first_place(self, i: int, apart: Mapping[int, int]) -> int:
        step = _alignment(self.arrays[i])
        end = max((offset + self.arrays[j].num_bytes for j, offset in apart.items()), default=0)
        return -(-end // step) * step

    def overlap(self, i: int, j: int) -> bool:
        """Tell whether two arrays lie in the same bytes."""
        (a, b), sizes = (self.offsets[i], self.offsets[j]), self.arrays
        return a < b + sizes[j].num_bytes and b < a + sizes[i].num_bytes

    @property
    def num_bytes(self) -> int:
        """Size of all of them, alignment included."""
        ends = zip(self.offsets, self.arrays, strict=True)
        return max((offset + array.num_bytes for offset, array in ends), default=0)

    @property
    def padding(self) -> int:
        """Bytes between the arrays."""
        return self.num_bytes - sum(array.num_bytes for array in self.arrays)

    def fits_on(self, processor: Processor) -> bool:
        """Tell whether one thread block, or one function, may have that much."""
        return self.num_bytes <= processor.tile_bytes


def ring_memory(
    slots: Sequence[SharedArray], num_slots: int, has_barriers: bool = True
) -> SharedMemory:
    """Return the memory of one ring: its tiles, and the barriers that guard its slots.

    - `slots`: one slot of each tile.
    - `num_slots`: slots of the ring.
    - `has_barriers`: whether there are any: loads that complete in groups have none.
    - returns: the memory with both barriers of a slot. A ring that the same threads fill and read
      lacks one of them, which is known only when roles are.
    """
    tiles = [SharedArray(x.name, num_slots * x.num_bytes, x.alignment) for x in slots]
    names = ("full", "empty") if has_barriers else ()
    barriers = [SharedArray(name, num_slots * MBARRIER_BYTES) for name in names]
    return SharedMemory((*tiles, *barriers))


def most_slots(
    slots: Sequence[SharedArray], processor: Processor, has_barriers: bool = True
) -> int:
    """Return how many slots of a ring fit into the memory that tiles may have.

    - `slots`: one slot of each tile.
    - `processor`: what the kernel runs on.
    - `has_barriers`: as for `ring_memory`.
    """
    barriers = BARRIER_BYTES if has_barriers else 0
    count = processor.tile_bytes // (sum(x.num_bytes for x in slots) + barriers)
    while count and not ring_memory(slots, count, has_barriers).fits_on(processor):
        count -= 1  # of alignment between the arrays
    return count


def _alignment(array: SharedArray) -> int:
    return max(array.alignment, MIN_ALIGNMENT)
