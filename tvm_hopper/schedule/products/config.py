"""`MatmulConfig`: tile, stages, consumers, registers; and the chip's limits.

A configuration that the chip cannot hold is refused here, with all reasons at once, before a
schedule is touched. A tile or the last stage may be a sampled random variable of a schedule
(MetaSchedule): then the rules are checked for the smallest candidate, the structure follows from
all of them, and the lowering refuses illegal samples.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from tvm_hopper.errors import cannot_schedule, found_and_need
from tvm_hopper.facts import dtypes, registers, swizzle, wgmma
from tvm_hopper.facts.arch import ARCHS, Arch
from tvm_hopper.requests import tags
from tvm_hopper.requests.keys import BY_DEVICE, CURVES, MOST_CONSUMERS
from tvm_hopper.schedule.arguments import as_choice, as_int, as_pair, as_stages, as_tile
from tvm_hopper.transforms.common.shared_memory_size import (
    BARRIER_BYTES,
    TILE_ALIGNMENT,
    SharedArray,
    most_slots,
    ring_memory,
)

from . import split
from .direct_shape import as_direct
from .dot_shape import as_dots

ARCH = ARCHS[tags.ARCH]  # that products are scheduled for: its warp groups multiply
CONSUMERS = (1, 2, 3)  # of a product
PENDING = (0, 1)  # WGMMA groups in flight over an iteration
ACCUMULATE = ("float32",)
OPERANDS = (dtypes.TF32,)
SPLIT_MODES = split.MODES
SCHEDULES = ("cooperative", "pingpong")  # of consumers over output tiles
STORES = ("tma",)  # mechanisms by which outputs leave shared memory
MOST_BLOCKS = (1 << 31) - 1  # of a grid, in x


@dataclass(frozen=True)
class Roles:
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
        _store(
            self,
            consumers=consumers,
            registers=as_pair("roles", "registers", self.registers, need),
        )
        if self.registers is None:
            return
        broken = registers.check(*self.registers, self.consumers, ARCH)
        if broken:
            where = f"roles with {self.consumers} consumers, registers={self.registers}"
            raise refuse_all(where, list(broken))


@dataclass(frozen=True)
class MatmulConfig:
    """One way to compute a matmul with TMA, an mbarrier ring and WGMMA.

    `choose_config` fills in the other fields from the shape.

    Parameters
    ----------
    tile : tuple, optional
        Rows, columns and depth of a thread block's tile, in elements: three ints, or sampled
        random variables of the schedule.
    stages : int, optional
        Stages of the shared-memory ring buffer.
    consumers : int, optional
        Consumer warp groups; they share the tile by rows, or by columns when rows do not divide.
    swizzle : int, optional
        Swizzle of the shared tiles in bytes, 0, 32, 64 or 128; None: the widest that fits.
    registers : tuple of int, optional
        Registers of a producer and of a consumer thread; None: the default of the consumer count.
    wgmma_pending : int, optional
        WGMMA groups left in flight at the end of an iteration, 0 or 1; None: the lowering decides.
    raster_group : int, optional
        Rasterization for L2: rows of output tiles in a group; 1 is the hardware's order.
    raster_curve : str, optional
        "hilbert": a Hilbert curve through squares of tiles, whose side is the largest power of two
        up to `raster_group`. None: down each column of a group.
    persistent : int, optional
        Thread blocks of a persistent kernel, which overlaps loads of the next tile with the
        epilogue of the current one; 0: one block a tile. BY_DEVICE (-1): the host chooses the
        number for its device at each launch.
    accumulate : str, optional
        "float32" allows a block whose accumulator is float16 or bfloat16 to be summed in float32.
    operands : str, optional
        "tf32" multiplies float32 operands by the 10 highest bits of their mantissas. None: operands
        count as they are, and float32 is refused.
    last_stage : int or random variable, optional
        The same as `stages = last_stage + 1`, but may be sampled; give one of the two.
    store : str, optional
        "tma": TMA stores the output from shared memory. None: "tma" if the epilogue reads a tensor
        of the output's shape that TMA can load, else each thread stores its accumulators.
    store_parts : int, optional
        With `store`: number of column parts that each consumer stores one after another through
        the same shared memory. None: the fewest that fit next to the ring.
    split_k : int, optional
        Thread blocks that share the sum of one output tile; None or 1: no split.
    split_mode : str, optional
        How the parts are added:

        * "cluster": in a cluster of 2 to 8 blocks, through shared memory, in a fixed order.
        * "workspace": up to 64 blocks store partial sums to global memory, and a second kernel adds
          them in a fixed order. The caller's allocator (PyTorch's) gives that memory for the stream
          of the call. With TVM's own tensors it belongs to the calling thread, whose calls must
          then share one stream.
        * "caller": "workspace" if the call has an allocator, else "cluster".
        * "serial": up to 64 blocks add in a fixed order to a buffer of the output's size, and the
          last one stores. Without an allocator: "cluster".
        * "atomic": up to 64 blocks add to the output by atomic reductions, in any order, each
          rounded to the output's type.
        * "stream" (stream-K): `persistent` blocks (None: one for each SM) take equal shares of all
          k steps, and add a tile's parts in order. Without an allocator: whole tiles. Excludes
          `split_k`.

        None: "cluster" if `split_k` is given, else the faster of "caller" and "cluster".
    cluster : tuple of int, optional
        Rows and columns of output tiles whose thread blocks form a cluster of 2 to 8: a row of
        blocks loads A once (multicast), a column loads B once. None or (1, 1): no cluster.
    operand_slots : int, optional
        Slots for parts of an epilogue operand of the output's shape (a residual), which TMA
        prefetches into separate shared memory; outputs of the same type are stored from there.
        0: threads load it, as they do if TMA cannot. None: as many as fit; stages beyond the third
        are given up for them.
    schedule : str, optional
        "cooperative": all consumers share a tile. "pingpong": consumers take turns on whole tiles,
        so that one multiplies while another stores; needs a persistent kernel with 2 or 3
        consumers. None: "cooperative".
    batch_invariant : bool, optional
        True: an output's bits depend only on its row of A and its column of B. Every sum runs in
        ascending order of k in one accumulator, for any number of rows. Excludes split-K.
    transposed : bool, optional
        True multiplies C^T = B^T A^T, so that an output of few rows needs no tile of 64 rows: M is
        along the instruction's columns. Elements are stored one by one, unless a tile has at least
        64 columns of 16-bit elements whose rows start at multiples of 16 bytes. None: chosen from
        the shape together with the tile.
    dots : bool or tuple of int, optional
        True computes dot products by threads instead of tiles by tensor cores, for up to 8 rows of
        A[m, k] and B[n, k]; only `accumulate` combines with it. A tuple gives the threads per sum,
        the groups of such threads per block, the output columns per group, and the weight vectors
        in flight per thread and column. None: chosen from the shape.
    direct : bool or tuple of int, optional
        True uses mma.sync on operands that warps load from global memory to registers, for up to 64
        rows of A, instead of WGMMA on shared tiles; only `accumulate` combines with it. A tuple
        gives the warps per sum, the output columns per thread block, and the loads in flight per
        warp. None: tiles.
    early_weights : bool, optional
        True starts the kernel, and loads B, before earlier launches of the stream have ended
        (programmatic dependent launch). The caller promises that none of them writes B. For
        `direct` and `dots`; the next launch may start as early, too.
    early_launch : bool, optional
        True uses programmatic dependent launch: the kernel initialises its barriers while the
        previous launch ends, and waits before it accesses memory. None: True, unless threads load
        tensors for its epilogue.
    """

    tile: tuple[Any, Any, Any] | None = None
    stages: int | None = None
    consumers: int | None = None
    swizzle: int | None = None
    registers: tuple[int, int] | None = None
    wgmma_pending: int | None = None
    raster_group: int | None = None
    persistent: int | None = None
    accumulate: str | None = None
    last_stage: Any = None
    store: str | None = None
    store_parts: int | None = None
    split_k: int | None = None
    split_mode: str | None = None
    cluster: tuple[int, int] | None = None
    operand_slots: int | None = None
    transposed: bool | None = None
    batch_invariant: bool = False
    dots: tuple[int, ...] | bool | None = None
    direct: tuple[int, ...] | bool | None = None
    early_weights: bool = False
    schedule: str | None = None
    early_launch: bool | None = None
    raster_curve: str | None = None
    operands: str | None = None

    def __post_init__(self) -> None:
        where = "MatmulConfig"
        if self.consumers is not None:
            roles = Roles(self.consumers, self.registers)
            check_consumers(where, roles.consumers)
            _store(self, consumers=roles.consumers, registers=roles.registers)
        elif self.registers is not None:
            need = "consumers too, which the registers are distributed between"
            raise cannot_schedule(where, "registers alone", need)
        stages, last_stage = as_stages(where, self.stages, self.last_stage)
        _store(
            self,
            tile=None if self.tile is None else as_tile(where, self.tile),
            stages=stages,
            last_stage=last_stage,
            swizzle=as_choice(where, "swizzle", self.swizzle, swizzle.SWIZZLES),
            wgmma_pending=as_choice(where, "wgmma_pending", self.wgmma_pending, PENDING),
            raster_group=as_int(where, "raster_group", self.raster_group, 1, MOST_BLOCKS),
            raster_curve=as_choice(where, "raster_curve", self.raster_curve, CURVES),
            persistent=as_int(where, "persistent", self.persistent, BY_DEVICE, MOST_BLOCKS),
            accumulate=as_choice(where, "accumulate", self.accumulate, ACCUMULATE),
            operands=as_choice(where, "operands", self.operands, OPERANDS),
            store=as_choice(where, "store", self.store, STORES),
            store_parts=as_int(where, "store_parts", self.store_parts, 1),
            split_k=as_int(where, "split_k", self.split_k, 1),
            split_mode=as_choice(where, "split_mode", self.split_mode, SPLIT_MODES),
            cluster=as_pair(
                where, "cluster", self.cluster, "rows and columns of tiles, e.g. (2, 1)"
            ),
            operand_slots=as_int(where, "operand_slots", self.operand_slots, 0),
            schedule=as_choice(where, "schedule", self.schedule, SCHEDULES),
        )
        if self.split_mode == split.ATOMIC and self.store is None:
            _store(self, store=STORES[0])  # what the hardware copies out it can add, too
        if self.takes_turns:
            check_turns(where, self)
        split.check_request(where, self.split_k, self.split_mode, self.persistent, self.store)
        split.check_cluster(where, self.cluster, self.split_k, self.split_mode)
        check_pending(where, stages, last_stage, self.wgmma_pending)
        for name in ("batch_invariant", "early_weights"):
            if not isinstance(getattr(self, name), bool):
                found = f"{name}={getattr(self, name)!r}"
                raise cannot_schedule(where, found, "True or False")
        if self.batch_invariant and self.shares_sums:
            need = "one of the two: parts of a sum are added in another order"
            asked = f"split_k={self.split_k}" if self.parts > 1 else f"split_mode={split.STREAM!r}"
            raise cannot_schedule(where, f"{asked} with batch_invariant=True", need)
        _store(self, dots=as_dots(where, self.dots), direct=as_direct(where, self.direct))
        for name in ("dots", "direct"):
            if getattr(self, name):
                self._check_alone(where, name)
        for name in ("transposed", "early_launch"):
            if not isinstance(value := getattr(self, name), (bool, type(None))):
                raise cannot_schedule(where, f"{name}={value!r}", "True, False or None")
        if self.transposed and self.store is not None:
            need = "one of the two: rows of a transposed tile are no rows in memory"
            raise cannot_schedule(where, f"store={self.store!r} with transposed=True", need)
        if self.store_parts is not None and self.store is None:
            raise cannot_schedule(where, "store_parts alone", 'store="tma" too, which it divides')
        if self.operand_slots and self.store is None:
            need = 'store="tma" too: operands come in the parts that the output leaves in'
            raise cannot_schedule(where, "operand_slots alone", need)

    def _check_alone(self, where: str, name: str) -> None:
        """Refuse what speaks of tiles next to a product of few rows that has none."""
        if self.streams:
            need = f"{name} alone: there are no tiles"
            raise cannot_schedule(where, f"{name} with split_mode={split.STREAM!r}", need)
        if self.batch_invariant:
            need = "one of the two: parts of a sum are added in another order"
            raise cannot_schedule(where, f"{name} with batch_invariant=True", need)
        beside = (name, "accumulate", "early_weights", "split_mode")
        for field in fields(self):
            value = getattr(self, field.name)
            if value is None or value is False or field.name in beside:
                continue
            need = f"{name} alone: there are no tiles"
            raise cannot_schedule(where, f"{name} with {field.name}={value}", need)

    @property
    def parts(self) -> int:
        """Thread blocks that share the sum of an output tile."""
        return self.split_k or 1

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
        return self.schedule == SCHEDULES[1]

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


def check_turns(where: str, config: MatmulConfig) -> None:
    """Refuse options that exclude ping-pong consumers."""
    asked = f"schedule={config.schedule!r} with "
    if config.consumers == 1:
        raise cannot_schedule(
            where, f"{asked}consumers=1", "2 or 3, or no consumer multiplies meanwhile"
        )
    if config.persistent == 0:
        need = "thread blocks that compute several tiles, persistent=-1"
        raise cannot_schedule(where, f"{asked}persistent=0", need)
    if config.registers is not None:
        need = "registers left out: those of as many consumers as there are"
        raise cannot_schedule(where, f"{asked}registers={config.registers}", need)
    if config.shares_sums:
        need = "one of the two: blocks that share a sum compute one tile each"
        found = f"split_k={config.split_k}" if config.parts > 1 else f"split_mode={split.STREAM!r}"
        raise cannot_schedule(where, f"{asked}{found}", need)
    if config.in_cluster:
        need = "one of the two: slots that blocks fill for one another are released by all at once"
        raise cannot_schedule(where, f"{asked}cluster={config.cluster}", need)
    if config.store is not None or config.operand_slots:
        found = "operand_slots" if config.operand_slots else f"store={config.store!r}"
        need = "threads that store what they hold: the sets would share the memory"
        raise cannot_schedule(where, f"{asked}{found}", need)


def check_pending(where: str, stages: int | None, last_stage: Any, pending: int | None) -> None:
    """Refuse as many groups in flight as ring slots: the producer would wait forever.

    A slot is released one iteration late for each group that stays in flight after it. A sampled
    depth is checked by the lowering.
    """
    slots = last_stage + 1 if isinstance(last_stage, int) else stages
    if slots is not None and pending is not None and pending >= slots:
        raise cannot_schedule(
            where,
            f"wgmma_pending={pending} with {slots} stages",
            f"{pending + 1} stages or more: a group in flight keeps its slot",
            "take more stages or fewer pending groups",
        )


def _store(config: Any, **plain: Any) -> None:
    """Set fields of a frozen dataclass, while it is being made."""
    for name, value in plain.items():
        object.__setattr__(config, name, value)


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


def ring_slots(tile: tuple[int, int, int], dtype: str) -> tuple[SharedArray, SharedArray]:
    """Return what one slot of the ring takes for A and for B."""
    tile_m, tile_n, tile_k = tile
    size = tile_k * dtypes.dtype_bytes(dtype)
    return (
        SharedArray("A", tile_m * size, TILE_ALIGNMENT),
        SharedArray("B", tile_n * size, TILE_ALIGNMENT),
    )


def most_stages(tile: tuple[int, int, int], dtype: str, arch: Arch) -> int:
    """Return how many slots of the ring fit into the shared memory of one CTA."""
    return most_slots(ring_slots(tile, dtype), arch)


def find_violations(
    tile: tuple[int, int, int], stages: int, config: MatmulConfig, dtype: str, arch: Arch
) -> list[str]:
    """Return every rule that a tile of known size breaks, as "found ...; need ...".

    `config` gives consumers and registers.
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
    if broken:
        return broken
    if not split_axis(tile_m, tile_n, consumers):
        legal = [str(c) for c in CONSUMERS if split_axis(tile_m, tile_n, c)]
        broken.append(
            f"found {consumers} consumers for a {tile_m}x{tile_n} tile; need consumers in "
            f"{{{', '.join(legal)}}}, or tile_m a multiple of {64 * consumers}, or tile_n a "
            f"multiple of {8 * consumers}"
        )
    slots = ring_slots(tile, dtype)
    memory = ring_memory(slots, stages)  # sums that a cluster exchanges lie in its bytes
    if not memory.fits_on(arch):
        sizes = " + ".join(f"{slot.name} {slot.num_bytes}" for slot in slots)
        padding = f" + alignment {memory.padding}" if memory.padding else ""
        broken.append(
            f"found {stages} stages x ({sizes} + barriers {BARRIER_BYTES}){padding} = "
            f"{memory.num_bytes} B of shared memory; need at most {arch.smem_per_block} B, which "
            f"{most_stages(tile, dtype, arch)} stages of this tile take"
        )
    consumer = config.registers[1] if config.registers else None
    if config.takes_turns and consumer is None:
        consumer = registers.default_split(config.turns)[1]
    budget = registers.accumulator_budget(tile_m, tile_n, consumers, arch, consumer)
    if not budget.fits:
        broken.append(
            f"found {budget.held} accumulators a thread ({tile_m}x{tile_n} over {consumers} "
            f"consumers); need at most {budget.room} of {budget.consumer} registers, by a smaller "
            "tile or more consumers"
        )
    return broken
