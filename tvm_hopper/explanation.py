"""What a lowered kernel is made of: stages, barriers, shared memory, registers, choices, fallbacks.

    print(tvm_hopper.explain(sch.mod, target="nvidia/nvidia-h200"))
    print(tvm_hopper.explain(ex))                    # what tvm.compile returned

The lowering leaves its plans on the host function (attribute `tvm_hopper.plan`, JSON text). This
module reads them, adds the assembler's figures for an executable, and decides nothing.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from tvm_hopper import ir, keys
from tvm_hopper.errors import HopperError
from tvm_hopper.facts import devices, hopper, registers
from tvm_hopper.kernel_file import load_kernel

if TYPE_CHECKING:
    from rich.table import Table

SPILLS = "registers are spilled in the epilogue; faster with a smaller tile or more consumers"


EXAMPLE_SMS = sorted(set(devices.NUM_SMS.values()), reverse=True)


@dataclass(frozen=True)
class SharedRegion:
    """A part of a CTA's shared memory, in bytes."""

    name: str
    offset: int
    size: int


@dataclass(frozen=True)
class Barrier:
    """One mbarrier for each stage: what completes it."""

    name: str
    number: int
    arrive_count: int
    tx_bytes: int


@dataclass(frozen=True)
class TensorMapSummary:
    """What one tensor map describes; extents and box in elements, innermost first."""

    tensor: str
    dims: tuple[str, ...]
    box: tuple[int, ...]
    swizzle: int
    box_bytes: int


@dataclass(frozen=True)
class Assembled:
    """What the assembler said of a kernel; bytes are those of one thread."""

    registers: int
    spill_bytes: int
    stack_bytes: int
    compiler: str


@dataclass(frozen=True)
class Kernel:
    """One kernel of ours, as it was planned."""

    name: str
    block: str
    consumer_tile: tuple[int, ...]  # m, n, k of one consumer and one stage
    instruction: str
    stages: int
    consumers: int
    producer_registers: int
    consumer_registers: int
    accumulator_registers: int
    wgmma_pending: int
    raster_group: int
    persistent: int | None  # thread blocks that share all output tiles; -1: by the device
    barriers: tuple[Barrier, ...]
    smem: tuple[SharedRegion, ...]
    tensor_maps: tuple[TensorMapSummary, ...]
    stores: tuple[tuple[str, int], ...]  # tensor, bytes that a thread stores at once
    notes: tuple[str, ...]  # what was asked for and is worth knowing
    fallbacks: tuple[str, ...]  # slower forms that the lowering had to take
    tiles: str = ""  # output tiles that a launch shares out, where the device counts the blocks
    assembled: Assembled | None = None

    @property
    def threads(self) -> int:
        """Threads of a CTA: one producer warp group and the consumers."""
        return registers.threads(self.consumers)

    @property
    def smem_bytes(self) -> int:
        """Shared memory of a CTA, from its start to the end of the last region."""
        return max((r.offset + r.size for r in self.smem), default=0)

    @property
    def stage_bytes(self) -> int:
        """Bytes that the copies of one stage bring."""
        return sum(barrier.tx_bytes for barrier in self.barriers)

    def _grid(self) -> str:
        """Say how many thread blocks share the output tiles."""
        if self.persistent != keys.BY_DEVICE:
            return f"{self.persistent} thread blocks share the output tiles"
        if not self.tiles.isdigit():
            blocks = "ceil(tiles / ceil(tiles / SMs)) thread blocks"
            return f"by the device at launch: {blocks}, tiles = {self.tiles}"
        tiles = int(self.tiles)
        blocks, *others = (
            f"{devices.balanced_blocks(tiles, sms)} on {sms} SMs" for sms in EXAMPLE_SMS
        )
        blocks = blocks.replace(" on", " thread blocks on")
        return f"by the device at launch: {', '.join([blocks, *others])} share {tiles} output tiles"

    def rows(self) -> Iterator[tuple[str, str]]:
        """Yield what there is to say as (topic, text)."""
        tile = " x ".join(map(str, self.consumer_tile))
        yield "multiply-add", f"block {self.block}, {tile} (m x n x k) of a consumer and stage"
        yield "instruction", self.instruction
        roles = f"1 producer and {self.consumers} consumer warp groups"
        yield "roles", f"{roles}, {self.threads} threads"
        yield "ring", f"{self.stages} stages of {self.stage_bytes} bytes"
        for barrier in self.barriers:
            counts = f"{barrier.arrive_count} arrivals" if barrier.arrive_count > 1 else "1 arrival"
            expected = f" and {barrier.tx_bytes} bytes" if barrier.tx_bytes else ""
            yield f"  {barrier.name}", f"{barrier.number} mbarriers, each for {counts}{expected}"
        yield "WGMMA groups in flight", f"{self.wgmma_pending} over an iteration"
        if self.persistent:
            yield "persistent", self._grid()
        if self.raster_group > 1:
            yield "raster order", f"{self.raster_group} rows of output tiles together"
        entry = registers.entry_registers(self.threads)
        yield "registers", f"{entry} of each thread at the start, by setmaxnreg then"
        yield "  producer", f"{self.producer_registers}"
        holds = f"{self.accumulator_registers} of them accumulators"
        yield "  consumer", f"{self.consumer_registers}, {holds}"
        share = 100 * self.smem_bytes / hopper.SMEM_PER_BLOCK
        total = f"{self.smem_bytes} of {hopper.SMEM_PER_BLOCK} bytes ({share:.0f}%)"
        yield "shared memory", total
        for region in self.smem:
            yield f"  {region.name}", f"{region.size} bytes at {region.offset}"
        for each in self.tensor_maps:
            dims, box = (" x ".join(map(str, x)) for x in (each.dims, each.box))
            text = f"box {box} of {dims} elements, {each.box_bytes} bytes, swizzle {each.swizzle} B"
            yield f"tensor map {each.tensor}", text
        for tensor, width in self.stores:
            yield f"store {tensor}", f"{width} bytes of a thread at once"
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


