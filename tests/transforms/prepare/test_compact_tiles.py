"""CompactTiles: static tiles of symbolic tensors, and extents that TVM left too large."""

import re

import pytest
from tvm import s_tir, te

from tests.transforms.scripts import check, parse, run
from tvm_hopper import ir, schedule as hs
from tvm_hopper.simulation import verify
from tvm_hopper.testing.tiling import product_of
from tvm_hopper.transforms.prepare.compact_tiles import CompactTiles, plan_tiles

KERNEL = """
def func(r: T.handle, d: T.handle):
    m = T.int64()
    R = T.match_buffer(r, (m, T.int64(64)), "float16")
    D = T.match_buffer(d, (m, T.int64(64)), "float16")
    for bx in T.thread_binding((m + T.int64(127)) // T.int64(128), thread="blockIdx.x"):
        for ty in T.thread_binding(T.int64(2), thread="threadIdx.y"):
            for part in range(T.int64(4)):
                with T.sblock("outer"):
                    T.reads(R[bx * T.int64(128) : bx * T.int64(128) + T.int64(128), 0:64])
                    T.writes(D[bx * T.int64(128) : bx * T.int64(128) + T.int64(128), 0:64])
                    tile = T.sblock_alloc_buffer((ROWS, T.int64(64)), "float16", scope="SCOPE")
                    for i, j in T.grid(T.int64(128), T.int64(64)):
                        with T.sblock("copy", where=bx * T.int64(128) + i < m,
                            reads=[R[bx * T.int64(128) + i, j]], writes=[tile[START + i, j]]):
                            tile[START + i, j] = R[bx * T.int64(128) + i, j]
                    for i, j in T.grid(T.int64(64), T.int64(64)):
                        with T.sblock("use", where=bx * T.int64(128) + ty * T.int64(64) + i < m,
                            reads=[tile[OTHER + ty * T.int64(64) + i, j]],
                            writes=[D[bx * T.int64(128) + ty * T.int64(64) + i, j]]):
                            D[bx * T.int64(128) + ty * T.int64(64) + i,
                                j] = tile[OTHER + ty * T.int64(64) + i, j]
"""
BASE = "bx * T.int64(128)"


def kernel(rows="m", start=BASE, other=None, scope="shared.dyn"):
    found = [("ROWS", rows), ("START", start), ("OTHER", other or start), ("SCOPE", scope)]
    return parse(KERNEL, *found)


def test_a_tile_begins_where_its_accesses_do():
    zero = "T.int64(0)"
    got = run(kernel(), CompactTiles())
    check(got, kernel("T.int64(128)", zero).with_attrs(dict(got.attrs)))
    (one,) = ir.kernels(got)
    assert plan_tiles(one) == ()


@pytest.mark.parametrize(
    "options",
    [
        {"rows": "T.int64(128)", "start": "T.int64(0)"},  # static already
        {"other": "bx * T.int64(64)"},  # two places
        {"start": "bx * T.int64(128) - T.int64(1)", "other": BASE},
        {"scope": "global"},
    ],
)
def test_what_stays(options):
    func = kernel(**options)
    assert run(func, CompactTiles()).same_as(func)


@pytest.mark.parametrize(
    ("scope", "other"), [("shared.dyn", None), ("local", "T.int64(0) - ty * T.int64(64)")]
)
def test_an_extent_that_is_larger_than_what_is_used(scope, other):
    got = run(kernel("T.int64(192)", "T.int64(0)", other, scope), CompactTiles())
    (tile,) = (x for block in ir.find_all(got.body, ir.SBlock) for x in block.alloc_buffers)
    assert [ir.static_int(x) for x in tile.shape] == [128, 64]


def test_registers_that_each_thread_has_at_another_place_stay():
    func = kernel("T.int64(192)", "T.int64(0)", scope="local")
    assert run(func, CompactTiles()).same_as(func)


def test_an_epilogue_with_a_condition_of_its_own():
    a, b, c = product_of(72, 72, 64)
    half = lambda i, j: te.if_then_else(j < 36, c[i, j], c[i, j] * 3)  # noqa: E731
    plain = te.create_prim_func([a, b, te.compute((72, 72), half, name="D")])
    sch = s_tir.Schedule(plain)
    hs.matmul(sch, "C", hs.MatmulConfig(tile=(64, 64, 64), stages=1))
    assert verify(sch, against=plain, runs=(("on_wait", 0),)).verdict == "clean"


