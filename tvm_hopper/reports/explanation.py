"""`explain`: stages, barriers, shared memory, registers, choices and fallbacks of a kernel.

    print(tvm_hopper.explain(sch.mod, target="nvidia/nvidia-h200"))
    print(tvm_hopper.explain(ex))                    # what tvm.compile returned

The passes leave notes about each kernel on the host function
(`transforms/common/explain_notes.py`). This module reads them, adds the assembler's figures for an
executable, and decides nothing. A kernel need not be a product: what was not noted is not printed.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from tvm.ir import StringImm

from tvm_hopper import ir
from tvm_hopper.analysis.launches import as_text, conditions_around
from tvm_hopper.errors import HopperError
from tvm_hopper.facts import arrivals, devices, registers
from tvm_hopper.facts.arch import DEFAULT_ARCH, Arch
from tvm_hopper.facts.programming_model import THREADS_PER_WARP, WARP_GROUP_THREADS
from tvm_hopper.requests import keys
from tvm_hopper.requests.kernel_file import load_kernel
from tvm_hopper.transforms.common.explain_notes import (
    ArrivalsNote,
    ConfigurationNote,
    FallbackNote,
    MmaNote,
    Note,
    RemarkNote,
    RingNote,
    RolesNote,
    RowsNote,
    SmemNote,
    StoreNote,
    StoreRingNote,
    TensorMapNote,
    TilesNote,
    read_notes,
)

if TYPE_CHECKING:
    from rich.table import Table

T = TypeVar("T")
FEWER = "kernel {}: {} thread blocks an SM would spill registers; those of {} have room for all"
SPILLS = "registers are spilled in the epilogue; faster with a smaller tile or more consumers"


EXAMPLE_SMS = sorted(set(devices.NUM_SMS.values()), reverse=True)


@dataclass(frozen=True)
class Assembled:
    """Results of the assembler for a kernel; bytes are per thread."""

    registers: int
    spill_bytes: int
    stack_bytes: int
    compiler: str


@dataclass(frozen=True)
class Ring:
    """A ring buffer in shared memory, and what completes the barriers of each stage."""

    channel: int
    stages: int
    stage_bytes: int
    full_arrivals: int
    empty_arrivals: int | None  # None: those who read a slot also fill it
    by_group: bool = False  # no barriers: each thread waits for groups of its own
    stores_in_flight: int = 0  # slots that asynchronous stores may still read
    bytes_in_parts: int = 0  # brought by threads that arrive, and counted by no barrier

    @property
    def look_ahead(self) -> int:
        """Trips that loads run ahead."""
        return self.stages - 1 - self.stores_in_flight


@dataclass(frozen=True)
class Kernel:
    """One of our kernels as planned; features that it lacks are None or empty."""

    name: str
    arch: Arch
    product: MmaNote | None
    roles: RolesNote | None
    order: TilesNote | None
    rings: tuple[Ring, ...]
    store_rings: tuple[StoreRingNote, ...]
    smem: tuple[SmemNote, ...]
    tensor_maps: tuple[TensorMapNote, ...]
    stores: tuple[StoreNote, ...]
    notes: tuple[str, ...]  # what was requested and is worth knowing
    fallbacks: tuple[str, ...]  # slower forms that the lowering had to take
    assembled: Assembled | None = None
    launched_for: str = ""  # the condition under which the host launches it
    chosen_for: RowsNote | None = None
    configuration: str = ""  # that a tuner scheduled it with
    further_products: tuple[MmaNote, ...] = ()  # that share an operand with the first one

    @property
    def products(self) -> tuple[MmaNote, ...]:
        """All products by WGMMA."""
        return () if self.product is None else (self.product, *self.further_products)

    @property
    def stages(self) -> int | None:
        """Stages of the deepest ring, which is the main loop's."""
        return max((ring.stages for ring in self.rings), default=None)

    @property
    def consumers(self) -> int | None:
        """Whole warp groups that consume, where there are roles and it is warp groups."""
        threads = self.roles.consumer_threads if self.roles else 0
        return (
            threads // WARP_GROUP_THREADS if threads and not threads % WARP_GROUP_THREADS else None
        )

    @property
    def threads(self) -> int | None:
        """Threads of a CTA that is split into roles."""
        roles = self.roles
        return roles.producer_threads + roles.consumer_threads if roles else None

    @property
    def wgmma_pending(self) -> int | None:
        """WGMMA groups in flight over an iteration."""
        return self.roles.pending if self.roles and self.product else None

    @property
    def raster_group(self) -> int | None:
        """Rows of output tiles that are computed together."""
        return self.order.raster_group if self.order else None

    @property
    def persistent(self) -> int | None:
        """Thread blocks that share all output tiles; -1: by the device; None: one a tile."""
        return self.order.persistent if self.order else None

    @property
    def smem_bytes(self) -> int:
        """Shared memory of a CTA, from its start to the end of the last region."""
        return max((r.offset + r.size for r in self.smem), default=0)

    def rows(self) -> Iterator[tuple[str, str]]:
        """Yield what there is to say as (topic, text)."""
        yield from self._computing()
        yield from self._moving()
        yield from self._said()

    def _computing(self) -> Iterator[tuple[str, str]]:
        """Yield what is computed, by whom, and for which tiles."""
        if self.launched_for:
            yield "launched for", self.launched_for
        if self.configuration:
            yield "tuned", self.configuration
        if self.chosen_for:
            time = f"{self.chosen_for.tenths / 10:.1f} us by estimate"
            yield "chosen for", f"{_count(self.chosen_for.rows, 'row')}, {time}"
        for product in self.products:
            tile = " x ".join(map(str, product.tile))
            block = f"block {product.block}"
            yield "multiply-add", f"{block}, {tile} (m x n x k) of a consumer and stage"
            yield "instruction", product.instruction
            if product.choice:
                yield "chosen by estimate", product.choice
        if self.roles:
            yield "roles", _roles(self.roles)
        if self.wgmma_pending is not None:
            yield "WGMMA groups in flight", f"{self.wgmma_pending} over an iteration"
        if self.order and self.order.persistent:
            yield "persistent", _grid(self.order)
        if self.order and self.order.raster_group > 1:
            curve = ", along a Hilbert curve" if self.order.curve else ""
            yield "raster order", f"{self.order.raster_group} rows of output tiles together{curve}"
        if self.roles and self.roles.registers and self.threads:
            producer, consumer = self.roles.registers
            entry = registers.entry_registers(self.threads, self.arch, self.roles.blocks)
            yield "registers", f"{entry} of each thread at the start, by setmaxnreg then"
            yield "  producer", f"{producer}"
            held = sum(x.accumulator_registers for x in self.products)
            yield "  consumer", f"{consumer}{f', {held} of them accumulators' * bool(held)}"
        elif self.product:
            held = sum(x.accumulator_registers for x in self.products)
            yield "registers", f"{held} of a thread are accumulators"

    def _moving(self) -> Iterator[tuple[str, str]]:
        """Yield what is moved, and where it is kept."""
        for ring in self.rings:
            name = "ring" if len(self.rings) == 1 else f"ring {ring.channel}"
            stages = "1 stage" if ring.stages == 1 else f"{ring.stages} stages"
            yield name, f"{stages} of {ring.stage_bytes} bytes"
            if ring.by_group:
                yield "  full", "groups of cp.async, which each thread waits for"
                continue
            each = f"{ring.stages} mbarriers, each for" if ring.stages > 1 else "1 mbarrier, for"
            full = _count(ring.full_arrivals, "arrival")
            expected = ring.stage_bytes - ring.bytes_in_parts
            yield "  full", f"{each} {full}" + (f" and {expected} bytes" if expected else "")
            if ring.bytes_in_parts:
                yield "  cp.async", f"{ring.bytes_in_parts} bytes, by threads that arrive for them"
            if ring.empty_arrivals is not None:
                yield "  empty", f"{each} {_count(ring.empty_arrivals, 'arrival')}"
            if ring.stores_in_flight:
                stores = _count(ring.stores_in_flight, "slot")
                yield "  ahead", f"{_count(ring.look_ahead, 'iteration')}, {stores} left to stores"
        for each_ring in self.store_rings:
            slots, pending = each_ring.num_slots, each_ring.num_slots - 1
            kept = f"{slots} slots of {each_ring.slot_bytes} bytes"
            yield f"store ring {each_ring.tile}", f"{kept}, {_count(pending, 'store')} in flight"
        if self.smem:
            most = self.arch.smem_per_block
            total = f"{self.smem_bytes} of {most} bytes ({100 * self.smem_bytes / most:.0f}%)"
            yield "shared memory", total
        for i, region in enumerate(self.smem):
            shared = [x.name for x in self.smem[:i] if _overlap(x, region)]
            also = f", in bytes of {', '.join(shared)}" if shared else ""
            yield f"  {region.name}", f"{region.size} bytes at {region.offset}{also}"
        for each_map in self.tensor_maps:
            yield f"tensor map {each_map.tensor}", _describe_map(each_map)
        for store in self.stores:
            yield f"store {store.tensor}", f"{store.num_bytes} bytes of a thread at once"

    def _said(self) -> Iterator[tuple[str, str]]:
        """Yield what the assembler and the passes remarked."""
        if self.assembled:
            a = self.assembled
            spills = f"{a.spill_bytes} bytes spilled, stack frame {a.stack_bytes} bytes"
            yield "assembler", f"{a.registers} registers, {spills} ({a.compiler})"
        for note in self.notes:
            yield "note", note
        for fallback in self.fallbacks:
            yield "fallback", fallback
        if not self.fallbacks:
            yield "fallbacks", "none"


