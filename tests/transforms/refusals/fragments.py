"""What is refused about products whose lanes load what they multiply, and about early loads."""

from tests.transforms.launch.test_enable_programmatic_launch import BEFORE as EARLY
from tests.transforms.mma_sync.test_lower_mma_sync import BEFORE
from tests.transforms.refusals.case import case, on, rows
from tvm_hopper.transforms import EnableProgrammaticLaunch, LowerMmaSync

WORK = BEFORE[BEFORE.index("                for j, i in T.grid(8, 16):") :]


def refused(name, match, *changes):
    return case(name, BEFORE, (LowerMmaSync,), match, *changes)


FRAGMENTS = [
    refused("two of them", "found 2 tvm_hopper.mma_sync blocks; need one", (WORK, WORK + WORK)),
    *rows(refused)("""
no warp
    binding(32 => binding(64
    found 64 threads on threadIdx.x; need 32
    """),
    refused(
        "sums in 16 bits",
        "found sums of float16 in scope 'local'; need float32 in registers",
        (
            'own = T.sblock_alloc_buffer((8, 16), "float32"',
            'own = T.sblock_alloc_buffer((8, 16), "float16"',
        ),
        ("T.float32(0)", "T.float16(0)"),
        (
            'T.Cast("float32", A_local[j, k]) * T.Cast("float32", B_local[i, k])',
            "A_local[j, k] * B_local[i, k]",
        ),
        ("] = own[j, i]\n", '] = T.Cast("float32", own[j, i])\n'),
    ),
    *rows(refused)("""
few columns
    (8, 16) => (8, 8)
    (16, 32) => (8, 32)
    T.grid(8, 16, 32) => T.grid(8, 8, 32)
    0:16 => 0:8
    found a warp's tile 8 columns of the output; need a multiple of 16
    """),
    refused(
        "a loop from elsewhere",
        "found loop k over .*; need static loops from 0",
        (
            "for j, i, k in T.grid(8, 16, 32):",
            "for j, i in T.grid(8, 16):\n                          for k in T.serial(8, 40):",
        ),
        (
            "                            own[j, i] = own[j, i] + (",
            "                             own[j, i] = own[j, i] + (",
        ),
    ),
    refused(
        "no runs of 16 bytes",
        "operand B_local: found a value that .* need an element, or what 16 bytes of neighbours",
        (
            "B_local[i, k] = B[bx * 16 + i, k0 * 32 + k]",
            "B_local[i, k] = B[bx * 16 + i, k0 * 32 + k] * B[bx * 16 + i, 63 - k0 * 32 - k]",
        ),
    ),
    refused(
        "bytes",
        "operand A_local: found type int8; need float16 or bfloat16",
        ('A: T.Buffer((8, 40), "float16")', 'A: T.Buffer((8, 40), "int8")'),
        (
            'A_local = T.sblock_alloc_buffer((8, 32), "float16"',
            'A_local = T.sblock_alloc_buffer((8, 32), "int8"',
        ),
        ("A[j, k0 * 32 + k], T.float16(0)", "A[j, k0 * 32 + k], T.int8(0)"),
    ),
    refused(
        "an operand in shared memory",
        "operand B_local: found scope 'shared', touched by 1 other",
        (
            'B_local = T.sblock_alloc_buffer((16, 32), "float16", scope="local")',
            'B_local = T.sblock_alloc_buffer((16, 32), "float16", scope="shared")',
        ),
    ),
    *rows(refused)(r"""
an operand that is computed
    A[j, k0 * 32 + k], T.float16(0) => A[j, k0 * 32 + k], T.float16(1)
    operand A_local: found a value that is no element...need if_then_else
an operand that is transposed on its way
    A_local[j, k] = T.if => A_local[j, (k + 1) % 32] = T.if
    need a loop along each dimension
sums at odd places
    D[j, bx * 16 + i] = own[j, i] => D[j, bx * 16 + i] = own[j, (i + 1) % 16]
    found sums at ...; need nests over all sums of a warp
a sum by itself
    for k0 in range(2): => own[0, 0] = T.float32(1)\n                for k0 in range(2):
    found other uses of own; need nests of two loops
    """),
    refused(
        "sums handed on in turns",
        "found sums handed on in each turn of loop r; need one tile for each thread block",
        (
            '            with T.sblock("work"',
            '            for r in range(2):\n             with T.sblock("work"',
        ),
        (
            'own = T.sblock_alloc_buffer((8, 16), "float32", scope="local")\n',
            'own = T.sblock_alloc_buffer((8, 16), "float32", scope="local")\n'
            '                handed = T.sblock_alloc_buffer((8, 16), "float32", scope="shared")\n',
        ),
        ("writes=[D[j, bx * 16 + i]]", "writes=[handed[j, i]]"),
        ("D[j, bx * 16 + i] = own[j, i]", "handed[j, i] = own[j, i]"),
    ),
    case(
        "an early load that is no load to registers",
        EARLY,
        (EnableProgrammaticLaunch,),
        "found a store into kept; need a load into registers",
        (
            'kept = T.sblock_alloc_buffer((2, 8), "float16", scope="local")',
            'kept = T.sblock_alloc_buffer((2, 8), "float16", scope="shared")',
        ),
    ),
    *rows(on(EARLY, (EnableProgrammaticLaunch,)))("""
nothing but early loads
    Y[bx, c * 256 + tx * 8 + v] = kept[c, v] + X[0, 0] => kept[c, v] = kept[c, v]
    found nothing but such loads in the kernel; need an access to wait for after it
    """),
]
