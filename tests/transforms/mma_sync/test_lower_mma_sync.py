"""LowerMmaSync: lanes load what they multiply, and hold what they have summed."""

import pytest
from tvm import s_tir

from tests.transforms.scripts import check, parse, run
from tvm_hopper import ir, schedule as hs
from tvm_hopper.pipeline.run import lower
from tvm_hopper.testing import workloads
from tvm_hopper.testing.quantized import grouped_weight
from tvm_hopper.transforms import LowerMmaSync

# One warp, 8 rows of A, 16 columns of the output, 32 of the sum at once; K of A ends at 40.
BEFORE = """
def func(A: T.Buffer((8, 40), "float16"), B: T.Buffer((64, 64), "float16"),
    D: T.Buffer((8, 64), "float32")):
    for bx in T.thread_binding(4, thread="blockIdx.x"):
        for tx in T.thread_binding(32, thread="threadIdx.x"):
            with T.sblock("work", reads=[A[0:8, 0:40], B[bx * 16:bx * 16 + 16, 0:64]],
                writes=[D[0:8, bx * 16:bx * 16 + 16]]):
                own = T.sblock_alloc_buffer((8, 16), "float32", scope="local")
                A_local = T.sblock_alloc_buffer((8, 32), "float16", scope="local")
                B_local = T.sblock_alloc_buffer((16, 32), "float16", scope="local")
                for j, i in T.grid(8, 16):
                    with T.sblock("init", reads=[], writes=[own[j, i]]):
                        own[j, i] = T.float32(0)
                for k0 in range(2):
                    for i, k in T.grid(16, 32):
                        with T.sblock("B_local", reads=[B[bx * 16 + i, k0 * 32 + k]],
                            writes=[B_local[i, k]], load_hint="evict_first"):
                            B_local[i, k] = B[bx * 16 + i, k0 * 32 + k]
                    for j, k in T.grid(8, 32):
                        with T.sblock("A_local", reads=[A[j, k0 * 32 + k]],
                            writes=[A_local[j, k]]):
                            A_local[j, k] = T.if_then_else(
                                k0 * 32 + k < 40, A[j, k0 * 32 + k], T.float16(0))
                    with T.sblock("C", reads=[own[0:8, 0:16], A_local[0:8, 0:32],
                        B_local[0:16, 0:32]], writes=[own[0:8, 0:16]], mma_sync=1):
                        for j, i, k in T.grid(8, 16, 32):
                            own[j, i] = own[j, i] + (
                                T.Cast("float32", A_local[j, k]) * T.Cast("float32", B_local[i, k]))
                for j, i in T.grid(8, 16):
                    with T.sblock("D", reads=[own[j, i]], writes=[D[j, bx * 16 + i]]):
                        D[j, bx * 16 + i] = own[j, i]
"""
AFTER = """
def func(A: T.Buffer((8, 40), "float16"), B: T.Buffer((64, 64), "float16"),
    D: T.Buffer((8, 64), "float32")):
    for bx in T.thread_binding(4, thread="blockIdx.x"):
        for tx in T.thread_binding(32, thread="threadIdx.x"):
            with T.sblock("work", reads=[A[0:8, 0:40], B[bx * 16:bx * 16 + 16, 0:64]],
                writes=[D[0:8, bx * 16:bx * 16 + 16]]):
                own = T.sblock_alloc_buffer((4,), "float32", scope="local", align=16)
                A_local = T.sblock_alloc_buffer((8,), "float16", scope="local", align=16)
                B_local = T.sblock_alloc_buffer((16,), "float16", scope="local", align=16)
                for h in T.serial(2, pragma_unroll=2):
                    for p in T.serial(2, pragma_unroll=2):
                        with T.sblock("init", reads=[], writes=[own[0:4]]):
                            own[h * 2 + p] = T.float32(0)
                for k0 in range(2):
                    for h in T.serial(2, pragma_unroll=2):
                        for v in T.vectorized(8):
                            with T.sblock("B_local", reads=[B[bx * 16 + h * 8 + tx // 4,
                                k0 * 32 + tx % 4 * 8 + v]], writes=[B_local[h * 8 + v]],
                                load_hint="evict_first"):
                                B_local[h * 8 + v] = (B[bx * 16 + h * 8 + tx // 4,
                                    k0 * 32 + tx % 4 * 8 + v])
                    if k0 * 4 + tx % 4 < 5:
                        for v in T.vectorized(8):
                            with T.sblock("A_local", reads=[A[tx // 4, k0 * 32 + tx % 4 * 8 + v]],
                                writes=[A_local[v]]):
                                A_local[v] = A[tx // 4, k0 * 32 + tx % 4 * 8 + v]
                    else:
                        for v in T.vectorized(8):
                            with T.sblock("A_local", reads=[], writes=[A_local[v]]):
                                A_local[v] = T.float16(0)
                    with T.sblock("C", reads=[own[0:4], A_local[0:8], B_local[0:16]],
                        writes=[own[0:4]]):
                        b = T.decl_buffer((8,), "uint32", data=B_local.data, scope="local")
                        a = T.decl_buffer((4,), "uint32", data=A_local.data, scope="local")
                        for s in T.serial(2, pragma_unroll=2):
                            T.ptx["mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"](own[0],
                                own[1], own[2], own[3], b[2 * s], b[4 + 2 * s], b[2 * s + 1],
                                b[4 + 2 * s + 1], a[2 * s], a[2 * s + 1], own[0], own[1], own[2],
                                own[3])
                for h in T.serial(2, pragma_unroll=2):
                    for p in T.serial(2, pragma_unroll=2):
                        with T.sblock("D", reads=[own[0:4]],
                            writes=[D[tx % 4 * 2 + p, bx * 16 + (h * 8 + tx // 4)]]):
                            D[tx % 4 * 2 + p, bx * 16 + (h * 8 + tx // 4)] = own[h * 2 + p]
"""


