"""Barriers by hand: named ones, flags, locks, counters of a grid, an mbarrier as a barrier."""

from ...golden import h_grid_barrier, h_mbarrier_meet, h_named_ring, h_shared_flag, h_spin_lock
from ...rows import ALIAS, OVERWRITE, READ, WRITE, Golden, mutations

RING = Golden("H named ring", h_named_ring.build)
FLAG = Golden("H shared flag", h_shared_flag.build)
LOCK = Golden("H spin lock", h_spin_lock.build)
GRID = Golden("H grid barrier", h_grid_barrier.build)
MEET = Golden("H mbarrier meet", h_mbarrier_meet.build)
GOLDEN = (RING, FLAG, LOCK, GRID, MEET)

SCOPE, NAMED = "MBAR_SCOPE_TOO_NARROW", "NAMED_BAR_MISMATCH"
MUTATIONS = mutations(
    (
        ("H01", RING, "one arrival too many in the end", NAMED, "V"),
        ("H02", RING, "count 96 for 64 threads", "DEADLOCK", "SVX"),
        ("H03", RING, "producer does not wait for empty", f"{OVERWRITE} + {NAMED}", "V"),
        ("H04", RING, "consumer arrives before it reads", OVERWRITE, "V"),
        ("H05", RING, "empty is said on the barrier of full", f"DEADLOCK + {NAMED}", "SVX"),
        ("H06", RING, "a second warp takes part", NAMED, "V"),
        ("H07", RING, "waits on the other direction's barrier", f"{READ} + DEADLOCK", "SVX"),
        ("H08", FLAG, "volatile store, no fence", f"{READ} + {OVERWRITE}", "V"),
        ("H09", FLAG, "an ordinary store as flag", f"{READ} + {OVERWRITE}", "V"),
        ("H10", FLAG, "volatile load, no fence", f"{READ} + {OVERWRITE}", "V"),
        ("H11", FLAG, "no bar.warp.sync behind the poll", f"{READ} + {OVERWRITE}", "V"),
        ("H12", FLAG, "no bar.warp.sync before the release", f"{READ} + {OVERWRITE}", "V"),
        ("H13", FLAG, "counters hold nothing at first", "UNINIT_READ", "V"),
        ("H14", FLAG, "waits for one row less", OVERWRITE, "V"),
        ("H15", FLAG, "waits for one row more", "DEADLOCK", "V"),
        ("H16", LOCK, "taken by a relaxed swap", f"{READ} + {WRITE}", "V"),
        ("H17", LOCK, "given back by a relaxed store", f"{READ} + {WRITE}", "V"),
        ("H18", LOCK, "threads do not wait for thread 0", f"{READ} + {WRITE}", "V"),
        ("H19", LOCK, "lock of CTA scope", SCOPE, "V"),
        ("H20", LOCK, "given back before all have stored", f"{READ} + {WRITE}", "V"),
        ("H21", LOCK, "one CTA keeps it", "DEADLOCK", "V"),
        ("H22", LOCK, "given back locked", "DEADLOCK", "V"),
        ("H23", GRID, "one CTA less is waited for", READ, "V"),
        ("H24", GRID, "generation not counted", f"{READ}/UNINIT_READ", "V"),
        ("H25", GRID, "counted before all have stored", READ, "V"),
        ("H26", GRID, "relaxed add", READ, "V"),
        ("H27", GRID, "counter of CTA scope", SCOPE, "V"),
        ("H28", GRID, "relaxed poll", READ, "V"),
        ("H29", GRID, "one buffer for two turns", OVERWRITE, "V"),
        ("H30", MEET, "parity 0 at every meeting", f"{ALIAS} + {READ}", "SVX"),
        ("H31", MEET, "count 3 for 4 warps", READ, "V"),
        ("H32", MEET, "count of threads, arrivals of warps", "DEADLOCK", "SVX"),
        ("H33", MEET, "the lane that arrived waits alone", READ, "V"),
        ("H34", MEET, "no bar.warp.sync before the arrival", READ, "V"),
        ("H35", MEET, "__syncthreads by half of each warp", "WARP_CONVERGENCE", "SV"),
        ("H36", MEET, "one row for all turns", OVERWRITE, "V"),
        ("H37", MEET, "__syncwarp by half of each warp", f"WARP_CONVERGENCE + {READ}", "V"),
        ("H38", RING, "bar.arrive by one lane", "WARP_CONVERGENCE", "SV"),
    )
)
