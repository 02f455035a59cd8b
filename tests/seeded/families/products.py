"""Products beyond the plain one: their seeded bugs.

A  cp.async and mma.sync for sm_80      T  a TMA store behind a persistent loop
R  wgmma with A made in registers       F  fp8 wgmma with promotion
"""

from ..golden import ampere_mma, fp8_promotion, mixed_input, tma_store
from ..rows import (
    ALIAS,
    FENCE,
    NUMBERS,
    OVERWRITE,
    READ,
    REG,
    TX,
    WAR,
    WRITE,
    Golden,
    Mutation,
    mutations,
)

AMPERE = Golden("Ampere", ampere_mma.build)
TMA_STORE = Golden("TMA store", tma_store.build)
MIXED = Golden("mixed input", mixed_input.build)
FP8 = Golden("fp8", fp8_promotion.build)
FP8_E5M2 = Golden("fp8 e5m2", fp8_promotion.build, {"a_type": "float8_e5m2", "stages": 3})
GOLDEN: tuple[Golden, ...] = (AMPERE, TMA_STORE, MIXED, FP8, FP8_E5M2)

MUTATIONS: tuple[Mutation, ...] = mutations(
    (
        ("A01", AMPERE, "wait_group one too weak", READ, "V"),
        ("A02", AMPERE, "no __syncthreads after the wait", f"{READ} + {OVERWRITE}", "V"),
        ("A03", AMPERE, "refill before the barrier", OVERWRITE, "V"),
        ("A04", AMPERE, "commit only where something is loaded", READ, "V"),
        ("A05", AMPERE, "ldmatrix from the next stage", READ, "V"),
        ("A06", AMPERE, "what is outside is not copied", f"UNINIT_READ/{NUMBERS}", "VN"),
        ("A07", AMPERE, "source size 16 beyond the edges", f"OOB_ACCESS + {NUMBERS}", "VN"),
        ("A08", AMPERE, "ldmatrix without the swizzle", NUMBERS, "N"),
        ("A09", AMPERE, "commit in half of each warp", READ, "V"),
        ("A10", AMPERE, "wait_group after the barrier", READ, "V"),
        ("A11", AMPERE, "lane 0 waits for its warp", READ, "V"),
        ("T01", TMA_STORE, "no proxy fence before the store", FENCE, "SV"),
        ("T02", TMA_STORE, "no barrier before the store", READ, "V"),
        ("T03", TMA_STORE, "wait_group.read one too weak", OVERWRITE, "V"),
        ("T04", TMA_STORE, "staging without the map's swizzle", NUMBERS, "N"),
        ("T05", TMA_STORE, "column within the tile", f"{WRITE} + OUTPUT_COVERAGE", "V"),
        ("T06", TMA_STORE, "consumers count tiles, not steps", ALIAS, "SVX"),
        ("T07", TMA_STORE, "commit before the store", f"BULK_GROUP_MISUSE + {OVERWRITE}", "SV"),
        ("T08", TMA_STORE, "C's map rounded up to tiles", "OOB_ACCESS", "V"),
        ("R01", MIXED, "fragment rewritten before the wait", REG, "V"),
        ("R02", MIXED, "no wgmma.fence", "WGMMA_FENCE_MISSING", "SVP"),
        ("R03", MIXED, "wait_group one too weak", REG, "V"),
        ("R04", MIXED, "registers of the fragment exchanged", NUMBERS, "N"),
        ("R05", MIXED, "slot released as soon as it is issued", OVERWRITE, "V"),
        ("R06", MIXED, "no proxy fence after ldmatrix", WAR, "V"),
        ("R07", MIXED, "bytes taken as unsigned", NUMBERS, "N"),
        ("R08", MIXED, "expect_tx counts A as fp16", f"DEADLOCK + {TX}", "SVX"),
        ("R09", MIXED, "scale of the next step", NUMBERS, "N"),
        ("R10", MIXED, "lane 0 waits for its warp", READ, "V"),
        ("F01", FP8, "promotion before wait_group", REG, "SVP"),
        ("F02", FP8, "scale-d not reset after promotion", NUMBERS, "N"),
        ("F03", FP8, "descriptor advances by 16 elements", NUMBERS, "N"),
        ("F04", FP8, "wgmma.fence before the first step only", "WGMMA_FENCE_MISSING", "SVP"),
        ("F05", FP8, "expect_tx counts fp16", f"DEADLOCK + {TX}", "SVX"),
        ("F06", FP8, "slot released before wait_group", OVERWRITE, "V"),
        ("F07", FP8, "scales of the next step", NUMBERS, "N"),
        ("F08", FP8, "wait_group 1 before the promotion", REG, "SVP"),
    )
)
