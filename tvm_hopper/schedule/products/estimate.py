"""Cost model of products: the time of many configurations at once.

    time  = start + loop + waves x epilogue + meetings               cycles of an SM
    loop  = norm(waves x steps x step, memory, power)
    step  = norm(multiply, turn, fill, latency, L2, out of bounds)   of one slot of the ring

`norm` is a p-norm: close to the largest of its arguments, more where several are large. Every
constant is a field of `Rates`, measured on an H200 and fitted by
`benchmarks/calibration/fit_choice.py`; docs/choice.md says what each term stands for. Chips of
other sizes scale by `Chip`.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

from tvm_hopper.facts.devices import Chip
from tvm_hopper.facts.dtypes import dtype_bytes
from tvm_hopper.facts.programming_model import (
    LINE_BYTES,
    SECTOR_BYTES,
    THREAD_ACCESS_BYTES,
    WARP_GROUP_THREADS,
)
from tvm_hopper.transforms.wgmma.fragment_layout import MIN_TRANSPOSED_COLUMNS

from .candidates import MOST_PARTS, Candidates, columns_in_panels
from .product_shape import ProductShape
from .rate_constants import Rates

Floats = np.ndarray[Any, np.dtype[np.float64]]

INSTRUCTION_ROWS = 64
# Of an element that a thread converts. Not fitted with the others: of 110 times of 4-bit weights,
# 1 to 2048 rows; 10% off in the mean.
CONVERT_CYCLES = 4.5
WAVE_COST = 0.05  # share of the time that each further tile of a block costs then, of these times
LINK_CYCLES = 800  # from one block to the next that adds to the same tile; of 72x72x30208
SUM_BYTES = 4  # of an accumulator
MANY_ROWS = 1024  # of an output
WIDE_COLUMNS = 32  # of 16 bits: an instruction of a multiple of them stores 16 bytes a thread


@dataclass(frozen=True)
class KernelForm:
    """Common properties of the kernels whose tiles are compared."""

    by_kernels: bool = False  # split-K by workspace, not by cluster
    # Tiles that cross an edge of the output have boxes of their own, unless blocks load for one
    # another or compute several tiles: then no rows of them are outside.
    spare: bool = True
    boxes: Any = False  # whether, and for which tiles, the output leaves by TMA: an array of bool
    # Kernels are made for any number of rows: then tiles that a block computes one after another
    # have boxes of their own at an edge, too.
    any_rows: bool = False
    # Thread blocks have equal shares of the steps of all tiles: as many each, and a part of a tile
    # is left in memory, and one taken from there.
    streams: bool = False
    turned: bool = True  # transposed tiles of many columns store vectors
    shifted: bool = True  # tiles of any columns store vectors
    turns: int = 1  # consumers, if each computes whole tiles; 1: they share a tile


def estimate(
    product: ProductShape,
    tiles: Candidates,
    chip: Chip,
    rates: Rates,
    form: KernelForm = KernelForm(),
) -> Floats:
    """Return the estimated time in microseconds of a product with each of the tiles.

    - `product`: extents are those of the tensors, not of whole tiles. One that is a column of
      numbers asks for a row of times for each of them.
    - `tiles`: what to check.
    - `chip`: how many SMs there are, and their rates next to those of the one that was measured.
    - `rates`: the constants.
    - `form`: what all of the kernels have in common.
    """
    return _Estimate(product, tiles, chip, rates, form).microseconds()


class _Estimate:
    """The terms of the formula, for each of the tiles."""

    def __init__(
        self,
        product: ProductShape,
        tiles: Candidates,
        chip: Chip,
        rates: Rates,
        form: KernelForm,
    ) -> None:
        self.product, self.tiles, self.chip, self.rates, self.form = (
            product, tiles, chip, rates, form,
        )  # fmt: skip
        self.size = dtype_bytes(product.dtype)
        self.left_size = product.converted_bytes or self.size  # in memory
        extents = product.m, product.n, product.k
        self.m, self.n, self.k = (np.asarray(x, dtype=np.float64) for x in extents)
        self.rows, self.columns, self.depth = (
            x.astype(float) for x in (tiles.rows, tiles.columns, tiles.depth)
        )
        self.rows_of_one = np.where(tiles.by_rows, self.rows / tiles.consumers, self.rows)
        of_one = self.columns / tiles.consumers
        self.columns_of_one = np.where(tiles.by_rows, self.columns, of_one)
        self.row_blocks, self.column_blocks = (
            x.astype(float) for x in (tiles.rows_of_blocks, tiles.columns_of_blocks)
        )
        self.parts = tiles.parts.astype(float)
        self.shared = self.parts > 1
        down = product.tiles_down(tiles.rows * tiles.rows_of_blocks)
        self.down = np.asarray(down, dtype=np.float64)  # clusters
        self.across = np.ceil(self.n / (self.columns * self.column_blocks))
        self._count_waves()
        self._weigh_operands()
        self._weigh_stores()

    def _count_waves(self) -> None:
        """Count clusters, how many run at once, and the steps of a block."""
        tiles, chip = self.tiles, self.chip
        self.count = self.down * self.across * self.product.batch
        blocks = tiles.parts * tiles.rows_of_blocks * tiles.columns_of_blocks
        if self.form.by_kernels:
            self.at_once = chip.num_sms / blocks
        else:
            self.at_once = np.array([chip.clusters(x) for x in range(MOST_PARTS + 1)])[blocks]
        self.waves = np.ceil(self.count / self.at_once)
        self.active = np.ceil(self.count / self.waves) * blocks
        steps = np.ceil(self.product.steps_deep(self.depth) / self.parts)
        self.in_all = self.waves * steps  # of a block
        if self.form.streams:
            self.in_all = np.ceil(self.count * steps / self.at_once)
            self.active = np.minimum(self.count * steps, self.at_once) * blocks

    def _weigh_operands(self) -> None:
        """Say by how much operands cost more whose rows begin off sectors, or off lines."""
        rates = self.rates
        self.off_left, self.off_right = (
            np.where(x % SECTOR_BYTES, rates.off_sector, rates.off_line * (x % LINE_BYTES != 0))
            for x in map(np.asarray, self.product.row_bytes)
        )

    def _weigh_stores(self) -> None:
        """Find the columns of an instruction, and at what rate outputs are stored."""
        product, rates, form = self.product, self.rates, self.form
        width, self.by_runs = self.tiles.instruction, np.asarray(False)
        if product.majors[1] == "mn":
            own = self.columns_of_one.astype(int)
            width = columns_in_panels(product.dtype)[self.tiles.consumers, own]
        self.width = width
        columns = WIDE_COLUMNS * 2 // min(product.output_bytes, 2)
        self.wide = (width % columns == 0) & (product.output_bytes <= 2)
        narrow = rates.narrow_store_bytes
        if product.output_bytes > 2:  # threads of a row fill a sector, of 2 bytes half of one
            narrow = 2 * narrow if product.is_transposed else rates.pair_store_bytes
        self.stored_at = np.where(self.wide, rates.wide_store_bytes, narrow)
        if product.is_transposed:
            at_vectors = np.asarray(product.m) * product.output_bytes % THREAD_ACCESS_BYTES == 0
            is_turned = (self.columns_of_one >= MIN_TRANSPOSED_COLUMNS) & ~self.shared & at_vectors
            is_turned = is_turned & form.turned & (product.output_bytes == 2)
            self.wide = np.zeros_like(self.wide)
            many = (np.asarray(product.n) > MANY_ROWS) & (not form.any_rows)
            turned_at = np.where(
                many, rates.transposed_store_bytes_many_rows, rates.transposed_store_bytes
            )
            self.stored_at = np.where(is_turned, turned_at, narrow)
            if product.output_bytes <= 2:
                self.stored_at = np.where(at_vectors, self.stored_at, rates.element_store_bytes)
        elif product.output_bytes <= 2:
            at_vectors = np.asarray(product.n) * product.output_bytes % THREAD_ACCESS_BYTES == 0
            fits = self.columns_of_one * product.output_bytes >= WIDE_COLUMNS * 2
            is_shifted = fits & (~self.shared | form.by_kernels)
            others = np.where(is_shifted, rates.shifted_store_bytes, rates.element_store_bytes)
            self.stored_at = np.where(at_vectors, self.stored_at, others)
            self.wide = self.wide & at_vectors
            if form.shifted:  # the runs of four threads, of which the last ones may be beyond
                runs = self.columns_of_one / (np.ceil(self.columns_of_one / columns) * columns)
                by_runs = is_shifted & at_vectors & ~self.wide & ~self.shared
                self.stored_at = np.where(by_runs, rates.wide_store_bytes * runs, self.stored_at)
                self.wide = self.wide | by_runs
                self.by_runs = by_runs
        at_sectors = np.asarray(product.n) * product.output_bytes % SECTOR_BYTES == 0
        self.stored_at = np.where(form.boxes & at_sectors, rates.box_store_bytes, self.stored_at)

    # -- the loop -----------------------------------------------------------------------------

    def _multiply(self) -> Floats:
        """Return the cycles of a consumer's instructions in a step."""
        rates = self.rates
        held = self.rows_of_one * self.columns_of_one / 128  # accumulators of a thread
        crowd = 1 + rates.register_pressure_cost * np.maximum(held - 160, 0) / 32
        read = (INSTRUCTION_ROWS + self.width) * 32 / rates.operand_bytes
        instruction = np.maximum(self.width / 2 / self.chip.tensor_rate, read)
        instruction = np.maximum(instruction, rates.shortest_cycles) * crowd
        instructions = self.rows_of_one / INSTRUCTION_ROWS * self.columns_of_one / self.width
        return np.asarray(instructions * (self.depth * self.size / 32) * instruction)

    def _converted(self, own: Floats) -> Floats:
        """Return the cycles of a step whose consumers convert their rows before they multiply.

        They do so at the same time, since they wait for the same slots.
        """
        converts = self.rows_of_one * self.depth / WARP_GROUP_THREADS * CONVERT_CYCLES
        handover = self.rates.slot_handover_cycles
        return np.asarray(converts + own * self.tiles.consumers + handover)

    def _fill(self) -> Floats:
        """Return the cycles in which TMA fills a slot; blocks of a cluster load for one another."""
        rates, majors, size = self.rates, self.product.majors, self.size
        left = (1 + self.off_left / self.column_blocks) * _narrow(
            rates, majors[0], self.rows_of_one * self.left_size
        )
        right = (1 + self.off_right / self.row_blocks) * _narrow(
            rates, majors[1], self.columns_of_one * size
        )
        rows, columns = self.rows, self.columns
        if self.form.any_rows:
            rows, columns = np.minimum(self.m, rows), np.minimum(self.n, columns)
        filled = (rows * left * self.left_size + columns * right * size) * self.depth
        return np.asarray(filled / rates.fill_bytes)

    def _inside(self) -> tuple[Floats, Floats]:
        """Return the rows and columns of a tile that are inside: no more comes from memory."""
        return self.m / self.product.tiles_down(self.tiles.rows), self.n / np.ceil(
            self.n / self.columns
        )

    def _through_l2(self) -> Floats:
        """Return the cycles in which L2 answers a step of all thread blocks."""
        left, right = (
            (1 + self.off_left) / self.column_blocks,
            (1 + self.off_right) / self.row_blocks,
        )
        rows, columns = self._inside()
        loaded = (rows * left * self.left_size + columns * right * self.size) * self.depth
        apart = 0.0 if self.form.by_kernels else self.rates.split_k_l2_exponent
        return np.asarray(loaded * self.active / self.rates.l2_bytes * self.parts**apart)

    def _outside(self) -> Floats:
        """Return the cycles of rows of boxes that lie outside of their tensors."""
        majors, form = self.product.majors, self.form
        # a cluster's tiles are all there
        down, across = self.down * self.row_blocks, self.across * self.column_blocks
        left, right = down * self.rows - self.m, across * self.columns - self.n
        in_turn = (self.waves > 1) & ~self.shared & (not form.any_rows)
        if form.spare and majors[0] == "k":
            left = np.where((self.column_blocks > 1) | in_turn, left, 0)
        if form.spare and majors[1] == "k":
            right = np.where((self.row_blocks > 1) | in_turn, right, 0)
        # Summed over all boxes, in each block that receives one.
        beyond = (left * across + right * down) * self.product.batch
        lines = self.depth * self.size / LINE_BYTES
        cycles = self.rates.out_of_bounds_row_cycles * beyond * self.parts / self.waves * lines
        return np.asarray(cycles)

    def _step(self) -> Floats:
        rates, own = self.rates, self._multiply()
        turn = rates.slot_handover_cycles * np.where(
            self.tiles.pending > 0, rates.handover_share_pending, 1
        )
        latency = rates.latency_cycles / np.maximum(self.tiles.stages - 1.0, 0.5)
        several = [own * self.tiles.consumers, own + turn, self._fill(), latency]
        if self.product.converted_bytes:
            several = [self._converted(own), self._fill(), latency]
        return _norm(rates.step_exponent, *several, self._through_l2(), self._outside())

    # -- around it ----------------------------------------------------------------------------

    def _epilogue(self) -> Floats:
        stored = self.rows * self.columns * self.product.output_bytes / self.parts
        if self.form.any_rows:  # of few rows in a tile for many, the others are not stored
            rows, columns = self._inside()
            stored = rows * columns * self.product.output_bytes / self.parts
        return np.asarray(stored / self.stored_at)

    def _meeting(self) -> Floats:
        """Return the cycles of adding partial sums, per wave."""
        rates, tile = self.rates, self.rows * self.columns * SUM_BYTES
        if not self.form.by_kernels:
            meeting = rates.cluster_sum_cycles + rates.cluster_peer_cycles * self.parts
            return np.asarray(meeting + tile / rates.exchange_bytes)
        sums = self.m * self.n * self.product.batch * self.parts * SUM_BYTES / self.chip.num_sms
        meeting = tile / rates.workspace_bytes
        # Where stores are wide a thread adds up more registers of each part.
        each = rates.partial_sum_cycles * np.where(
            self.wide, rates.wide_store_partial_sum_factor, 1
        )
        meeting = meeting + (rates.second_kernel_cycles + each * self.parts) / self.waves
        return np.asarray(meeting + sums / rates.workspace_bytes / self.waves)

    def _around(self) -> Floats:
        """Return the cycles of start, epilogues and cluster barriers."""
        rates, form, waves, shared = self.rates, self.form, self.waves, self.shared
        epilogue = self._epilogue()
        if form.turns > 1:  # the others multiply meanwhile
            waves = np.ones_like(waves)
        # Blocks that share a sum compute one tile each: the next begins after the epilogue.
        hidden = np.where(self.wide & ~shared, rates.epilogue_overlap * (waves - 1) * epilogue, 0)
        off = self.off_left / self.column_blocks + self.off_right / self.row_blocks
        around = (
            rates.start_cycles * (1 + rates.start_off_sector_cost * off) + waves * epilogue - hidden
        )
        around = around + np.where(shared, self._meeting() * waves, 0)
        if form.any_rows and not form.by_kernels:
            # blocks of the next launch are in place before it may begin
            fits = 2 * self.count <= self.at_once
            around = around - rates.early_launch_saved_cycles * (1 + shared) * fits
        begins = np.maximum(*(np.asarray(x) % SECTOR_BYTES for x in self.product.row_bytes))
        joined = np.where(begins == 0, rates.multicast_cycles, rates.multicast_off_sector_cycles)
        around = around + np.where(self.row_blocks * self.column_blocks > 1, joined, 0)
        if form.streams:
            # a kernel that sets words to zero; and for each block but one of a tile, its sums
            others = np.maximum(self.at_once / self.count, 1)
            handed_on = 2 * self.rows * self.columns * SUM_BYTES / rates.workspace_bytes
            handed_on = rates.second_kernel_cycles + others * (LINK_CYCLES + handed_on)
            around = around + np.where(self.count % self.at_once, handed_on, 0)
        return np.asarray(around)

    def _in_memory(self) -> Floats:
        """Return the cycles that the device's memory takes for all operands and outputs."""
        product, rates, m, n = self.product, self.rates, self.m, self.n
        row = product.m if product.is_transposed else product.n
        off_sector = row * product.output_bytes % SECTOR_BYTES != 0
        parted = (
            rates.partial_sector_cost
            * off_sector
            * np.where(self.form.boxes, rates.tma_store_partial_sector_share, 1)
        )
        moved = self.left_size * m * product.left_in_memory + self.size * n * self.k
        moved = moved + product.output_bytes * m * n * (1 + parted)
        moved = moved * product.batch
        in_memory = moved / (rates.memory_bytes * self.chip.memory_rate)
        if self.form.any_rows:  # few blocks do not keep it busy
            in_memory = np.maximum(in_memory, moved / (rates.sm_memory_bytes * self.active))
            if product.is_transposed:
                across = self.across * self.column_blocks
                asked_again = rates.extra_tile_cost * (across - 1) * (self.waves <= 1)
                in_memory = in_memory * (1 + asked_again)
        return np.asarray(in_memory)

    def microseconds(self) -> Floats:
        """Return the time of each of the tiles."""
        rates, chip = self.rates, self.chip
        products = self.m * self.n * self.k * self.product.batch / 1e9
        power = rates.flop_power * self.size / 2 * products  # by bytes, as multipliers are
        in_power = power * chip.megahertz / chip.power_rate
        in_loop = self.in_all * self._step()
        if self.form.turns > 1:
            of_tile = in_loop / self.waves
            in_turn = (of_tile + self._epilogue()) / self.form.turns
            in_loop = self.waves * np.maximum(of_tile, in_turn)
        bounds = (np.full_like(in_loop, x) for x in (self._in_memory(), in_power))
        cycles = self._around() + _norm(rates.time_exponent, in_loop, *bounds)
        if self.form.turns == 1:
            alone = self.tiles.consumers == 1
            cycles = cycles + rates.single_consumer_tile_cycles * alone * (self.waves - 1)
        cut = (self.m % self.rows != 0) | (self.n % self.columns != 0)
        cycles = cycles * (1 + rates.third_consumer_cost * (self.tiles.consumers > 2))
        by_columns = (self.tiles.by_rows == 0) & (self.tiles.consumers > 1)
        cycles = cycles * (1 + rates.shared_columns_cost * by_columns)
        cycles = cycles * (1 + rates.run_store_cost * self.by_runs)
        if self.product.converted_bytes:
            cycles = cycles * (1 + WAVE_COST * (self.waves - 1))
        if self.form.any_rows:  # all stores are after conditions
            cycles = cycles - rates.any_rows_start_saved_cycles
            turns = rates.multi_tile_cost + rates.multi_tile_split_k_cost * self.shared
            cycles = cycles * (1 + turns * (self.waves > 1))
            cycles = cycles * (1 + rates.third_consumer_cost_any_rows * (self.tiles.consumers > 2))
            cycles = cycles + rates.any_rows_workspace_cycles * (self.shared & self.form.by_kernels)
            return np.asarray(cycles / chip.megahertz, dtype=np.float64)
        return np.asarray(
            cycles * (1 + rates.edge_tile_cost * cut) / chip.megahertz, dtype=np.float64
        )


def _narrow(rates: Rates, major: str, row_bytes: Floats) -> Floats:
    """Return by how much an operand costs more since its tile's rows take a narrow swizzle."""
    if major == "k":
        return np.ones_like(row_bytes)
    halvings = sum((row_bytes % span != 0).astype(float) for span in (128, 64, 32))
    return 1 + rates.narrow_swizzle_cost * (2.0**halvings - 1)


def _norm(exponent: float, *terms: Floats) -> Floats:
    """Return the p-norm of terms, element by element."""
    largest = functools.reduce(np.maximum, terms)
    return np.asarray(
        largest * sum((term / largest) ** exponent for term in terms) ** (1 / exponent)
    )
