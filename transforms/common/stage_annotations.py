"""TVM's pipeline annotations of a loop, read as numbers of slots.

    software_pipeline_stage = [0, 0, 3, 4]      load, load, compute, store

What is written in one stage and read in a later one needs as many slots as TVM makes versions: the
stages in between, and one. Here tiles that are loaded have 4, and the tile that is computed, and
stored from, has 2.

Later compute stages lag as many iterations behind the first one, if possible (late_stages.py);
statements of one stage stay in the program's order (`remark`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm_hopper import ir
from tvm_hopper.errors import cannot_lower
from tvm_hopper.requests.keys import ASYNC_STAGES, ORDER, STAGE

from .channel import is_load, is_store


@dataclass(frozen=True)
class PipelineStages:
    """The statements of a loop, the stage and the order of each, and the asynchronous stages."""

    where: str
    parts: tuple[ir.Stmt, ...]
    stages: tuple[int, ...]
    order: tuple[int, ...]
    asynchronous: tuple[int, ...]

    def slots_of_loads(self, loads: Iterable[ir.SBlockRealize]) -> int:
        """Return the slots of what some loads bring, read by statements up to the last stage.

        A store of what another statement has written does not count.
        """
        own = tuple(loads)
        first = {s for s, part in self._staged() if any(part.same_as(x) for x in own)}
        rest = [(s, part) for s, part in self._staged() if not is_load(part)]
        others = {s for s, part in rest if not self._leaves(part)} or {s for s, _ in rest}
        if len(first) != 1 or not others or max(others) < min(first) or min(self.stages) < 0:
            raise cannot_lower(
                self.where,
                f"{STAGE} = {list(self.stages)}",
                "a stage for copies and the same or a later one for their readers",
                f"e.g. {[0] * sum(map(is_load, self.parts)) + [3]} for a ring of four slots",
            )
        if max(others) > min(first):
            self._check_asynchronous(min(first), "copies")
        return max(others) - min(first) + 1

    def slots_of_store(self, store: ir.SBlockRealize, tile: ir.Var) -> int:
        """Return the slots of a tile that a store reads; one where it is no statement here."""
        late = [s for s, part in self._staged() if part.same_as(store)]
        writers = [
            (s, part)
            for s, part in self._staged()
            if not is_store(part) and ir.accesses(part, tile)
        ]
        if not late or not writers:
            return 1
        first = min(s for s, _ in writers)
        if late[0] < first:
            raise cannot_lower(
                self.where,
                f"{STAGE} = {list(self.stages)}",
                f"a stage of block {store.block.name_hint}, which stores {tile.name}, not before "
                f"that of what writes it, {first}",
                f"e.g. {first + 1} for two slots",
            )
        if late[0] > first:
            self._check_asynchronous(late[0], "stores")
        return late[0] - first + 1

    def remark(self) -> str | None:
        """Say what of the annotations makes no difference, None if nothing."""
        if list(self.order) == sorted(self.order):
            return None
        return f"{self.where}: {ORDER} = {list(self.order)} stays the program's order"

    def _staged(self) -> list[tuple[int, ir.Stmt]]:
        return list(zip(self.stages, self.parts, strict=True))

    def _check_asynchronous(self, stage: int, what: str) -> None:
        if stage not in self.asynchronous:
            raise cannot_lower(
                self.where,
                f"{ASYNC_STAGES} = {list(self.asynchronous)}",
                f"stage {stage}, where the asynchronous {what} are, in it",
            )

    def _leaves(self, part: ir.Stmt) -> bool:
        """Tell an asynchronous store of a tile that no load of the loop fills."""
        if not is_store(part):
            return False
        filled = [region.source for x in self.parts if is_load(x) for region in x.block.writes]
        read = [region.source for region in part.block.reads]
        return not any(x.same_as(y) for x in filled for y in read)


def parts_of(loop: ir.For) -> tuple[ir.Stmt, ...]:
    """Return the statements of a loop, or of the one block in it."""
    body = loop.body
    if isinstance(body, ir.SBlockRealize) and not is_load(body) and not is_store(body):
        body = body.block.body
    return tuple(ir.statements(body))


def read_stages(loop: ir.For, parts: tuple[ir.Stmt, ...]) -> PipelineStages:
    """Read the annotations of a loop that has stages; raise where they are not its statements'."""
    where = f"loop {loop.loop_var.name}"
    stage = [int(x) for x in loop.annotations[STAGE]]
    order = [int(x) for x in loop.annotations.get(ORDER, range(len(parts)))]
    names = [block.name_hint for part in parts for block in ir.find_all(part, ir.SBlock)[:1]]
    if len(stage) != len(parts) or sorted(order) != list(range(len(parts))):
        raise cannot_lower(
            where,
            f"{STAGE} = {stage} and {ORDER} = {order}",
            f"one entry for each of the {len(parts)} statements {names}, and a permutation",
        )
    asynchronous = [int(x) for x in loop.annotations.get(ASYNC_STAGES, [])]
    return PipelineStages(where, parts, tuple(stage), tuple(order), tuple(asynchronous))


def drop_stages(kernel: ir.For, dropped: Sequence[ir.Stmt]) -> ir.For:
    """Take statements that are to be dropped out of the annotations of pipelined loops."""
    changed: dict[Any, ir.Stmt] = {}
    for loop in ir.find_all(kernel, ir.For, lambda x: STAGE in x.annotations):
        parts = parts_of(loop)
        places = [i for i, x in enumerate(parts) if any(x.same_as(y) for y in dropped)]
        if places:
            changed[loop] = ir.with_body(loop, loop.body, annotations=stages_without(loop, places))
    return ir.replace_nodes(kernel, ir.For, changed) if changed else kernel


def repeat_stages(kernel: ir.For, repeated: Sequence[ir.Stmt]) -> ir.For:
    """Count statements twice in the annotations of pipelined loops: another one goes before."""
    changed: dict[Any, ir.Stmt] = {}
    for loop in ir.find_all(kernel, ir.For, lambda x: STAGE in x.annotations):
        times = [1 + any(x.same_as(y) for y in repeated) for x in parts_of(loop)]
        if sum(times) == len(times):
            continue
        notes = dict(loop.annotations)
        notes[STAGE] = [int(x) for x, n in zip(notes[STAGE], times, strict=True) for _ in range(n)]
        if ORDER in notes:
            pairs = [
                (int(x), i) for x, n in zip(notes[ORDER], times, strict=True) for i in range(n)
            ]
            notes[ORDER] = [sorted(pairs).index(x) for x in pairs]
        changed[loop] = ir.with_body(loop, loop.body, annotations=notes)
    return ir.replace_nodes(kernel, ir.For, changed) if changed else kernel


def stages_without(loop: ir.For, places: list[int]) -> dict[str, Any]:
    """Return a loop's annotations without the entries of some of its statements."""
    notes = dict(loop.annotations)
    if STAGE in notes:
        notes[STAGE] = [int(x) for at, x in enumerate(notes[STAGE]) if at not in places]
    if ORDER in notes:
        left = [int(x) for at, x in enumerate(notes[ORDER]) if at not in places]
        notes[ORDER] = [sorted(left).index(x) for x in left]
    return notes
