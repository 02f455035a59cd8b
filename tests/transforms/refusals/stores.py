"""What is refused about the slots of asynchronous stores."""

from tests.transforms.pipeline.test_tma_store_groups import BEFORE, NO_REQUEST, PERSISTENT, STAGES
from tests.transforms.refusals.case import case
from tvm_hopper.transforms import InsertSyncs, LowerAsyncCopies, PlanRingBuffers

ALLOCATION = (
    '                            tile = T.sblock_alloc_buffer((8, 64), "float32", '
    'scope="shared.dyn")\n'
)
STORE = BEFORE[BEFORE.index('                            with T.sblock("store")') :]
IN_FRONT = """\
                with T.sblock(""):
                    T.reads()
                    T.writes()
                    tile = T.sblock_alloc_buffer((8, 64), "float32", scope="shared.dyn")
"""
INNER = BEFORE[BEFORE.index("                for n in range(2)") :]


def indented(text: str) -> str:
    return "".join("    " + line for line in text.splitlines(keepends=True))


AROUND = (INNER, IN_FRONT + indented(INNER.replace(ALLOCATION, "")))
LOADED = """
@T.prim_func(private=True, s_tir=True)
def func(A_map: T.handle("tensormap"), C: T.Buffer((256, 64), "float32")):
    for bx in T.thread_binding(2, thread="blockIdx.x"):
        for tx in T.thread_binding(64, thread="threadIdx.x"):
            for k in T.serial(
                4,
                annotations={
                    "software_pipeline_stage": [0, 1],
                    "software_pipeline_order": [0, 1],
                    "software_pipeline_async_stages": [0],
                },
            ):
                with T.sblock(""):
                    T.reads()
                    T.writes()
                    tile = T.sblock_alloc_buffer((8, 64), "float32", scope="shared.dyn")
                    with T.sblock("load"):
                        T.reads()
                        T.writes(tile[0:8, 0:64])
                        T.sblock_attr({"tvm_hopper.async_op": "tma_load"})
                        T.call_extern("int32", "tvm_hopper.tma_load", T.address_of(tile[0, 0]))
                    with T.sblock("store"):
                        T.reads(tile[0:8, 0:64])
                        T.writes(C[0:256, 0:64])
                        T.sblock_attr(
                            {"tvm_hopper.async_op": "bulk_store", "tvm_hopper.store_slots": 3}
                        )
                        T.call_extern("int32", "store", T.address_of(tile[0, 0]))
"""
ON_A_LOAD = """
@T.prim_func(private=True, s_tir=True)
def func(A: T.Buffer((256, 64), "float32"), C: T.Buffer((256, 64), "float32")):
    for bx in T.thread_binding(2, thread="blockIdx.x"):
        for tx in T.thread_binding(64, thread="threadIdx.x"):
            with T.sblock(""):
                T.reads()
                T.writes()
                tile = T.sblock_alloc_buffer((8, 64), "float32", scope="shared.dyn")
                for r, c in T.grid(8, 64):
                    with T.sblock("load"):
                        T.reads(A[r, c])
                        T.writes(tile[r, c])
                        T.sblock_attr(
                            {"tvm_hopper.async_copy": "bulk", "tvm_hopper.store_slots": 2}
                        )
                        tile[r, c] = A[r, c]
                C[0, tx] = tile[0, tx]
"""


def slots(name, match, *changes):
    return case(name, BEFORE, (PlanRingBuffers,), match, *changes)


