"""Published asynchronous bugs of other projects, written afresh as small kernels with switches.

A row names the project and the number of its issue, pull request or commit, or the test suite and
what is tested there. Several wrong forms may be of one bug; the kernel without a switch is the
fixed form. What is taken over is the mechanism alone.
"""

from ...rows import (
    ALIAS,
    FENCE,
    OVERFLOW,
    OVERWRITE,
    READ,
    TX,
    UNPUBLISHED,
    WAR,
    WRITE,
    Golden,
    mutations,
)
from . import block, cluster, copies, grid, maps, products, relay, ring, stores, tensors

SCOPE, INVISIBLE = "MBAR_SCOPE_TOO_NARROW", "GLOBAL_NOT_VISIBLE"
BUDGET = "SETMAXNREG_BUDGET"
EXITED, BEGUN = "CLUSTER_TARGET_EXITED", "CLUSTER_TARGET_NOT_STARTED"

RING = Golden("P ring", ring.build)
STORES = Golden("P stores", stores.build)
SLOTS = Golden("P multicast slots", cluster.slots)
PUSH = Golden("P pushed rows", cluster.push)
PEER = Golden("P peer's rows", cluster.read)
LAST = Golden("P last block", grid.last)
FLAG = Golden("P flag", grid.flag)
COPIES = Golden("P cp.async", copies.build)
PRODUCT = Golden("P products", products.build)
MAPS = Golden("P tensor maps", maps.build)
REDUCE = Golden("P reduction", block.reduce)
COUNT = Golden("P counts", block.count)
SHAKE = Golden("P named barriers", block.handshake)
TENSORS = Golden("P tensors", tensors.build)
RELAY = Golden("P relay", relay.build)
REGISTERS = Golden("P registers", relay.registers)
GOLDEN = (
    RING,
    STORES,
    SLOTS,
    PUSH,
    PEER,
    LAST,
    FLAG,
    COPIES,
    PRODUCT,
    MAPS,
    REDUCE,
    COUNT,
    SHAKE,
    TENSORS,
    RELAY,
    REGISTERS,
)

OF_RING = (
    ("P01", "TileLang #2566", "its one trip waits for a release", f"DEADLOCK + {ALIAS}", "SVX"),
    ("P02", "TileLang #2567", "released once a later row is full", "DEADLOCK", "SVX"),
    ("P03", "TileLang #2674", "consumers' phases restart each tile", f"DEADLOCK + {ALIAS}", "SVX"),
    ("P04", "TileLang #2674", "all phases restart with each tile", f"{ALIAS} + {OVERWRITE}", "SVX"),
    ("P05", "TileLang #3087", "parity of a ring for one barrier", f"{ALIAS} + {READ}", "SVX"),
    ("P06", "TileLang #2927", "parity of the trip, several barriers", f"DEADLOCK/{ALIAS}", "SVX"),
    ("P07", "CUTLASS #3654", "a warp waits, one lane goes on", ALIAS, ""),
    ("P08", "TileLang #2166", "factor read before the wait", READ, "V"),
    ("P09", "Fuser #1769", "no barrier behind mbarrier.init", UNPUBLISHED, "SV"),
    ("P10", "TIRx kernels #9", "no fence.mbarrier_init", "MBAR_INIT_FENCE", "V"),
    ("P11", "DeepEP #642", "reads, then a copy, no proxy fence", WAR, "V"),
    ("P12", "FA DEBUG_2CTA", "the tail waits for who has left", "DEADLOCK", "SVX"),
    ("P13", "Triton ConSan, under-arrival", "one of two consumers releases", "DEADLOCK", "SVX"),
    ("P14", "Triton #9498", "each lane arrives, warps are counted", OVERFLOW, "SVX"),
    ("P15", "Triton ConSan, copy behind arrival", "arrives, then expects and copies", READ, "V"),
)

OF_STORES = (
    ("P16", "TileOPs #1550", "no barrier before the slot is refilled", OVERWRITE, "V"),
    ("P17", "TileOPs #1574", "neither fence nor barrier behind writes", f"{FENCE} + {READ}", "SV"),
    ("P18", "TileOPs 77502ffa", "no proxy fence before the store", FENCE, "SV"),
    ("P19", "CUTLASS #3636", "slots start anew with each tile", OVERWRITE, "V"),
    ("P20", "Fuser #5448", "one group of all stores", f"BULK_GROUP_MISUSE/{OVERWRITE}", "SV"),
    ("P21", "FlashKDA #24", "the fence stands before the writes", FENCE, "SV"),
    ("P22", "FlashKDA #24", "the fence stands in a loop of no trips", FENCE, "SV"),
    ("P23", "Pallas, waits of another thread", "another thread waits", "BULK_GROUP_MISUSE", "SV"),
    ("P24", "Pallas, read-only waits", "read back behind wait_group.read", INVISIBLE, "V"),
    ("P25", "Pallas, not fully waited", "read back with one group pending", INVISIBLE, "V"),
    ("P26", "Pallas, visible across threads", "others do not wait", f"{READ}/{INVISIBLE}", "V"),
    ("P27", "FlagTree #1166", "another array where a store reads", OVERWRITE, "V"),
    ("P28", "TileLang #2525", "252 bytes in one bulk store", "MISALIGNED", "V"),
)

