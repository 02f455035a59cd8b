"""Annotated copies become loads of boxes, their tensor maps host statements."""

import pytest
import tvm

from tests.transforms.scripts import check, given, notes_of, parse, run
from tvm_hopper import ir
from tvm_hopper.facts.arch import SM_90A
from tvm_hopper.transforms.common.explain_notes import TensorMapNote
from tvm_hopper.transforms.copies.lower_async_copies import LowerAsyncCopies, plan_copies

LOAD = "tvm_hopper.tma_load"
ENCODE = "runtime.cuTensorMapEncodeTiled"


before = parse("""
def before(A: T.Buffer((96, 128), "float16")):
    for bx in T.thread_binding(3, thread="blockIdx.x"):
        with T.sblock("kernel", reads=[], writes=[]):
            tile = T.sblock_alloc_buffer((2, 32, 64), "float16", scope="shared.dyn", align=1024)
            for p, r, s in T.grid(2, 32, 64):
                with T.sblock("copy", reads=[A[bx * 32 + r, p * 64 + s]], writes=[tile[p, r, s]],
                    async_copy="tma", swizzle=128):
                    tile[p, r, s] = A[bx * 32 + r, p * 64 + s]
""")


after = given(ENCODE=ENCODE, LOAD=LOAD)("""
def after(A: T.Buffer((96, 128), "float16")):
    A_map: T.let[T.handle("tensormap")] = T.tvm_stack_alloca("tensormap", 1)
    T.call_packed(
        ENCODE,
        A_map,
        "float16",
        2,  # dimensions
        A.data,
        T.int64(128),  # innermost first
        T.int64(96),
        T.int64(256),  # bytes from row to row
        64,  # the box: one row of 128 B, 32 rows
        32,
        1,
        1,
        0,  # not interleaved
        3,  # swizzle of 128 B
        2,  # fetched into L2 by 128 B
        0,  # out of bounds is zero
    )
    for bx in T.thread_binding(3, thread="blockIdx.x"):
        with T.sblock("kernel", reads=[], writes=[]):
            tile = T.sblock_alloc_buffer((2, 32, 64), "float16", scope="shared.dyn", align=1024)
            with T.sblock("copy", reads=[A[0:96, 0:128]], writes=[tile[0:2, 0:32, 0:64]],
                async_op="tma_load"):
                for panel in range(2):
                    T.call_extern("int32", LOAD, T.address_of(tile[panel, 0, 0]),
                        T.address_of(A_map), panel * 64, bx * 32)
""")


def test_copy_becomes_one_load_a_panel():
    check(run(before, LowerAsyncCopies()), after)


def test_facts_for_explain():
    assert notes_of(run(before, LowerAsyncCopies())) == (
        TensorMapNote(
            "A", ("128", "96"), (64, 32), 128, 64 * 32 * 2, steps=(1, 1), l2_promotion=128
        ),
    )


# A batch of one, symbolic rows counted in 64 bits, and a pad that is the tensor's own bounds.
ragged = parse("""
def ragged(a: T.handle):
    m = T.int64()
    A = T.match_buffer(a, (T.int64(1), m, T.int64(72)), "bfloat16")
    for by in T.thread_binding((m + T.int64(7)) // T.int64(8), thread="blockIdx.y"):
        with T.sblock("kernel", reads=[], writes=[]):
            tile = T.sblock_alloc_buffer((1, 8, 32), "bfloat16", scope="shared.dyn", align=512)
            for k in T.thread_binding(T.int64(3), thread="blockIdx.z"):
                for p, r, s in T.grid(1, 8, 32):
                    with T.sblock("copy", reads=[A[T.int64(0),
                        by * T.int64(8) + T.Cast("int64", r), 0]], writes=[tile[p, r, s]],
                        async_copy="tma", swizzle=64):
                        tile[p, r, s] = T.if_then_else(by * T.int64(8) + T.Cast("int64",
                            r) < m and k * T.int64(32) + T.Cast("int64", p * 32 + s) < T.int64(72),
                            A[T.int64(0), by * T.int64(8) + T.Cast("int64", r),
                            k * T.int64(32) + T.Cast("int64", p * 32 + s)], T.bfloat16(0))
""")


