"""Products with several axes of a kind: what becomes one, what is tiled, what lies outside."""

from dataclasses import replace

import numpy as np
import pytest
import tvm
from tvm import s_tir, te
from tvm.script import tirx as T
from tvm.target import Target

from tests.schedule.refuse import refuse
from tvm_hopper import schedule as hs
from tvm_hopper.requests.keys import BY_DEVICE
from tvm_hopper.schedule.products.branches import look_at
from tvm_hopper.simulation import simulate, verify
from tvm_hopper.testing.contractions import contraction, reference
from tvm_hopper.testing.workloads import make_inputs

SIZES = {"b": 2, "h": 3, "m": 50, "n": 24, "k": 40, "s": 20, "i": 2, "j": 3, "u": 1}
SMALL = hs.MatmulConfig(tile=(64, 64, 32), stages=2, consumers=1)

# A product, and what it becomes: rows, columns and depth of tiles, batch, sums over other axes.
FORMS = {
    "bmk,bnk->bmn": (50, 24, 40, 2, 1),
    "bmk,bkn->bmn": (50, 24, 40, 2, 1),
    "bmk,nk->bmn": (100, 24, 40, 1, 1),  # one operand of the batch: rows
    "mk,bnk->bmn": (50, 24, 40, 2, 1),  # columns of a batch that C keeps apart
    "mk,bnk->mbn": (50, 48, 40, 1, 1),
    "bmhk,bnhk->bhmn": (50, 24, 40, 6, 1),  # [b, s, h, d]
    "bhmk,bhnk->bmhn": (50, 24, 40, 6, 1),  # the batch inside of the result
    "bmk,bnk->mnb": (50, 24, 40, 2, 1),
    "bshk,nhk->bsn": (40, 24, 120, 1, 1),  # two axes of the sum
    "bsk,hnk->bshn": (40, 72, 40, 1, 1),
    "mhk,hnk->mn": (50, 24, 40, 1, 3),  # the sum's axes lie apart in one operand
    "imk,jnk->ijmn": (50, 24, 40, 6, 1),
    "hmk,bhnk->bhmn": (50, 24, 40, 6, 1),  # an operand without one axis of the batch
    "imk,nk->mni": (50, 24, 40, 2, 1),  # rows that the result takes apart
    "bk,bnk->bn": (1, 24, 40, 2, 1),
    "bmk,k->bm": (1, 100, 40, 1, 1),
    "hk,nhk->n": (1, 24, 120, 1, 1),
    "bmk,bku->bmu": (50, 1, 40, 2, 1),  # a single column lies in memory as a row
    "bku,bnk->bun": (1, 24, 40, 2, 1),
}


def as_module(func):
    return tvm.IRModule({"main": func.with_attr("global_symbol", "main")})


def sizes_of(formula, **others):
    return {x: others.get(x, SIZES[x]) for x in formula if x.isalpha()}


def found(mod):
    sch = s_tir.Schedule(hs.normalize(mod))
    problem = look_at(sch, "C").problem
    deep = problem.depth // problem.k.extent
    return problem.m.extent, problem.n.extent, problem.k.extent, problem.batch, deep


@pytest.mark.parametrize("formula", FORMS)
def test_axes(formula):
    got = found(contraction(formula, sizes_of(formula)))
    want = FORMS[formula]
    assert sorted(got[:2]) == sorted(want[:2])
    assert got[2:] == want[2:]


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("formula", FORMS)
def test_values(formula):
    mod = contraction(formula, sizes_of(formula))
    sch = s_tir.Schedule(mod)
    hs.matmul(sch, "C", SMALL)
    a, b = make_inputs(mod)
    result = simulate(sch, {"A": a, "B": b})
    result.require_clean()
    np.testing.assert_array_equal(result.outputs["C"], reference(formula, a, b))


@pytest.mark.parametrize(
    ("formula", "names", "options"),
    [
        ("bmk,bnk->bmn", "b", {}),
        ("bmk,bnk->bmn", "bmn", {"persistent": 3}),
        ("bmk,nk->bmn", "bm", {}),
    ],
)
def test_symbolic_extents(formula, names, options):
    mod = contraction(formula, sizes_of(formula) | {x: f"{x}s" for x in names})
    sch = s_tir.Schedule(mod)
    hs.matmul(sch, "C", hs.MatmulConfig(tile=(64, 64, 32), stages=2, consumers=1, **options))
    a, b = make_inputs(mod, **{f"{x}s": SIZES[x] for x in names})
    result = simulate(sch, {"A": a, "B": b})
    result.require_clean()
    np.testing.assert_array_equal(result.outputs["C"], reference(formula, a, b))


@pytest.mark.parametrize(("batch", "depth"), [(7, 2224), (3, 64)])
def test_rows_that_come_in_multiples_have_classes_of_their_own(batch, depth):
    """No class of fewer rows than a batch has, and digits by a symbol in a class of five tiles."""
    mod = contraction("bmk,nk->bmn", {"b": batch, "m": "ms", "k": depth, "n": 64})
    sch = s_tir.Schedule(mod)
    with Target("nvidia/nvidia-h200"):
        hs.matmul(sch, "C")
    assert f"ms * {batch} <= 1:" not in sch.mod.script()
    tvm.compile(sch.mod, target="nvidia/nvidia-h200")


