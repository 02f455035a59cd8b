"""Copies in bulk become runs of bytes, those by cp.async chunks of the threads."""

from __future__ import annotations

import operator

import pytest
from tvm import tirx

from tests.transforms.scripts import check, nest, parse, run
from tvm_hopper import ir
from tvm_hopper.facts.arch import SM_90A
from tvm_hopper.transforms import LowerAsyncCopies, SwizzleSharedTiles
from tvm_hopper.transforms.copies.lower_async_copies import plan_copies
from tvm_hopper.transforms.mechanisms.cp_async_emit import share_out

COPY = """
def func(A: T.Buffer((90, 128), "float16")):
    for bx in T.thread_binding(12, thread="blockIdx.x"):
        for tx in T.thread_binding(32, thread="threadIdx.x"):
            with T.sblock("kernel", reads=[], writes=[]):
                tile = T.sblock_alloc_buffer((8, 64), "float16", scope="shared.dyn")
                for i, j in T.grid(8, 64):
                    with T.sblock("copy", reads=[A[bx * 8 + i, j]], writes=[tile[i, j]],
                        async_copy="bulk"):
                        tile[i, j] = A[bx * 8 + i, j]
"""
NEST = nest(COPY, "for i, j")
STORED = ("tile[i, j] = A[bx * 8 + i, j]", "A[bx * 8 + i, j] = tile[i, j]")


def where(condition: str) -> tuple[str, str]:
    """Return the change that puts a predicate on the copy."""
    return '"copy"', f'"copy", where={condition}'


def becomes(text: str, *changes: tuple[str, str], head: tuple[tuple[str, str], ...] = ()) -> None:
    """Check what a copy, changed, becomes; the lines stand in place of its nest."""
    got = run(parse(COPY, *changes), LowerAsyncCopies())
    lines = "".join(" " * 16 + line + "\n" for line in text.strip("\n").splitlines())
    check(got, parse(COPY, (NEST, lines), *head))
    (kernel,) = ir.kernels(got)
    assert not plan_copies(kernel, SM_90A)


# -- in bulk


def test_a_run_for_each_row():
    becomes("""
with T.sblock("copy", reads=[A[0:90, 0:128]], writes=[tile[0:8, 0:64]], async_op="bulk_load"):
    for i in range(8):
        T.call_extern("int32", "tvm_hopper.bulk_load", T.address_of(tile[i, 0]),
            T.address_of(A[bx * 8 + i, 0]), 128)
""")


def test_nothing_is_copied_from_in_front_of_the_tensor():
    ahead = ("A[bx * 8 + i, j]", "A[bx - 3 + i, j]")
    row = ("(8, 64)", "(1, 64)")
    got = run(parse(COPY, row, ahead, where("0 <= bx - 3 + i")), LowerAsyncCopies())
    assert "T.Select(3 <= bx, 64, 0) * 2" in got.script()


def test_rows_in_a_row_are_one_run():
    whole = ("(8, 64)", "(8, 128)")
    becomes(
        """
with T.sblock("copy", reads=[A[0:90, 0:128]], writes=[tile[0:8, 0:128]], async_op="bulk_load"):
    T.call_extern("int32", "tvm_hopper.bulk_load", T.address_of(tile[0, 0]),
        T.address_of(A[bx * 8, 0]), 2048)
""",
        whole,
        head=(whole,),
    )


STORE = """
with T.sblock("copy", reads=[tile[0:8, 0:64]], writes=[A[0:90, 0:128]], async_op="bulk_store"):
    for i in range(EXTENT):
        T.ptx["cp.async.bulk.global.shared::cta.bulk_group"](T.address_of(A[bx * 8 + i, 0]),
            T.cuda.cvta_generic_to_shared(T.address_of(tile[i, 0])), T.uint32(128))
"""


def test_a_store_of_rows():
    fewer = ("12, thread", "11, thread")
    becomes(STORE.replace("EXTENT", "8"), STORED, fewer, head=(fewer,))


def test_a_store_that_lost_its_bound_stays_within_the_tensor():
    becomes(STORE.replace("EXTENT", "T.min(8, 90 - bx * 8)"), STORED)


