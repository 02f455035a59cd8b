"""What is refused about the slots of asynchronous stores."""

from tests.transforms.pipeline.test_tma_store_groups import BEFORE, NO_REQUEST, PERSISTENT, STAGES
from tests.transforms.refusals.case import case, on, rows
from tests.transforms.scripts import deeper, nest
from tvm_hopper.transforms import InsertSyncs, LowerAsyncCopies, PlanRingBuffers

ALLOCATION = (
    '                            tile = T.sblock_alloc_buffer((8, 64), "float32", '
    'scope="shared.dyn")\n'
)
STORE = nest(BEFORE, 'T.sblock("store"')
IN_FRONT = """\
                with T.sblock("", reads=[], writes=[]):
                    tile = T.sblock_alloc_buffer((8, 64), "float32", scope="shared.dyn")
"""
INNER = nest(BEFORE, "for n in range(2)")
AROUND = (INNER, IN_FRONT + deeper(INNER.replace(ALLOCATION, "")))
LOADED = """
def func(A_map: T.handle("tensormap"), C: T.Buffer((256, 64), "float32")):
    for bx in T.thread_binding(2, thread="blockIdx.x"):
        for tx in T.thread_binding(64, thread="threadIdx.x"):
            for k in range(4, stage=[0, 1], order=[0, 1], async_stages=[0]):
                with T.sblock("", reads=[], writes=[]):
                    tile = T.sblock_alloc_buffer((8, 64), "float32", scope="shared.dyn")
                    with T.sblock("load", reads=[], writes=[tile[0:8, 0:64]], async_op="tma_load"):
                        T.call_extern("int32", "tvm_hopper.tma_load", T.address_of(tile[0, 0]))
                    with T.sblock("store", reads=[tile[0:8, 0:64]], writes=[C[0:256, 0:64]],
                        async_op="bulk_store", store_slots=3):
                        T.call_extern("int32", "store", T.address_of(tile[0, 0]))
"""
ON_A_LOAD = """
def func(A: T.Buffer((256, 64), "float32"), C: T.Buffer((256, 64), "float32")):
    for bx in T.thread_binding(2, thread="blockIdx.x"):
        for tx in T.thread_binding(64, thread="threadIdx.x"):
            with T.sblock("", reads=[], writes=[]):
                tile = T.sblock_alloc_buffer((8, 64), "float32", scope="shared.dyn")
                for r, c in T.grid(8, 64):
                    with T.sblock("load", reads=[A[r, c]], writes=[tile[r, c]], async_copy="bulk",
                        store_slots=2):
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
            + STORE.replace('"store",', '"store_2",').replace("store_slots=3", "store_slots=2"),
        ),
    ),
    *rows(slots, AROUND=AROUND, STAGES=STAGES)("""
a store in a kernel without threads
    T.thread_binding(64, thread="threadIdx.x") => range(64)
    stores store: found no loop bound to threadIdx.x in their kernel; need threads that fill the
    tiles that leave; bind the loops of what fills them, or remove tvm_hopper.async_copy
slots next to stages that say otherwise
    + STAGES
    store_slots=3 => store_slots=2
    loop k: found software_pipeline_stage = [0, 2], 3 slots of tile, beside tvm_hopper.store_slots =
    2; need one number of slots; remove one of them
stages of a tile that outlives an iteration
    + AROUND
    + STAGES
    , store_slots=3 =>
    loop k: found software_pipeline_stage = [0, 2], which gives slots to tile, allocated around it;
    need a tile that is allocated, written and stored in each iteration; compute_at what writes it
    at k, or store in the same stage
slots of a tile that outlives all iterations
    + AROUND
    store store: found several slots of tile, which a thread block allocates once; need a tile that
    is allocated, written and stored in each iteration of a serial loop, or output tiles that thread
    blocks share (tvm_hopper.persistent); compute_at what writes it at a loop, or remove the slots
slots in a parallel loop
    for n in range(2) => for n in T.parallel(2)
    store store, loop n: found a loop of kind parallel around several slots of tile; need a serial
    loop
    """),
    slots(
        "a loop of stores that some iterations skip",
        r"store store: found the condition n > bx around k, which counts the slots of tile; need "
        r"loops that every iteration around them makes: skipped iterations would be counted; "
        r"put the condition inside of the loop",
        (
            INNER,
            "                for n in range(2):\n                    if n > bx:\n"
            + deeper(INNER[INNER.index("                    for k in") :]),
        ),
    ),
    *rows(slots, PERSISTENT=PERSISTENT)("""
stores in loops of different length
    T.serial(4) => T.serial(n + 1)
    loop k: found n + 1 iterations, which differ from tile to tile; need the same number for each
    output tile; pad the loop to its longest
stores of different number in each output tile of ping-pong
    range(2) => range(by + 1)
    + PERSISTENT
    persistent=1 => persistent=1, turns=2
    loop n, tvm_hopper.persistent: found by + 1 iterations, which differ from tile to tile
a ring of stores that has no room
    store_slots=3 => store_slots=120
    store store: found tile 120 x 2048 = 245760 bytes of shared memory; need at most 232448; take
    fewer slots, fewer stages, or a smaller tile
a store in a stage before what it stores
    T.serial(4) => T.serial(4, stage=[1, 0], order=[0, 1], async_stages=[2])
    loop k: found software_pipeline_stage = [1, 0]; need a stage of block store, which stores tile,
    not before that of what writes it, 1; e.g. 2 for two slots
a store in a stage that is not asynchronous
    T.serial(4) => T.serial(4, stage=[0, 2], order=[0, 1], async_stages=[])
    loop k: found software_pipeline_async_stages = []; need stage 2, where the asynchronous stores
    are, in it
    """),
    *rows(on(LOADED, (PlanRingBuffers,)))("""
more slots than the loads have
    store store: found tvm_hopper.store_slots = 3 of a tile that loads fill in 2 slots; need at most
    2: stores read the slots of the loads; take more stages or fewer slots
    """),
    case(
        "a store in a loop that is not counted",
        BEFORE,
        (InsertSyncs,),
        r"block store: found bulk_store inside of a While; need serial loops and conditions around "
        r"it: what it waits for is placed in these; make it a serial loop with a condition inside",
        NO_REQUEST,
        ("for k in T.serial(4):", "while C[0, 0] < T.float32(0):"),
        ("k * 16 + ", ""),
    ),
    *rows(on(ON_A_LOAD, (LowerAsyncCopies,)))("""
slots on a load
    block load, tvm_hopper.store_slots: found slots of a store on a load; need them on the block
    that copies the tile to global memory; a ring of loads has as many slots
    """),
]