OPTIONS = [
    {"persistent": 3},
    {"split_k": 2},
    {"split_k": hs.SplitK(2, "serial")},
    {"split_k": "stream", "persistent": 3},
    {"schedule": "pingpong", "persistent": 2, "consumers": 2, "stages": 3},
    {"cluster": (2, 1)},
    {"form": "transposed"},
    {"store": "tma"},
]


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_options_of_a_batch(options):
    formula = "bmk,bnk->bmn"
    mod = contraction(formula, sizes_of(formula, m=72, n=72, k=128))
    sch = s_tir.Schedule(mod)
    config = {"tile": (64, 64, 32), "stages": 2, "consumers": 1} | options
    hs.matmul(sch, "C", hs.MatmulConfig(**config))
    a, b = make_inputs(mod)
    result = simulate(sch, {"A": a, "B": b})
    result.require_clean()
    np.testing.assert_array_equal(result.outputs["C"], reference(formula, a, b))


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("formula", ["bmk,bnk->bmn", "bmk,nk->bmn"])
def test_epilogues_are_verified(formula):
    """Rows that were merged leave and come by TMA as rows of one matrix."""
    add = lambda c, *i: te.max(c(*i), te.const(0, "float32")).astype("float16")  # noqa: E731
    mod = contraction(formula, sizes_of(formula, n=72), epilogue=add)
    sch = s_tir.Schedule(mod)
    hs.matmul(sch, "C", hs.MatmulConfig(tile=(64, 64, 32), stages=2, consumers=1, store="tma"))
    verify(sch, against=mod).require_clean()


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("formula", ["bk,bnk->bn", "bmk,k->bm", "bmk,uk->bmu", "imk,unk->iumn"])
def test_what_is_computed_of_a_product_that_lacks_an_axis(formula, batch):
    """A row of each batch element, a vector, a single column; a batch of one is a row."""
    half = lambda c, *i: (c(*i) * 2).astype("float16")  # noqa: E731
    sizes = sizes_of(formula, b=batch, i=batch, m="ms" if "i" in formula else SIZES["m"])
    mod = contraction(formula, sizes, epilogue=half)
    sch = s_tir.Schedule(mod)
    hs.matmul(sch, "C", SMALL)
    a, b = make_inputs(mod, ms=5)
    result = simulate(sch, {"A": a, "B": b})
    result.require_clean()
    np.testing.assert_array_equal(result.outputs["D"], 2 * reference(formula, a, b))


@T.prim_func(s_tir=True)
def strided(a: T.handle, b: T.handle, C: T.Buffer((2, 50, 24), "float32")):
    apart, row = T.int32(), T.int32()
    A = T.match_buffer(a, (2, 50, 40), "float16", strides=[apart, row, 1])
    B = T.match_buffer(b, (2, 24, 40), "float16", strides=[0, 48, 1])
    for u, i, j, k in T.grid(2, 50, 24, 40):
        with T.sblock("C"):
            vb, vi, vj, vk = T.axis.remap("SSSR", [u, i, j, k])
            with T.init():
                C[vb, vi, vj] = T.float32(0)
            C[vb, vi, vj] = C[vb, vi, vj] + T.Cast("float32", A[vb, vi, vk]) * T.Cast(
                "float32", B[vb, vj, vk]
            )


def test_strides_of_a_batch():
    mod = as_module(strided)
    sch = s_tir.Schedule(mod)
    hs.matmul(sch, "C", SMALL)
    memory = np.ones((2, 60, 48), "float16")
    verify(sch, {"A": memory[:, :50, :40]}, against=mod).require_clean()


def test_a_tensor_by_itself_in_a_batch():
    x = te.placeholder((2, 50, 40), "float16", name="X")
    k = te.reduce_axis((0, 40), "k")
    c = te.compute(
        (2, 50, 50),
        lambda b, i, j: te.sum(x[b, i, k].astype("float32") * x[b, j, k].astype("float32"), k),
        name="C",
    )
    mod = as_module(te.create_prim_func([x, c]))
    sch = s_tir.Schedule(mod)
    hs.matmul(sch, "C", SMALL)
    assert verify(sch, against=mod).verdict == "clean"


def test_an_output_element_for_two_rows_is_refused():
    @T.prim_func(s_tir=True)
    def halves(
        A: T.Buffer((64, 64), "float16"), B: T.Buffer((64, 64), "float16"),
        C: T.Buffer((32, 64), "float32"),
    ):  # fmt: skip
        for i, j, k in T.grid(64, 64, 64):
            with T.sblock("C"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                with T.init():
                    C[vi // 2, vj] = T.float32(0)
                C[vi // 2, vj] = C[vi // 2, vj] + T.Cast("float32", A[vi, vk]) * T.Cast(
                    "float32", B[vj, vk]
                )

    refuse(as_module(halves), r"block C: found the output index")


def test_merged_symbolic_rows_leave_by_threads():
    mod = contraction("bmk,nk->bmn", sizes_of("bmk,nk->bmn", m="ms"))
    match = (
        r'block C_shared.dyn: found ms, symbolic, .* with store="tma"; .*; leave store="tma" out'
    )
    refuse(mod, match, replace(SMALL, store="tma"))


def test_traces_replay():
    for formula in ("bmk,nk->bmn", "mhk,hnk->mn"):
        mod = contraction(formula, sizes_of(formula))
        sch = s_tir.Schedule(mod)
        hs.matmul(sch, "C", SMALL)
        again = s_tir.Schedule(mod)
        s_tir.Trace.apply_json_to_schedule(sch.trace.as_json(), again)
        assert str(again.mod) == str(sch.mod)


def test_a_batch_is_more_tiles():
    """Of one small product parts fill the chip, of many each is one tile of a persistent kernel."""
    one, many = (hs.choose_config(256, 256, 4096, batch=x) for x in (1, 256))
    assert one.parts > 1
    assert many.parts == 1
    assert one.persistent == 0
    assert many.persistent == BY_DEVICE
    few = hs.choose_config(64, 64, 64, batch=8)
    assert few.persistent == 0
    assert few.raster_group == 1