OF_SLOTS = (
    ("P29", "humming #56", "own CTA alone releases a slot", OVERWRITE, "V"),
    ("P30", "humming #53", "copies into a peer that is not ready", UNPUBLISHED, "V"),
    ("P31", "humming #54", "copies without a wait for receivers", OVERWRITE, "V"),
    ("P32", "FlashInfer Bench #183", "expects what the CTA itself issues", TX, "VX"),
    ("P33", "FlashInfer Bench #183", "only the leader expects", "DEADLOCK", "SVX"),
    ("P34", "Triton ConSan, local store", "a store while a multicast is in flight", OVERWRITE, "V"),
    ("P35", "Triton #10922", "both releases go to the own CTA", OVERWRITE, "V"),
    ("P36", "Triton #9498", "each lane releases, in both CTAs", OVERFLOW, "SVX"),
    ("P37", "TVM #20074", "local arrive with a peer's address", "OOB_ACCESS", "V"),
    ("P38", "FA DEBUG_2CTA", "leaves while a peer may release to it", EXITED, "V"),
)

OF_PUSH = (
    ("P39", "CUTLASS #3324", "arrival and wait of CTA scope", SCOPE, "V"),
    ("P40", "QuACK #63", "remote arrival of CTA scope", SCOPE, "V"),
    ("P41", "QuACK gather_a", "wait of CTA scope", SCOPE, "V"),
    ("P42", "Triton #10669", "one barrier and slot for a peer ahead", OVERWRITE, "V"),
    ("P43", "Meta Triton #3472", "parity 0 in every trip", f"{ALIAS} + {OVERWRITE}", "SVX"),
    ("P44", "Triton ConSan, expected bytes", "4 bytes too many", f"{TX} + DEADLOCK", "SVX"),
)

OF_PEER = (
    ("P45", "Triton ConSan, gather", "no barrier before peers read", f"{READ} + {BEGUN}", "V"),
    ("P46", "Triton ConSan, gather", "relaxed barrier before the peer is read", SCOPE, "V"),
    ("P47", "Triton ConSan, later read", "no barrier behind them", f"{OVERWRITE} + {EXITED}", "V"),
    ("P48", "Triton ConSan, later read", "relaxed barrier behind the reads", SCOPE, "V"),
)

OF_LAST = (
    ("P49", "PyTorch #128455", "no fence behind the count", READ, "V"),
    ("P50", "Fuser #2391", "no fence before the count", READ, "V"),
    ("P51", "cuML #4157", "one thread fences, before all have met", READ, "V"),
    ("P52", "FlashInfer #4742", "bulk store waited for, no fence", INVISIBLE, "V"),
    ("P53", "ScoR, scoped atomics", "counter of CTA scope", SCOPE, "V"),
    ("P54", "ScoR, scoped fences", "fence of CTA scope", READ, "V"),
)

OF_FLAG = (
    ("P55", "DeepEP #621", "flag polled, bulk load without proxy fence", FENCE, "V"),
    ("P56", "CUTLASS #3117", "relaxed poll, then a warp barrier", READ, "V"),
    ("P57", "Paddle FA #140", "waits for a count that is never reached", "DEADLOCK", "V"),
    ("P58", "aiter #4007", "raised by a relaxed add, no fence", READ, "V"),
    ("P59", "ScoR, scoped atomics", "flag of CTA scope", SCOPE, "V"),
    ("P60", "Fuser #2391", "raised before all threads have stored", READ, "V"),
)

OF_COPIES = (
    ("P61", "Meta Triton #2058", "leaves one group too many pending", READ, "V"),
    ("P62", "Fuser #3438", "no wait before the barrier", READ, "V"),
    ("P63", "Triton #124", "waits behind the barrier", READ, "V"),
    ("P64", "Triton #2663", "copies of zeros past the end", OVERWRITE, "V"),
    ("P65", "Triton #8139", "a slot too few", OVERWRITE, "V"),
    ("P66", "TileLang #2505", "last trips commit nothing, same wait", READ, "V"),
)

OF_PRODUCT = (
    ("P67", "TileLang #2613", "no barrier at the end of a trip", OVERWRITE, "V"),
    ("P68", "TileLang #2634", "no proxy fence before wgmma", FENCE, "V"),
    ("P69", "Fuser #3680", "no wgmma.fence", "WGMMA_FENCE_MISSING", "SV"),
    ("P70", "Triton #11047", "a group in flight more than slots allow", OVERWRITE, "V"),
    ("P71", "Triton #3106", "one of two operands has two slots", OVERWRITE, "V"),
)

