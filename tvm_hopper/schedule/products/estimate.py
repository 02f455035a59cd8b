"""How long a product takes in each of many configurations: the formula.

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
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tvm_hopper.facts.devices import Chip
from tvm_hopper.facts.dtypes import dtype_bytes
from tvm_hopper.facts.programming_model import LINE_BYTES, SECTOR_BYTES, THREAD_ACCESS_BYTES
from tvm_hopper.plan.fragment import LEAST_TURNED

from .candidates import MOST_PARTS, Candidates, columns_in_panels

Floats = np.ndarray[Any, np.dtype[np.float64]]

INSTRUCTION_ROWS = 64
LINK_CYCLES = 800  # from one block to the next that adds to the same tile; of 72x72x30208
SUM_BYTES = 4  # of an accumulator
MANY_ROWS = 1024  # of an output
WIDE_COLUMNS = 32  # an instruction of a multiple of them stores 16 bytes a thread, else 4


@dataclass(frozen=True)
class Rates:
    """Measured constants; cycles are those of an SM at `megahertz`, bytes a cycle those of one SM.

    Attributes
    ----------
    operand_bytes
        Bytes a cycle that WGMMA reads from shared memory.
    shortest_cycles
        Of one instruction, however few its columns.
    turn_cycles
        Of a consumer from one slot to the next: wait, fence, release.
    turn_left
        Share of it that is left with a group of instructions in flight.
    crowded
        Share by which each 32 accumulators a thread beyond 160 slow instructions down.
    fill_bytes
        Bytes a cycle that TMA writes into shared memory.
    narrow_span
        Share by which an operand costs more for each halving of the swizzle, from 128 bytes, to
        divide a row of its tile that runs along m or n.
    latency_cycles
        From the load of a slot to its arrival; as many loads are under way as there are slots, but
        for the one in use.
    off_sector
        Share by which an operand costs more whose rows begin off a sector of 32 bytes.
    off_line
        The same of rows that begin at sectors, but off a line of 128 bytes.
    l2_bytes
        Bytes a cycle of the whole L2 cache.
    apart
        Power of the number of parts of a sum by which the L2 cache gives less: thread blocks that
        lie together read the same lines at once, which counts once, but not those of a cluster.
    outside_cycles
        Of a row of 128 bytes of a box that lies outside of its tensor; those of all thread blocks
        come one after another.
    together_cycles
        Of a launch in clusters whose blocks load for one another, and of leaving together, however
        many there are: fitted, neither a share of the time nor cycles a block are left.
    together_off
        The same where rows of an operand begin off sectors.
    start_cycles
        Launch, barriers and the latency of the first tiles.
    start_off
        Share by which these cost more, by what rows off sectors and off lines add to an operand.
    wide_bytes, narrow_bytes
        Bytes a cycle of stores of 16 bytes and of 4 bytes a thread.
    turned_bytes
        Of stores of 16 bytes after matrices were turned between the lanes of a warp. Not fitted:
        from ten pairs of times with turned and with narrow stores.
    turned_of_many
        The same of outputs of more than `MANY_ROWS` rows, of static products. Of 13.5, 16, 18, 20,
        22 and 25 the one by which the choice lost least among the times of 31 such problems both
        ways.
    overlap
        Share of an epilogue that the loads of the next tile hide, where stores are wide: behind
        narrow ones, fitted, nothing is hidden.
    memory_bytes
        Bytes a cycle of the device's memory.
    partial
        Share by which output rows cost more that begin off a sector.
    boxed
        Share of that which is left where TMA stores whole boxes. Not fitted with the others: of 41
        such times of benchmarks/results/tile_times_*.json.
    flop_power
        Microseconds that 1e9 multiply-adds take of the chip's power.
    meeting_cycles
        Of a launch in clusters and of the barriers of one, where blocks share a sum.
    peer_cycles
        More for each block of the cluster.
    exchange_bytes
        Bytes a cycle that an SM reads of other SMs' sums.
    kernel_cycles, part_cycles
        Of a second kernel, which adds what thread blocks have summed in a workspace, and more for
        each part.
    wide_parts
        Times that where stores are of 16 bytes a thread.
    workspace_bytes
        Bytes a cycle that an SM writes to a workspace, or reads from it.
    cut_share
        Share of the time that edges of the output cost which cut tiles: stores behind conditions.
        Not fitted, since the times of the fit do not tell between 0 and 0.04: the same kernel with
        rows that are symbolic took 0.02 to 0.035 more.
    third
        Share of the time that a third consumer costs. Not fitted: at 8192^3 tiles of three and of
        two came out alike, and the first take 3% longer (at 4096^3 5% longer than estimated).
    in_turns, in_turns_shared
        Share of the time that several tiles a block, or several blocks an SM, cost more, of kernels
        made for any rows; and more where sums are shared, since no block loads ahead for the next
        one. These and the next five say how kernels of one product compare, many of which run far
        from what they are best at: fitted by benchmarks/calibration/fit_rows.py to
        benchmarks/results/row_matrix_*.
    third_of_any
        Share that a third consumer costs more.
    start_less
        Cycles of `start_cycles` that kernels made for any rows do without.
    workspace_more
        Cycles that kernels cost more whose parts of sums meet in a workspace.
    early_cycles
        That are saved where the blocks of two launches fit the chip at once: a kernel that may
        begin early is in place when the one in front ends. Of clusters twice that.
    port_bytes
        Bytes a cycle that one SM takes from memory: few blocks do not keep it busy.
    again
        How much longer memory takes for each further tile of a few rows that asks for the same
        weights in the same wave.
    step_norm, time_norm
        Exponents.
    """

    operand_bytes: float = 128.0
    shortest_cycles: float = 24.4
    turn_cycles: float = 200.0
    turn_left: float = 0.3
    crowded: float = 0.05
    fill_bytes: float = 87.0
    narrow_span: float = 0.3
    latency_cycles: float = 1000.0
    off_sector: float = 0.676
    off_line: float = 0.15
    l2_bytes: float = 9200.0
    apart: float = 0.4
    outside_cycles: float = 0.089
    together_cycles: float = 1600.0
    together_off: float = 1000.0
    start_cycles: float = 7800.0
    start_off: float = 0.1
    wide_bytes: float = 22.0
    narrow_bytes: float = 15.0
    turned_bytes: float = 13.5
    turned_of_many: float = 20.0
    overlap: float = 0.2
    memory_bytes: float = 2300.0
    partial: float = 1.4
    boxed: float = 0.35
    flop_power: float = 1.7
    meeting_cycles: float = 3000.0
    peer_cycles: float = 100.0
    exchange_bytes: float = 32.0
    kernel_cycles: float = 2500.0
    part_cycles: float = 150.0
    wide_parts: float = 4.0
    workspace_bytes: float = 40.0
    cut_share: float = 0.035
    third: float = 0.01
    in_turns: float = 0.005
    in_turns_shared: float = 0.106
    third_of_any: float = 0.05
    start_less: float = 780.0
    workspace_more: float = 700.0
    early_cycles: float = 470.0
    port_bytes: float = 66.0
    again: float = 0.19
    step_norm: float = 5.3
    time_norm: float = 3.0


@dataclass(frozen=True)
class ProductShape:
    """What is to be estimated: C[m, n] = A B, and which way the operands' rows run in memory.

    Attributes
    ----------
    majors
        "k" or "mn" for each operand: along which its rows are contiguous.
    output_bytes
        Of an element of C.
    is_transposed
        Whether m runs along the rows of C in memory: elements are then stored one by one.
    is_symbolic
        Whether an extent is a guess.
    """

    m: int
    n: int
    k: int
    dtype: str = "float16"
    majors: tuple[str, str] = ("k", "k")
    output_bytes: int = 2
    is_transposed: bool = False
    is_symbolic: bool = False

    @property
    def row_bytes(self) -> tuple[int, int]:
        """Bytes from one row of A in memory to the next, and of B."""
        left = self.k if self.majors[0] == "k" else self.m
        right = self.k if self.majors[1] == "k" else self.n
        return left * dtype_bytes(self.dtype), right * dtype_bytes(self.dtype)

    @property
    def transposed(self) -> ProductShape:
        """The same product as C^T = B^T A^T."""
        other = not self.is_transposed
        return replace(self, m=self.n, n=self.m, majors=self.majors[::-1], is_transposed=other)


def estimate(
    product: ProductShape,
    tiles: Candidates,
    chip: Chip,
    rates: Rates,
    by_kernels: bool = False,
    spare: bool = True,
    boxes: Any = False,
    any_rows: bool = False,
    streams: bool = False,
    turned: bool = True,
) -> Floats:
    """Return the estimated time in microseconds of a product with each of the tiles.

    Parameters
    ----------
    product : ProductShape
        Extents are those of the tensors, not of whole tiles. One that is a column of numbers asks
        for a row of times for each of them.
    tiles : Candidates
        What to judge.
    chip : Chip
        How many SMs there are, and their rates beside those of the one that was measured.
    rates : Rates
        The constants.
    by_kernels : bool
        Whether parts of a sum meet in a workspace, and not in a cluster.
    spare : bool
        Whether tiles that cross an edge of the output have boxes of their own, as they have since
        2026-11-23, unless blocks load for one another or compute several tiles: then no rows of
        them are outside.
    boxes : bool or array of bool
        Whether, and for which tiles, the output leaves by TMA.
    any_rows : bool
        Whether the kernels are made for any number of rows: then tiles that a block computes one
        after another have boxes of their own at an edge, too.
    streams : bool
        Whether thread blocks have equal shares of the steps of all tiles: as many each, and a part
        of a tile is left in memory, and one taken from there.
    turned : bool
        Whether transposed tiles of many columns store vectors, as they have since 2026-11-23.
    """
    size = dtype_bytes(product.dtype)
    m, n, k = (np.asarray(x, dtype=np.float64) for x in (product.m, product.n, product.k))
    rows, columns, depth = (x.astype(float) for x in (tiles.rows, tiles.columns, tiles.depth))
    rows_of_one = np.where(tiles.by_rows, rows / tiles.consumers, rows)
    columns_of_one = np.where(tiles.by_rows, columns, columns / tiles.consumers)

    row_blocks, column_blocks = (
        x.astype(float) for x in (tiles.rows_of_blocks, tiles.columns_of_blocks)
    )
    count = np.ceil(m / (rows * row_blocks)) * np.ceil(n / (columns * column_blocks))  # clusters
    parts = tiles.parts.astype(float)
    shared = parts > 1
    blocks = tiles.parts * tiles.rows_of_blocks * tiles.columns_of_blocks
    if by_kernels:
        at_once = chip.num_sms / blocks
    else:
        at_once = np.array([chip.clusters(x) for x in range(MOST_PARTS + 1)])[blocks]
    waves = np.ceil(count / at_once)
    active = np.ceil(count / waves) * blocks
    steps = np.ceil(np.ceil(k / depth) / parts)
    in_all = waves * steps  # of a block
    if streams:
        in_all = np.ceil(count * steps / at_once)
        active = np.minimum(count * steps, at_once) * blocks

    held = rows_of_one * columns_of_one / 128  # accumulators of a thread
    crowd = 1 + rates.crowded * np.maximum(held - 160, 0) / 32
    width = tiles.instruction
    if product.majors[1] == "mn":
        width = columns_in_panels(product.dtype)[tiles.consumers, columns_of_one.astype(int)]
    read = (INSTRUCTION_ROWS + width) * 32 / rates.operand_bytes
    instruction = np.maximum(width / 2 / chip.tensor_rate, read)
    instruction = np.maximum(instruction, rates.shortest_cycles) * crowd
    instructions = rows_of_one / INSTRUCTION_ROWS * columns_of_one / width
    own = instructions * (depth * size / 32) * instruction
    turn = rates.turn_cycles * np.where(tiles.pending > 0, rates.turn_left, 1)

    # Rows begin at sectors, or else each row of a box touches one more; and at lines, or off them.
    off_left, off_right = (
        np.where(x % SECTOR_BYTES, rates.off_sector, rates.off_line * (x % LINE_BYTES != 0))
        for x in map(np.asarray, product.row_bytes)
    )
    # Blocks of a row load A for one another, those of a column B.
    left, right = (1 + off_left) / column_blocks, (1 + off_right) / row_blocks
    left_fill = (1 + off_left / column_blocks) * _narrow(
        rates, product.majors[0], rows_of_one * size
    )
    right_fill = (1 + off_right / row_blocks) * _narrow(
        rates, product.majors[1], columns_of_one * size
    )
    # Nothing beyond an edge comes from memory.
    rows_inside, columns_inside = m / np.ceil(m / rows), n / np.ceil(n / columns)
    filled = (np.minimum(m, rows), np.minimum(n, columns)) if any_rows else (rows, columns)
    fill = (filled[0] * left_fill + filled[1] * right_fill) * depth * size / rates.fill_bytes
    loaded = (rows_inside * left + columns_inside * right) * depth * size
    apart = 0.0 if by_kernels else rates.apart
    through_l2 = loaded * active / rates.l2_bytes * parts**apart
    down = np.ceil(m / (rows * row_blocks)) * row_blocks  # a cluster's tiles are all there
    across = np.ceil(n / (columns * column_blocks)) * column_blocks
    left_out, right_out = down * rows - m, across * columns - n
    together = row_blocks * column_blocks
    in_turn = (waves > 1) & ~shared & (not any_rows)
    if spare and product.majors[0] == "k":
        left_out = np.where((column_blocks > 1) | in_turn, left_out, 0)
    if spare and product.majors[1] == "k":
        right_out = np.where((row_blocks > 1) | in_turn, right_out, 0)
    # Of all boxes, in each block that a box is sent to.
    beyond = left_out * across + right_out * down
    outside = rates.outside_cycles * beyond * parts / waves * (depth * size / LINE_BYTES)
    latency = rates.latency_cycles / np.maximum(tiles.stages - 1.0, 0.5)
    several = [own * tiles.consumers, own + turn, fill, latency, through_l2, outside]
    step = _norm(rates.step_norm, *several)

    wide = (width % WIDE_COLUMNS == 0) & (product.output_bytes == 2)
    stored_at = np.where(wide, rates.wide_bytes, rates.narrow_bytes)
    if product.is_transposed:
        at_vectors = np.asarray(product.m) * product.output_bytes % THREAD_ACCESS_BYTES == 0
        is_turned = (columns_of_one >= LEAST_TURNED) & ~shared & at_vectors & turned
        is_turned = is_turned & (product.output_bytes == 2)
        wide = np.zeros_like(wide)
        many = (np.asarray(product.n) > MANY_ROWS) & (not any_rows)
        turned_at = np.where(many, rates.turned_of_many, rates.turned_bytes)
        stored_at = np.where(is_turned, turned_at, rates.narrow_bytes)
    stored = rows * columns * product.output_bytes / parts
    if any_rows:  # of few rows in a tile for many, the others are not stored
        stored = rows_inside * columns_inside * product.output_bytes / parts
    epilogue = stored / stored_at
    if by_kernels:
        sums = m * n * parts * SUM_BYTES / chip.num_sms
        meeting = rows * columns * SUM_BYTES / rates.workspace_bytes
        # Where stores are wide a thread adds up more registers of each part.
        each = rates.part_cycles * np.where(wide, rates.wide_parts, 1)
        meeting = meeting + (rates.kernel_cycles + each * parts) / waves
        meeting = meeting + sums / rates.workspace_bytes / waves
    else:
        meeting = rates.meeting_cycles + rates.peer_cycles * parts
        meeting += rows * columns * SUM_BYTES / rates.exchange_bytes
    # Blocks that share a sum compute one tile each: the next begins after the epilogue.
    hidden = np.where(wide & ~shared, rates.overlap * (waves - 1) * epilogue, 0)
    off = off_left / column_blocks + off_right / row_blocks
    around = rates.start_cycles * (1 + rates.start_off * off) + waves * epilogue - hidden
    around = around + np.where(shared, meeting * waves, 0)
    if any_rows and not by_kernels:  # blocks of the next launch are in place before it may begin
        around = around - rates.early_cycles * (1 + shared) * (2 * count <= at_once)
    begins = np.maximum(*(np.asarray(x) % SECTOR_BYTES for x in product.row_bytes))
    joined = np.where(begins == 0, rates.together_cycles, rates.together_off)
    around = around + np.where(together > 1, joined, 0)
    if streams:  # a kernel that sets words to zero; and for each block but one of a tile, its sums
        others = np.maximum(at_once / count, 1)
        handed_on = LINK_CYCLES + 2 * rows * columns * SUM_BYTES / rates.workspace_bytes
        handed_on = rates.kernel_cycles + others * handed_on
        around = around + np.where(count % at_once, handed_on, 0)

    row = product.m if product.is_transposed else product.n
    off_sector = row * product.output_bytes % SECTOR_BYTES != 0
    parted = rates.partial * off_sector * np.where(boxes, rates.boxed, 1)
    moved = size * (m + n) * k + product.output_bytes * m * n * (1 + parted)
    in_memory = moved / (rates.memory_bytes * chip.memory_rate)
    if any_rows:  # few blocks do not keep it busy
        in_memory = np.maximum(in_memory, moved / (rates.port_bytes * active))
        if product.is_transposed:
            in_memory = in_memory * (1 + rates.again * (across - 1) * (waves <= 1))
    in_power = rates.flop_power * m * n * k / 1e9 * chip.megahertz / chip.power_rate
    in_loop = in_all * step
    bounds = (np.full_like(in_loop, x) for x in (in_memory, in_power))
    cycles = around + _norm(rates.time_norm, in_loop, *bounds)
    cut = (m % rows != 0) | (n % columns != 0)
    cycles = cycles * (1 + rates.third * (tiles.consumers > 2))
    if any_rows:  # all stores are behind conditions
        cycles = cycles - rates.start_less
        turns = rates.in_turns + rates.in_turns_shared * shared
        cycles = cycles * (1 + turns * (waves > 1))
        cycles = cycles * (1 + rates.third_of_any * (tiles.consumers > 2))
        cycles = cycles + rates.workspace_more * (shared & by_kernels)
        return np.asarray(cycles / chip.megahertz, dtype=np.float64)
    return np.asarray(cycles * (1 + rates.cut_share * cut) / chip.megahertz, dtype=np.float64)


def _narrow(rates: Rates, major: str, row_bytes: Floats) -> Floats:
    """Return by how much an operand costs more since its tile's rows take a narrow swizzle."""
    if major == "k":
        return np.ones_like(row_bytes)
    halvings = sum((row_bytes % span != 0).astype(float) for span in (128, 64, 32))
    return 1 + rates.narrow_span * (2.0**halvings - 1)


def _norm(exponent: float, *terms: Floats) -> Floats:
    """Return the p-norm of terms, element by element."""
    largest = functools.reduce(np.maximum, terms)
    return np.asarray(
        largest * sum((term / largest) ** exponent for term in terms) ** (1 / exponent)
    )