ragged_after = given(ENCODE=ENCODE, LOAD=LOAD)("""
def ragged_after(a: T.handle):
    m = T.int64()
    A = T.match_buffer(a, (T.int64(1), m, T.int64(72)), "bfloat16")
    if m > T.int64(0):  # no tensor map can have a dimension of 0
        A_map: T.let[T.handle("tensormap")] = T.tvm_stack_alloca("tensormap", 1)
        T.call_packed(
            ENCODE,
            A_map,
            "bfloat16",
            2,  # the batch of one is no dimension of the map
            A.data,
            T.int64(72),
            m,
            T.int64(144),
            32,
            8,
            1,
            1,
            0,
            2,  # swizzle of 64 B
            2,
            0,
        )
        for by in T.thread_binding((m + T.int64(7)) // T.int64(8), thread="blockIdx.y"):
            with T.sblock("kernel", reads=[], writes=[]):
                tile = T.sblock_alloc_buffer((1, 8, 32), "bfloat16", scope="shared.dyn", align=512)
                for k in T.thread_binding(T.int64(3), thread="blockIdx.z"):
                    with T.sblock("copy", reads=[A[T.int64(0), T.int64(0) : m,
                        T.int64(0) : T.int64(72)]], writes=[tile[0, 0:8, 0:32]],
                        async_op="tma_load"):
                        T.call_extern("int32", LOAD, T.address_of(tile[0, 0, 0]),
                            T.address_of(A_map), T.Cast("int32", k * T.int64(32)),
                            T.Cast("int32", by * T.int64(8)))
""")


def test_bounds_of_the_tensor_become_the_hardware_s_fill():
    check(run(ragged, LowerAsyncCopies()), ragged_after)


# -- parts and views of tensors


VIEW = """
def func({parameter}):
    {match}
    for bx in T.thread_binding(3, thread="blockIdx.x"):
        with T.sblock("kernel", reads=[], writes=[]):
            tile = T.sblock_alloc_buffer((1, 32, 64), "float16", scope="shared.dyn", align=1024)
            for p, r, s in T.grid(1, 32, 64):
                with T.sblock("copy", async_copy="tma", swizzle=128):
                    tile[p, r, s] = {value}
"""


def view(declaration, value):
    """Return the host statements in front of the kernel, and the load's coordinates."""
    script = VIEW.format(parameter="a: T.handle", match=declaration, value=value)
    got = run(parse(script), LowerAsyncCopies())
    *host, _ = ir.statements(got.body.block.body)
    (load,) = ir.find_all(
        got.body, ir.Call, lambda x: x.op.name == "tirx.call_extern" and x.args[0].value == LOAD
    )
    (encode,) = ir.find_all(host, ir.Call, lambda x: x.op.name == "tirx.tvm_call_packed")
    return host, [str(x) for x in encode.args[3:]], [str(x) for x in load.args[3:]]


def test_rows_are_as_far_apart_as_the_tensor_says():
    _, encode, _ = view(
        'A = T.match_buffer(a, (96, 64), "float16", strides=[72, 1])', "A[bx * 32 + r, s]"
    )
    assert encode[:5] == ["2", "A.data", "T.int64(64)", "T.int64(96)", "T.int64(144)"]


def test_the_contiguous_dimension_is_the_map_s_first_wherever_it_stands():
    _, encode, at = view(
        'A = T.match_buffer(a, (64, 96), "float16", strides=[1, 64])', "A[s, bx * 32 + r]"
    )
    assert encode[:5] == ["2", "A.data", "T.int64(64)", "T.int64(96)", "T.int64(128)"]
    assert at == ["0", "bx * 32"]


def test_a_slice_of_a_packed_tensor_keeps_its_index():
    _, encode, at = view('A = T.match_buffer(a, (96, 3, 64), "float16")', "A[bx * 32 + r, 1, s]")
    dims, strides = ["64", "3", "96"], ["128", "384"]
    assert encode[:7] == ["3", "A.data", *(f"T.int64({x})" for x in (*dims, *strides))]
    assert at == ["0", "1", "bx * 32"]


def test_a_map_ends_where_the_part_does():
    _, encode, at = view(
        'A = T.match_buffer(a, (128, 128), "float16")',
        "T.if_then_else(bx * 32 + r < 70 and s < 40, A[bx * 32 + r + 16, s + 8], T.float16(0))",
    )
    assert encode[:5] == ["2", "A.data", "T.int64(48)", "T.int64(86)", "T.int64(256)"]
    assert at == ["8", "bx * 32 + 16"]


def test_a_map_never_ends_behind_its_tensor():
    _, encode, _ = view(
        'm = T.int32()\n    A = T.match_buffer(a, (m, 64), "float16")',
        "T.if_then_else(bx * 32 + r < 70, A[bx * 32 + r, s], T.float16(0))",
    )
    assert encode[3] == 'T.Cast("int64", T.min(70, m))'


