"""IndexRowPointers: what ldmatrix reads by pointer gets the indices of an element."""

import pytest

from tests.transforms.scripts import check, parse, run
from tvm_hopper import ir
from tvm_hopper.transforms.prepare.index_row_pointers import IndexRowPointers, plan_rows

POINTER = (
    'T.tvm_access_ptr(T.type_annotation("float16"), tile.data, ty * 2048 + i * 1024 + k * 16, '
    "1024, 1), tx % 16 * 64 + tx // 16 * 8"
)
ADDRESS = "T.address_of(tile[ty * 32 + i * 16 + tx % 16, k * 16 + tx // 16 * 8]), 0"
BEFORE = f"""
def func(A: T.Buffer((64, 64), "float16")):
    for bx in T.thread_binding(8, thread="blockIdx.x"):
        for ty in T.thread_binding(2, thread="threadIdx.y"):
            for tx in T.thread_binding(32, thread="threadIdx.x"):
                with T.sblock("kernel"):
                    tile = T.sblock_alloc_buffer((64, 64), "float16", scope="shared.dyn")
                    fragment = T.sblock_alloc_buffer((512,), "float16", scope="warp")
                    for r, c in T.grid(64, 64):
                        with T.sblock("copy", async_copy="tma"):
                            tile[r, c] = A[r, c]
                    for k in range(4):
                        for i in range(2):
                            with T.sblock("load", reads=[tile[0:64, 0:64]],
                                writes=[fragment[0:512]]):
                                T.ptx_legacy.ldmatrix(T.bool(False), 4, ".b16", fragment.data,
                                    i * 256 + tx * 8, {POINTER}, dtype="float16")
"""
AFTER = BEFORE.replace(POINTER, ADDRESS)


def test_a_row_has_indices():
    check(run(parse(BEFORE), IndexRowPointers()), parse(AFTER))


def test_a_tile_of_three_dimensions():
    shape = ("tile = T.sblock_alloc_buffer((64, 64)", "tile = T.sblock_alloc_buffer((2, 32, 64)")
    reads = ("tile[0:64, 0:64]", "tile[0:2, 0:32, 0:64]")
    copy = ("tile[r, c]", "tile[r // 32, r % 32, c]")
    rows = "T.address_of(tile[ty, i * 16 + tx % 16, k * 16 + tx // 16 * 8]), 0"
    got = run(parse(BEFORE, shape, reads, copy), IndexRowPointers())
    check(got, parse(BEFORE, shape, reads, copy, (POINTER, rows)))


@pytest.mark.parametrize(
    "change",
    [
        ("tx // 16 * 8,", "tx // 16 * 4,"),  # 8 bytes apart: no multiple of 16
        ("k * 16,", "k * 4,"),
        ("A: T.Buffer((64, 64)", "A: T.Buffer((64, 68)"),  # with the tile: rows of 136 bytes
        (', async_copy="tma"', ""),  # threads fill it
        ("mma", "mma"),
    ],
    ids=["chunk", "start", "row", "no copy", "store"],
)
def test_what_is_left_as_it_is(change):
    text = BEFORE
    if "68" in change[1]:
        text = text.replace("(64, 64)", "(64, 68)")
    elif change[0] == "mma":
        call = text[text.index("T.ptx_legacy") :]
        pointer = POINTER.removesuffix(", tx % 16 * 64 + tx // 16 * 8")
        store = f'T.cuda.mma_store_legacy(16, 16, {pointer}, fragment.data, 0, 64, dtype="float32")'
        text = text.replace(call, store + "\n")
    else:
        text = text.replace(*change)
    assert text != BEFORE
    (kernel,) = ir.kernels(parse(text))
    assert plan_rows(kernel) == ()
    check(run(parse(text), IndexRowPointers()), parse(text))


@pytest.mark.parametrize(("trans", "rows"), [("False", 1), ("True", 0)])
def test_transposed_bytes_are_read_one_by_one(trans, rows):
    """TVM prints plain loads for them, which go on from the address in rows of their own."""
    text = BEFORE.replace("float16", "int8").replace("T.bool(False)", f"T.bool({trans})")
    text = text.replace("tx // 16 * 8,", "tx // 16 * 16,").replace("k * 16,", "k * 32,")
    text = text.replace("range(4)", "range(2)")
    (kernel,) = ir.kernels(parse(text))
    assert len(plan_rows(kernel)) == rows
