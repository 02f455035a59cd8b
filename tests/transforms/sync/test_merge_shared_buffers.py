"""MergeSharedBuffers: one dynamic shared allocation a kernel, every access moved to its offset."""

import pytest
import tvm

from tests.transforms.scripts import check, notes_of, parse, run
from tvm_hopper import ir
from tvm_hopper.errors import LoweringError
from tvm_hopper.transforms.common.explain_notes import RingNote, SmemNote, note_kernels
from tvm_hopper.transforms.sync.merge_shared_buffers import MergeSharedBuffers, plan_shared

BEFORE = """
def func(C: T.Buffer((4,), "float16")):
    with T.launch_thread("blockIdx.x", 2) as bx:
        full = T.alloc_buffer((2,), "uint64", scope="shared.dyn", align=8)
        ring = T.alloc_buffer((48,), "float16", scope="shared.dyn", align=1024)
        rest = T.alloc_buffer((3,), "uint32", scope="shared.dyn")
        own = T.alloc_buffer((4,), "float16", scope="local")
        T.attr("tvm_hopper", "hand_threaded", 1)
        T.call_extern("int32", "barrier", T.address_of(full[1]))
        ring[bx + 3] = C[0]
        rest[0] = T.Cast("uint32", bx)
        own[0] = ring[bx]
        T.call_extern("int32", "whole", ring.data, full.data)
        T.call_extern("int32", "part", ring.access_ptr("w", offset=16, extent=8))
"""

# ring at 0 (the most aligned first): 96 bytes. rest at 128 (64 is the alignment of a plain buffer):
# 12 bytes. full at 144 (16 at least): 16 bytes.
AFTER = """
def func(C: T.Buffer((4,), "float16")):
    with T.launch_thread("blockIdx.x", 2) as bx:
        dyn_smem = T.alloc_buffer((160,), "uint8", scope="shared.dyn", align=1024)
        ring = T.decl_buffer((48,), "float16", data=dyn_smem.data, scope="shared.dyn", align=1024)
        rest = T.decl_buffer((3,), "uint32", data=dyn_smem.data, scope="shared.dyn")
        full = T.decl_buffer((2,), "uint64", data=dyn_smem.data, scope="shared.dyn", align=8)
        own = T.alloc_buffer((4,), "float16", scope="local")
        T.attr("tvm_hopper", "hand_threaded", 1)
        T.call_extern("int32", "barrier", T.address_of(full[19]))
        ring[bx + 3] = C[0]
        rest[32] = T.Cast("uint32", bx)
        own[0] = ring[bx]
        T.call_extern("int32", "whole", T.address_of(ring[0]), T.address_of(full[18]))
        T.call_extern("int32", "part", T.address_of(ring[16]))
"""


def test_offsets_views_and_every_kind_of_access():
    check(run(parse(BEFORE), MergeSharedBuffers()), parse(AFTER))


SHARED = (SmemNote("ring", 0, 96), SmemNote("rest", 128, 12), SmemNote("full", 144, 16))


def test_map_of_shared_memory_for_explain():
    assert notes_of(run(parse(BEFORE), MergeSharedBuffers())) == SHARED


def test_other_kernel_keeps_its_shared_buffers():
    other = parse("""
    def other(C: T.Buffer((4,), "float16")):
        with T.launch_thread("blockIdx.x", 2) as bx:
            first = T.alloc_buffer((16,), "float16", scope="shared.dyn")
            second = T.alloc_buffer((16,), "float16", scope="shared.dyn")
            first[bx] = C[0]
            second[bx] = first[bx]
    """)

    ours = parse(BEFORE)
    # the note that the passes before have left: nothing of the first kernel
    ring = RingNote(channel=0, num_slots=2, tx_bytes=48)
    both = note_kernels(ours.with_body(ir.seq(other.body, ours.body)), {1: [ring]})
    got = run(both, MergeSharedBuffers())
    first, second = ir.outermost_thread_extents(got.body)
    assert first.same_as(ir.outermost_thread_extents(both.body)[0])
    wanted = ir.outermost_thread_extents(parse(AFTER).body)[0]
    tvm.ir.assert_structural_equal(second, wanted, map_free_vars=True)
    assert (notes_of(got, 0), notes_of(got, 1)) == ((), (ring, *SHARED))


def test_buffers_share_bytes_where_a_statement_allows_it():
    allowed = (
        '        T.call_extern("int32", "barrier"',
        '        T.call_extern("int32", "tvm_hopper.overlay", T.address_of(ring[0]), '
        'T.address_of(rest[0]))\n        T.call_extern("int32", "barrier"',
    )
    # rest lies where ring does, full behind both
    after = parse(
        AFTER,
        ("T.alloc_buffer((160,)", "T.alloc_buffer((112,)"),
        ("rest[32]", "rest[0]"),
        ("full[19]", "full[13]"),
        ("T.address_of(full[18])", "T.address_of(full[12])"),
        (
            '        T.call_extern("int32", "barrier"',
            '        T.evaluate(0)\n        T.call_extern("int32", "barrier"',
        ),
    )
    check(run(parse(BEFORE, allowed), MergeSharedBuffers()), after)


def test_what_fits_one_chip_and_not_the_other():
    large = ("T.alloc_buffer((48,)", "T.alloc_buffer((98304,)")  # 192 KiB
    func = parse(BEFORE, large)
    assert plan_shared(func)[0].num_bytes == 196608 + 32
    small = func.with_attr("target", tvm.target.Target({"kind": "cuda", "arch": "sm_80"}))
    with pytest.raises(LoweringError, match=r"= 196640 bytes with alignment; need at most 166912;"):
        plan_shared(small)
