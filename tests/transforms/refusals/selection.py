"""What SelectCopyMechanisms refuses of copies."""

from tests.transforms.copies.test_select_copy_mechanisms import AUTO, BY_THREADS, UNBOUND
from tests.transforms.refusals.case import on, rows
from tests.transforms.refusals.copies import COPY
from tvm_hopper.transforms import SelectCopyMechanisms

TMA = (AUTO, 'async_copy="tma"')
# A product reads the tile, and deals out the threads.
OPERAND = UNBOUND.replace('T.sblock("use"', 'T.sblock("use", wgmma=1')
STAGES = ("for k in range(2)", "for k in range(2, stage=[0, 1], order=[0, 1])")
BY_NAME = (AUTO, 'async_copy="none"')
PLACE = "((i * 32 + tx) * 8 + v)"
TWICE = BY_THREADS.replace("range(4)", "range(8)").replace("(i * 32 + tx)", "(i % 4 * 32 + tx)")
BY_EACH = BY_THREADS.replace("64 + (", "tx + (").replace("range(4)", "range(1)")
BY_EACH = BY_EACH.replace(PLACE, "(i * 8 + v)")

SELECTION = [
    *rows(on(COPY, (SelectCopyMechanisms,)))("""
elements that are no whole bytes
    float16 => int4
    block copy, tvm_hopper.async_copy: found elements of int4 in tile; need elements of whole bytes,
    one of bool, ...; copy them as such, or request "none": threads copy them
    """),
    *rows(on(TWICE, (SelectCopyMechanisms,)))("""
elements that are stored twice
    async_copy="auto" => async_copy="tma"
    block copy, tvm_hopper.async_copy: found stores to tile[...] by loops ['tx', 'i', 'v']; need
    loops that store each element of a box once; copy the tile in loops over its dimensions, fused
    and split at will
    """),
    *rows(on(UNBOUND, (SelectCopyMechanisms,)), STAGES=STAGES)("""
stages of threads by which a tile is read before it is written
    + STAGES
    async_copy="auto" => async_copy="none"
    stage=[0, 1] => stage=[1, 0]
    loop k: found software_pipeline_stage = [1, 0] and software_pipeline_order = [0, 1]; need
    statement 1, which reads tile, after statement 0, which writes it: a later stage, or later in
    the same one; e.g. stages that do not decrease, in program order
stages of threads around a tile that TVM gives no slots
    + STAGES
    async_copy="auto" => async_copy="none"
    loop k: found software_pipeline_stage = [0, 1] and tile, which is used outside of the loop, too;
    need an array that only the loop uses between statements 0 and 1: it gets a slot for each
    iteration that one runs ahead of the other; use a separate tile in each loop, or remove
    software_pipeline_stage
stages of threads that are not the statements'
    + STAGES
    async_copy="auto" => async_copy="none"
    stage=[0, 1] => stage=[0, 1, 1]
    loop k: found software_pipeline_stage = [0, 1, 1] and ...; need one entry for each of the 2
    statements ['copy', 'use'], and a permutation
    """),
    *rows(on(BY_EACH, (SelectCopyMechanisms,)))("""
elements that depend on who stores them
    async_copy="auto" => async_copy="tma"
    found elements A[...] that depend on the thread or loop that stores them; need elements that
    depend on their place in the tile alone; copy the tile by one index for each dimension
    """),
    *rows(on(BY_THREADS, (SelectCopyMechanisms,)))("""
a tile of threads without known bounds
    async_copy="auto" => async_copy="none"
    alloc_buffer((16, 64), "float16" => alloc_buffer((16, 2147483647), "float16"
    func(A: => func(n: T.int32, A:
    tile[tx % 16, tx] => tile[tx % 16, tx + n]
    tile tile: found a shape [16, 2147483647] without known bounds; need indices within bounds that
    are known now; split its loops by constants
    """),
    *rows(on(UNBOUND, (SelectCopyMechanisms,)))("""
roles with nothing to load
    range(2) => range(2, consumers=1)
    loop k, tvm_hopper.consumers: found nothing for a producer to load: threads make the copies
    copy; not tma: ...; need a copy that hardware can make; remove tvm_hopper.consumers
    (roles=None): then every thread loads and computes$
    """),
    *rows(on(OPERAND, (SelectCopyMechanisms,)))(r"""
rows of an operand that no mechanism copies
    copy copy of A: found rows that are 30 bytes apart; need rows at multiples of 16 bytes (TMA), or
    of 16, 8 or 4 (cp.async): in a kernel by WGMMA hardware makes all copies of shared tiles; pad
    the last dimension of A from 15 to 16$
rows of a declared stride that no mechanism copies
    func(A: T.Buffer((16, 15), "float16"), => func(a: T.handle,
    for bx => A = T.match_buffer(a, (16, 15), "float16", strides=[17, 1])\n    for bx
    copy copy of A: found rows that are 34 bytes apart; ...; copy it into a tensor whose rows are,
    in a kernel before this one$
rows of an operand of unknown length
    func(A: T.Buffer((16, 15), "float16"), => func(a: T.handle,
    for bx => n = T.int32()\n    A = T.match_buffer(a, (16, n), "float16")\n    for bx
    copy copy of A: found rows of n elements, a number that is not known now; need rows at multiples
    of 16 bytes (TMA), ...; make every dimension but the first static$
a tile of an operand that no mechanism fills
    (16, 15) => (16, 16)
    copy copy of A: found no mechanism for it; not cp_async: copy of A into tile: found rows of 26
    B; ...; need rows at multiples of ...; copy the tensor into one of another shape$
    """),
]