def test_one_row_gets_a_dimension_of_its_own():
    _, encode, at = view(
        'A = T.match_buffer(a, (64,), "float16")',
        "T.if_then_else(bx * 32 + r < 1, A[s], T.float16(0))",
    )
    assert encode[:5] == ["2", "A.data", "T.int64(64)", "T.int64(1)", "T.int64(16)"]
    assert at == ["0", "bx * 32"]


def test_what_only_a_call_knows_is_checked_there():
    host, encode, _ = view(
        'lda = T.int32()\n    off = T.int32()\n    A = T.match_buffer(a, (96, 64), "float16", '
        "strides=[lda, 1], elem_offset=off)",
        "A[bx * 32 + r, s]",
    )
    asserts = [x for x in host if isinstance(x, tvm.tirx.AssertStmt)]
    texts = [str(x.message_parts[0].value) for x in asserts]
    assert texts == [
        f"A: found stride lda of dimension 0 out of range; need 0 to {(1 << 39) - 1} elements; "
        "pass a copy",
        "A: found stride lda of dimension 0 of no multiple of 8 elements; need one, 16 bytes; "
        "pass a copy, or a view of wider rows",
        "A: found offset off of no multiple of 8 elements; need one, 16 bytes; "
        "pass a copy, or a view of wider rows",
    ]
    assert encode[1] == "T.address_of(A[0, 0])"


def test_what_the_declaration_promises_is_not_checked_again():
    host, _, _ = view(
        'off = T.int32()\n    A = T.match_buffer(a, (96, 64), "float16", elem_offset=off, '
        "offset_factor=8)",
        "A[bx * 32 + r, s]",
    )
    assert not [x for x in host if isinstance(x, tvm.tirx.AssertStmt)]


def test_a_panel_of_more_rows_than_a_box_takes_several_loads():
    tall = """
def func(A: T.Buffer((320, 64), "float16")):
    for bx in T.thread_binding(1, thread="blockIdx.x"):
        with T.sblock("kernel", reads=[], writes=[]):
            tile = T.sblock_alloc_buffer((1, 320, 64), "float16", scope="shared.dyn", align=1024)
            for p, r, s in T.grid(1, 320, 64):
                with T.sblock("copy", async_copy="tma", swizzle=128):
                    tile[p, r, s] = A[r, p * 64 + s]
"""
    got = run(parse(tall), LowerAsyncCopies())

    want = given(LOAD=LOAD)("""
    def want():
        with T.sblock(""):
            tile = T.sblock_alloc_buffer((1, 320, 64), "float16", scope="shared.dyn", align=1024)
            A_map: T.let[T.handle("tensormap")] = T.tvm_stack_alloca("tensormap", 1)
            # 160 is the largest divisor of 320 up to 256 that keeps to atoms of eight rows
            for part in range(2):
                T.call_extern("int32", LOAD, T.address_of(tile[0, part * 160, 0]),
                    T.address_of(A_map), 0, part * 160)
    """)

    (block,) = ir.find_blocks(got.body, "tvm_hopper.async_op")
    (loop,) = ir.find_all(want.body, ir.For)
    tvm.ir.assert_structural_equal(block.body, loop, map_free_vars=True)
    (plan,) = plan_copies(ir.kernels(parse(tall))[0], SM_90A)["tma"]
    assert plan.box == (64, 160)


SPARE = """
def func(A: T.Buffer((100, 64), "float16")):
    for bx in T.thread_binding(2, thread="blockIdx.x"):
        with T.sblock("kernel", reads=[], writes=[]):
            tile = T.sblock_alloc_buffer((1, 64, 64), "float16", scope="shared.dyn", align=1024)
            for p, r, s in T.grid(1, 64, 64):
                with T.sblock("copy", async_copy="tma", swizzle=128, spare_rows=1):
                    tile[p, r, s] = T.if_then_else(bx * 64 + r < 100, A[bx * 64 + r, s],
                        T.float16(0))
"""


def test_the_last_tile_of_spare_rows_has_a_map_of_its_own():
    got = run(parse(SPARE), LowerAsyncCopies())
    encoded = ir.find_all(got.body, ir.Call, lambda x: ENCODE in str(x.args[:1]))
    assert [[int(box) for box in x.args[8:10]] for x in encoded] == [[64, 64], [64, 36]]
    (block,) = ir.find_all(got.body, ir.SBlock, lambda x: x.name_hint == "copy")
    assert str(block.body.condition) == "bx <= 0"
    assert "A_map" in str(block.body.then_case)
    assert "A_tail_map" in str(block.body.else_case)
    assert str(block.writes[0].region[1].extent) == "T.Select(bx <= 0, 64, 36)"


