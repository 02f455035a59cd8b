"""Run the sync engine: where waits, fences and barriers go, and what stays in flight."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tvm_hopper import sync
from tvm_hopper.errors import cannot_lower
from tvm_hopper.sync import Branch, Loop


def left_in_flight(body: sync.Body, placed: Mapping[sync.Path, list[Any]]) -> Iterator[str]:
    """Yield the completions of groups that no end of a loop is after before their wait.

    They stay in flight over an iteration of their loop, or are in none.
    """
    loops = list(_loop_paths(body, ()))
    for path, syncs in placed.items():
        for one in syncs:
            if isinstance(one, sync.Wait) and one.num_pending:
                yield one.completion
            around = [loop for loop in loops if path[: len(loop)] == loop and path != loop]
            if not isinstance(one, sync.Commit):
                continue
            if not around:
                yield one.completion
                continue
            loop = max(around, key=len)
            behind = [at for at in placed if at >= path and at[: len(loop)] == loop]
            if sync.Wait(one.completion) not in [x for at in behind for x in placed[at]]:
                yield one.completion


def _loop_paths(body: sync.Body, path: sync.Path) -> Iterator[sync.Path]:
    for i, node in enumerate(body):
        if isinstance(node, Loop):
            yield (*path, i)
            yield from _loop_paths(node.body, (*path, i))
        elif isinstance(node, sync.Branch):
            for j, arm in enumerate(node.arms):
                yield from _loop_paths(arm, (*path, i, j))


def read_behind(
    body: sync.Body, path: sync.Path, is_over: Callable[[sync.Path], bool], prefix: sync.Path = ()
) -> list[sync.Buffer]:
    """Return what threads read in one body from a path on, up to a path where it is over."""
    at, *rest = path
    if rest and at < len(body):
        node = body[at]
        if isinstance(node, Loop):
            return read_behind(node.body, tuple(rest), is_over, (*prefix, at))
        assert isinstance(node, Branch), "a path leads through loops and branches"
        return read_behind(node.arms[rest[0]], tuple(rest[1:]), is_over, (*prefix, at, rest[0]))
    found: list[sync.Buffer] = []
    for number in range(at, len(body)):
        if number > at and is_over((*prefix, number)):
            break
        found += _read_in(body[number])
    return found


def _read_in(node: Any) -> list[sync.Buffer]:
    if isinstance(node, sync.Step):  # an operation reads registers in flight, in its own order
        return [] if node.op else [x.buffer for x in node.accesses if not x.is_write]
    bodies = [node.body] if isinstance(node, Loop) else node.arms
    return [x for body in bodies for part in body for x in _read_in(part)]


def place_syncs(body: sync.Body) -> tuple[sync.Placement, ...]:
    """Ask the engine, and let what it refuses name the block and a way out."""
    try:
        return sync.place_syncs(body)
    except ValueError as error:
        where, _, rest = str(error).partition(": found ")
        found, _, need = rest.partition("; need ")
        kind, _, name = where.partition(" ")
        block = re.sub(r"#\d+\b", "", name.split(" ")[0].strip("'"))
        if "only if they are read" in found:
            fix = "store to a separate tile, or take the pipeline's stages away"
        else:
            fix = "take the block out of the branch, or make the condition the same for all threads"
        raise cannot_lower(
            f"{'loop' if kind == 'loop' else 'block'} {block}",
            re.sub(r"#\d+\b", "", found),
            need,
            fix,
        ) from error
