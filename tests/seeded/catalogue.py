"""Every seeded bug: which golden kernel, what is changed, which diagnostics must name it."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pytest

from .families import memory_kernels, products
from .families.gaps import cta_exchange, opaque_bodies, own_barriers, tx_bytes
from .families.published import bugs
from .golden import (
    g1_side_copy,
    g1_warp_specialized,
    g2_multicast,
    g2_publish,
    g3_tma_store,
    g4_reader,
    g4_split_k,
    g5_cp_async,
    g6_register_a,
    g7_persistent,
    small,
)
from .rows import (
    ALIAS,
    FENCE,
    NUMBERS,
    OVERFLOW,
    OVERWRITE,
    READ,
    REG,
    TX,
    UNPUBLISHED,
    WAR,
    WRITE,
    Golden,
    Mutation,
    mutations,
)

G1 = Golden("G1", g1_warp_specialized.build)
G1S = Golden("G1 side copy", g1_side_copy.build)
G2 = Golden("G2", g2_multicast.build)
G2P = Golden("G2 publish", g2_publish.build)
G3 = Golden("G3", g3_tma_store.build)
G4 = Golden("G4", g4_split_k.build)
G4S = Golden("G4 serial", g4_split_k.build, {"order": "serial"})
G4R = Golden("G4 reader", g4_reader.build)
G5 = Golden("G5", g5_cp_async.build)
G6 = Golden("G6", g6_register_a.build)
G7 = Golden("G7", g7_persistent.build)
G7U = Golden("G7 union", g7_persistent.build, {"union": True})
HOPPER = (G1, G1S, G2, G2P, G3, G4, G4S, G4R, G5, G6, G7, G7U)


HOPPER_MUTATIONS = mutations(
    (
        ("M01", G1, "producer's first empty wait has parity 0", f"DEADLOCK + {ALIAS}", "SVX"),
        ("M02", G1, "consumer's parity inverted", f"{READ} + {ALIAS}", "V"),
        ("M03", G1, "parity flips every iteration", ALIAS, "SVX"),
        ("M04", G1, "expect_tx without B's bytes", TX, "SV"),
        ("M05", G1, "expect_tx + 16 bytes", f"DEADLOCK + {TX}", "SVX"),
        ("M06", G1, "arrive, then expect_tx", READ, "V"),
        ("M07", G1, "consumer waits full[s + 1]", READ, "V"),
        ("M08", G1, "data goes to slot s + 1", f"{READ}/{OVERWRITE}", "V"),
        ("M09", G1, "no empty wait", f"{OVERWRITE} + MBAR_MISSING_WAIT", "V"),
        ("M10", G1, "empty arrive before wait_group", OVERWRITE, "V"),
        ("M11", G1, "wait_group 1 releases slot k", OVERWRITE, "V"),
        ("M12", G1, "only consumer 0 arrives", "DEADLOCK", "SVX"),
        ("M13", G1, "every lane arrives", OVERFLOW, "SVX"),
        ("M14", G1, "init count 1, two consumers", f"{OVERFLOW}/{OVERWRITE}", "V"),
        ("M15", G1, "no __syncthreads after init", UNPUBLISHED, "SV"),
        ("M16", G2, "no fence and cluster barrier after init", UNPUBLISHED, "V"),
        ("M17", G7, "barriers initialised for every tile", "MBAR_REINIT_LIVE", "SV"),
        ("M18", G7, "ring position reset for every tile", f"{ALIAS}/DEADLOCK", "SX"),
        ("M19", G1, "no wgmma.fence", "WGMMA_FENCE_MISSING", "SVP"),
        ("M20", G1, "accumulator scaled between groups", REG, "SVP"),
        ("M21", G1, "epilogue after wait_group 1", REG, "SVP"),
        ("M22", G1, "no final wait_group 0", REG, "SVP"),
        ("M23", G6, "A fragment reloaded before the wait", REG, "SV"),
        ("M24", G1, "commit_group in half the warps", "WARP_CONVERGENCE", "S"),
        ("M25", G3, "no proxy fence before the store", FENCE, "SV"),
        ("M26", G3, "only the issuing thread fences", FENCE, "V"),
        ("M27", G3, "no barrier before the store", READ, "V"),
        ("M28", G3, "no wait_group.read", OVERWRITE, "V"),
        ("M29", G3, "wait_group.read 2 of 2 buffers", OVERWRITE, "V"),
        ("M30", G3, "no barrier after wait_group.read", OVERWRITE, "V"),
        ("M31", G3, "another thread waits", "BULK_GROUP_MISUSE", "S"),
        ("M32", G3, "no commit_group", f"BULK_GROUP_MISUSE/{OVERWRITE}", "SV"),
        ("M33", G6, "no proxy fence after ldmatrix", WAR, "V"),
        ("M34", G7U, "epilogue on the ring, not fenced", f"{FENCE}/{WAR}/{OVERWRITE}", "V"),
        ("M35", G5, ".noinc arrivals not in the count", OVERFLOW, "SVX"),
        ("M36", G5, ".noinc dropped, still counted", "DEADLOCK", "SVX"),
        ("M37", G5, "no proxy fence before wgmma", FENCE, "V"),
        ("M38", G1, "setmaxnreg 40 + 240 + 240", "SETMAXNREG_BUDGET", "SV"),
        ("M39", G1, "setmaxnreg in half a group", "SETMAXNREG_PARTIAL/SETMAXNREG_DIRECTION", "SV"),
        ("M40", G1, "no launch bounds", "SETMAXNREG_IGNORED", "SP"),
        ("M41", G1, "__syncthreads in the consumers", "DEADLOCK/WARP_CONVERGENCE", "SVX"),
        ("M42", G1S, "bar.sync from two sites", "NAMED_BAR_SITES", "S"),
        ("M43", G3, "count 128 for 256 participants", "NAMED_BAR_MISMATCH", "S"),
        ("M44", G2, "producer ignores the peer's consumers", OVERWRITE, "V"),
        ("M45", G2P, "remote arrive at CTA scope", "MBAR_SCOPE_TOO_NARROW", "V"),
        ("M46", G2, "expect_tx in the leader only", f"DEADLOCK/{TX}", "VX"),
        ("M47", G2, "no cluster barrier at the end", "CLUSTER_TARGET_EXITED", "V"),
        ("M48", G2, "CTAs of a pair differ in trips", "DEADLOCK", "VX"),
        ("M49", G4S, "semaphore after wait_group.read", "GLOBAL_NOT_VISIBLE", "V"),
        ("M50", G4S, "semaphore by another thread, no wait", "GLOBAL_NOT_VISIBLE", "V"),
        ("M51", G4, "C cleared by a CTA, no order", f"UNINIT_READ/{WRITE}/{OVERWRITE}", "V"),
        ("M52", G4S, "first split stores, no order", f"{WRITE}/{OVERWRITE}", "V"),
        ("M53", G4R, "bulk load without global proxy fence", FENCE, "V"),
        ("M54", G1, "try_wait without a loop", "TRY_WAIT_NOT_LOOPED", "SV"),
        ("M55", G3, "exit right after the store", "EXIT_PENDING_ASYNC", "SV"),
        ("M56", G1, "barriers inside B's last slot", f"OOB_ACCESS/{WRITE}/{OVERWRITE}/{READ}", "V"),
        ("M57", G1, "producer runs one trip more", "MBAR_MISSING_WAIT/EXIT_PENDING_ASYNC", "V"),
        ("M58", G1, "no K step, peeled wait unguarded", "DEADLOCK", "VX"),
        ("M59", G7, "scheduler skips the last wave", f"OUTPUT_COVERAGE/{NUMBERS}", "VN"),
        ("M60", G1, "swizzle of map and descriptor differ", NUMBERS, "N"),
        ("M61", G1S, "release after the meeting", "DEADLOCK", "VX"),
        ("M62", G1, "half of the accumulators never cleared", "UNINIT_READ", "V"),
    )
)


@dataclass(frozen=True)
class Control:
    """One legal construction that must give no finding."""

    id: str
    what: str
    golden: Golden


CONTROLS: tuple[Control, ...] = tuple(
    Control(*row)
    for row in (
        (
            "N1",
            "TMA issued before arrive.expect_tx",
            Golden("G1 copies first", g1_warp_specialized.build, {"tx_first": True}),
        ),
        ("N2", "several copies on one barrier", G1),
        ("N3", "producer starts with parity 1", G1),
        ("N4", "TMA to wgmma without proxy fence", G1),
        ("N5", "chained wgmma of one shape without fence", G1),
        ("N6", "fence in the issuer (in the writers: G3)", Golden("N6", small.fence_by_issuer)),
        ("N7", "wait_group.read, then the buffer is reused", G3),
        ("N8", "concurrent bulk reductions", G4),
        ("N9", "waits for different phases of one barrier", Golden("N9", small.different_phases)),
        ("N10", "all threads wait for a copy in flight", Golden("N10", small.all_wait)),
        ("N11", "arrive_drop and early exit", Golden("N11", small.arrive_drop)),
        (
            "N12",
            "complete_tx in pieces and out of order",
            Golden("G1 three stages", g1_warp_specialized.build, {"stages": 3}),
        ),
        ("N13", "barrier.sync from two sites", G1S),
        ("N14", "multicast with a cluster-wide empty barrier", G2),
        ("N15", "exit with only the writes of a store pending", G3),
        (
            "N16",
            "K tail filled with zeros, full-box bytes",
            Golden("G1 K tail", g1_warp_specialized.build, {"k_tail": 24}),
        ),
        ("N17", "CTA-scoped remote release after the wgmma wait", G2),
    )
)


@dataclass(frozen=True)
class Family:
    """Seeded bugs that belong together, the right kernels that they are made of, and controls."""

    name: str
    golden: tuple[Golden, ...]
    mutations: tuple[Mutation, ...]
    controls: tuple[Control, ...] = ()


FAMILIES: tuple[Family, ...] = (
    Family("Hopper matmuls", HOPPER, HOPPER_MUTATIONS, CONTROLS),
    Family("kernels bound by memory", memory_kernels.GOLDEN, memory_kernels.MUTATIONS),
    Family("other products", products.GOLDEN, products.MUTATIONS),
    Family("opaque bodies", opaque_bodies.GOLDEN, opaque_bodies.MUTATIONS),
    Family("bytes of copies", tx_bytes.GOLDEN, tx_bytes.MUTATIONS),
    Family("barriers by hand", own_barriers.GOLDEN, own_barriers.MUTATIONS),
    Family("exchange between CTAs", cta_exchange.GOLDEN, cta_exchange.MUTATIONS),
    Family(
        "published bugs", bugs.GOLDEN, bugs.MUTATIONS, tuple(Control(*row) for row in bugs.FIXED)
    ),
)
GOLDEN: tuple[Golden, ...] = tuple(g for family in FAMILIES for g in family.golden)
MUTATIONS: tuple[Mutation, ...] = tuple(m for family in FAMILIES for m in family.mutations)
BY_ID = {mutation.id: mutation for mutation in MUTATIONS}


def slow_but_hopper(row: Golden | Mutation) -> Any:
    """Mark what is not of the Hopper matmuls as slow, where a test takes every row in turn."""
    of_hopper = row in HOPPER or row in HOPPER_MUTATIONS
    return pytest.param(row, marks=[] if of_hopper else [pytest.mark.slow])


def some_quick(rows: Iterable[Golden | Mutation], every: int) -> list[Any]:
    """Mark all but some rows of the Hopper matmuls as slow, where another test takes them all."""
    found = []
    for number, row in enumerate(rows):
        of_hopper = row in HOPPER or row in HOPPER_MUTATIONS
        quick = of_hopper and number % every == 0
        found.append(pytest.param(row, marks=[] if quick else [pytest.mark.slow]))
    return found
