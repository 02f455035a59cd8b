"""Arrays that have no room side by side are allocated together, and marked."""

from tests.transforms.scripts import check, parse, run
from tvm_hopper.transforms.sync.overlay_shared_buffers import OverlaySharedBuffers

# 57344 floats, 224 KiB, and 16 KiB.
BEFORE = """
def func(C: T.Buffer((4, 4096), "float32")):
    for bx in T.thread_binding(4, thread="blockIdx.x"):
        for tx in T.thread_binding(128, thread="threadIdx.x"):
            with T.sblock("kernel", reads=[], writes=[], kernel=1):
                other = T.sblock_alloc_buffer((4,), "float32", scope="local")
                with T.sblock("first", reads=[], writes=[]):
                    a = T.sblock_alloc_buffer((57344,), "float32", scope="shared.dyn")
                    a[tx] = C[bx, tx]
                    other[0] = a[127 - tx]
                with T.sblock("second", reads=[], writes=[]):
                    b = T.sblock_alloc_buffer((4096,), "float32", scope="shared.dyn")
                    b[tx] = other[0]
                    C[bx, tx] = b[127 - tx]
"""
A = '                    a = T.sblock_alloc_buffer((57344,), "float32", scope="shared.dyn")\n'
B = '                    b = T.sblock_alloc_buffer((4096,), "float32", scope="shared.dyn")\n'
FIRST = '                with T.sblock("first"'
AFTER = (
    BEFORE.replace(A, "")
    .replace(B, "")
    .replace(
        FIRST,
        A[4:]
        + B[4:]
        + '                T.call_extern("int32", "tvm_hopper.overlay", '
        + "T.address_of(a[0]), T.address_of(b[0]))\n"
        + FIRST,
    )
)


def test_both_are_allocated_where_the_statement_about_them_stands():
    check(run(parse(BEFORE), OverlaySharedBuffers()), parse(AFTER))


def test_arrays_with_room_stay_where_they_are():
    small = parse(BEFORE, ("(57344,)", "(5734,)"))
    check(run(small, OverlaySharedBuffers()), small)


def test_kernels_without_channels_stay():
    """No ring is in them, and stock passes merge their memory."""
    other = parse(BEFORE, (", kernel=1", ""))
    check(run(other, OverlaySharedBuffers()), other)
