"""Rebuild the statements of one role with the synchronisation that the engine places."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tvm import tirx

from tvm_hopper import ir, sync
from tvm_hopper.codegen_patches.hold import fence_code, hold_all
from tvm_hopper.codegen_patches.ptx import fences
from tvm_hopper.codegen_patches.ptx.groups import FENCES, GROUPS
from tvm_hopper.facts.async_ops import ASYNC_OPS, BY_ONE_THREAD
from tvm_hopper.facts.programming_model import THREADS_PER_WARP, WARP_GROUP_THREADS
from tvm_hopper.requests.keys import ASYNC_OP, AWAIT_FILLED
from tvm_hopper.sync import Loop
from tvm_hopper.transforms.common.channel import make_call

from .sync_body import BodyReader
from .sync_items import Item, flatten
from .sync_placement import left_in_flight, place_syncs, read_behind
from .sync_writer import BodyWriter
from .warp_group_agents import plan_warp_group_agents

# Named barrier of the consumers, or of the first one's warp group where each has its own; number 0
# is the whole block's.
ROLE_BARRIER = 1


@dataclass(frozen=True)
class AwaitFilled:
    """Wait for a channel's data of `ahead` iterations later, in the elected thread or in all."""

    channel: int
    ahead: int
    by_thread: bool


@dataclass(frozen=True)
class WaitForSome:
    """Wait for the older ones of some groups, whose results the next statements read."""

    wait: sync.Wait
    results: tuple[ir.Var, ...]


