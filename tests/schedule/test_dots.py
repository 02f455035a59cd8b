"""Dot products of few rows: when they are chosen, what serves them, what is refused."""

import pytest
from tvm import s_tir

import tvm_hopper
from tests.schedule.programs import module, product, tensor
from tests.schedule.refuse import refuse
from tvm_hopper import ir, schedule as hs
from tvm_hopper.errors import ScheduleError
from tvm_hopper.requests import keys
from tvm_hopper.requests.targets import chip_of_target
from tvm_hopper.schedule.products import few_rows
from tvm_hopper.schedule.products.dot_choice import choose_shape
from tvm_hopper.schedule.products.dot_shape import MOST_ROWS, DotShape
from tvm_hopper.schedule.products.wide_sums import widen_product
from tvm_hopper.testing import workloads

TARGET = "nvidia/nvidia-h200"
SHAPE = hs.DotShape(32, 4, 1, 4)


def kinds(mod, config=None, **options):
    """Return for each kernel of a scheduled product whether it computes dot products."""
    sch = s_tir.Schedule(mod)
    hs.matmul(sch, "C", config, **options)
    axes = [ir.thread_axes(kernel)["blockIdx.x"] for kernel in ir.kernels(sch.mod["main"])]
    return [axis.annotations.get(keys.MEMORY_BOUND) == keys.DOT_PRODUCTS for axis in axes]


@pytest.mark.parametrize(
    ("m", "layout", "config", "chosen"),
    [
        (1, "NT", None, True),
        (1, "NT", hs.MatmulConfig(accumulate="float32"), True),
        (1, "NN", None, False),
        (16, "NT", None, False),
        (1, "NT", hs.MatmulConfig(form="tiles"), False),
        (1, "NT", hs.MatmulConfig(batch_invariant=True), False),
        (1, "NT", hs.MatmulConfig((64, 64, 64)), False),
        (1, "NT", hs.MatmulConfig(raster=1), False),
        (MOST_ROWS, "NT", hs.MatmulConfig(form="dots"), True),
    ],
)
def test_what_becomes_dot_products(m, layout, config, chosen):
    assert kinds(workloads.matmul(m, 4096, 4096, layout), config) == [chosen]


def test_a_part_of_a_tensor_goes_to_tensor_cores():
    a = tensor(1, 512, dtype="float16", name="A")
    b = tensor(64, 1024, dtype="float16", name="B")
    c = product(a, b, shape=(1, 64, 512), right=lambda j, k: (j, k + 256))
    mod = module(a, b, c)
    assert kinds(mod) == [False]
    refuse(mod, "found an operand that is a part of a tensor", config=hs.MatmulConfig(form="dots"))


def test_symbolic_rows_have_a_class_of_them_where_it_pays():
    bounds = hs.choose_classes(28672, 4096)
    assert bounds[0] <= 2
    first, *rest = kinds(workloads.matmul("m", 28672, 4096))
    assert first
    assert rest
    assert not any(rest)
    invariant = hs.choose_classes(28672, 4096, given=hs.MatmulConfig(batch_invariant=True))
    assert invariant[0] > 2


@pytest.mark.parametrize("m", [1, "m"])
def test_what_they_cannot_do_is_left_to_tiles(monkeypatch, m):
    def fail(*_):
        raise ScheduleError("block C: found something odd; need something else")

    mod = workloads.matmul(m, 512, 1024)
    assert kinds(mod)[0]
    monkeypatch.setattr(few_rows, "apply_dots", fail)
    monkeypatch.setattr(few_rows, "apply_direct", fail)
    assert not any(kinds(mod))
    with pytest.raises(ScheduleError, match="something odd"):
        kinds(mod, hs.MatmulConfig(form="dots"), **{} if m == 1 else {"rows": 1})


@pytest.mark.parametrize(
    ("n", "k", "shape"),
    [
        (4096, 4096, (128, 1, 1, 4)),  # all of a sum in flight
        (4096, 14336, (256, 1, 1, 7)),
        (4096, 2560, (160, 1, 1, 2)),  # 320 vectors, which 128 threads cannot share alike
        (3000, 1000, (64, 2, 1, 2)),
        (6144, 2112, (96, 1, 1, 3)),  # 264 vectors: 128 threads would have room for 384
        (9, 64, (32, 4, 1, 1)),
        (128, 29440, (1024, 1, 1, 4)),  # fewer sums than SMs
        (4096, 40000, (256, 1, 1, 10)),  # in two steps
    ],
)
def test_how_a_sum_is_dealt_out(n, k, shape):
    assert choose_shape(1, n, k, "float16", chip_of_target()) == DotShape(*shape)


def test_explain_says_how_and_what_came_after():
    sch = s_tir.Schedule(workloads.matmul(1, 4096, 4096))
    hs.matmul(sch, "C")
    told = str(tvm_hopper.explain(sch, TARGET))
    assert "dot products: 128 threads a sum" in told
    assert "us by estimate; then 64x8x" in told
    one = s_tir.Schedule(workloads.matmul("m", 4096, 4096))
    hs.matmul(one, "C", hs.MatmulConfig(form=SHAPE), rows=1)
    told = str(tvm_hopper.explain(one, TARGET))
    assert "chosen for" in told
    assert "1 row," in told


def test_explain_says_what_a_promise_costs():
    sch = s_tir.Schedule(workloads.matmul(1, 4096, 4096))
    hs.matmul(sch, "C", hs.MatmulConfig(batch_invariant=True))
    told = str(tvm_hopper.explain(sch, TARGET))
    assert "without batch_invariant: dot products: 9." in told


@pytest.mark.parametrize(
    ("form", "match"),
    [
        ({"m": 9}, "found 9 rows; need at most 8, or a size class"),
        ({"m": "m"}, "found m rows; need at most 8"),
        ({"layout": "NN"}, "found B with rows that do not run along k; need A"),
        ({"n": "n"}, "found N = n, symbolic; need static N and K"),
        ({"k": 8 * workloads.ir.Var("q", "int32")}, "found K = .*, symbolic; need static"),
    ],
)
def test_what_cannot_be_served_is_refused_where_it_was_asked_for(form, match):
    mod = workloads.matmul(**{"m": 1, "n": 64, "k": 512} | form)
    refuse(mod, match, config=hs.MatmulConfig(form=SHAPE))


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ((16, 2, 1, 4), "2 groups of 16 threads; need whole warps"),
        ((1024, 2, 1, 4), "2 groups of 1024 threads; need whole warps"),
        ((32, 1, 9, 4), "DotShape: found columns=9; need at most 8"),
        ((32, 1, 1, "4"), "DotShape: found vectors='4'; need an int"),
    ],
)
def test_shapes_that_are_none(given, match):
    with pytest.raises(ScheduleError, match=match):
        hs.DotShape(*given)


def test_a_sum_is_widened_and_rounded_behind_it():
    form = {"acc_dtype": "float16", "cast": "none", "out_dtype": "float16"}
    sch = s_tir.Schedule(workloads.matmul(1, 8, 64, **form, epilogue=("scale",)))
    block = widen_product(sch, sch.get_sblock("C"))
    text = sch.mod.script()
    assert ir.dtype_of(sch.get(block).writes[0].source) == "float32"
    assert 'T.Cast("float32", A[v_i0, v_k]) * T.Cast("float32", B[v_i1, v_k])' in text
    assert 'T.Cast("float16", C_global_wide[v0, v1])' in text
    assert "* T.float16(0.125)" in text  # what is behind it stays in its own type