def test_a_store_of_rows_that_end_stores_fewer():
    becomes(STORE.replace("EXTENT", "T.min(8, 90 - bx * 8)"), STORED, where("bx * 8 + i < 90"))


def test_a_load_of_rows_that_end_brings_fewer_and_says_so():
    """The block writes as many rows as it brings: that is what a slot's barrier counts."""
    becomes(
        """
with T.sblock("copy", reads=[A[0:90, 0:128]], writes=[tile[0 : T.min(8, 90 - bx * 8), 0:64]],
    async_op="bulk_load"):
    for i in range(T.min(8, 90 - bx * 8)):
        T.call_extern("int32", "tvm_hopper.bulk_load", T.address_of(tile[i, 0]),
            T.address_of(A[bx * 8 + i, 0]), 128)
""",
        where("bx * 8 + i < 90"),
    )


TAIL = """
with T.sblock("copy", reads=[line[0:64]], writes=[A[0:1000]], async_op="bulk_store"):
    if T.min(64, 1000 - bx * 64) * 2 > 0:
        T.ptx["cp.async.bulk.global.shared::cta.bulk_group"](T.address_of(A[bx * 64]),
            T.cuda.cvta_generic_to_shared(T.address_of(line[0])),
            T.Cast("uint32", T.bitwise_and(T.min(64, 1000 - bx * 64) * 2, 1048575)))
"""


def test_bytes_of_a_tail_are_counted_at_run_time():
    one = (
        ("(90, 128)", "(1000,)"),
        ("thread_binding(12", "thread_binding(16"),
        ("tile = T.sblock_alloc_buffer((8, 64)", "line = T.sblock_alloc_buffer((64,)"),
    )
    stored = (
        ("for i, j in T.grid(8, 64)", "for j in range(64)"),
        ("reads=[A[bx * 8 + i, j]]", "reads=[line[j]]"),
        ("writes=[tile[i, j]]", "writes=[A[bx * 64 + j]]"),
        ("tile[i, j] = A[bx * 8 + i, j]", "A[bx * 64 + j] = line[j]"),
        where("bx * 64 + j < 1000"),
    )
    becomes(TAIL, *one, *stored, head=one)


# -- by cp.async

BY_THREADS = ('"bulk"', '"cp_async"')
CHUNKS = """
with T.sblock("copy", reads=[A[0:90, 0:128]], writes=[tile[0:8, 0:64]], async_op="cp_async"):
    for chunk in T.serial(64, shared_out=1):
        T.call_extern("int32", "tvm_hopper.cp_async",
            T.address_of(tile[chunk // 8, chunk % 8 * 8]),
            T.address_of(A[bx * 8 + chunk // 8, chunk % 8 * 8]), 16, 16)
"""


def chunks_of(func) -> list[list]:
    """Return the arguments of the calls that copy chunks."""
    calls = ir.find_all(func.body, ir.Call, lambda x: x.op.name == "tirx.call_extern")
    return [list(x.args)[1:] for x in calls if x.args[0].value == "tvm_hopper.cp_async"]


def lowered(*changes: tuple[str, str]):
    """Lower a copy, and distribute its chunks over 32 threads, as LowerChannelsToMbarriers does."""
    func = run(parse(COPY, *changes, BY_THREADS), SwizzleSharedTiles(), LowerAsyncCopies())
    return shared_out(func, 32)


def shared_out(func, num_threads: int):
    thread = ir.thread_axes(func.body)["threadIdx.x"].loop_var
    return func.with_body(share_out(func.body, thread, num_threads))


def test_a_copy_by_cp_async_is_chunks_that_nobody_makes_yet():
    got = run(parse(COPY, BY_THREADS), LowerAsyncCopies())
    lines = "".join(" " * 16 + line + "\n" for line in CHUNKS.strip("\n").splitlines())
    check(got, parse(COPY, (NEST, lines)))


def test_a_producer_unrolls_few_of_its_turns():
    func = run(parse(COPY, BY_THREADS), LowerAsyncCopies())
    thread = ir.thread_axes(func.body)["threadIdx.x"].loop_var
    for most, want in ((None, {}), (2, {}), (1, {"pragma_unroll": 1})):
        (loop,) = ir.find_all(
            share_out(func.body, thread, 32, most), ir.For, lambda x: x.loop_var.name == "turn"
        )
        assert dict(loop.annotations) == want