def simplified(func):
    """Bring indices that the pass leaves as it made them to one form."""
    import tvm

    return tvm.s_tir.transform.StmtSimplify()(tvm.IRModule({"main": func}))["main"]


def test_lanes_load_what_they_multiply():
    check(simplified(run(parse(BEFORE), LowerMmaSync())), simplified(parse(AFTER)))


def test_a_kernel_without_such_a_product_stays():
    func = parse(BEFORE, (", mma_sync=1", ""))
    assert run(func, LowerMmaSync()).same_as(func)


def decoded(k):
    """Return the function behind the pass whose lanes decode weights of 4 bits."""
    sch = s_tir.Schedule(grouped_weight(5, 64, k))
    hs.matmul(sch, "C", hs.MatmulConfig(form=hs.DirectShape(2, 16, 128)))
    return lower(sch.mod, "nvidia/nvidia-h200", until="tvm_hopper.LowerMmaSync")["main"]


@pytest.mark.parametrize("k", [512, 384])
def test_lanes_decode_what_they_load(k):
    """32 neighbours of a row each, in four words; a warp skips what is beyond the sum."""
    body = decoded(k).body
    vectors = {
        str(x.source.name): int(loop.extent)
        for loop in ir.find_all(body, ir.For, lambda x: x.kind == ir.ForKind.VECTORIZED)
        for x in ir.find_all(loop, ir.TensorLoad)
    }
    assert vectors == {"W": 4, "X": 8}
    (product,) = (x for x in ir.find_all(body, ir.SBlock) if "_update_o" in x.name_hint)
    assert "nibbles_apart_float16" in str(product), "two neighbours of both halves of a word"
    guards = ir.find_all(product.body, ir.IfThenElse)
    assert len(guards) == (k % 256 != 0)
    assert not any(ir.uses(x.condition, lane) for x in guards for lane in lanes_of(body))


def lanes_of(body):
    return [x.loop_var for name, x in ir.thread_axes(body).items() if name == "threadIdx.x"]


def loads(layout, k=64, m=8):
    """Return the widths of the loads of A and of B, as loops, behind the pass."""
    sch = s_tir.Schedule(workloads.matmul(m, 64, k, layout, "float16", "float16"))
    hs.matmul(sch, "C", hs.MatmulConfig(form="direct"))
    func = lower(sch.mod, "nvidia/nvidia-h200", until="tvm_hopper.LowerMmaSync")["main"]
    found = {}
    for loop in ir.find_all(func.body, ir.For, lambda x: isinstance(x.body, ir.SBlockRealize)):
        for load in ir.find_all(loop, ir.TensorLoad):
            if load.source.name in "AB":
                found[str(load.source.name)] = (int(loop.extent), ir.ForKind(loop.kind).name)
    return found


def test_rows_that_begin_anywhere_are_loaded_by_elements():
    got = run(parse(BEFORE, ("(8, 40)", "(8, 41)"), ("k < 40", "k < 41")), LowerMmaSync())
    (loop,) = ir.find_all(got.body, ir.For, lambda x: x.kind == ir.ForKind.UNROLLED)
    assert int(loop.extent) == 8
    assert "T.if_then_else(" in loop.script()


@pytest.mark.parametrize(
    ("layout", "k", "a", "b"),
    [
        ("NT", 64, (8, "VECTORIZED"), (8, "VECTORIZED")),
        ("NN", 64, (4, "VECTORIZED"), (8, "VECTORIZED")),
        ("TN", 64, (4, "UNROLLED"), (8, "VECTORIZED")),  # rows of A that run along m
        ("TT", 64, (8, "UNROLLED"), (8, "VECTORIZED")),
    ],
)
def test_how_operands_are_loaded(layout, k, a, b):
    assert loads(layout, k) == {"A": a, "B": b}
