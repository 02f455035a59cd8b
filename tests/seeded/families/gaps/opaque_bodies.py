"""Opaque bodies: incomplete by name, never clean; what is wrong in front of them is an error."""

from ...golden import o_addresses, o_helpers, o_stages
from ...rows import OVERWRITE, READ, Golden, mutations

STAGES = Golden("O stages", o_stages.build)
ADDRESSES = Golden("O addresses", o_addresses.build)
HELPERS = Golden("O helpers", o_helpers.build)
GOLDEN = (STAGES, ADDRESSES, HELPERS)

NAMED = {  # what a report must name, by mutation
    "O01": "signal_row",
    "O02": "meet_all_threads",
    "O03": "is_wanted",
    "O04": "twice",
    "O05": "warm_up",
    "O06": "phase_of",
    "O07": "printf",
    "O08": "row_of",
    "O09": "an address that is read from memory",
}
MUTATIONS = mutations(
    (
        ("O01", STAGES, "the arrival is CUDA given as text", "INCOMPLETE", "SVX"),
        ("O02", STAGES, "the barrier is in a C function", "INCOMPLETE", "SVX"),
        ("O03", STAGES, "a C function decides who writes", "INCOMPLETE", "SVX"),
        ("O04", STAGES, "no barrier before a C function reads", f"{READ} + INCOMPLETE", "SVX"),
        ("O05", STAGES, "a race beside a warp that is in one", f"{READ} + INCOMPLETE", "SVX"),
        ("O06", STAGES, "a C function gives the parity", "INCOMPLETE", "SVX"),
        ("O07", STAGES, "printf, and a wrong read behind it", "INCOMPLETE", "V"),
        ("O08", ADDRESSES, "a C function gives an address", "INCOMPLETE", "VX"),
        ("O09", ADDRESSES, "a table in memory gives an address", "INCOMPLETE", "V"),
        ("O10", ADDRESSES, "the address is one element too far", "OOB_ACCESS + UNINIT_READ", "V"),
        ("O11", HELPERS, "cta_reduce twice, nobody meets", f"{READ} + {OVERWRITE}", "V"),
        ("O12", HELPERS, "cta_reduce by half of the block", f"{READ} + UNINIT_READ", "V"),
        ("O13", HELPERS, "warp_reduce by 24 of 32 lanes", "WARP_CONVERGENCE", "V"),
        ("O14", HELPERS, "scratch read where nobody wrote", "UNINIT_READ", "V"),
    )
)
