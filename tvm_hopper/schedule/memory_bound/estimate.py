"""Cost model of memory-bound kernels: `RowRates` of an H200, scaled by `Chip`.

Loads arrive after a latency. A thread block loads a row, waits, reduces and stores before the next
one takes its place:

    bytes a cycle = min(memory's share of an SM, bytes in flight / (latency + barriers x wait))
                    x (1 - idle share / n^2)
    bytes in flight = n x bytes that a thread block loads at once, n thread blocks on an SM

The fewer thread blocks there are, the less there is to load while one of them reduces and stores.
More bytes in flight than memory can use cost a little. A chip with more bandwidth per SM than an
H200 needs more bytes in flight, and one with fewer SMs has fewer thread blocks at once; latencies
and barriers are the same on all of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm.target import Target

from tvm_hopper.facts.arch import Arch
from tvm_hopper.facts.devices import DEFAULT_NUM_SMS, Chip
from tvm_hopper.facts.programming_model import THREADS_PER_WARP
from tvm_hopper.requests.targets import chip_of_target, find_processor

from .row_rates import MEASURED, RowRates
from .tiles import RegisterTile
from .work import PersistentWork, RowWork

FEW_ROWS = 4  # rows for each SM: with no more, its thread blocks are all at the same place
LONG_BYTES = 32 << 10  # of a row: below, thread blocks have it to themselves
# Small clusters of which little is lost: their thread blocks, columns of a row, bytes of a row from
# which one of float32 counts, and bytes for each element that rows share, by those of the row.
CLOSE_CLUSTER, CLOSE_COLUMNS, CLOSE_BYTES, CLOSE_SHARED = 4, 1 << 15, 64 << 10, 2
WIDE_BYTES = 4  # of a wide element
PAIR = 2  # thread blocks of a cluster that always find room


@dataclass(frozen=True)
class MemoryModel:
    """Rates of one SM of a chip per cycle."""

    chip: Chip
    rates: RowRates = MEASURED

    @property
    def loaded_bytes(self) -> float:
        """Bytes that an SM loads in a cycle while it stores as many."""
        return self.rates.memory_bytes / 2 * self.chip.memory_share

    def flight(self, num_bytes: float) -> int:
        """Return the bytes in flight that hide memory's latency as so many do on an H200."""
        return int(num_bytes * self.chip.memory_share)

    def outgrows_cache(self, num_bytes: int | None) -> bool:
        """Tell whether L2 does not hold so many bytes; None: known at run time only.

        What fits is wanted there by the next kernel.
        """
        return num_bytes is None or num_bytes > self.chip.l2_bytes

    def wants_hint(self, work: RowWork | PersistentWork) -> bool:
        """Tell whether a kernel stores rows, and moves more than L2 holds.

        Where it only reads there is nothing for L2 to let go of first.
        """
        moved = None if work.rows is None else work.rows * work.columns * work.moved
        return self.outgrows_cache(moved) and work.moved > work.loaded

    def has_few(self, rows: int | None) -> bool:
        """Tell whether SMs have so few rows that nothing hides a latency."""
        return rows is not None and rows <= FEW_ROWS * self.chip.num_sms

    def sms_for(self, cluster: int) -> int:
        """Return the SMs that are sure to find neighbours for clusters of such a size."""
        paired = int(self.rates.paired_sms) * self.chip.num_sms // DEFAULT_NUM_SMS
        return self.chip.num_sms if cluster <= PAIR else paired

    def blocks_on_sm(self, work: RowWork, tile: RegisterTile, blocks: int) -> int:
        """Return the thread blocks of an SM; a grid that leaves SMs empty has few to wait for."""
        if work.rows is None:
            return blocks
        return min(blocks, -(-work.rows * tile.cluster // (tile.block_rows * self.chip.num_sms)))

    def enough_blocks(self, block_bytes: int, reload: bool = False) -> int:
        """Return how many thread blocks, of so many bytes each, bring enough bytes of rows.

        Where an SM's share of memory is smaller than an H200's, as many as bring what is needed,
        but no more than there.
        """
        enough = self.rates.enough_reloaded if reload else self.rates.enough_bytes
        needed = -(-self.flight(enough) // (block_bytes or 1))
        return max(1, min(self._uncrowded(reload) // (block_bytes or 1), needed))

    def _uncrowded(self, reload: bool) -> int:
        """Return the bytes in flight of which no more harm is known than of fewer."""
        enough = self.rates.enough_reloaded if reload else self.rates.enough_bytes
        return max(int(enough), self.flight(enough))

    def flight_rate(self, work: RowWork, tile: RegisterTile, blocks: int) -> float:
        """Return the bytes a cycle of what is in flight: a latency, and what reductions wait."""
        rates, threads = self.rates, tile.threads * tile.rows
        barriers = work.reductions if tile.threads > THREADS_PER_WARP or tile.cluster > 1 else 0
        far = rates.cluster_barrier if tile.cluster > 1 else 0
        wait = barriers * (rates.barrier + rates.barrier_thread * threads + far)
        waste = work.columns / tile.columns
        return waste * in_flight(work, tile, blocks) / (rates.load_latency + wait)

    def register_rate(
        self,
        work: RowWork,
        tile: RegisterTile,
        blocks: int,
        reload: bool = False,
        again: bool = False,
    ) -> float:
        """Estimate the bytes that an SM loads in a cycle, of rows in registers.

        `reload`: rows are loaded again after the last reduction; `again`: they are, or something
        expensive is computed again.
        """
        rates = self.rates
        blocks = self.blocks_on_sm(work, tile, blocks)
        crowded = in_flight(work, tile, blocks) > self._uncrowded(reload)
        share = self.loaded_bytes * (rates.crowded_share if crowded else 1)
        if work.is_pair and tile.chunks == tile.cluster == 1 and not again:
            return self.loaded_bytes * work.columns / tile.columns
        busy = self._busy(blocks)
        if is_close(work, tile) and not again:
            busy = 1
        elif tile.cluster > 1:
            busy *= rates.cluster_share
        elif work.reductions > 1 and work.columns * work.loaded > LONG_BYTES:
            busy *= rates.two_reductions_share
        return busy * min(share, self.flight_rate(work, tile, blocks))

    def staged_rate(self, work: RowWork, tile: RegisterTile, blocks: int, part: int) -> float:
        """Estimate the bytes that an SM loads in a cycle, of rows in shared memory.

        `part`: columns of a thread block, if what rows share waits next to them; else 0.
        """
        rates, count = self.rates, self.blocks_on_sm(work, tile, blocks)
        share = rates.staged_share
        if part:
            resident = count * tile.rows * part * work.loaded
            filled = min(1.0, resident / self.flight(rates.resident_bytes))
            share = self._busy(count) * filled**rates.resident_power
        return min(share * self.loaded_bytes, self.flight_rate(work, tile, count))

    def streamed_rate(self, passes: int) -> float:
        """Estimate the bytes that an SM loads in a cycle, of rows that each pass loads again."""
        return (1 if passes == 1 else self.rates.streamed_share) * self.loaded_bytes

    def _busy(self, blocks: int) -> float:
        return 1 - self.rates.idle_share / max(1, blocks) ** 2

    def persistent_rate(
        self, work: PersistentWork, tile: RegisterTile, blocks: int, ahead: int, staged: bool
    ) -> float:
        """Estimate the part of memory's rate that a persistent kernel reaches.

        Memory takes its time for the rows of all thread blocks on an SM. Each of them waits for its
        row, at the reduction's barrier, and until it may issue instructions. Whichever is longer
        decides; where both are alike they are in each other's way. Memory is asked by so many rows
        `ahead`, which are on their way to shared memory (`staged`) or to L2.
        """
        rates, threads = self.rates, tile.threads * tile.rows
        row = work.columns * tile.rows / tile.cluster
        memory = blocks * row * work.moved / (rates.memory_bytes * self.chip.memory_share)
        per_element = rates.element_instructions + rates.sum_instructions * work.sums
        elements = tile.chunks * tile.vector * threads / THREADS_PER_WARP
        issue = elements * per_element / rates.issued_warps
        wait = rates.turn_l2_latency if ahead else rates.turn_latency
        if staged:
            wait = rates.turn_shared_latency
        if tile.threads > THREADS_PER_WARP or tile.cluster > 1:
            wait += rates.turn_barrier + threads * rates.turn_barrier_thread
        wait += rates.turn_cluster_barrier if tile.cluster > 1 else 0
        turn = wait + blocks * issue
        flight = blocks * (ahead + (not staged)) * row * work.loaded
        lost = rates.vector_loss * (tile.chunks - 1)
        lost += rates.scattered_loss if tile.cluster > PAIR else 0
        if staged:
            lost += rates.staged_block_loss * (blocks - 1)
        else:
            over = flight / self.flight(rates.prefetched_bytes) - 1
            lost += rates.prefetch_crowding * max(0.0, over)
            lost -= rates.three_blocks_gain if blocks > 2 else 0
        enough = min(1.0, flight / self.flight(rates.least_bytes))
        waste = tile.columns / work.columns
        return (1 - lost) * enough * (1 + (waste * turn / memory) ** 4) ** -0.25


def model_of_target() -> MemoryModel:
    """Return the model of the chip that the target in scope names, else an H200's."""
    return MemoryModel(chip_of_target())


def has_clusters() -> bool:
    """Tell whether the chip that the target in scope names has clusters, as an H200 has."""
    chip = find_processor(Target.current(allow_none=True))
    return not isinstance(chip, Arch) or chip.has_clusters


def in_flight(work: RowWork, tile: RegisterTile, blocks: int) -> int:
    """Return the bytes of rows that the thread blocks of an SM load at once."""
    return blocks * tile.block_rows * work.columns * work.loaded // tile.cluster


def is_close(work: RowWork, tile: RegisterTile) -> bool:
    """Tell small clusters whose threads do little for each byte of the one tensor that they load.

    They share nothing and read nothing late, or reduce long rows of elements of four bytes once,
    as a mean and the squares around it in equal parts are.
    The assembler has its way there: how many thread blocks share an SM is no longer what counts.
    """
    small = 1 < tile.cluster <= CLOSE_CLUSTER and work.columns <= CLOSE_COLUMNS
    wide = work.loaded == WIDE_BYTES and work.columns * work.loaded > CLOSE_BYTES
    few = work.shared <= CLOSE_SHARED * work.loaded and tile.columns == work.columns
    once = work.reductions == 1 or (work.moments and few)
    little = not work.waits_late or (wide and once)
    return small and little and work.is_one_tensor