def _describe_map(note: TensorMapNote) -> str:
    dims, box = (" x ".join(map(str, x)) for x in (note.dims, note.box))
    each = "" if set(note.steps) == {1} else f" at each {' x '.join(map(str, note.steps))}"
    text = f"box {box}{each} of {dims} elements, {note.box_bytes} bytes, swizzle {note.swizzle} B"
    shared = f", shared by {note.num_copies} copies" if note.num_copies > 1 else ""
    return f"{text}, L2 fetches {note.l2_promotion} B{shared}"


def _overlap(a: SmemNote, b: SmemNote) -> bool:
    return a.offset < b.offset + b.size and b.offset < a.offset + a.size


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")


def _roles(roles: RolesNote) -> str:
    """Say who produces and who consumes: warp groups where both are, else warps."""
    threads = roles.producer_threads, roles.consumer_threads
    size, unit = WARP_GROUP_THREADS, "warp group"
    if any(each % WARP_GROUP_THREADS for each in threads):
        size, unit = THREADS_PER_WARP, "warp"
    producers, consumers = (each // size for each in threads)
    text = f"{producers} producer and {_count(consumers, f'consumer {unit}')}"
    turns = ", which compute output tiles in turn" if roles.turns > 1 else ""
    return f"{text}{turns}, {sum(threads)} threads"


def _grid(order: TilesNote) -> str:
    """Say how many thread blocks share the output tiles."""
    size = order.cluster
    if order.persistent is not None and order.persistent != keys.BY_DEVICE:
        return f"{order.persistent * size} thread blocks share the output tiles"
    if not order.tiles.isdigit():
        is_open = order.tiles.startswith("at most")  # a table counts them
        most = "min(tiles, SMs)" if is_open else "ceil(tiles / ceil(tiles / SMs))"
        blocks = f"{most} thread blocks"
        each = f", clusters of {size} counted as one" if size > 1 else ""
        return f"by the device at launch: {blocks}, tiles = {order.tiles}{each}"
    at_once = {sms: devices.Chip(sms).clusters(size) for sms in EXAMPLE_SMS}
    counts = {sms: devices.balanced_blocks(int(order.tiles), x) for sms, x in at_once.items()}
    tiles = int(order.tiles) * size
    blocks, *others = (f"{count * size} on {sms} SMs" for sms, count in counts.items())
    blocks = blocks.replace(" on", " thread blocks on")
    return f"by the device at launch: {', '.join([blocks, *others])} share {tiles} output tiles"


@dataclass(frozen=True)
class Explanation:
    """Our kernels in a module; print it, show it with rich, or use `as_dict()`.

    `foreign` describes the other kernels of the module, which are TVM's own.
    """

    kernels: tuple[Kernel, ...]
    foreign: tuple[str, ...] = ()

    def __str__(self) -> str:
        blocks = []
        for kernel in self.kernels:
            rows = list(kernel.rows())
            width = max(len(topic) for topic, _ in rows)
            under = "\n" + " " * (width + 4)  # where a text of several lines goes on
            lines = [f"  {topic:<{width}}  {text}".replace("\n", under) for topic, text in rows]
            blocks.append("\n".join([f"kernel {kernel.name}", *lines]))
        blocks += self.foreign
        return "\n\n".join(blocks)

    def __rich__(self) -> Any:
        from rich.console import Group

        return Group(*map(_table, self.kernels), *self.foreign)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, as JSON has them."""
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        for kernel in plain["kernels"]:
            del kernel["arch"]  # a table, of which the text says what matters
        return plain


def _table(kernel: Kernel) -> Table:
    from rich.table import Table

    table = Table(title=f"kernel {kernel.name}", show_header=False, title_justify="left")
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for topic, text in kernel.rows():
        table.add_row(topic, text)
    return table


def explain(module: Any, target: Any = None) -> Explanation:
    """Explain what the lowering makes of a module.

    Parameters
    ----------
    module : Schedule, IRModule, PrimFunc or Executable
        A schedule, a scheduled or a lowered module, or what `tvm.compile` returned in this process.
    target : Target, str or dict, optional
        For a module that is not lowered yet; None: the one in scope.

    Returns
    -------
    explanation : Explanation
        One `Kernel` for each of our kernels; `print` shows them, with sizes in bytes.

    Raises
    ------
    HopperError
        The module has no kernel of this package.
    """
    kernels = tuple(_kernels(module, target))
    if not kernels:
        raise HopperError(
            "explain: found no kernel of ours; need a function that carries one of the "
            f"{keys.PREFIX}* annotations; schedule it with tvm_hopper.schedule first, or give one "
            f'with asynchronous stages the option {keys.ASYNC_COPY} = "auto" (it is left to TVM '
            'without, and by "none")'
        )
    return Explanation(kernels, tuple(_of_foreign(module)))


def _kernels(module: Any, target: Any) -> Iterator[Kernel]:
    import tvm
    from tvm import s_tir, tirx

    if isinstance(module, s_tir.Schedule):
        module = module.mod
    if isinstance(module, tirx.PrimFunc):
        module = tvm.IRModule.from_expr(module)
    if not isinstance(module, tvm.IRModule):
        yield from _of_executable(module)
        return
    names = tuple(var.name_hint for var in module.get_global_vars())
    if not any(map(read_notes, module.functions.values())):
        from tvm_hopper import pipeline

        lowered = pipeline.lower_final(module, target)
        module = lowered.host
        names = tuple(var.name_hint for var in lowered.device.get_global_vars())
    yield from _of_host(module, names)


def _of_executable(executable: Any) -> Iterator[Kernel]:
    from tvm_hopper.cuda_build import records

    for record in records.lookup_all(executable):
        built = record.compile()
        for kernel in _of_host(record.host, record.kernels):
            fact = built.kernels.get(kernel.name)
            if fact is None:  # which of the module's kernels it is is unknown
                yield kernel
                continue
            spilled = fact.spill_store_bytes + fact.spill_load_bytes
            said = Assembled(fact.registers, spilled, fact.stack_bytes, built.compiler)
            spills = (f"kernel {fact.name}: {SPILLS}",) if spilled else ()
            if fact.name in built.fewer_blocks:
                spills = (*spills, FEWER.format(fact.name, *built.fewer_blocks[fact.name]))
            yield replace(kernel, assembled=said, fallbacks=(*kernel.fallbacks, *spills))


def _of_foreign(module: Any) -> Iterator[str]:
    """Say which CUDA modules of an executable, not of ours, were compiled by a fallback."""
    from tvm_hopper.cuda_build import foreign, records

    try:
        sources = records.cuda_sources(module)
    except TypeError:
        return  # nothing was built yet
    for source in sources:
        if foreign.is_compiled_here(source):
            yield f"kernels of TVM's own: {foreign.COMPILED}"


def _of_host(module: Any, device_names: tuple[str, ...]) -> Iterator[Kernel]:
    """Read the kernels of which something was noted, in the order in which they are launched."""
    for var, func in module.functions.items():
        known = read_notes(func)
        if known is None:
            continue
        launched = _launched(func, device_names)
        for number, notes in known.kernels.items():
            if len(launched) == known.num_kernels:
                name = launched[number]
            else:  # a host function alone, or one that launches a kernel twice
                name = var.name_hint if known.num_kernels == 1 else f"{var.name_hint}, {number}"
            kernel = kernel_of(name, notes, known.arch)
            yield replace(kernel, launched_for=_condition(func, name))


def _launched(func: Any, device_names: tuple[str, ...]) -> list[str]:
    """Return the kernels that a host function names, each once, in order."""
    texts = [str(text.value) for text in ir.find_all(func.body, StringImm)]
    return [name for name in dict.fromkeys(texts) if name in device_names]


def _condition(func: Any, kernel: str) -> str:
    """Say when a host function launches a kernel that it names once; nothing where it always does.

    That there is a row at all goes without saying.
    """
    calls = ir.find_all(func.body, StringImm, lambda text: text.value == kernel)
    if len(calls) != 1:
        return ""
    around = conditions_around(func.body, calls[0])
    text = as_text(around)
    return "" if len(around) == 1 and text.endswith(" >= 1") else text


def kernel_of(name: str, notes: Iterable[Note], arch: Arch = DEFAULT_ARCH) -> Kernel:
    """Make what there is to say of a kernel out of its notes."""
    by_kind: dict[type, list[Any]] = {}
    for note in notes:
        by_kind.setdefault(type(note), []).append(note)

    def of(kind: type[T]) -> tuple[T, ...]:
        return tuple(by_kind.get(kind, ()))

    handed_over = {note.channel: note for note in of(ArrivalsNote)}
    rings = []
    for ring in of(RingNote):
        arrives = handed_over.get(ring.channel)
        full = arrives.full if arrives else arrivals.full_arrive_count()
        empty = arrives.empty if arrives else None
        late = ring.stores_in_flight
        size, in_parts = ring.tx_bytes, ring.bytes_in_parts
        made = Ring(ring.channel, ring.num_slots, size, full, empty, ring.by_group, late, in_parts)
        rings.append(made)
    return Kernel(
        name=name,
        arch=arch,
        product=next(iter(of(MmaNote)), None),
        further_products=of(MmaNote)[1:],
        roles=next(iter(of(RolesNote)), None),
        order=next(iter(of(TilesNote)), None),
        chosen_for=next(iter(of(RowsNote)), None),
        configuration=next((note.text for note in of(ConfigurationNote)), ""),
        rings=tuple(rings),
        store_rings=of(StoreRingNote),
        smem=of(SmemNote),
        tensor_maps=of(TensorMapNote),
        stores=of(StoreNote),
        notes=tuple(note.text for note in of(RemarkNote)),
        fallbacks=tuple(note.text for note in of(FallbackNote)),
    )


def explain_command(arguments: argparse.Namespace) -> int:
    """Explain the kernel that a Python file makes, without compiling it."""
    explanation = explain(load_kernel(*arguments.kernel), arguments.target)
    print(json.dumps(explanation.as_dict(), indent=1) if arguments.json else explanation)
    return 0
