"""fuse_mean_and_variance: mean and squares are reduced in one exchange."""

import numpy as np
import pytest
from tvm import s_tir

from tests.transforms.scripts import check, check_other_kernel_stays, notes_of, parse, run
from tvm_hopper import ir, schedule as hs
from tvm_hopper.simulation import load, simulate, verify
from tvm_hopper.testing import memory_bound
from tvm_hopper.transforms.common.explain_notes import RemarkNote
from tvm_hopper.transforms.reductions.fuse_mean_and_variance import fuse_mean_and_variance
from tvm_hopper.transforms.reductions.fuse_mean_and_variance_plan import plan_moments

KERNEL = """
def func(X: T.Buffer((8, 512), "bfloat16"), Y: T.Buffer((8, 2), "float32")):
    for part in T.thread_binding(2, thread="blockIdx.z"):
        for rank in T.thread_binding(2, thread="clusterCtaIdx.z"):
            for bx in T.thread_binding(8, thread="blockIdx.x", memory_bound="row_reduction"):
                for tx in T.thread_binding(32, thread="threadIdx.x"):
                    with T.sblock("kernel"):
                        tile = T.sblock_alloc_buffer((8,), "bfloat16", scope="local")
                        S = T.sblock_alloc_buffer((1,), scope="local")
                        mean = T.sblock_alloc_buffer((1,), scope="local")
                        V = T.sblock_alloc_buffer((1,), scope="local")
                        for v in T.vectorized(8):
                            with T.sblock("load"):
                                tile[v] = X[bx, part * 256 + tx * 8 + v]
                        with T.sblock("sum"):
                            own = T.sblock_alloc_buffer((1,), scope="local")
                            all = T.sblock_alloc_buffer((1,), scope="local")
                            with T.sblock("init"):
                                own[0] = T.float32(0)
                            for v in T.unroll(8):
                                with T.sblock("update"):
                                    own[0] = own[0] + T.Cast("float32", tile[v])
                            with T.sblock("across"):
                                T.attr(T.comm_reducer(lambda x, y: x + y, [T.float32(0)]),
                                    "reduce_scope", 0)
                                T.tvm_thread_allreduce(T.uint32(1), own[0], T.bool(True), all[0],
                                    part, tx)
                            with T.sblock("back"):
                                S[0] = all[0]
                        with T.sblock("mean"):
                            mean[0] = S[0] / T.float32(512)
                        with T.sblock("squares"):
                            own = T.sblock_alloc_buffer((1,), scope="local")
                            all = T.sblock_alloc_buffer((1,), scope="local")
                            with T.sblock("init"):
                                own[0] = T.float32(0)
                            for w in T.unroll(8):
                                with T.sblock("update"):
                                    own[0] = own[0] + (T.Cast("float32",
                                        tile[w]) - mean[0]) * (T.Cast("float32",
                                        tile[w]) - mean[0])
                            with T.sblock("across"):
                                T.attr(T.comm_reducer(lambda x, y: x + y, [T.float32(0)]),
                                    "reduce_scope", 0)
                                T.tvm_thread_allreduce(T.uint32(1), own[0], T.bool(True), all[0],
                                    part, tx)
                            with T.sblock("back"):
                                V[0] = all[0]
                        with T.sblock("store"):
                            Y[bx, 0] = S[0]
                            Y[bx, 1] = V[0]
"""


def plan(*changes):
    return plan_moments(ir.kernels(parse(KERNEL, *changes))[0])


def test_a_pair_is_found():
    (one,) = plan()
    assert (one.of_thread, one.of_row) == (8, 512)


def test_one_reduction_is_left_which_keeps_two_values():
    after = run(parse(KERNEL), fuse_mean_and_variance)
    (call,) = ir.find_all(after.body, ir.Call, lambda x: x.op.name == "tirx.tvm_thread_allreduce")
    assert int(call.args[0]) == 2
    (note,) = notes_of(after)
    assert isinstance(note, RemarkNote)
    assert plan_moments(ir.kernels(after)[0]) == ()
    check_other_kernel_stays(parse(KERNEL), after, fuse_mean_and_variance)


@pytest.mark.parametrize(
    "change",
    [
        ("T.float32(512)", "T.float32(511)"),  # no mean of the row
        ("for tx in T.thread_binding(32", "for tx in T.thread_binding(96"),  # three groups
        (
            'in T.unroll(8):\n                                with T.sblock("update"):\n'
            "                                    own[0] = own[0] + (T",
            'in T.unroll(4):\n                                with T.sblock("update"):\n'
            "                                    own[0] = own[0] + (T",
        ),
        ('thread="clusterCtaIdx.z"', 'thread="blockIdx.y"'),  # no cluster
        (
            'own[0] + T.Cast("float32", tile[v])',
            'own[0] + T.Cast("float32", tile[v]) * T.float32(2)',
        ),
        ("- mean[0]) * (", "- mean[0]) + ("),
        ("own[0] + T.Cast", "own[0] * T.Cast"),
        ("mean[0] = S[0] / T.float32(512)", "mean[0] = S[0] + T.float32(512)"),
        (
            "mean[0] = S[0] / T.float32(512)",
            "mean[0] = S[0] / T.float32(512)\n                            tile[0] = T.bfloat16(0)",
        ),
    ],
    ids=["count", "threads", "elements", "cluster", "element", "square", "sum", "mean", "changed"],
)
def test_what_is_no_such_pair_stays(change):
    assert plan(change) == ()
    func = parse(KERNEL, change)
    check(run(func, fuse_mean_and_variance), func)


