"""What LowerAsyncCopies and PlanRingBuffers refuse of copies by DMA."""

from tests.transforms.refusals.case import on, rows
from tvm_hopper.transforms import LowerAsyncCopies, PlanRingBuffers

COPY = """
def func(A: T.Buffer((64, 128), "float32"), C: T.Buffer((64, 64), "float32"), n: T.int32):
    T.func_attr({"target": T.target("qcom/hexagon-v68")})
    with T.sblock("root"):
        tile = T.sblock_alloc_buffer((64, 64), scope="global.vtcm")
        for i, j in T.grid(64, 64):
            with T.sblock("load", reads=[], writes=[], async_copy="dma"):
                tile[i, j] = A[i, j]
        for i, j in T.grid(64, 64):
            with T.sblock("use"):
                C[i, j] = tile[i, j]
"""
PLAN, QUEUE = (LowerAsyncCopies,), (LowerAsyncCopies, PlanRingBuffers)

DMA = [
    *rows(on(COPY, PLAN))("""
a mechanism that does not fill VTCM
    "dma" => "tma"
    block load, tvm_hopper.async_copy: found 'tma' from global memory to vtcm; need a mechanism that
    copies between them: 'dma'
DMA into shared memory
    global.vtcm => shared.dyn
    found 'dma' from global memory to shared; need a mechanism that copies between them: 'bulk' or
    'cp_async' or 'tma'
another machine's mechanism
    "dma" => "tma"
    global.vtcm => shared.dyn
    copy of A into tile: found tvm_hopper.async_copy = 'tma' on hexagonv68; need a mechanism that it
    has: 'dma'; request that one, or build for a chip that has the other
a store by DMA
    tile[i, j] = A[i, j] => C[i, j] = tile[i, j]
    block load, tvm_hopper.async_copy: found a store by 'dma' from scope 'global.vtcm'; need a load:
    nothing stores from there asynchronously; leave the store a loop
a swizzle of what DMA copies
    "dma" => "dma", swizzle=64
    copy of A into tile: found a copy by DMA with a 64 B swizzle; need none: it moves rows as they
    are; leave the swizzle out
a predicate on what DMA copies
    = A[i, j] => = T.if_then_else(i < n, A[i, j], T.float32(0))
    copy of A into tile: found the predicate i < n; need a copy of all its elements: DMA fills
    nothing and leaves nothing out; choose a tile that divides
more bytes than a descriptor can say
    (64, 128) => (65536, 64)
    (64, 64), " => (65536, 64), "
    buffer((64, 64) => buffer((65536, 64)
    grid(64, => grid(65536,
    copy of A into tile: found 16777216 contiguous bytes; need at most 16777215, the limit of a DMA
    descriptor; choose a smaller tile
    """),
    *rows(on(COPY, QUEUE))("""
more copies than descriptors
    (64, 128) => (128, 128)
    (64, 64), " => (128, 64), "
    buffer((64, 64) => buffer((128, 64)
    grid(64, => grid(128,
    copies load: found 128 DMA copies in flight; need at most 100, the descriptors of TVM's runtime;
    take fewer stages, or tiles whose rows
tiles that VTCM has no room for
    (64, 128) => (32768, 64)
    (64, 64), " => (32768, 64), "
    buffer((64, 64) => buffer((32768, 64)
    grid(64, => grid(32768,
    copies load: found tile 1 x 8388608 = 8388608 bytes of VTCM; need at most 4194304; choose a
    smaller tile
    """),
]
