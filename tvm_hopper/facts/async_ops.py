"""Table of asynchronous operations of all processors.

The sync engine (`tvm_hopper.sync`) looks up here how an operation completes; the simulator
has its own rules.
Source: PTX ISA 9.1, 8.9.1.1 (asynchronous operations), 9.7.9.25-27 (copies and reductions),
9.7.15.4 (WGMMA), 8.6 (proxies). Of Hexagon's DMA: what TVM says of `dma_copy`, `dma_wait` and their
groups (include/tvm/tirx/builtin.h) and does (src/backend/hexagon/runtime, `HexagonUserDMA`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

MBARRIER = "mbarrier"
BULK_GROUP = "bulk_group"
WGMMA_GROUP = "wgmma_group"
CP_ASYNC_GROUP = "cp_async_group"
DMA_GROUP = "dma_group"
COMPLETIONS = (MBARRIER, BULK_GROUP, WGMMA_GROUP, CP_ASYNC_GROUP, DMA_GROUP)
OPENED = (DMA_GROUP,)  # groups that begin with an instruction of their own, and may not be empty

GENERIC, ASYNC = "generic", "async"  # the two views of memory
ON_CHIP = ("shared", "vtcm")  # the memories that tiles are in, each processor has one of them

MBARRIER_WAIT = "mbarrier_wait"
WAIT_GROUP = "wait_group"
WAIT_GROUP_READ = "wait_group_read"  # sources have been read, results may still be under way


@dataclass(frozen=True)
class AsyncOp:
    """One kind of asynchronous operation.

    Attributes
    ----------
    completion
        What tells that it is over; a group also has to be committed (`needs_commit`).
    proxy
        The view through which its memory operands are accessed.
    read_needs
        What must be executed before something reads the result of the operation.
    overwrite_needs
        What must be executed before something overwrites a source that the operation reads.
    agent
        Whose groups these are: "thread" or "warp_group"; "any" may wait on an mbarrier.
    by_one_thread
        Whether one thread issues an operation for all; else each thread issues a part of its own,
        or a warp group issues it together.
    ordered_after_program
        Whether the operation starts after the earlier instructions of its own thread; if not, a
        fence of its own is before it.
    reads, writes
        The memory of its operands. What is on chip must be done with before the body ends.
    mechanism
        The copy mechanism that a schedule requests by this name, plain copies only; else None.
    handed_over
        The row of the same copy where another agent waits for it, if that is another one.
    combines
        Whether it combines what it moves with what is there, instead of replacing that.
    takes_hint
        Whether it can say what L2 is to do with the bytes.
    repeats_in_place
        Whether two operations of this row may write the same elements with no wait in between:
        WGMMA of one shape accumulate in order (9.7.15.4), each reduction is atomic (9.7.9.25).
    """

    name: str
    completion: str
    proxy: str
    read_needs: str
    overwrite_needs: str
    agent: str
    reads: str
    writes: str
    mechanism: str | None = None
    handed_over: str | None = None
    by_one_thread: bool = False
    ordered_after_program: bool = True
    repeats_in_place: bool = False
    combines: bool = False
    takes_hint: bool = False

    @property
    def needs_commit(self) -> bool:
        """Tell whether issued operations must be committed to a group before waiting."""
        return self.completion != MBARRIER

    @property
    def opens_group(self) -> bool:
        """Tell whether a group begins with an instruction, before its first operation."""
        return self.completion in OPENED

    @property
    def is_load(self) -> bool:
        """Tell whether it fills a tile, which lies on chip."""
        return self.writes in ON_CHIP


# What is common to the copies that one thread starts: onto the chip, from it, and as reductions.
_LOAD: dict[str, Any] = {
    "completion": MBARRIER,
    "proxy": ASYNC,
    "read_needs": MBARRIER_WAIT,
    "overwrite_needs": MBARRIER_WAIT,
    "agent": "any",
    "reads": "global",
    "writes": "shared",
    "by_one_thread": True,
    "takes_hint": True,
}
_STORE: dict[str, Any] = {
    "completion": BULK_GROUP,
    "proxy": ASYNC,
    "read_needs": WAIT_GROUP,
    "overwrite_needs": WAIT_GROUP_READ,
    "agent": "thread",
    "reads": "shared",
    "writes": "global",
    "by_one_thread": True,
}
_BY_GROUP: dict[str, Any] = {"read_needs": WAIT_GROUP, "overwrite_needs": WAIT_GROUP}
_REDUCE: dict[str, Any] = {**_STORE, "repeats_in_place": True, "combines": True}

# A request for "auto" tries the mechanisms in this order.
ASYNC_OPS = {
    op.name: op
    for op in (
        AsyncOp("tma_load", **_LOAD, mechanism="tma"),
        AsyncOp("tma_store", **_STORE, mechanism="tma"),
        AsyncOp("tma_reduce", **_REDUCE, mechanism="tma"),
        AsyncOp("bulk_load", **_LOAD, mechanism="bulk"),
        AsyncOp("bulk_store", **_STORE, mechanism="bulk"),
        AsyncOp("bulk_reduce", **_REDUCE, mechanism="bulk"),
        # No hint: where a uniform register is part of the shared address ptxas 13.0 makes its
        # neighbour the descriptor (LDGSTS [R7+UR0], desc[UR1]), and an H200 faults.
        AsyncOp(
            "cp_async",
            completion=CP_ASYNC_GROUP,
            proxy=GENERIC,
            **_BY_GROUP,
            agent="thread",
            reads="global",
            writes="shared",
            mechanism="cp_async",
            handed_over="cp_async_arrive",
        ),
        AsyncOp(
            "cp_async_arrive",  # cp.async.mbarrier.arrive.noinc after a thread's copies
            completion=MBARRIER,
            proxy=GENERIC,
            read_needs=MBARRIER_WAIT,
            overwrite_needs=MBARRIER_WAIT,
            agent="any",
            reads="global",
            writes="shared",
        ),
        AsyncOp(
            "wgmma",
            completion=WGMMA_GROUP,
            proxy=ASYNC,
            **_BY_GROUP,
            agent="warp_group",
            reads="shared",
            writes="registers",
            ordered_after_program=False,
            repeats_in_place=True,
        ),
        AsyncOp(
            "dma_load",
            completion=DMA_GROUP,
            proxy=GENERIC,
            **_BY_GROUP,
            agent="thread",
            reads="global",
            writes="vtcm",
            mechanism="dma",
            by_one_thread=True,
        ),
    )
}

MECHANISMS = tuple(dict.fromkeys(op.mechanism for op in ASYNC_OPS.values() if op.mechanism))
HINTED = tuple(str(op.mechanism) for op in ASYNC_OPS.values() if op.takes_hint)

BY_ONE_THREAD = frozenset(
    op.completion for op in ASYNC_OPS.values() if op.needs_commit and op.by_one_thread
)
"""The completions whose groups are those of the one thread that issues: it commits and waits."""


def find_copy_op(mechanism: str, reads: str, writes: str, combines: bool = False) -> AsyncOp | None:
    """Return the operation by which a mechanism copies from one memory into another, if any.

    With `combines` it is the one that combines what it moves with what is there.
    """
    served = (
        op for op in ASYNC_OPS.values() if op.mechanism == mechanism and op.combines == combines
    )
    return next((op for op in served if (op.reads, op.writes) == (reads, writes)), None)


def find_mechanisms(reads: str, writes: str) -> tuple[str, ...]:
    """Return the mechanisms by which one memory is copied into another, by name."""
    rows = (op for op in ASYNC_OPS.values() if (op.reads, op.writes) == (reads, writes))
    return tuple(sorted({op.mechanism for op in rows if op.mechanism is not None}))
