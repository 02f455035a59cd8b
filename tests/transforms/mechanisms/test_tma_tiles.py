"""Plain readers follow the swizzle; tiles of one dimension and of several."""

import pytest

from tests.transforms.scripts import parse, run
from tvm_hopper import ir
from tvm_hopper.facts.swizzle import swizzle_offset
from tvm_hopper.transforms.copies.lower_async_copies import LowerAsyncCopies

LOAD = "tvm_hopper.tma_load"
ENCODE = "runtime.cuTensorMapEncodeTiled"

READ = """
def func(A: T.Buffer((32, 128), "float16"), C: T.Buffer((32, 128), "float16")):
    for t in T.thread_binding(256, thread="threadIdx.x"):
        with T.sblock("kernel", reads=[], writes=[]):
            tile = T.sblock_alloc_buffer((2, 32, 64), "float16", scope="shared.dyn", align=1024)
            for p, r, s in T.grid(2, 32, 64):
                with T.sblock("copy", async_copy="tma", swizzle=128):
                    tile[p, r, s] = A[r, p * 64 + s]
            with T.sblock("product", reads=[], writes=[], wgmma=1):
                C[0, 0] = tile[1, 7, 13]
            for o in range(2):
                for v in T.vectorized(8):
                    with T.sblock("use", reads=[tile[0:2, o * 16 + t // 16, 0:64]],
                        writes=[C[o * 16 + t // 16, t % 16 * 8 + v]]):
                        C[o * 16 + t // 16, t % 16 * 8 + v] = tile[
                            t % 16 // 8, o * 16 + t // 16, t % 8 * 8 + v]
"""


