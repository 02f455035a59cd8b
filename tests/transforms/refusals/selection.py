"""What SelectCopyMechanisms refuses of copies."""

from tests.transforms.copies.test_select_copy_mechanisms import AUTO, BY_THREADS, UNBOUND
from tests.transforms.refusals.case import case
from tests.transforms.refusals.copies import COPY
from tvm_hopper.transforms import SelectCopyMechanisms

TMA = (AUTO, '{"tvm_hopper.async_copy": "tma"}')
# A product reads the tile, and deals out the threads.
OPERAND = UNBOUND.replace('with T.sblock("use"):', 'with T.sblock("use"):  # product').replace(
    "                        C[",
    '                        T.sblock_attr({"tvm_hopper.wgmma": 1})\n                        C[',
)
STAGES = (
    "for k in range(2):",
    """for k in T.serial(2, annotations={"software_pipeline_stage": [0, 1],
                                                 "software_pipeline_order": [0, 1]}):""",
)
BY_NAME = ('async_copy": "auto"', 'async_copy": "none"')
PLACE = "((i * 32 + tx) * 8 + v)"

SELECTION = [
    case(
        "elements that are no whole bytes",
        COPY,
        (SelectCopyMechanisms,),
        r"block copy, tvm_hopper.async_copy: found elements of int4 in tile; need elements of "
        r"whole bytes, one of bool, .*; copy them as such, or request \"none\": threads copy them",
        ("float16", "int4"),
    ),
    case(
        "elements that are stored twice",
        BY_THREADS.replace("range(4)", "range(8)").replace("(i * 32 + tx)", "(i % 4 * 32 + tx)"),
        (SelectCopyMechanisms,),
        r"block copy, tvm_hopper.async_copy: found stores to tile\[.*\] by loops "
        r"\['tx', 'i', 'v'\]; need loops that store each element of a box once; copy the tile in "
        r"loops over its dimensions, fused and split at will",
        TMA,
    ),
    case(
        "stages of threads by which a tile is read before it is written",
        UNBOUND,
        (SelectCopyMechanisms,),
        r"loop k: found software_pipeline_stage = \[1, 0\] and software_pipeline_order = \[0, 1\]; "
        r"need statement 1, which reads tile, after statement 0, which writes it: a later "
        r"stage, or later in the same one; e.g. stages that do not decrease, in program order",
        STAGES,
        BY_NAME,
        ('stage": [0, 1]', 'stage": [1, 0]'),
    ),
    case(
        "stages of threads around a tile that TVM gives no slots",
        UNBOUND,
        (SelectCopyMechanisms,),
        r"loop k: found software_pipeline_stage = \[0, 1\] and tile, which is used outside of the "
        r"loop, too; need an array that only the loop uses between statements 0 and 1: it gets "
        r"a slot "
        r"for each iteration that one runs ahead of the other; use a separate tile in each "
        r"loop, or "
        r"remove software_pipeline_stage",
        STAGES,
        BY_NAME,
    ),
    case(
        "stages of threads that are not the statements'",
        UNBOUND,
        (SelectCopyMechanisms,),
        r"loop k: found software_pipeline_stage = \[0, 1, 1\] and .*; need one entry for each of "
        r"the 2 statements \['copy', 'use'\], and a permutation",
        STAGES,
        BY_NAME,
        ('stage": [0, 1]', 'stage": [0, 1, 1]'),
    ),
    case(
        "elements that depend on who stores them",
        BY_THREADS.replace("64 + (", "tx + (")
        .replace("range(4)", "range(1)")
        .replace(PLACE, "(i * 8 + v)"),
        (SelectCopyMechanisms,),
        r"found elements A\[.*\] that depend on the thread or loop that stores them; need elements "
        r"that depend on their place in the tile alone; copy the tile by one index for each "
        r"dimension",
        TMA,
    ),
    case(
        "a tile of threads without known bounds",
        BY_THREADS,
        (SelectCopyMechanisms,),
        r"tile tile: found a shape \[16, 2147483647\] without known bounds; need indices within "
        r"bounds that are known now; split its loops by constants",
        (AUTO, '{"tvm_hopper.async_copy": "none"}'),
        ('alloc_buffer((16, 64), "float16"', 'alloc_buffer((16, 2147483647), "float16"'),
        ("func(A: ", "func(n: T.int32, A: "),
        ("tile[tx % 16, tx]", "tile[tx % 16, tx + n]"),
    ),
    case(
        "roles with nothing to load",
        UNBOUND,
        (SelectCopyMechanisms,),
        r"loop k, tvm_hopper.consumers: found nothing for a producer to load: threads make the "
        r"copies copy; not tma: .*; need a copy that hardware can make; remove "
        r"tvm_hopper.consumers \(roles=None\): then every thread loads and computes$",
        ("range(2)", 'T.serial(2, annotations={"tvm_hopper.consumers": 1})'),
    ),
    case(
        "rows of an operand that no mechanism copies",
        OPERAND,
        (SelectCopyMechanisms,),
        r"copy copy of A: found rows that are 30 bytes apart; need rows at multiples of 16 bytes "
        r"\(TMA\), or of 16, 8 or 4 \(cp.async\): in a kernel by WGMMA hardware makes all copies "
        r"of shared tiles; pad the last dimension of A from 15 to 16$",
    ),
    case(
        "rows of a declared stride that no mechanism copies",
        OPERAND,
        (SelectCopyMechanisms,),
        r"copy copy of A: found rows that are 34 bytes apart; .*; copy it into a tensor whose rows "
        r"are, in a kernel before this one$",
        ('func(A: T.Buffer((16, 15), "float16"),', "func(a: T.handle,"),
        (
            "    for bx",
            '    A = T.match_buffer(a, (16, 15), "float16", strides=[17, 1])\n    for bx',
        ),
    ),
    case(
        "rows of an operand of unknown length",
        OPERAND,
        (SelectCopyMechanisms,),
        r"copy copy of A: found rows of n elements, a number that is not known now; need rows at "
        r"multiples of 16 bytes \(TMA\), .*; make every dimension but the first static$",
        ('func(A: T.Buffer((16, 15), "float16"),', "func(a: T.handle,"),
        (
            "    for bx",
            '    n = T.int32()\n    A = T.match_buffer(a, (16, n), "float16")\n    for bx',
        ),
    ),
    case(
        "a tile of an operand that no mechanism fills",
        OPERAND,
        (SelectCopyMechanisms,),
        r"copy copy of A: found no mechanism for it; not cp_async: copy of A into tile: found "
        r"rows of 26 B; .*; need rows at multiples of .*; copy the tensor into one of another "
        r"shape$",
        ("(16, 15)", "(16, 16)"),
    ),
]