def text_of_chunks(*changes: tuple[str, str]) -> list[str]:
    """Return where each chunk goes to and comes from, its bytes, and those that are read."""
    ((tile, tensor, size, source),) = chunks_of(lowered(*changes))
    return [str(x) for x in (tile.args[0], tensor.args[0], size, source)]


def test_threads_share_out_chunks_of_16_bytes():
    tile, tensor, size, source = text_of_chunks()
    assert (size, source) == ("16", "16")
    assert tile == "tile[turn * 4 + tx // 8, tx % 8 * 8]"
    assert tensor == "A[bx * 8 + turn * 4 + tx // 8, tx % 8 * 8]"


def test_what_a_bound_leaves_out_is_read_of_no_byte():
    *_, source = text_of_chunks(where("bx * 8 + i < 90"))
    assert source == "T.Select(bx * 8 + turn * 4 + tx // 8 < 90, 16, 0)"


def test_a_chunk_that_a_bound_cuts_is_filled_with_zeros_behind_it():
    *_, source = text_of_chunks(where("j < 61"))
    assert source == "T.min(8, 61 - tx % 8 * 8) * 2"


def test_a_chunk_that_a_bound_does_not_cut_is_whole_or_not():
    *_, source = text_of_chunks(where("j < 56"))
    assert source == "T.Select(tx % 8 < 7, 16, 0)"


@pytest.mark.parametrize(("offset", "size"), [(4, 8), (2, 4)])
def test_chunks_are_as_wide_as_every_start_allows(offset, size):
    _, _, got, _ = text_of_chunks(("A[bx * 8 + i, j]", f"A[bx * 8 + i, j + {offset}]"))
    assert int(got) == size


def test_threads_without_a_chunk_do_nothing():
    """48 chunks of 32 threads: the second turn is for half of them."""
    func = lowered(("(8, 64)", "(6, 64)"))
    (guard,) = ir.find_all(func.body, ir.IfThenElse)
    assert str(guard.condition) == "turn * 32 + tx < 48"


SUM = """
def func(A: T.Buffer((64, 128), "float16"), acc: T.Buffer((16,), "float32")):
    for bx in T.thread_binding(1, thread="blockIdx.x"):
        for tx in T.thread_binding(128, thread="threadIdx.x"):
            with T.sblock("kernel", reads=[], writes=[]):
                tile = T.sblock_alloc_buffer((64, 64), "float16", scope="shared.dyn")
                for i, j in T.grid(64, 64):
                    with T.sblock("copy", async_copy="cp_async", swizzle=128):
                        tile[i, j] = A[i, j]
"""


def test_a_swizzle_moves_chunks_and_what_reads_them():
    """Row 5 of 128 bytes: chunk 2 is where 7 was; a reader of one element finds it."""
    reader = "                acc[0] = T.Cast('float32', tile[5, 21])\n"
    got = shared_out(run(parse(SUM + reader), SwizzleSharedTiles(), LowerAsyncCopies()), 128)
    ((tile, *_),) = chunks_of(got)
    at = {"tx": 5 * 8 + 2, "turn": 0}
    indices = [evaluate(x, at) for x in tile.args[0].indices]
    assert indices == [0, 5, (2 ^ 5) * 8]
    (load,) = [x for x in ir.find_all(got.body, ir.TensorLoad) if x.source.name == "tile"][-1:]
    assert [evaluate(x, {}) for x in load.indices] == [0, 5, (2 ^ 5) * 8 + 5]


def evaluate(index, at: dict[str, int]) -> int:
    """Return the value of an index where variables have values: TVM's simplifier folds no bits."""
    names = {x: tirx.IntImm("int32", at[x.name]) for x in ir.find_all(index, ir.Var)}
    return _value(ir.substitute(index, names))


def _value(expr) -> int:
    if isinstance(expr, tirx.IntImm):
        return int(expr)
    return VALUES[type(expr).__name__](_value(expr.a), _value(expr.b))


VALUES = {
    "BitwiseXor": operator.xor,
    "Add": operator.add,
    "Sub": operator.sub,
    "Mul": operator.mul,
    "FloorDiv": operator.floordiv,
    "FloorMod": operator.mod,
}