def test_plain_readers_follow_the_swizzle():
    """Read at the panels' own indices, every row but each eighth would come in other chunks."""
    (kernel,) = ir.kernels(run(parse(READ), LowerAsyncCopies()))
    (use,) = ir.find_all(kernel, ir.SBlock, lambda x: x.name_hint == "use")
    assert [str(x) for x in use.body.value.indices] == [
        "t % 16 // 8",
        "o * 16 + t // 16",
        # the vector stays whole: `v` is no part of the XOR
        "(t % 8 ^ t % 128 // 16) * 8 + v",
    ]
    (product,) = ir.find_all(kernel, ir.SBlock, lambda x: x.name_hint == "product")
    assert [int(x) for x in product.body.value.indices] == [1, 7, 13]  # its hardware XORs
    seen = set()
    for values in [(a, b, c) for a in (0, 1) for b in range(0, 256, 5) for c in (0, 3)]:
        at = dict(zip("otv", values, strict=True))
        panel, row, inside = (eval(str(x), at) for x in use.body.value.indices)
        to_row, to_column = (eval(str(x), at) for x in use.body.indices)
        told = ((to_column // 64 * 32 + to_row) * 64 + to_column % 64) * 2
        assert ((panel * 32 + row) * 64 + inside) * 2 == swizzle_offset(told, 128)
        seen.add((panel, row, inside))
    assert len(seen) == 2 * 52 * 2


@pytest.mark.parametrize("swizzle", [0, 128])
def test_an_update_in_place_follows_the_swizzle(swizzle):
    text = READ.replace("swizzle=128", f"swizzle={swizzle}")
    text = text.replace(
        "C[o * 16 + t // 16, t % 16 * 8 + v] = tile[\n",
        "tile[t % 16 // 8, o * 16 + t // 16, t % 8 * 8 + v] = T.float16(2) * tile[\n",
    )
    (kernel,) = ir.kernels(run(parse(text), LowerAsyncCopies()))
    (use,) = ir.find_all(kernel, ir.SBlock, lambda x: x.name_hint == "use")
    (load,) = ir.find_all(use.body, ir.TensorLoad)
    assert [str(x) for x in load.indices] == [str(x) for x in use.body.indices]
    assert ("^" in str(load)) == bool(swizzle)


def loads_of(script):
    """Return the arguments of the map's encoding and of the load, and the loops around it."""
    got = run(parse(script), LowerAsyncCopies())
    (load,) = ir.find_all(
        got.body, ir.Call, lambda x: x.op.name == "tirx.call_extern" and x.args[0].value == LOAD
    )
    (encode,) = ir.find_all(got.body, ir.Call, lambda x: x.op.name == "tirx.tvm_call_packed")
    (block,) = ir.find_blocks(got.body, "tvm_hopper.async_op")
    loops = [(x.loop_var.name, int(x.extent)) for x in ir.find_all(block, ir.For)]
    return [str(x) for x in encode.args[3:]], [str(x) for x in load.args[1:]], loops


def test_one_dimension():
    encode, load, loops = loads_of("""
def func(A: T.Buffer((4000,), "float32")):
    for bx in T.thread_binding(8, thread="blockIdx.x"):
        with T.sblock("kernel", reads=[], writes=[]):
            tile = T.sblock_alloc_buffer((2, 1, 256), "float32", scope="shared.dyn", align=128)
            for p, r, s in T.grid(2, 1, 256):
                with T.sblock("copy", async_copy="tma", swizzle=0):
                    tile[p, r, s] = T.if_then_else(bx * 512 + p * 256 + s < 4000,
                        A[bx * 512 + p * 256 + s], T.float32(0))
""")
    # rank 1, and no stride: one extent, one box, one element stride
    assert encode == ["1", "A.data", "T.int64(4000)", "256", "1", "0", "0", "2", "0"]
    assert load[0] == "T.address_of(tile[panel, 0, 0])"
    assert load[2:] == ["bx * 512 + panel * 256"]
    assert loops == [("panel", 2)]


def test_rows_of_two_dimensions_make_one_box():
    encode, load, loops = loads_of("""
def func(A: T.Buffer((3, 8, 5, 16, 64), "float16")):
    for bx in T.thread_binding(2, thread="blockIdx.x"):
        with T.sblock("kernel", reads=[], writes=[]):
            tile = T.sblock_alloc_buffer((1, 32, 64), "float16", scope="shared.dyn", align=1024)
            for p, r0, r1, s in T.grid(1, 4, 8, 64):
                with T.sblock("copy", async_copy="tma", swizzle=128):
                    tile[p, r0 * 8 + r1, s] = A[2, bx * 4 + r0, 3, r1 + 8, p * 64 + s]
""")
    sizes, strides, box = encode[2:7], encode[7:11], encode[11:16]
    assert sizes == [f"T.int64({x})" for x in (64, 16, 5, 8, 3)]
    assert strides == [f"T.int64({x})" for x in (128, 2048, 10240, 81920)]
    assert box == ["64", "8", "1", "4", "1"]
    assert load[2:] == ["0", "8", "3", "bx * 4", "2"]
    assert loops == []


def test_rows_of_two_dimensions_land_in_the_tile_s_order():
    encode, _, _ = loads_of("""
def func(A: T.Buffer((8, 4, 64), "float16")):
    for bx in T.thread_binding(1, thread="blockIdx.x"):
        with T.sblock("kernel", reads=[], writes=[]):
            tile = T.sblock_alloc_buffer((1, 32, 64), "float16", scope="shared.dyn", align=1024)
            for p, r0, r1, s in T.grid(1, 4, 8, 64):
                with T.sblock("copy", async_copy="tma", swizzle=128):
                    tile[p, r0 * 8 + r1, s] = A[r1, r0, p * 64 + s]
""")
    # the tensor's first dimension is the tile's inner one
    assert encode[2:5] == ["T.int64(64)", "T.int64(8)", "T.int64(4)"]
    assert encode[5:7] == ["T.int64(512)", "T.int64(128)"]
    assert encode[7:10] == ["64", "8", "4"]


def test_the_outermost_of_two_dimensions_is_cut():
    encode, load, loops = loads_of("""
def func(A: T.Buffer((512, 3, 64), "float16")):
    for bx in T.thread_binding(1, thread="blockIdx.x"):
        with T.sblock("kernel", reads=[], writes=[]):
            tile = T.sblock_alloc_buffer((1, 1536, 64), "float16", scope="shared.dyn", align=1024)
            for p, r0, r1, s in T.grid(1, 512, 3, 64):
                with T.sblock("copy", async_copy="tma", swizzle=128):
                    tile[p, r0 * 3 + r1, s] = A[r0, r1, p * 64 + s]
""")
    assert encode[7:10] == ["64", "3", "256"]
    assert load[0] == "T.address_of(tile[0, part * 768, 0])"
    assert load[2:] == ["0", "0", "part * 256"]
    assert loops == [("part", 2)]


def test_one_row_of_a_matrix():
    encode, load, _ = loads_of("""
def func(A: T.Buffer((4, 256), "float32")):
    for bx in T.thread_binding(4, thread="blockIdx.x"):
        with T.sblock("kernel", reads=[], writes=[]):
            tile = T.sblock_alloc_buffer((1, 1, 256), "float32", scope="shared.dyn", align=128)
            for p, r, s in T.grid(1, 1, 256):
                with T.sblock("copy", async_copy="tma", swizzle=0):
                    tile[p, r, s] = A[bx, p * 256 + s]
""")
    assert encode[2:4] == ["T.int64(256)", "T.int64(4)"]
    assert encode[5:7] == ["256", "1"]
    assert load[2:] == ["0", "bx"]
