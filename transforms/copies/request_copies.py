"""Request a mechanism for the plain copies of a schedule that request none themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.errors import LoweringError, cannot_lower, warn
from tvm_hopper.requests import marks
from tvm_hopper.requests.keys import ASYNC_COPY, STORE_SLOTS

NEW_TILE = {
    True: ("global into shared", "cache_read"),
    False: ("shared into global", "cache_write"),
}


@dataclass(frozen=True)
class CopyRequest:
    """What a stage requests for the plain copies of a module, and what it says about that.

    - `stage`: the stage's name.
    - `mechanism`: a value of `tvm_hopper.async_copy`, for blocks that do not carry the key.
    - `are_loads`: copies into shared memory; else those out of it.
    - `slots`: slots of each stored tile (`tvm_hopper.store_slots`).
    """

    stage: str
    mechanism: str
    are_loads: bool
    slots: int | None = None

    def __call__(self, func: tirx.PrimFunc) -> tirx.PrimFunc:
        """Return a function whose copies between global and shared memory request a mechanism."""
        more = {} if self.slots is None else {STORE_SLOTS: self.slots}

        def visit(block: ir.SBlock, mutator: Any) -> ir.SBlock:
            new = mutator.default_mutate(block)
            if ASYNC_COPY in new.annotations or not _is_copy(new.body, self.are_loads):
                return new
            notes = {**new.annotations, ASYNC_COPY: self.mechanism, **more}
            return ir.with_block(new, annotations=notes)

        return func.with_body(ir.mutate(func.body, [(ir.SBlock, visit)]))

    def warn_if_idle(self, funcs: dict[Any, tirx.PrimFunc]) -> None:
        """Warn where no function has a copy for the stage, nor has come through another one."""
        asking = [x for f in funcs.values() for x in ir.find_blocks(f.body, ASYNC_COPY)]
        asking = [x for x in asking if not _is_copy(x.body, not self.are_loads)]
        if asking or any(map(marks.is_marked, funcs.values())):
            return
        way, primitive = NEW_TILE[self.are_loads]
        idle = cannot_lower(
            f"{self.stage}: {', '.join(x.name_hint for x in funcs) or 'a module'}",
            f"no copy from {way} memory, so that nothing changes",
            "a block that copies one element and does nothing else",
            f'make it before this pass, as {primitive}(block, index, "shared.dyn") does',
        )
        warn(str(idle), stacklevel=2)

    def explained(self, error: LoweringError) -> LoweringError:
        """Return an error about a request, with who has written it."""
        return LoweringError(
            f"{error}. {self.stage} wrote {ASYNC_COPY} = {self.mechanism!r} on copies that had "
            'none; annotate the block of a copy with "none" to leave it to the threads'
        )


def _is_copy(store: Any, is_load: bool) -> bool:
    if not isinstance(store, ir.BufferStore) or not isinstance(store.value, ir.TensorLoad):
        return False
    ends = (store.value.source, store.buffer)
    source, target = ends if is_load else ends[::-1]
    return str(source.scope()) in ("", "global") and ir.is_shared(target)