def test_spare_rows_of_a_tile_that_begins_elsewhere_are_filled():
    """The last of these has 92 - 64 rows: which tile it is and what it has is not that simple."""
    moved = parse(
        SPARE, ("bx * 64 + r < 100, A[bx * 64 + r", "bx * 64 + r + 8 < 100, A[bx * 64 + r + 8")
    )
    assert (
        len(
            ir.find_all(
                run(moved, LowerAsyncCopies()).body,
                ir.Call,
                lambda x: ENCODE in str(x.args[:1]),
            )
        )
        == 1
    )


def test_rows_that_all_lie_inside_are_one_box():
    pad = SPARE[SPARE.index("T.if_then") :].rstrip()
    got = run(
        parse(SPARE, ("(100, 64)", "(128, 64)"), (pad, "A[bx * 64 + r, s]")),
        LowerAsyncCopies(),
    )
    (load,) = ir.find_all(got.body, ir.Call, lambda x: LOAD in str(x.args[:1]))
    assert str(load.args[4]) == "bx * 64"


@pytest.mark.parametrize(
    "predicate",
    [
        "r < 7",
        "s < 60 and r < 7",
        "0 <= r and r < 7",  # indices are never negative
        "r <= 6",
        "7 > r",
    ],
)
def test_bounds_are_known_in_any_spelling(predicate):
    script = f"""
def func(A: T.Buffer((7, 60), "float32")):
    for bx in T.thread_binding(1, thread="blockIdx.x"):
        with T.sblock("kernel", reads=[], writes=[]):
            tile = T.sblock_alloc_buffer((2, 8, 32), "float32", scope="shared.dyn", align=1024)
            for p, r, s in T.grid(2, 8, 32):
                with T.sblock("copy", async_copy="tma", swizzle=128):
                    tile[p, r, s] = T.if_then_else({predicate.replace("s ", "p * 32 + s ")},
                        A[r, p * 32 + s], T.float32(0))
"""
    assert len(plan_copies(ir.kernels(parse(script))[0], SM_90A)["tma"]) == 1


# -- out of shared memory


store_before = parse("""
def store_before(C: T.Buffer((90, 128), "float16")):
    for bx in T.thread_binding(3, thread="blockIdx.x"):
        with T.sblock("kernel", reads=[], writes=[]):
            tile = T.sblock_alloc_buffer((2, 32, 64), "float16", scope="shared.dyn", align=1024)
            for tx in T.thread_binding(64, thread="threadIdx.x"):
                for i in range(64):
                    tile[i // 32, i % 32, tx] = T.float16(1)
            for p, r, s in T.grid(2, 32, 64):
                with T.sblock("store", where=bx * 32 + r < 90, reads=[tile[p, r, s]],
                    writes=[C[bx * 32 + r, p * 64 + s]], async_copy="tma", swizzle=128):
                    C[bx * 32 + r, p * 64 + s] = tile[p, r, s]
""")


store_after = given(ENCODE=ENCODE)("""
def store_after(C: T.Buffer((90, 128), "float16")):
    C_map: T.let[T.handle("tensormap")] = T.tvm_stack_alloca("tensormap", 1)
    T.call_packed(
        ENCODE,
        C_map,
        "float16",
        2,
        C.data,
        T.int64(128),
        T.int64(90),  # what lies behind is left out
        T.int64(256),
        64,
        32,
        1,
        1,
        0,
        3,
        2,
        0,
    )
    for bx in T.thread_binding(3, thread="blockIdx.x"):
        with T.sblock("kernel", reads=[], writes=[]):
            tile = T.sblock_alloc_buffer((2, 32, 64), "float16", scope="shared.dyn", align=1024)
            for tx in T.thread_binding(64, thread="threadIdx.x"):
                for i in range(64):
                    # where the hardware looks for it: 16 bytes are moved by the row
                    tile[i // 32, i % 32, T.bitwise_xor(tx // 8, i % 8) * 8 + tx % 8] = T.float16(1)
            with T.sblock("store", reads=[tile[0:2, 0:32, 0:64]], writes=[C[0:90, 0:128]],
                async_op="tma_store"):
                for panel in range(2):
                    T.ptx["cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group"](
                        T.address_of(C_map),
                        panel * 64,
                        bx * 32,
                        T.address_of(tile[panel, 0, 0]),
                    )
""")


def test_a_tile_is_stored_by_its_panels():
    check(run(store_before, LowerAsyncCopies()), store_after)