OF_MAPS = (
    ("P72", "DeepGEMM #343", "changed while a copy uses it", OVERWRITE, "V"),
    ("P73", "CUTLASS #3280", "not released", "TENSORMAP_PROXY", "V"),
    ("P74", "cuDNN frontend #898", "not acquired", "TENSORMAP_PROXY", "V"),
)

OF_REDUCE = (
    ("P75", "Fuser #489", "scratch used again, no barrier", OVERWRITE, "V"),
    ("P76", "Kokkos #8648", "a fence in place of the barrier", READ, "V"),
    ("P77", "HeCBench #91", "lanes reduce without bar.warp.sync", READ, "V"),
    ("P78", "llama.cpp #27955", "a barrier in each branch", "NAMED_BAR_SITES", "V"),
    ("P79", "FlashInfer #2996", "half of the warps come to the barrier", READ, "V"),
    ("P80", "llama.cpp #27870", "one lane of each warp comes", "WARP_CONVERGENCE", "V"),
)

OF_COUNT = (
    ("P81", "TileLang #2700", "cleared, then counted, no barrier", WRITE, "V"),
    ("P82", "Indigo, missing atomic", "counted without atomics", WRITE, "V"),
    ("P83", "Indigo, bounds", "one thread too many", "OOB_ACCESS", "V"),
    ("P84", "GPUVerify, missing barrier", "read before all have counted", READ, "V"),
)

OF_SHAKE = (
    ("P85", "FlashInfer #4732", "one barrier for a row and the next", "NAMED_BAR_MISMATCH", "V"),
    ("P86", "FlashMLA #57", "count of threads that never come", "DEADLOCK", "SVX"),
    ("P87", "QuACK #146", "a warp too few in the count", "NAMED_BAR_MISMATCH", "V"),
    ("P88", "FlashInfer #4533", "both directions on one barrier", "NAMED_BAR_MISMATCH", "V"),
    ("P89", "TIRx kernels #21", "aligned barrier from two branches", "NAMED_BAR_SITES", "SV"),
    ("P90", "vLLM XPU #312", "warps differ in trips", "DEADLOCK", "SVX"),
)

OF_TENSORS = (
    ("P91", "Pallas, copies from global memory", "changed while a copy reads it", OVERWRITE, "V"),
    ("P92", "Pallas, read-only waits", "used behind wait_group.read", INVISIBLE, "V"),
    ("P93", "TileLang #1850", "cp.async, bulk store, no proxy fence", FENCE, "V"),
    ("P94", "Pallas, waits of another thread", "another lane waits", "BULK_GROUP_MISUSE", "V"),
)

OF_RELAY = (
    ("P95", "DeepEP #657", "a store more may be unread than slots allow", OVERWRITE, "V"),
    ("P96", "Triton #10035", "one warp of two tells, they have not met", f"DEADLOCK/{ALIAS}", "VX"),
    ("P97", "cuDNN frontend #426", "all lanes store, one arrives", READ, "V"),
)

OF_REGISTERS = (
    ("P98", "TileLang #2406", "24 and 240 registers in four groups", BUDGET, "SV"),
    ("P99", "TileLang #2559", "two blocks on an SM, registers for one", BUDGET, "SV"),
)

ROWS = zip(
    GOLDEN,
    (
        OF_RING,
        OF_STORES,
        OF_SLOTS,
        OF_PUSH,
        OF_PEER,
        OF_LAST,
        OF_FLAG,
        OF_COPIES,
        OF_PRODUCT,
        OF_MAPS,
        OF_REDUCE,
        OF_COUNT,
        OF_SHAKE,
        OF_TENSORS,
        OF_RELAY,
        OF_REGISTERS,
    ),
    strict=True,
)
MUTATIONS = mutations(
    (id, golden, change, expected, judges, source)
    for golden, rows in ROWS
    for id, source, change, expected, judges in rows
)
FIXED = tuple(
    (f"PF{number}", what, Golden(f"P fixed {number}", make, options))
    for number, (what, make, options) in enumerate(
        (
            ("a whole warp waits, and meets", ring.build, {"waiting": "whole warp"}),
            ("waits again for the last row", ring.build, {"waiting": "again"}),
            ("thread 0 fences behind the barrier", stores.build, {"fence": "issuer"}),
            ("waits again for stores that are over", stores.build, {"waits": "again"}),
            ("a loop of no trips", stores.build, {"tiles": 0}),
            ("st.async into a slot for each row", cluster.push, {"how": "async"}),
            ("the thread that counts fences alone", grid.last, {"fence": "leader"}),
            ("rows stored by bulk copies", grid.last, {"how": "copy"}),
            ("relaxed poll, then a fence", grid.flag, {"poll": "relaxed"}),
            ("two groups of copies a row", copies.build, {"groups": 2}),
            ("a multiply-add in flight over two slots", products.build, {"slots": 2}),
            ("registers of two blocks on an SM", relay.registers, {"blocks": 2}),
        ),
        1,
    )
)
