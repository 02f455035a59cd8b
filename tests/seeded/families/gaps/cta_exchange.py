"""Exchange between CTAs: each other's shared memory, partial results, flags, multicast slots."""

from ...golden import x_dsmem, x_last_block, x_multicast_slots, x_stream_k
from ...rows import OVERWRITE, READ, Golden, mutations

DSMEM = Golden("X dsmem", x_dsmem.build)
LAST = Golden("X last block", x_last_block.build)
STREAM = Golden("X stream-K", x_stream_k.build)
SLOTS = Golden("X multicast slots", x_multicast_slots.build)
GOLDEN = (DSMEM, LAST, STREAM, SLOTS)

SCOPE = "MBAR_SCOPE_TOO_NARROW"
EXITED, BEGUN = "CLUSTER_TARGET_EXITED", "CLUSTER_TARGET_NOT_STARTED"
MUTATIONS = mutations(
    (
        ("X01", DSMEM, "__syncthreads before the peer is read", f"{READ} + {BEGUN}", "V"),
        ("X02", DSMEM, "relaxed arrival at the cluster barrier", SCOPE, "V"),
        ("X03", DSMEM, "no barrier before the peer is read", f"{READ} + {BEGUN}", "V"),
        ("X04", DSMEM, "a rank that the cluster lacks", "OOB_ACCESS", "V"),
        ("X05", DSMEM, "leaves while its memory is read", EXITED, "V"),
        ("X06", DSMEM, "own row changed while it is read", OVERWRITE, "V"),
        ("X07", DSMEM, "writes to a peer that may have left", EXITED, "V"),
        ("X08", LAST, "no fence before the count", READ, "V"),
        ("X09", LAST, "no fence behind the count", READ, "V"),
        ("X10", LAST, "counted before all have stored", READ, "V"),
        ("X11", LAST, "counter of CTA scope", f"{READ} + {SCOPE}", "V"),
        ("X12", LAST, "the block reads its place too early", READ, "V"),
        ("X13", LAST, "nobody is the last one", "OUTPUT_COVERAGE", "V"),
        ("X14", LAST, "the last but one takes itself for it", f"{READ}/UNINIT_READ", "V"),
        ("X15", STREAM, "flag raised before the partial row", f"{READ} + {OVERWRITE}", "V"),
        ("X16", STREAM, "flag raised before all have stored", READ, "V"),
        ("X17", STREAM, "no wait for the flag", READ, "V"),
        ("X18", STREAM, "flag of CTA scope", SCOPE, "V"),
        ("X19", STREAM, "threads do not wait for thread 0", READ, "V"),
        ("X20", STREAM, "waits for another CTA's flag", READ, "V"),
        ("X21", STREAM, "two CTAs wait for each other first", "DEADLOCK", "V"),
        ("X22", SLOTS, "slot released in the own CTA alone", OVERWRITE, "V"),
        ("X23", SLOTS, "both releases go to one CTA", OVERWRITE, "V"),
        ("X24", SLOTS, "slot released before it is read", OVERWRITE, "V"),
        ("X25", SLOTS, "remote release at CTA scope", SCOPE, "V"),
        ("X26", SLOTS, "leaves while it may be released to", EXITED, "V"),
        ("X27", SLOTS, "one release left out", "DEADLOCK", "VX"),
        ("X28", DSMEM, "relaxed, behind fence.mbarrier_init alone", SCOPE, "V"),
        ("X29", DSMEM, "relaxed, behind a fence of CTA scope", SCOPE, "V"),
        ("X30", DSMEM, "one lane waits at the cluster barrier", f"WARP_CONVERGENCE + {READ}", "V"),
    )
)
