"""`PointwiseConfig`: threads, vectors per thread, elements per vector."""

from __future__ import annotations

from dataclasses import dataclass

from tvm_hopper.errors import cannot_schedule
from tvm_hopper.facts.programming_model import MAX_THREADS, THREADS_PER_WARP
from tvm_hopper.requests.keys import MOST_BLOCKS_PER_SM, MOST_LAUNCHED_TOGETHER
from tvm_hopper.schedule.given_fields import GivenFields

THREADS_PER_SM = 2048
MOST_VECTOR = 16  # elements of a vector: 16 bytes of the narrowest type
MOST_CHUNKS = 16  # vectors of a thread: their registers are few


@dataclass(frozen=True, repr=False)
class PointwiseConfig(GivenFields):
    """Configuration of an elementwise kernel; fields left out are chosen from the shape.

    Parameters
    ----------
    threads : int, optional
        Threads of a thread block, a multiple of 32 up to 1024.
    chunks : int, optional
        Vectors of each tensor that a thread has in flight, up to 16.
    vector : int, optional
        Elements of a vector access: a power of two up to 16, at most 16 bytes of the widest tensor.
    hint : bool, optional
        Whether the caches evict the loaded data last.
    early_launch : bool, optional
        Whether to use programmatic dependent launch: start early, then wait. Default: no.
    blocks : int, optional
        Occupancy: thread blocks per SM; the assembler limits registers accordingly.

    together : int, optional
        Neighbouring thread blocks that start together, as a cluster of up to 8; 1: no cluster.

    Raises
    ------
    ScheduleError
        A value is illegal.
    """

    threads: int | None = None
    chunks: int | None = None
    vector: int | None = None
    hint: bool | None = None
    early_launch: bool | None = None
    blocks: int | None = None
    together: int | None = None

    def __post_init__(self) -> None:
        where = "PointwiseConfig"
        bounds = {
            "threads": (THREADS_PER_WARP, MAX_THREADS),
            "chunks": (1, MOST_CHUNKS),
            "vector": (1, MOST_VECTOR),
            "blocks": (1, MOST_BLOCKS_PER_SM),
            "together": (1, MOST_LAUNCHED_TOGETHER),
        }
        self.set_ints(where, bounds)
        threads, vector, blocks = self.threads, self.vector, self.blocks
        self.check_flags(where, "hint", "early_launch")
        if threads is not None and threads % THREADS_PER_WARP:
            need = f"a multiple of {THREADS_PER_WARP}"
            raise cannot_schedule(where, f"threads={threads}", need)
        if vector is not None and vector & (vector - 1):
            raise cannot_schedule(where, f"vector={vector}", "a power of two")
        if (threads or THREADS_PER_WARP) * (blocks or 1) > THREADS_PER_SM:
            found = f"blocks={blocks} thread blocks of {threads or THREADS_PER_WARP} threads"
            raise cannot_schedule(where, found, f"at most {THREADS_PER_SM} threads of an SM")