@dataclass(frozen=True)
class Explanation:
    """Every kernel of ours in a module; print it, show it with rich, or take `as_dict()`."""

    kernels: tuple[Kernel, ...]

    def __str__(self) -> str:
        blocks = []
        for kernel in self.kernels:
            rows = list(kernel.rows())
            width = max(len(topic) for topic, _ in rows)
            lines = [f"  {topic:<{width}}  {text}" for topic, text in rows]
            blocks.append("\n".join([f"kernel {kernel.name}", *lines]))
        return "\n\n".join(blocks)

    def __rich__(self) -> Any:
        from rich.console import Group

        return Group(*map(_table, self.kernels))

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, as JSON has them."""
        return json.loads(json.dumps(asdict(self)))


def _table(kernel: Kernel) -> Table:
    from rich.table import Table

    table = Table(title=f"kernel {kernel.name}", show_header=False, title_justify="left")
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for topic, text in kernel.rows():
        table.add_row(topic, text)
    return table


def explain(module: Any, target: Any = None) -> Explanation:
    """Say what the lowering made, or would make, of a module.

    Parameters
    ----------
    module : IRModule, PrimFunc or Executable
        A scheduled or a lowered module, or what `tvm.compile` returned in this process.
    target : Target, str or dict, optional
        For a module that is not lowered yet; left out, the one in scope.

    Raises
    ------
    HopperError
        Nothing in the module was lowered by this package.
    """
    kernels = tuple(_kernels(module, target))
    if not kernels:
        raise HopperError(
            "explain: found no kernel of ours; need a function that carries one of the "
            f"{keys.PREFIX}* annotations; schedule it with tvm_hopper.schedule first"
        )
    return Explanation(kernels)


def _kernels(module: Any, target: Any) -> Iterator[Kernel]:
    import tvm
    from tvm import tirx

    if isinstance(module, tirx.PrimFunc):
        module = tvm.IRModule.from_expr(module)
    if not isinstance(module, tvm.IRModule):
        yield from _of_executable(module)
        return
    if not any(map(_plans, module.functions.values())):
        from tvm_hopper import pipeline

        module = pipeline.lower_final(module, target).host
    yield from _of_host(module)


def _of_executable(executable: Any) -> Iterator[Kernel]:
    from tvm_hopper.cuda_build import records

    for record in records.lookup_all(executable):
        kernels = list(_of_host(record.host))
        built = record.compile()
        facts = [built.kernels[name] for name in record.kernels if name in built.kernels]
        if len(facts) != len(kernels):  # which is whose cannot be told
            yield from kernels
            continue
        for kernel, fact in zip(kernels, facts, strict=True):
            spilled = fact.spill_store_bytes + fact.spill_load_bytes
            said = Assembled(fact.registers, spilled, fact.stack_bytes, built.compiler)
            spills = (f"kernel {fact.name}: {SPILLS}",) if spilled else ()
            fallbacks = (*kernel.fallbacks, *spills)
            yield replace(kernel, name=fact.name, assembled=said, fallbacks=fallbacks)


def _plans(func: Any) -> list[dict[str, Any]]:
    if not func.attrs or ir.PLAN_ATTR not in func.attrs:
        return []
    return json.loads(str(func.attrs[ir.PLAN_ATTR]))


def _of_host(module: Any) -> Iterator[Kernel]:
    for var, func in module.functions.items():
        for plan in _plans(func):
            if plan.keys() >= _NEEDED:  # of a kernel without a product nothing more is known
                yield _read(var.name_hint, plan)


# What the passes that make a product's kernel have all noted once they are through.
_NEEDED = {"instruction", "stages", "registers", "smem", "tensor_maps", "raster_group"}


def _read(name: str, plan: dict[str, Any]) -> Kernel:
    producer, consumer = plan["registers"]
    stages, counts = plan["stages"], plan["arrive_counts"]
    return Kernel(
        name=name,
        block=plan["block"],
        consumer_tile=tuple(plan["warp_group_tile"]),
        instruction=plan["instruction"],
        stages=stages,
        consumers=plan["consumers"],
        producer_registers=producer,
        consumer_registers=consumer,
        accumulator_registers=plan["accumulator_registers"],
        wgmma_pending=plan["wgmma_pending"],
        raster_group=plan["raster_group"],
        persistent=plan["persistent"],
        tiles=plan.get("tiles", ""),
        barriers=(
            Barrier("full", stages, counts["full"], plan["tx_bytes"]),
            Barrier("empty", stages, counts["empty"], 0),
        ),
        smem=tuple(SharedRegion(*region) for region in plan["smem"]),
        tensor_maps=tuple(
            TensorMapSummary(
                m["tensor"], tuple(m["dims"]), tuple(m["box"]), m["swizzle"], m["bytes"]
            )
            for m in plan["tensor_maps"]
        ),
        stores=tuple((name, width) for name, width in plan["stores"]),
        notes=tuple(plan.get("notes", ())),
        fallbacks=tuple(plan.get("fallbacks", ())),
    )


def explain_command(arguments: argparse.Namespace) -> int:
    """Explain the kernel that a Python file makes, without compiling it."""
    explanation = explain(load_kernel(*arguments.kernel), arguments.target)
    print(json.dumps(explanation.as_dict(), indent=1) if arguments.json else explanation)
    return 0
