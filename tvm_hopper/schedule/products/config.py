"""`MatmulConfig`: tile, stages, consumers, registers; and the chip's limits.

A configuration that the chip cannot hold is refused here, with all reasons at once, before a
schedule is touched. A tile or the last stage may be a sampled random variable of a schedule
(MetaSchedule): then the rules are checked for the smallest candidate, the structure follows from
all of them, and the lowering refuses illegal samples.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm.ir import Expr

from tvm_hopper.errors import cannot_schedule, found_and_need
from tvm_hopper.facts import dtypes, registers, swizzle, wgmma
from tvm_hopper.facts.arch import ARCHS, Arch
from tvm_hopper.requests import tags
from tvm_hopper.requests.keys import BY_DEVICE, MOST_CONSUMERS
from tvm_hopper.schedule.arguments import (
    as_choice,
    as_int,
    as_pair,
    as_stages,
    as_tile,
)
from tvm_hopper.schedule.given_fields import GivenFields
from tvm_hopper.transforms.common.shared_memory_size import (
    BARRIER_BYTES,
    TILE_ALIGNMENT,
    SharedArray,
    most_slots,
    ring_memory,
)

from . import promote, split
from .direct_shape import DirectShape
from .dot_shape import DotShape
from .field_values import (
    DIRECT,
    DOTS,
    MOST_BLOCKS,
    THREADS,
    TILES,
    TMA,
    TRANSPOSED,
    WEIGHTS,
    Raster,
    SplitK,
    TmaStore,
    as_early_launch,
    as_form,
    as_raster,
    as_split_k,
    as_store,
)

ARCH = ARCHS[tags.ARCH]  # that products are scheduled for: its warp groups multiply
CONSUMERS = (1, 2, 3)  # of a product
PENDING = (0, 1)  # WGMMA groups in flight over an iteration
ACCUMULATE = ("float32",)
SUMS = (*ACCUMULATE, promote.PROMOTED)
OPERANDS = (dtypes.TF32,)
SCHEDULES = ("cooperative", "pingpong")  # of consumers over output tiles
COOPERATIVE, PINGPONG = SCHEDULES


@dataclass(frozen=True)
class Roles(GivenFields):
    """Roles of a warp-specialised pipeline: one producer and its consumers.

    The producer is a warp group for a product, one warp for plain loops.

    Parameters
    ----------
    consumers : int
        Consumer warp groups of 128 threads: 1 to 3 for a product, up to 7 for plain loops.
    registers : tuple of int, optional
        Registers of a producer and of a consumer thread, for a product; None leaves the choice to
        the lowering.
    """

    consumers: int = 1
    registers: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        consumers = as_int("roles", "consumers", self.consumers)
        if consumers is None or not 1 <= consumers <= MOST_CONSUMERS:
            need = f"1 to {MOST_CONSUMERS} warp groups (1, 2 or 3 of a product)"
            raise cannot_schedule("roles", f"consumers={consumers}", need)
        need = "registers of a producer and of a consumer thread, e.g. (40, 232)"
        self.set_fields(
            consumers=consumers, registers=as_pair("roles", "registers", self.registers, need)
        )
        if self.registers is None:
            return
        broken = registers.check(*self.registers, self.consumers, ARCH)
        if broken:
            where = f"roles with {self.consumers} consumers, registers={self.registers}"
            raise refuse_all(where, list(broken))


@dataclass(frozen=True, repr=False)
class MatmulConfig(GivenFields):
    """One way to compute a matmul with TMA, an mbarrier ring and WGMMA.

    `choose_config` fills in the other fields from the shape.

    Parameters
    ----------
    tile : tuple, optional
        Rows, columns and depth of a thread block's tile, in elements: three ints, or sampled
        random variables of the schedule.
    stages : int or expression, optional
        Stages of the shared-memory ring buffer. For tuning: `last + 1`, where `last` is a sampled
        random variable of the schedule.
    consumers : int, optional
        Consumer warp groups; they share the tile by rows, or by columns when rows do not divide.
    swizzle : int, optional
        Swizzle of the shared tiles in bytes, 0, 32, 64 or 128; None: the widest that fits.
    registers : tuple of int, optional
        Registers of a producer and of a consumer thread; None: the default of the consumer count.
    wgmma_pending : int, optional
        WGMMA groups left in flight at the end of an iteration, 0 or 1; None: the lowering decides.
    raster : int, str or Raster, optional
        Rasterization for L2: rows of output tiles in a group (1 is the hardware's order), or
        "hilbert", a curve through the tiles of a group, or both.
    persistent : int, optional
        Thread blocks of a persistent kernel, which overlaps loads of the next tile with the
        epilogue of the current one; 0: one block a tile. BY_DEVICE (-1): the host chooses the
        number for its device at each launch.
    accumulate : str, optional
        "float32" allows a block whose accumulator is float16 or bfloat16 to be summed in float32.
        "promoted", for float8: partial sums of a tile's depth, at most 128 products, are added in
        a second float32 accumulator, since Hopper keeps 14 bits of a sum of float8.
    operands : str, optional
        "tf32" multiplies float32 operands by the 10 highest bits of their mantissas. None: operands
        count as they are, and float32 is refused.
    store : str or TmaStore, optional
        "tma", or a `TmaStore`: TMA stores the output from shared memory. "threads": each thread
        stores its accumulators, and loads what the epilogue reads. None: "tma" if the epilogue
        reads a tensor of the output's shape that TMA can load, else the faster one.
    split_k : int, str or SplitK, optional
        Thread blocks that share the sum of one output tile (1: no split), how their parts are added
        ("cluster", "workspace", "caller", "serial", "atomic", "stream"), or both: see `SplitK`.
    cluster : tuple of int, optional
        Rows and columns of output tiles whose thread blocks form a cluster of 2 to 8: a row of
        blocks loads A once (multicast), a column loads B once. None or (1, 1): no cluster.
    form : str, DotShape or DirectShape, optional
        What a thread block computes, and with which instructions:

        * "tiles": WGMMA on shared tiles, of C or of its transpose, as the shape decides.
        * "untransposed": tiles of C.
        * "transposed": tiles of C^T = B^T A^T, so that an output of few rows needs no tile of 64
          rows: M is along the instruction's columns. Elements are stored one by one, unless a tile
          has at least 64 columns of 16-bit elements whose rows start at multiples of 16 bytes.
        * "dots", or a `DotShape`: threads compute dot products, for up to 8 rows of A[m, k] and
          B[n, k].
        * "direct", or a `DirectShape`: mma.sync on operands that warps load from global memory to
          registers, for up to 64 rows of A.

        With the last two only `accumulate` and `early_launch="weights"` combine. None: chosen from
        the shape, tiles or dot products.
    batch_invariant : bool, optional
        True: an output's bits depend only on its row of A and its column of B. Every sum runs in
        ascending order of k in one accumulator, for any number of rows. Excludes split-K.
    schedule : str, optional
        "cooperative": all consumers share a tile. "pingpong": consumers take turns on whole tiles,
        so that one multiplies while another stores; needs a persistent kernel with 2 or 3
        consumers. None: "pingpong" for short sums of 8-bit products, else "cooperative".
    early_launch : bool or str, optional
        True uses programmatic dependent launch: the kernel initialises its barriers while the
        previous launch ends, and waits before it accesses memory. "weights": B is loaded before
        that wait, too. The caller promises that no earlier launch of the stream that may still run
        writes B; for "dots" and "direct". None: True, unless threads load tensors for the epilogue.
    """

    tile: tuple[Any, Any, Any] | None = None
    stages: Any = None
    consumers: int | None = None
    swizzle: int | None = None
    registers: tuple[int, int] | None = None
    wgmma_pending: int | None = None
    raster: int | str | Raster | None = None
    persistent: int | None = None
    accumulate: str | None = None
    store: str | TmaStore | None = None
    split_k: int | str | SplitK | None = None
    cluster: tuple[int, int] | None = None
    form: str | DotShape | DirectShape | None = None
    batch_invariant: bool = False
    schedule: str | None = None
    early_launch: bool | str | None = None
    operands: str | None = None

    def __post_init__(self) -> None:
        where = "MatmulConfig"
        if self.consumers is not None:
            roles = Roles(self.consumers, self.registers)
            check_consumers(where, roles.consumers)
            self.set_fields(consumers=roles.consumers, registers=roles.registers)
        elif self.registers is not None:
            need = "consumers too, which the registers are distributed between"
            raise cannot_schedule(where, "registers alone", need)
        need = "rows and columns of tiles, e.g. (2, 1)"
        self.set_fields(
            tile=None if self.tile is None else as_tile(where, self.tile),
            stages=as_stages(where, self.stages),
            swizzle=as_choice(where, "swizzle", self.swizzle, swizzle.SWIZZLES),
            wgmma_pending=as_choice(where, "wgmma_pending", self.wgmma_pending, PENDING),
            raster=as_raster(where, self.raster),
            persistent=as_int(where, "persistent", self.persistent, BY_DEVICE, MOST_BLOCKS),
            accumulate=as_choice(where, "accumulate", self.accumulate, SUMS),
            operands=as_choice(where, "operands", self.operands, OPERANDS),
            store=as_store(where, self.store),
            split_k=as_split_k(where, self.split_k),
            cluster=as_pair(where, "cluster", self.cluster, need),
            form=as_form(where, self.form),
            schedule=as_choice(where, "schedule", self.schedule, SCHEDULES),
            early_launch=as_early_launch(where, self.early_launch),
        )
        if not isinstance(self.batch_invariant, bool):
            found = f"batch_invariant={self.batch_invariant!r}"
            raise cannot_schedule(where, found, "True or False")
        if self.split_mode == split.ATOMIC and self.store is None:
            self.set_fields(store=TMA)  # what the hardware copies out it can add, too
        if self.promotes:
            promote.check_request(where, self)
            self.set_fields(split_k=1, wgmma_pending=0)
        if self.takes_turns:
            split.check_turns(where, self)
        split.check_request(where, self)
        split.check_cluster(where, self)
        check_pending(where, self.stages, self.wgmma_pending)
        if self.batch_invariant and self.shares_sums:
            need = "one of the two: parts of a sum are added in another order"
            found = f"split_k={self.split_k!r} with batch_invariant=True"
            raise cannot_schedule(where, found, need)
        if not self.has_tiles:
            self._check_alone(where)
        if self.transposed and self.by_tma:
            need = "one of the two: rows of a transposed tile are no rows in memory"
            raise cannot_schedule(where, f"store={self.store!r} with form='transposed'", need)

    def _check_alone(self, where: str) -> None:
        """Refuse fields of tiles next to a form that has none."""
        asked = f"form={self.form!r} with "
        if self.batch_invariant:
            need = "one of the two: parts of a sum are added in another order"
            raise cannot_schedule(where, f"{asked}batch_invariant=True", need)
        beside = {"form", "accumulate"}
        if self.split_parts is None and not self.streams:
            beside.add("split_k")
        if self.early_launch in (False, WEIGHTS):
            beside.add("early_launch")
        if others := [x for x in self.given if x not in beside]:
            found = f"{asked}{others[0]}={getattr(self, others[0])!r}"
            raise cannot_schedule(where, found, "the form alone: there are no tiles")

    @property
    def promotes(self) -> bool:
        """Whether partial sums are added in a second accumulator."""
        return self.accumulate == promote.PROMOTED

    @property
    def is_sampled(self) -> bool:
        """Whether a tuner decides on a part: what one decision breaks, another may not."""
        return any(isinstance(size, Expr) for size in (*(self.tile or ()), self.stages))

    @property
    def num_stages(self) -> int | None:
        """Stages of the ring, where they are known: not sampled."""
        return self.stages if isinstance(self.stages, int) else None

    @property
    def raster_group(self) -> int | None:
        """Rows of output tiles in a group."""
        return self.raster.group if isinstance(self.raster, Raster) else _as(int, self.raster)

    @property
    def raster_curve(self) -> str | None:
        """Curve through the tiles of a group."""
        return self.raster.curve if isinstance(self.raster, Raster) else _as(str, self.raster)

    @property
    def split_parts(self) -> int | None:
        """Thread blocks that share the sum of a tile, as given."""
        return self.split_k.parts if isinstance(self.split_k, SplitK) else _as(int, self.split_k)

    @property
    def split_mode(self) -> str | None:
        """How parts of a sum are added, as given."""
        return self.split_k.mode if isinstance(self.split_k, SplitK) else _as(str, self.split_k)

    @property
    def by_tma(self) -> bool:
        """Whether outputs leave through shared memory."""
        return self.store is not None and self.store != THREADS

    @property
    def store_parts(self) -> int | None:
        """Column parts that each consumer stores one after another."""
        return self.store.parts if isinstance(self.store, TmaStore) else None

    @property
    def operand_slots(self) -> int | None:
        """Slots for parts of an epilogue operand; 0: threads load it."""
        if isinstance(self.store, TmaStore):
            return self.store.operand_slots
        return 0 if self.store == THREADS else None

    @property
    def dots(self) -> bool:
        """Whether threads compute dot products."""
        return self.form == DOTS or isinstance(self.form, DotShape)

    @property
    def direct(self) -> bool:
        """Whether warps load their operands."""
        return self.form == DIRECT or isinstance(self.form, DirectShape)

    @property
    def has_tiles(self) -> bool:
        """Whether tiles are multiplied, as far as the configuration says."""
        return not self.dots and not self.direct

    @property
    def transposed(self) -> bool:
        """Whether tiles of C^T are computed."""
        return self.form == TRANSPOSED

    @property
    def is_orientation_open(self) -> bool:
        """Whether it is open if tiles of C or of C^T are computed."""
        return self.form in (None, TILES)

    @property
    def parts(self) -> int:
        """Thread blocks that share the sum of an output tile."""
        return self.split_parts or 1

    @property
    def streams(self) -> bool:
        """Tell whether thread blocks have equal shares of the steps of all tiles."""
        return self.split_mode == split.STREAM

    @property
    def shares_sums(self) -> bool:
        """Tell whether several thread blocks sum parts of one output tile."""
        return self.parts > 1 or self.streams

    @property
    def in_cluster(self) -> bool:
        """Whether thread blocks of several output tiles load for one another."""
        return self.cluster is not None and self.cluster != (1, 1)

    @property
    def takes_turns(self) -> bool:
        """Tell whether each consumer computes output tiles of its own."""
        return self.schedule == PINGPONG

    @property
    def sharers(self) -> int:
        """Consumers that share an output tile."""
        return 1 if self.takes_turns else self.consumers or 1

    @property
    def turns(self) -> int:
        """Number of consumer groups that take turns on output tiles (ping-pong)."""
        return (self.consumers or 2) if self.takes_turns else 1


def check_consumers(where: str, consumers: int) -> None:
    """Refuse more consumer warp groups than the registers of a product allow."""
    if consumers not in CONSUMERS:
        raise cannot_schedule(where, f"consumers={consumers}", "1, 2 or 3 warp groups of a product")


def check_pending(where: str, stages: Any, pending: int | None) -> None:
    """Refuse as many groups in flight as ring slots: the producer would wait forever.

    A slot is released one iteration late for each group that stays in flight after it. A sampled
    depth is checked by the lowering.
    """
    if isinstance(stages, int) and pending is not None and pending >= stages:
        raise cannot_schedule(
            where,
            f"wgmma_pending={pending} with {stages} stages",
            f"{pending + 1} stages or more: a group in flight keeps its slot",
            "take more stages or fewer pending groups",
        )


def _as(kind: type, value: Any) -> Any:
    return value if isinstance(value, kind) else None


def refuse_all(where: str, broken: list[str]) -> Exception:
    """Build one refusal out of one or more "found ...; need ..." texts."""
    first, *rest = broken
    found, need = found_and_need([first])
    return cannot_schedule(where, found, need, "".join(f"also {b}; " for b in rest).rstrip("; "))


def split_axis(tile_m: int, tile_n: int, consumers: int) -> str:
    """Return "m" or "n", along which consumers share a tile; an empty string when neither divides.

    Rows come first: each consumer then reads its own part of A's tile.
    """
    if tile_m % (wgmma.INSTRUCTION_M * consumers) == 0:
        return "m"
    return "n" if tile_n % (8 * consumers) == 0 and tile_m % wgmma.INSTRUCTION_M == 0 else ""


def ring_slots(
    tile: tuple[int, int, int], dtype: str, stored_bytes: float = 0
) -> tuple[SharedArray, SharedArray]:
    """Return what one slot of the ring takes for A and for B.

    - `stored_bytes`: of an element of A, where it is converted on its way; 0: it is not.
    """
    tile_m, tile_n, tile_k = tile
    size = tile_k * dtypes.dtype_bytes(dtype)
    stored = int(tile_m * tile_k * stored_bytes)
    return (
        SharedArray("A", stored or tile_m * size, TILE_ALIGNMENT),
        SharedArray("B", tile_n * size, TILE_ALIGNMENT),
    )


def most_stages(tile: tuple[int, int, int], dtype: str, arch: Arch, stored_bytes: float = 0) -> int:
    """Return how many slots of the ring fit into the shared memory of one CTA."""
    return most_slots(ring_slots(tile, dtype, stored_bytes), arch)


def find_violations(
    tile: tuple[int, int, int],
    stages: int,
    config: MatmulConfig,
    dtype: str,
    arch: Arch,
    products: int = 1,
    stored_bytes: float = 0,
) -> list[str]:
    """Return every rule that a tile of known size breaks, as "found ...; need ...".

    `config` gives consumers, registers and whether sums are promoted. The columns of the tile are
    those of so many products. `stored_bytes` is as for `ring_slots`.
    """
    consumers = config.sharers
    tile_m, tile_n, tile_k = tile
    step = wgmma.instruction_k(dtype)
    broken = []
    if tile_m <= 0 or tile_m % wgmma.INSTRUCTION_M:
        broken.append(f"found tile_m {tile_m}; need a multiple of {wgmma.INSTRUCTION_M}")
    if tile_n <= 0 or tile_n % 8:
        broken.append(f"found tile_n {tile_n}; need a multiple of 8")
    if tile_k <= 0 or tile_k % step:
        broken.append(f"found tile_k {tile_k}; need a multiple of {step} for {dtype}")
    if config.promotes and tile_k > promote.MOST_PRODUCTS:
        need = f"at most {promote.MOST_PRODUCTS}, so many products are summed before promotion"
        broken.append(f"found tile_k {tile_k} with accumulate={config.accumulate!r}; need {need}")
    if broken:
        return broken
    if not split_axis(tile_m, tile_n, consumers):
        legal = [str(c) for c in CONSUMERS if split_axis(tile_m, tile_n, c)]
        broken.append(
            f"found {consumers} consumers for a {tile_m}x{tile_n} tile; need consumers in "
            f"{{{', '.join(legal)}}}, or tile_m a multiple of {64 * consumers}, or tile_n a "
            f"multiple of {8 * consumers}"
        )
    slots = ring_slots(tile, dtype, stored_bytes)
    memory = ring_memory(slots, stages)  # sums that a cluster exchanges lie in its bytes
    if not memory.fits_on(arch):
        sizes = " + ".join(f"{slot.name} {slot.num_bytes}" for slot in slots)
        padding = f" + alignment {memory.padding}" if memory.padding else ""
        broken.append(
            f"found {stages} stages x ({sizes} + barriers {BARRIER_BYTES}){padding} = "
            f"{memory.num_bytes} B of shared memory; need at most {arch.smem_per_block} B, which "
            f"{most_stages(tile, dtype, arch, stored_bytes)} stages of this tile take"
        )
    consumer = config.registers[1] if config.registers else None
    if config.takes_turns and consumer is None:
        consumer = registers.default_split(config.turns)[1]
    held = registers.accumulator_registers(tile_m, tile_n, consumers)
    each = [held // products] * products * (1 + config.promotes)
    budget = registers.accumulator_budget(each, consumers, arch, consumer)
    if not budget.fits:
        times = f"{products} products of " * (products > 1)
        times += "a sum and a partial sum of " * config.promotes
        broken.append(
            f"found {budget.held} accumulators a thread ({times}{tile_m}x{tile_n // products} over "
            f"{consumers} consumers); need at most {budget.room} of {budget.consumer} registers, "
            "by a smaller tile or more consumers"
        )
    return broken