def _in_parts(index):
    """Load four elements of a thread at a time from shared memory, in front of what adds them."""
    return (
        f"""for {index} in T.unroll(8):
                                with T.sblock("update"):
                                    own[0] = """,
        f"""for c in range(2):
                              with T.sblock("part"):
                                for u in T.vectorized(4):
                                    with T.sblock("fill"):
                                        tile[u] = row[c * 128 + tx * 4 + u]
                                for {index} in T.unroll(4):
                                  with T.sblock("update"):
                                    own[0] = """,
    )


SHARED = (
    (
        "tile[v] = X[bx, part * 256 + tx * 8 + v]",
        "row[tx * 8 + v] = X[bx, part * 256 + tx * 8 + v]",
    ),
    (
        "tile = T",
        'row = T.sblock_alloc_buffer((256,), "bfloat16", scope="shared.dyn")\n'
        + " " * 24
        + "tile = T",
    ),
    _in_parts("v"),
    _in_parts("w"),
)


def test_rows_that_wait_in_shared_memory():
    (one,) = plan(*SHARED)
    assert (one.of_thread, one.of_row) == (8, 512)
    after = run(parse(KERNEL, *SHARED), fuse_mean_and_variance)
    assert after.script().count("tvm_thread_allreduce") == 1


def test_halves_that_wait_in_shared_memory_stay():
    assert plan(*SHARED, ("bfloat16", "float16")) == ()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("row[c * 128 + tx * 4 + u]", "row[c * 64 + tx * 4 + u]"),  # other elements than the sum's
        ("tile[u] = row", "tile[7 - u] = row"),  # not the register that is read
    ],
)
def test_squares_of_other_elements_stay(old, new):
    index, parts = _in_parts("w")
    assert old in parts
    assert plan(*SHARED[:3], (index, parts.replace(old, new))) == ()


def scheduled(count, columns, dtype="float32", **config):
    sch = s_tir.Schedule(memory_bound.layer_norm(count, columns, dtype))
    hs.row_reduction(sch, config=hs.RowReductionConfig(**config))
    return sch


def normalized(x, **config):
    """Return the rows that a LayerNorm of a cluster makes of others, without weights."""
    count, columns = x.shape
    one, zero = np.ones(columns, "float32"), np.zeros(columns, "float32")
    result = simulate(load(scheduled(count, columns, **config)), {"X": x, "W": one, "B": zero})
    assert not result.findings
    return result.outputs["Y"]


CLUSTER = {"threads": 32, "rows": 1, "cluster": 4}


@pytest.mark.parametrize("more", [{}, {"rows": 2, "stage": True, "chunks": 1, "preload": True}])
def test_a_mean_far_above_what_is_around_it(more):
    """The squares of the sums of threads would cancel out."""
    x = (np.random.default_rng(2).standard_normal((4, 1024)) + 4096).astype("float32")
    wide = x.astype("float64")
    want = (wide - wide.mean(1, keepdims=True)) / np.sqrt(wide.var(1, keepdims=True) + 1e-5)
    assert np.abs(normalized(x, **CLUSTER | more) - want).max() < 2e-3


def test_rows_with_infinities_and_without_numbers():
    x = np.zeros((3, 1024), "float32")
    x[0, 5], x[1, 900] = np.inf, np.nan
    found = normalized(x, **CLUSTER)
    assert np.isnan(found[:2]).all()
    assert not found[2].any()


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("threads", [64, 32, 256])
def test_verified_clean(threads):
    """Of 4, 8 and 32 values that warps of a cluster have sent."""
    config = CLUSTER | {"threads": threads}
    sch = scheduled(2, threads * 4 * 8, "bfloat16", **config)
    verify(sch, against=memory_bound.layer_norm(2, threads * 4 * 8)).require_clean()


@pytest.mark.parametrize("form", ["S[0] / T.float32(512)", "S[0] * T.float32(0.001953125)"])
def test_a_mean_that_nothing_keeps_is_that_of_a_thread_too(form):
    """The row's sum has not been made where the squares are added up."""
    after = run(parse(KERNEL, ("- mean[0]", f"- {form}")), fuse_mean_and_variance)
    (back, _) = ir.find_all(after.body, ir.BufferStore, lambda x: x.buffer.name in ("S", "V"))
    own = ir.find_all(after.body, ir.BufferStore, lambda x: x.buffer.name == "own")
    assert len(own) == 4
    assert not any(ir.uses_node(x, back.buffer) for x in own)


def test_a_layer_norm_without_a_block_for_the_mean():
    sch = s_tir.Schedule(memory_bound.layer_norm(2, 1024))
    sch.compute_inline("mean")
    hs.row_reduction(sch, config=hs.RowReductionConfig(**CLUSTER))
    verify(sch, against=memory_bound.layer_norm(2, 1024)).require_clean()
