"""Kernels bound by memory, and sums over CTAs: their seeded bugs."""

from ..golden import softmax_block, softmax_cluster, softmax_push, softmax_warp, splitk_reduce
from ..rows import ALIAS, FENCE, NUMBERS, OVERWRITE, READ, TX, WRITE, Golden, Mutation, mutations

SCOPE = "MBAR_SCOPE_TOO_NARROW"
UNSEEN, BEGUN = "GLOBAL_NOT_VISIBLE", "CLUSTER_TARGET_NOT_STARTED"

WARP = Golden("softmax by warps", softmax_warp.build)
WARP_HALF = Golden("softmax by warps, half", softmax_warp.build, {"dtype": "float16"})
BLOCK = Golden("softmax by CTAs", softmax_block.build)
CLUSTER = Golden("softmax by a cluster", softmax_cluster.build)
CLUSTER_ROWS = Golden(
    "softmax by clusters", softmax_cluster.build, {"rows": 3, "warps": 2, "clusters": 2}
)
CLUSTER_LANES = Golden(
    "softmax by a cluster, lanes", softmax_cluster.build, {"by": "lanes", "columns": 5}
)
COPY = Golden("softmax, records by copies", softmax_push.build, {"by": "copy"})
STORE = Golden("softmax, records by stores", softmax_push.build, {"by": "store"})
LAST = Golden("split-K, the last finishes", splitk_reduce.build)
TURNS = Golden("split-K, in turns", splitk_reduce.build, {"order": "turns"})

GOLDEN: tuple[Golden, ...] = (
    *(WARP, WARP_HALF, BLOCK, CLUSTER, CLUSTER_ROWS, CLUSTER_LANES),
    *(COPY, STORE, LAST, TURNS),
)
MUTATIONS: tuple[Mutation, ...] = mutations(
    (
        ("S01", WARP, "a step of the butterfly is missing", NUMBERS, "N"),
        ("S02", WARP, "all lanes use the sum of shfl.down", NUMBERS, "N"),
        ("S03", WARP, "lanes without an element shuffle not", "WARP_CONVERGENCE", "V"),
        ("S04", WARP, "rows behind the last one", "OOB_ACCESS", "V"),
        ("S05", WARP, "columns behind the last one", f"OOB_ACCESS + {NUMBERS}", "VN"),
        ("S06", WARP, "padded with 0, not the lowest", NUMBERS, "N"),
        ("S07", WARP, "the maximum is not subtracted", NUMBERS, "N"),
        ("S08", BLOCK, "no barrier before partials are read", READ, "V"),
        ("S09", BLOCK, "no barrier before the result is read", READ, "V"),
        ("S10", BLOCK, "no barrier between maximum and sum", OVERWRITE, "V"),
        ("S11", BLOCK, "no barrier between rows", OVERWRITE, "V"),
        ("S12", BLOCK, "one slot more than there are warps", "UNINIT_READ", "V"),
        ("S13", BLOCK, "every lane leaves its partial", WRITE, "V"),
        ("S14", BLOCK, "a few lanes shuffle with a full mask", "WARP_CONVERGENCE", "V"),
        ("S15", BLOCK, "__syncthreads by a part", "WARP_CONVERGENCE + DEADLOCK", "VX"),
        ("C01", CLUSTER, "no barrier before a peer is read", f"{READ} + {BEGUN}", "V"),
        ("C02", CLUSTER, "no cluster barrier at the end", "CLUSTER_TARGET_EXITED", "V"),
        ("C03", CLUSTER, "a barrier of the CTA alone", READ, "V"),
        ("C04", CLUSTER, "barrier.cluster.arrive.relaxed", SCOPE, "V"),
        ("C05", CLUSTER, "reads its own slot, not the peer's", NUMBERS, "N"),
        ("C06", CLUSTER, "ranks from its own on, no modulo", "OOB_ACCESS", "V"),
        ("C07", CLUSTER, "maximum and sum in one slot", OVERWRITE, "V"),
        ("C08", CLUSTER, "arrives and does not wait", "NAMED_BAR_MISMATCH", "V"),
        ("C09", CLUSTER, "ld.shared::cta of a peer's address", "OOB_ACCESS", "V"),
        ("C10", CLUSTER_LANES, "a CTA without columns leaves", "UNINIT_READ", "V"),
        ("C11", CLUSTER_LANES, "one lane more than CTAs", "OOB_ACCESS", "V"),
        ("C12", COPY, "no proxy fence before the copy", FENCE, "V"),
        ("C13", COPY, "expects a record of itself too", f"DEADLOCK + {TX}", "SVX"),
        ("C14", COPY, "records go to the receiver's place", f"UNINIT_READ + {NUMBERS}", "VN"),
        ("C15", COPY, "the parity does not flip", ALIAS, "SV"),
        ("C17", COPY, "no meeting before the next row's", OVERWRITE, "V"),
        ("C18", STORE, "the count holds the CTA itself", "DEADLOCK", "SVX"),
        ("C19", STORE, "remote arrive at CTA scope", SCOPE, "V"),
        ("C20", STORE, "remote arrive, relaxed", READ, "V"),
        ("C21", STORE, "waits at CTA scope", SCOPE, "V"),
        ("C22", STORE, "no wait", f"{READ} + MBAR_MISSING_WAIT", "V"),
        ("K01", LAST, "wait_group.read before the count", UNSEEN, "V"),
        ("K02", LAST, "no proxy fence before the reduction", FENCE, "SV"),
        ("K03", LAST, "counts with a relaxed atomic", f"{UNSEEN}/{READ}", "V"),
        ("K04", LAST, "the last does not acquire", f"{UNSEEN}/{READ}", "V"),
        ("K05", LAST, "the count is never reached", "OUTPUT_COVERAGE", "V"),
        ("K06", LAST, "the last but one finishes", f"{UNSEEN} + {NUMBERS}", "VN"),
        ("K07", LAST, "cleared by a CTA, no order", WRITE, "V"),
        ("K08", LAST, "counts at CTA scope", SCOPE, "V"),
        ("K09", LAST, "the workspace is not cleared", NUMBERS, "N"),
        ("K10", LAST, "no barrier before the reduction", READ, "V"),
        ("K11", TURNS, "does not wait for its turn", WRITE, "V"),
        ("K12", TURNS, "waits for the next one's turn", "DEADLOCK", "V"),
        ("K13", LAST, "one warp alone learns who is last", READ, "V"),
        ("K14", LAST, "no barrier before who is last is read", READ, "V"),
        ("K15", TURNS, "another thread counts, no wait", UNSEEN, "V"),
    )
)
