"""narrow_indices: the place of a maximum waits in 32 bits."""

import pytest
import tvm
from tvm import s_tir, te, tirx, topi

from tests.transforms.scripts import check, parse, run
from tvm_hopper import schedule as hs, verify
from tvm_hopper.transforms.reductions.narrow_indices import narrow_indices

BEFORE = """
def func(X: T.Buffer((8, 256), "float32"), Y: T.Buffer((8,), "int64")):
    for bx in T.thread_binding(8, thread="blockIdx.x", memory_bound="row_reduction"):
        for tx in T.thread_binding(32, thread="threadIdx.x"):
            with T.sblock("", reads=[X[bx, 0:256]], writes=[Y[bx]]):
                place = T.sblock_alloc_buffer((1,), "int64", scope="local")
                most = T.sblock_alloc_buffer((1,), scope="local")
                place[0] = T.int64(-1)
                for v in T.unroll(8):
                    with T.sblock("most"):
                        chosen: T.let[T.int64] = T.Select(
                            place[0] < FIRST, place[0], FIRST
                        )
                        place[0] = chosen
                with T.sblock("across"):
                    T.attr(
                        T.comm_reducer(
                            lambda p, x, q, y: (
                                T.Select(T.Or(x > y, T.And(x == y, p < q)), p, q),
                                T.max(x, y),
                            ),
                            [T.int64(-1), T.float32(-1)],
                        ),
                        "reduce_scope",
                        T.int32(0),
                    )
                    T.tvm_thread_allreduce(
                        T.uint32(2), place[0], most[0], T.bool(True), place[0], most[0], tx,
                        dtype="void",
                    )
                Y[bx] = T.max(place[0], T.int64(0))
"""
FIRST = 'T.Cast("int64", tx * 8 + v)'
NARROW = [
    ('(1,), "int64"', '(1,), "int32"'),
    ("place[0] = T.int64(-1)", "place[0] = -1"),
    ("T.let[T.int64]", "T.let[T.int32]"),
    ("FIRST", "tx * 8 + v"),
    ("[T.int64(-1), T.float32(-1)]", "[-1, T.float32(-1)]"),
    ("T.max(place[0], T.int64(0))", 'T.Cast("int64", T.max(place[0], 0))'),
]


def test_places_are_narrow():
    before = parse(BEFORE, ("FIRST", FIRST))
    check(run(before, narrow_indices), parse(BEFORE, *NARROW))


@pytest.mark.parametrize(
    "value", ["Y[bx]", 'T.Cast("int64", tx) * T.int64(2147483647)', "place[0] + T.int64(1)"]
)
def test_wider_values_stay(value):
    before = parse(BEFORE, ("FIRST", value))
    check(run(before, narrow_indices), before)


@pytest.mark.parametrize(
    ("shape", "dtype", "config"),
    [
        ((3, 64), "float16", None),
        ((5, 1001), "bfloat16", None),
        ((37, 64), "float32", hs.RowReductionConfig(8, 16, unroll=4)),
    ],
)
def test_the_place_of_a_maximum(shape, dtype, config):
    x = te.placeholder([tirx.IntImm("int64", n) for n in shape], dtype, "X")
    func = te.create_prim_func([x, topi.argmax(x, -1)]).with_attr("global_symbol", "main")
    mod = hs.widen_sums(tvm.IRModule({"main": func}))
    hs.row_reduction(sch := s_tir.Schedule(mod), config=config)
    assert verify(sch, against=mod).verdict == "clean"