class RoleSyncs:
    """Places what one agent's statements need: those of a kernel, or of the consumers in it.

    `first_thread` is None where the agent is the whole thread block.
    """

    def __init__(self, kernel: ir.For, body: ir.Stmt, first_thread: int | None) -> None:
        threads = ir.threads_of(kernel)
        self.block_threads = threads.count
        self.num_threads = None if first_thread is None else int(threads.count) - first_thread
        has_producer = first_thread is not None
        self.electing = plan_warp_group_agents(kernel, body, threads.var, first_thread or 0)
        self.reader = BodyReader(
            kernel, threads.var, has_producer, first_thread or 0, self.electing
        )
        self.items = self.reader.sequence(body)
        self.placed: dict[tuple[int, ...], list[Any]] = defaultdict(list)
        for x in place_syncs(flatten(self.items)):
            one = self._by_channel(x.sync)
            if one not in self.placed[x.path]:  # buffers of one channel are filled together
                self.placed[x.path].append(one)
        self.leave_groups = set(left_in_flight(flatten(self.items), self.placed))
        waits = {
            path: {x.completion for x in syncs if isinstance(x, sync.Wait)}
            for path, syncs in self.placed.items()
        }
        for path, syncs in self.placed.items():
            self.placed[path] = [self._with_results(one, path, waits) for one in syncs]

    def rewrite(self) -> ir.Stmt:
        """Return the statements with everything in place."""
        writer = BodyWriter(self.placed, self._emit, self.reader.channel_of)
        body = writer.write([self._hold_behind(item) for item in self.items])
        body = ir.mutate(body, [(tirx.SeqStmt, self._elect_once)])
        return ir.seq(body, self._keep_tiles())

    def _keep_tiles(self) -> list[Any]:
        """Keep tiles alive until the last wait, for kernels whose memory is not merged by lifetime.

        TVM's StorageRewrite gives the bytes of a tile away after the last statement that names it,
        which a copy that no path reads may outlive. What it hears here it drops later.
        """
        at_end = self.placed.get((len(flatten(self.items)),), [])
        if self.reader.thread is not None or not any(isinstance(x, sync.Wait) for x in at_end):
            return []
        tiles = ir.once([x for rings in self.reader.channels.values() for x in rings])
        return [
            tirx.address_of(tirx.BufferLoad(tile, [ir.cast_like(0, x) for x in tile.shape]))
            for tile in tiles
        ]

    def _elect_once(self, sequence: Any, mutator: Any) -> ir.Stmt:
        """Join neighbors that the elected thread alone executes."""
        parts: list[ir.Stmt] = []
        for part in ir.statements(mutator.default_mutate(sequence)):
            if parts and self.reader.is_elected(parts[-1]) and self.reader.is_elected(part):
                parts[-1] = self.reader.elect(ir.seq(parts[-1].then_case, part.then_case))
            else:
                parts.append(part)
        return ir.seq(parts)

    def _emit(self, one: Any, trips: Mapping[int, ir.Var]) -> list[Any]:
        match one:
            case sync.Fence():
                return [FENCES[one.kind]()]
            case sync.Open():
                begin = GROUPS[one.completion].open
                assert begin is not None, f"no instruction begins a {one.completion}"
                return [self._by_issuer(one.completion, begin())]
            case sync.Commit():
                return [self._by_issuer(one.completion, GROUPS[one.completion].commit())]
            case sync.Wait():
                wait = GROUPS[one.completion].wait(one.num_pending, one.read_only)
                wait = self._by_issuer(one.completion, wait)
                results = self._results(one.completion)
                stays = one.completion in self.leave_groups and not one.num_pending
                return [wait, *(keep_behind(results) if stays and results else [])]
            case WaitForSome():
                # Not fenced: ptxas waits for all groups before an exit, also one never taken.
                return [*self._emit(one.wait, trips), *map(hold_all, one.results)]
            case AwaitFilled():
                trip = trips[one.channel]
                later = trip + one.ahead if one.ahead else trip
                wait = make_call(AWAIT_FILLED, one.channel, later)
                return [self.reader.elect(wait) if one.by_thread else wait]
        assert isinstance(one, sync.Barrier), f"no instruction stands for {one}"
        return [self._barrier()]

    def _by_issuer(self, completion: str, call: Any) -> Any:
        """Let the thread whose groups these are execute an instruction, where it is one."""
        return self.reader.elect(call) if completion in BY_ONE_THREAD else call

    def _barrier(self) -> Any:
        if self.electing.meets_alone:
            group = (self.reader.thread - self.reader.first_thread) // WARP_GROUP_THREADS
            return fences.sync_named(ROLE_BARRIER + ir.simplify(group), WARP_GROUP_THREADS)
        if self.num_threads is None:
            return fences.sync_threads(self.block_threads)
        if self.num_threads <= THREADS_PER_WARP:
            return fences.sync_warp()
        return fences.sync_named(ROLE_BARRIER, self.num_threads)

    def _by_channel(self, one: Any) -> Any:
        """Name the channel that fills a buffer, where that is waited for."""
        if not isinstance(one, sync.WaitPhase):
            return one
        channel = next(
            number
            for number, rings in self.reader.channels.items()
            if any(self.reader.buffer(ring) == one.buffer for ring in rings)
        )
        return AwaitFilled(channel, one.ahead, one.buffer.by_thread)

    def _with_results(self, one: Any, path: sync.Path, waits: dict[sync.Path, set[str]]) -> Any:
        """Name what is read after a wait that others stay in flight over, up to the next one."""
        if not isinstance(one, sync.Wait) or not one.num_pending:
            return one
        reads = read_behind(
            flatten(self.items), path, lambda x: one.completion in waits.get(x, set())
        )
        results = [x for x in self._results(one.completion) if self.reader.buffer(x) in reads]
        return WaitForSome(one, tuple(results)) if results else one

    def _results(self, completion: str, below: Any = None) -> list[ir.Var]:
        """Return the registers that operations of a completion write, each once."""
        found: list[ir.Var] = []
        roots = [item.stmt for item in self.items] if below is None else [below]
        for block in (b for root in roots for b in ir.find_blocks(root, ASYNC_OP)):
            if ASYNC_OPS[str(block.annotations[ASYNC_OP])].completion != completion:
                continue
            found += [x.source for x in block.writes if str(x.source.scope()).startswith("local")]
        return ir.once(found)

    def _hold_behind(self, item: Item) -> Item:
        """Keep what reads results of a loop of one iteration after it: it will be no loop."""
        inner = [[self._hold_behind(x) for x in items] for items in item.inner]
        item = replace(item, inner=inner)
        is_loop = isinstance(item.node, Loop) and isinstance(item.stmt, ir.For)
        if not is_loop or not ir.is_const(item.stmt.extent, 1):
            return item
        registers = [
            register
            for completion in GROUPS
            if completion not in self.leave_groups
            for register in self._results(completion, item.stmt)
        ]
        if not registers:
            return item
        rebuilt = item.rebuilt
        return replace(
            item, rebuild=lambda parts: ir.seq(rebuilt(parts), keep_behind(ir.once(registers)))
        )


def keep_behind(registers: list[ir.Var]) -> list[Any]:
    """Keep what reads registers after the wait for them, which does not name them.

    Where each of several iterations waits for its own group the loop does that: nothing is moved
    into it.
    """
    return [fence_code(), *map(hold_all, registers)]
