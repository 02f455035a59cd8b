"""LegalizeVectors: vectors as long as a thread can load and the CUDA code generator can print."""

import pytest
from tvm import tirx

from tests.transforms.scripts import check, parse, run
from tvm_hopper import ir
from tvm_hopper.transforms.legalize.legalize_vectors import LegalizeVectors, cut_unaligned

BEFORE = """
def func(A: T.Buffer((8, 256), "float16"), C: T.Buffer((8, 256), "float16")):
    for bx in T.thread_binding(8, thread="blockIdx.x"):
        with T.sblock("kernel"):
            tile = T.sblock_alloc_buffer((1, 256), "float16", scope="shared.dyn")
            for i in range(256):
                with T.sblock("copy", async_copy="tma"):
                    tile[0, i] = A[bx, i]
            for tx in T.thread_binding(32, thread="threadIdx.x"):
                for v in T.vectorized(8):
                    with T.sblock("C"):
                        C[bx, tx * 8 + v] = VALUE
"""
WIDE = 'T.Cast("float16", T.Cast("float32", tile[0, tx * 8 + v]) * T.float32(2))'
AFTER = BEFORE.replace(
    """\
                for v in T.vectorized(8):
                    with T.sblock("C"):
                        C[bx, tx * 8 + v] = VALUE
""",
    """\
                for part in T.unroll(2):
                    for v in T.vectorized(4):
                        with T.sblock("C"):
                            C[bx, tx * 8 + (part * 4 + v)] = VALUE
""",
).replace("VALUE", WIDE.replace("+ v", "+ (part * 4 + v)"))


def test_floats_between_halves_are_four_at_once():
    check(run(parse(BEFORE, ("VALUE", WIDE)), LegalizeVectors()), parse(AFTER))


@pytest.mark.parametrize(
    ("dtype", "lanes", "value", "most"),
    [
        ("float16", 8, "LOAD * T.float16(2)", 8),
        ("float16", 8, "LOAD", 8),
        ("float16", 16, "LOAD", 8),
        ("float16", 12, "LOAD", 4),
        ("float32", 8, "LOAD", 4),
        ("float32", 6, "LOAD", 2),
        ("float32", 4, "LOAD + T.float32(1)", 4),
        ("int8", 32, "LOAD", 16),
        ("int8", 16, "LOAD * T.int8(2)", 4),
        ("float64", 4, "LOAD", 2),
        ("float16", 8, "tile[0, T.Cast('int32', T.Cast('int64', tx) * T.int64(8)) + v]", 8),
        ("float16", 8, "T.if_then_else(tx > 3, LOAD, T.float16(0))", 8),
        ("float16", 8, "T.Cast('float16', T.Cast('bool', LOAD))", 8),
        ("float16", 8, "LOAD * A[(tx * 8 + v) // 40, 0]", 4),
        ("float16", 8, "A[bx, (tx * 8 + v) * 2]", 4),
        ("float16", 8, "LOAD * A[(tx * 8 + v) // 8, (tx * 8 + v) % 8]", 8),
        ("float16", 8, "LOAD * A[NUMBER // 192, NUMBER % 192]", 8),
        ("float16", 8, "LOAD * A[NUMBER // 192 % 3, NUMBER % 192]", 8),
        ("float16", 8, "LOAD * A[NUMBER // 100, NUMBER % 100]", 4),
        ("float16", 8, "LOAD * A[(NUMBER + 4) // 192, (NUMBER + 4) % 192]", 4),
        ("float16", 8, "LOAD * A[(NUMBER * 2) // 192, (NUMBER * 2) % 192]", 4),
    ],
)
def test_lanes_by_what_is_computed(dtype, lanes, value, most):
    value = value.replace("NUMBER", "(bx * 64 + tx * 8 + v)")
    text = BEFORE.replace("VALUE", value.replace("LOAD", "tile[0, tx * 8 + v]"))
    text = text.replace("float16", dtype).replace("T.vectorized(8)", f"T.vectorized({lanes})")
    (kernel,) = ir.kernels(run(parse(text), LegalizeVectors()))
    (loop,) = ir.find_all(kernel, ir.For, lambda x: x.kind == ir.ForKind.VECTORIZED)
    assert int(loop.extent) == most


@pytest.mark.parametrize("place", ["bx, 0", "(tx * 8 + v) // 40, 0"])
def test_bytes_that_are_the_same_in_all_lanes_are_no_vector(place):
    """A bias of a row: TVM builds a vector of bytes out of constants alone."""
    text = BEFORE.replace("VALUE", f"tile[0, tx * 8 + v] + A[{place}]").replace("float16", "int8")
    (kernel,) = ir.kernels(run(parse(text), LegalizeVectors()))
    assert not ir.find_all(kernel, ir.For, lambda x: x.kind == ir.ForKind.VECTORIZED)
    (loop,) = ir.find_all(kernel, ir.For, lambda x: x.kind == ir.ForKind.UNROLLED)
    assert int(loop.extent) == 8


