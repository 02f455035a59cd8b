"""What LowerAsyncCopies and PlanRingBuffers refuse of copies by DMA."""

from tests.transforms.refusals.case import case
from tvm_hopper.transforms import LowerAsyncCopies, PlanRingBuffers

COPY = """
@T.prim_func(private=True, s_tir=True)
def func(A: T.Buffer((64, 128), "float32"), C: T.Buffer((64, 64), "float32"), n: T.int32):
    T.func_attr({"target": T.target("qcom/hexagon-v68")})
    with T.sblock("root"):
        tile = T.sblock_alloc_buffer((64, 64), scope="global.vtcm")
        for i, j in T.grid(64, 64):
            with T.sblock("load"):
                T.reads()
                T.writes()
                T.sblock_attr({"tvm_hopper.async_copy": "dma"})
                tile[i, j] = A[i, j]
        for i, j in T.grid(64, 64):
            with T.sblock("use"):
                C[i, j] = tile[i, j]
"""
PLAN, QUEUE = (LowerAsyncCopies,), (LowerAsyncCopies, PlanRingBuffers)

DMA = [
    case(
        "a mechanism that does not fill VTCM",
        COPY,
        PLAN,
        r"block load, tvm_hopper.async_copy: found 'tma' from global memory to vtcm; need a "
        r"mechanism that copies between them: 'dma'",
        ('"dma"', '"tma"'),
    ),
    case(
        "DMA into shared memory",
        COPY,
        PLAN,
        r"found 'dma' from global memory to shared; need a mechanism that copies between them: "
        r"'bulk' or 'cp_async' or 'tma'",
        ("global.vtcm", "shared.dyn"),
    ),
    case(
        "another machine's mechanism",
        COPY,
        PLAN,
        r"copy of A into tile: found tvm_hopper.async_copy = 'tma' on hexagonv68; need a mechanism "
        r"that it has: 'dma'; request that one, or build for a chip that has the other",
        ('"dma"', '"tma"'),
        ("global.vtcm", "shared.dyn"),
    ),
    case(
        "a store by DMA",
        COPY,
        PLAN,
        r"block load, tvm_hopper.async_copy: found a store by 'dma' from scope 'global.vtcm'; "
        r"need a load: nothing stores from there asynchronously; leave the store a loop",
        ("tile[i, j] = A[i, j]", "C[i, j] = tile[i, j]"),
    ),
    case(
        "a predicate on what DMA copies",
        COPY,
        PLAN,
        r"copy of A into tile: found the predicate i < n; need a copy of all its elements: DMA "
        r"fills nothing and leaves nothing out; choose a tile that divides",
        ("= A[i, j]", "= T.if_then_else(i < n, A[i, j], T.float32(0))"),
    ),
    case(
        "more bytes than a descriptor can say",
        COPY,
        PLAN,
        r"copy of A into tile: found 16777216 contiguous bytes; need at most 16777215, the "
        r"limit of a DMA descriptor; choose a smaller tile",
        ("(64, 128)", "(65536, 64)"),
        ('(64, 64), "', '(65536, 64), "'),
        ("buffer((64, 64)", "buffer((65536, 64)"),
        ("grid(64,", "grid(65536,"),
    ),
    case(
        "more copies than descriptors",
        COPY,
        QUEUE,
        r"copies load: found 128 DMA copies in flight; need at most 100, the descriptors of TVM's "
        r"runtime; take fewer stages, or tiles whose rows",
        ("(64, 128)", "(128, 128)"),
        ('(64, 64), "', '(128, 64), "'),
        ("buffer((64, 64)", "buffer((128, 64)"),
        ("grid(64,", "grid(128,"),
    ),
    case(
        "tiles that VTCM has no room for",
        COPY,
        QUEUE,
        r"copies load: found tile 1 x 8388608 = 8388608 bytes of VTCM; need at most 4194304; "
        r"choose a smaller tile",
        ("(64, 128)", "(32768, 64)"),
        ('(64, 64), "', '(32768, 64), "'),
        ("buffer((64, 64)", "buffer((32768, 64)"),
        ("grid(64,", "grid(32768,"),
    ),
]