def test_accesses_before_the_start_stay():
    start = "bx * T.int64(128) - i - i"
    func = kernel(start=start, other=BASE)
    assert run(func, CompactTiles()).same_as(func)


REGISTERS = """
def func(X: T.Buffer((8, 4096), "float16"), Y: T.Buffer((8, 4096), "float16")):
    for bx in T.thread_binding(8, thread="blockIdx.x"):
        for tx in T.thread_binding(256, thread="threadIdx.x"):
            with T.sblock("kernel"):
                part = T.sblock_alloc_buffer((2, 256, 8), "float16", scope="local")
                for c in T.unroll(2):
                    for v in T.vectorized(8):
                        with T.sblock("load", reads=[X[bx, c * 2048 + tx * 8 + v]],
                            writes=[part[c, tx, v]]):
                            part[c, tx, v] = X[bx, c * 2048 + tx * 8 + v]
                for c in T.unroll(2):
                    for v in T.vectorized(8):
                        with T.sblock("store", reads=[part[c, tx, v]],
                            writes=[Y[bx, c * 2048 + tx * 8 + v]]):
                            Y[bx, c * 2048 + tx * 8 + v] = part[c, tx, v]
"""
OF_A_THREAD = REGISTERS.replace("(2, 256, 8)", "(2, 1, 8)").replace(
    "part[c, tx, v]", "part[c, 0, v]"
)


@pytest.mark.parametrize("rows", ["2", "T.min(n, 2)"])
def test_registers_that_all_threads_were_counted_for(rows):
    sized = [("def func(", "def func(n: T.int32, "), ("(2, 256, 8)", f"({rows}, 256, 8)")]
    got = run(parse(REGISTERS, *sized), CompactTiles())
    check(got, parse(OF_A_THREAD, sized[0]))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("v] = part[c, tx, v]", "v] = part[c, 255 - tx, v]"),
        ("Y[bx, c * 2048 + tx * 8 + v] = part[c, tx, v]", "T.call_extern('int32', 'f', part.data)"),
    ],
)
def test_registers_that_stay(old, new):
    func = parse(REGISTERS, (old, new))
    assert run(func, CompactTiles()).same_as(func)


STEPS = """
def func(X: T.Buffer((4, 128), "float32"), Y: T.Buffer((4, 128), "float32")):
    for tx in T.thread_binding(32, thread="threadIdx.x"):
        with T.sblock("kernel"):
            part = T.sblock_alloc_buffer((4, 128), "float32", scope="local")
            for o in T.unroll(8):
                for v in T.vectorized(2):
                    with T.sblock("load", reads=[X[(FIRST) // 128, (FIRST) % 128]],
                        writes=[part[o // 2, (FIRST) % 128]]):
                        part[o // 2, (FIRST) % 128] = X[(FIRST) // 128, (FIRST) % 128]
            for o in T.unroll(8):
                for v in T.vectorized(2):
                    with T.sblock("store", reads=[part[SECOND // 128, SECOND % 128]],
                        writes=[Y[(FIRST) // 128, (FIRST) % 128]]):
                        Y[(FIRST) // 128, (FIRST) % 128] = part[SECOND // 128, SECOND % 128]
"""
FLAT = "o * 64 + tx * 2 + v"


def steps(second):
    return parse(STEPS, ("SECOND", f"({second})"), ("FIRST", FLAT))


def test_registers_of_a_fused_loop_have_an_axis_for_each_step():
    """The array of all threads was indexed by the thread: a stack frame of 2096 bytes."""
    own = [(x, "part[o, v]") for x in set(re.findall(r"part\[.*?\]", STEPS))]
    sized = 'buffer((4, 128), "float32", scope', 'buffer((8, 2), "float32", scope'
    check(run(steps(FLAT), CompactTiles()), parse(STEPS, *own, sized, ("FIRST", FLAT)))


@pytest.mark.parametrize(
    "second",
    [
        "o * 64 + tx * 2 + 1 - v",  # backwards
        "o * 64 + (31 - tx) * 2 + v",  # another thread's
        "o * 64 + tx + v * 32",  # in other steps
        "o % 4 * 128 + o // 4 * 64 + tx * 2 + v",  # in another order
        "o * 64 + tx * 2 + v * 0",  # of some elements alone
        "o * o + tx * 2 + v",  # in no steps
    ],
)
def test_registers_that_are_read_otherwise_stay(second):
    func = steps(second)
    assert run(func, CompactTiles()).same_as(func)