STORES = [
    slots(
        "two numbers of slots of one tile",
        r"stores store, store_2: found tvm_hopper.store_slots = 3 and 2 for one tile; need one "
        r"number of slots; write it on one of them alone",
        (
            STORE,
            STORE
            + STORE.replace('"store")', '"store_2")').replace('store_slots": 3', 'store_slots": 2'),
        ),
    ),
    slots(
        "a store in a kernel without threads",
        r"stores store: found no loop bound to threadIdx.x in their kernel; need threads that fill "
        r"the tiles that leave; bind the loops of what fills them, or remove tvm_hopper.async_copy",
        ('T.thread_binding(64, thread="threadIdx.x")', "range(64)"),
    ),
    slots(
        "slots next to stages that say otherwise",
        r"loop k: found software_pipeline_stage = \[0, 2\], 3 slots of tile, beside "
        r"tvm_hopper.store_slots = 2; need one number of slots; remove one of them",
        ("annotations={}", STAGES),
        (NO_REQUEST[0], '"tvm_hopper.store_slots": 2,'),
    ),
    slots(
        "stages of a tile that outlives an iteration",
        r"loop k: found software_pipeline_stage = \[0, 2\], which gives slots to tile, allocated "
        r"around it; need a tile that is allocated, written and stored in each iteration; "
        r"compute_at what writes it at k, or store in the same stage",
        AROUND,
        ("annotations={}", STAGES),
        NO_REQUEST,
    ),
    slots(
        "slots of a tile that outlives all iterations",
        r"store store: found several slots of tile, which a thread block allocates once; need a "
        r"tile that is allocated, written and stored in each iteration of a serial loop, or output "
        r"tiles that thread blocks share \(tvm_hopper.persistent\); compute_at what writes it at a "
        r"loop, or remove the slots",
        AROUND,
    ),
    slots(
        "slots in a parallel loop",
        r"store store, loop n: found a loop of kind parallel around several slots of tile; need a "
        r"serial loop",
        ("for n in range(2)", "for n in T.parallel(2)"),
    ),
    slots(
        "a loop of stores that some iterations skip",
        r"store store: found the condition n > bx around k, which counts the slots of tile; need "
        r"loops that every iteration around them makes: skipped iterations would be counted; "
        r"put the condition inside of the loop",
        (
            INNER,
            "                for n in range(2):\n                    if n > bx:\n"
            + indented(INNER[INNER.index("                    for k in") :]),
        ),
    ),
    slots(
        "stores in loops of different length",
        r"loop k: found n \+ 1 iterations, which differ from tile to tile; need the same number "
        r"for each output tile; pad the loop to its longest",
        ("T.serial(4,", "T.serial(n + 1,"),
    ),
    slots(
        "stores of different number in each output tile",
        r"loop n, tvm_hopper.persistent: found by \+ 1 iterations, which differ from tile to tile",
        ("range(2)", "range(by + 1)"),
        PERSISTENT,
    ),
    slots(
        "a ring of stores that has no room",
        r"store store: found tile 120 x 2048 = 245760 bytes of shared memory; need at most 232448; "
        r"take fewer slots, fewer stages, or a smaller tile",
        (NO_REQUEST[0], '"tvm_hopper.store_slots": 120,'),
    ),
    slots(
        "a store in a stage before what it stores",
        r"loop k: found software_pipeline_stage = \[1, 0\]; need a stage of block store, which "
        r"stores tile, not before that of what writes it, 1; e.g. 2 for two slots",
        ("annotations={}", STAGES.replace("[0, 2]", "[1, 0]")),
    ),
    slots(
        "a store in a stage that is not asynchronous",
        r"loop k: found software_pipeline_async_stages = \[\]; need stage 2, where the "
        r"asynchronous stores are, in it",
        ("annotations={}", STAGES.replace("[2],", "[],")),
    ),
    case(
        "more slots than the loads have",
        LOADED,
        (PlanRingBuffers,),
        r"store store: found tvm_hopper.store_slots = 3 of a tile that loads fill in 2 slots; need "
        r"at most 2: stores read the slots of the loads; take more stages or fewer slots",
    ),
    case(
        "a store in a loop that is not counted",
        BEFORE,
        (InsertSyncs,),
        r"block store: found bulk_store inside of a While; need serial loops and conditions around "
        r"it: what it waits for is placed in these; make it a serial loop with a condition inside",
        NO_REQUEST,
        ("for k in T.serial(4, annotations={}):", "while C[0, 0] < T.float32(0):"),
        ("k * 16 + ", ""),
    ),
    case(
        "slots on a load",
        ON_A_LOAD,
        (LowerAsyncCopies,),
        r"block load, tvm_hopper.store_slots: found slots of a store on a load; need them on the "
        r"block that copies the tile to global memory; a ring of loads has as many slots",
    ),
]