def test_places_of_a_store_that_are_apart():
    """Lanes that go on in another dimension: CUDA has no vector of 8 integers for their places."""
    apart = "C[v // 4, tx * 4 + v % 4] = tile[0, tx + v]"
    text = BEFORE.replace("C[bx, tx * 8 + v] = VALUE", apart)
    (kernel,) = ir.kernels(run(parse(text), LegalizeVectors()))
    (loop,) = ir.find_all(kernel, ir.For, lambda x: x.kind == ir.ForKind.VECTORIZED)
    assert int(loop.extent) == 4


def test_bools_in_memory_are_no_vector():
    """TVM prints a vector of them with two bytes for each."""
    text = BEFORE.replace("VALUE", "tile[0, tx * 8 + v]").replace("float16", "bool")
    (kernel,) = ir.kernels(run(parse(text), LegalizeVectors()))
    assert not ir.find_all(kernel, ir.For, lambda x: x.kind == ir.ForKind.VECTORIZED)


MASK = """
def func(M: T.Buffer((8, 256), "bool"), C: T.Buffer((8, 256), "bool")):
    for bx in T.thread_binding(8, thread="blockIdx.x", memory_bound="elementwise"):
        for tx in T.thread_binding(16, thread="threadIdx.x"):
            with T.sblock("", reads=[M[bx, 0:256]], writes=[C[bx, 0:256]]):
                mask = T.sblock_alloc_buffer((16,), "bool", scope="local")
LOAD
                for v in T.vectorized(16):
                    with T.sblock("C"):
                        C[bx, tx * 16 + v] = mask[v] and bx > 3
"""
BY_BOOLS = """
                for v in T.vectorized(16):
                    with T.sblock("mask"):
                        mask[v] = M[bx, tx * 16 + v]
"""
BY_BYTES = """
                M_bytes = T.decl_buffer((8, 256), "int8", data=M.data, scope="global")
                mask_bytes = T.decl_buffer((16,), "int8", data=mask.data, scope="local")
                for v in T.vectorized(16):
                    with T.sblock("mask", reads=[M[bx, tx * 16 + v]], writes=[mask[v]]):
                        mask_bytes[v] = M_bytes[bx, tx * 16 + v]
"""


def test_bools_are_loaded_as_bytes():
    """Sixteen of them at once; what is computed of them is stored one at a time."""
    before = parse(MASK, ("\nLOAD\n", BY_BOOLS))
    stored = 'for v in T.vectorized(16):\n                    with T.sblock("C")'
    one = stored.replace("vectorized", "unroll")
    check(run(before, LegalizeVectors()), parse(MASK, ("\nLOAD\n", BY_BYTES), (stored, one)))


def test_bytes_of_bools_begin_where_they_do():
    """A tensor may begin some elements behind its pointer."""
    late = 'M: T.Buffer((8, 256), "bool", elem_offset=16)'
    func = parse(MASK, ("\nLOAD\n", BY_BOOLS), ('M: T.Buffer((8, 256), "bool")', late))
    views = ir.find_all(run(func, LegalizeVectors()).body, tirx.DeclBuffer)
    assert [int(x.buffer.ty.elem_offset) for x in views] == [16, 0]


STORED = """
def func(A: T.Buffer((64, 33), "float16"), C: T.Buffer((64, 4), "float16")):
    for bx in T.thread_binding(4, thread="blockIdx.x"):
        for tx in T.thread_binding(16, thread="threadIdx.x"):
            for k in T.serial(2, stage=[0, 1]):
                with T.sblock("turn"):
                    tile = T.sblock_alloc_buffer(SHAPE, "float16", scope="shared.dyn")
                    for v in T.vectorized(4):
                        with T.sblock("tile"):
                            tile[PLACE] = A[tx, k * 4 + v]
                    for v in T.vectorized(4):
                        with T.sblock("C"):
                            C[bx * 16 + tx, v] = tile[PLACE]
"""


@pytest.mark.parametrize(
    ("shape", "place", "lanes"),
    [
        ("(16, 8)", "tx, v", 4),
        ("(16, 6)", "tx, v", 2),  # every other row begins between two vectors
        ("(16, 5)", "tx, v", 1),
        ("(32, 6)", "tx * 2, v", 4),
        ("(17, 6)", "tx // 8 * 2, v", 2),  # 102 elements: the second slot begins between them
        ("(16, 8)", "tx, v + 2", 2),
        ("(16, 8)", "tx, tx % 2 * 4 + v", 4),
        ("(16, 6)", "tx, v * 2", 4),  # one by one
        ("(16, 6)", "v, tx % 6", 4),
    ],
)
def test_stores_begin_where_each_row_of_a_tile_has_a_vector(shape, place, lanes):
    (before,) = ir.kernels(parse(STORED.replace("SHAPE", shape).replace("PLACE", place)))
    after = cut_unaligned(before)
    stores = [
        loop
        for loop in ir.find_all(after, ir.For, lambda x: x.kind == ir.ForKind.VECTORIZED)
        if any(x.buffer.name == "tile" for x in ir.find_all(loop.body, ir.BufferStore))
    ]
    assert [int(x.extent) for x in stores] == ([lanes] if lanes > 1 else [])
    assert cut_unaligned(after) is after
