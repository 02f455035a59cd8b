"""Which kernels are run, and which assumption of the simulator each of them puts to the test.

Mutations that can deadlock are left out, but for M04 with one trip: whether it hangs is the
question, and a case that does not end is ended with its process.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.seeded.catalogue import BY_ID, CONTROLS, GOLDEN
from tests.seeded.golden import g1_warp_specialized
from tests.seeded.golden.common import Kernel


@dataclass(frozen=True)
class Case:
    """One kernel to run many times; `question` is empty for a golden kernel or a control."""

    name: str
    make: Callable[[], Kernel]
    question: str = ""


def _mutation(name: str, question: str) -> Case:
    return Case(name, BY_ID[name].build, question)


RIGHT = tuple(Case(f"golden {g.name}", g.build) for g in GOLDEN) + tuple(
    Case(f"control {c.id}", c.golden.build) for c in CONTROLS if c.golden not in GOLDEN
)
QUESTIONS = (
    Case(
        "M04, one trip",
        lambda: g1_warp_specialized.build("M04", trips=1),
        "does a copy release its barrier in parts, before all of its bytes have landed?",
    ),
    _mutation("M33", "does a TMA write overtake ldmatrix without a proxy fence?"),
    _mutation("M34", "does a TMA write overtake ordinary accesses without a proxy fence?"),
    _mutation("M25", "does a TMA store miss ordinary writes without a proxy fence?"),
    _mutation("M26", "is a fence before the barrier, by the issuer alone, enough?"),
    _mutation("M37", "does wgmma miss what cp.async wrote without a proxy fence?"),
    _mutation("M28", "does a refill overtake the read of a TMA store?"),
    _mutation("M55", "is a TMA store cut off when its thread block ends?"),
    _mutation("M47", "what does a remote arrival at a block that has ended do?"),
    _mutation("M45", "does an arrival at CTA scope publish ordinary stores to the peer?"),
    _mutation("M49", "does a reduction become visible late after wait_group.read?"),
    _mutation("M53", "does a bulk load miss ordinary global writes without a proxy fence?"),
    _mutation("M54", "does try_wait return false before the copy has landed?"),
    _mutation("M42", "does bar.sync from two places misbehave?"),
    _mutation("M10", "does a slot released before wait_group get overwritten too early?"),
)
ALL = {case.name: case for case in RIGHT + QUESTIONS}
