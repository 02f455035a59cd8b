"""Rules take what is theirs, leave the rest to the next one, and say why."""

import itertools
import warnings

import pytest
import tvm
from tvm import relax, te, tirx
from tvm.s_tir import dlight as dl
from tvm.s_tir.dlight.base import ScheduleRule
from tvm.target import Target

import tvm_hopper
from tests.schedule.attention.programs import Case, program
from tvm_hopper import dlight, ir, schedule as hs
from tvm_hopper.dlight.collection import STOCK, GuardedRule
from tvm_hopper.dlight.rule import warn_of_generic_arch
from tvm_hopper.errors import ScheduleError
from tvm_hopper.requests import keys
from tvm_hopper.testing import gates, memory_bound, workloads
from tvm_hopper.testing.relax_forms import model_of

H200 = Target("nvidia/nvidia-h200")


def apply(mod, decisions, target=H200, **options):
    with target:
        return dl.ApplyDefaultSchedule(*dlight.rules(decisions, **options))(mod)


def taken(decisions):
    return {x.function: x.rule for x in decisions if x.taken}


def module(**functions):
    """Return one module of several, each named by its keyword."""
    return tvm.IRModule(
        {name: mod["main"].with_attr("global_symbol", name) for name, mod in functions.items()}
    )


def test_each_rule_takes_its_own():
    mod = module(
        product=workloads.matmul(128, 128, 64),
        norm=memory_bound.rms_norm(16, 256),
        gate=memory_bound.silu_mul(16, 256),
    )
    before, decisions = dict(mod.functions_items()), []
    out = apply(mod, decisions)
    assert taken(decisions) == {"product": "Matmul", "norm": "RowReduction", "gate": "Pointwise"}
    assert all(func.attrs["tirx.is_scheduled"] for func in out.functions.values())
    (kernel,) = ir.kernels(out["norm"])
    assert kernel.annotations[keys.MEMORY_BOUND] == keys.ROW_REDUCTION
    by_name = dlight.by_name(before, decisions)
    asked = [x.rule for x in by_name["gate"]]
    assert asked == ["Attention", "Matmul", "RowReduction", "ColumnReduction", "Pointwise"]
    assert by_name["norm"][0].reason == "not applicable"
    assert "no product" in by_name["norm"][1].reason


def test_attention_rounds_weights_if_it_may():
    case = Case(h=1, kv=1, n=128, m=128, d=64, v=64, rounded=False)
    for round_weights, reason in (
        (True, "weights in float16 instead of float32"),
        (False, "weights of float32, as the program multiplies them"),
    ):
        rule = dlight.Attention(round_weights=round_weights)
        sch = rule.apply(program(case)["main"], H200, False)
        assert (sch is not None) == round_weights
        assert reason in rule.decisions[-1].reason


def test_products_of_one_operand_are_one_kernel():
    decisions = []
    both = gates.products_of_one_operand(128, 64, 64)
    out = apply(module(gated=both, chain=chained_products()), decisions)
    assert taken(decisions) == {"gated": "Matmul", "chain": "dl.gpu.Fallback"}
    assert len(ir.find_blocks(out["gated"].body, keys.WGMMA)) == 2
    (reason,) = [x.reason for x in decisions if (x.function, x.rule) == ("chain", "Matmul")]
    assert "found the left operand A in C and C in D" in reason


def chained_products():
    """Return D = (A B^T) A^T."""
    a, b = (te.placeholder((64, 64), "float16", x) for x in "AB")

    def product(left, right, name):
        k = te.reduce_axis((0, 64), "k")
        return te.compute((64, 64), lambda i, j: te.sum(left[i, k] * right[j, k], [k]), name)

    c = product(a, b, "C")
    func = te.create_prim_func([a, b, product(c, a, "D")])
    return tvm.IRModule({"main": func})


def test_as_it_is_written_without_a_list():
    rules = [dlight.Matmul(), dlight.RowReduction(), dlight.Pointwise(), *dlight.stock()]
    with H200:
        dl.ApplyDefaultSchedule(*rules)(module(norm=memory_bound.rms_norm(16, 256)))
    assert [x.taken for rule in rules[:2] for x in rule.decisions] == [False, True]
    assert rules[3].decisions == []


def test_scheduled_functions_are_left_alone():
    func = workloads.matmul(128, 128, 64)["main"].with_attr("tirx.is_scheduled", True)
    decisions = []
    mod = tvm.IRModule({"main": func})
    assert apply(mod, decisions)["main"].same_as(func)
    for rule in dlight.rules(decisions):
        assert rule.apply(func, H200, False) is None
    assert {x.reason for x in decisions} == {"scheduled already"}


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_other_targets_are_left_to_tvm(arch):
    warn_of_generic_arch.cache_clear()
    target = Target({"kind": "cuda", "arch": arch}, host="llvm")
    func = memory_bound.rms_norm(16, 256)["main"]
    rules = [dlight.Matmul(), dlight.RowReduction(), dlight.Pointwise()]
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        assert [rule.apply(func, target, False) for rule in rules] == [None] * 3
    texts = [str(x.message) for x in found]
    assert len(texts) == (arch == "sm_90")
    assert all("WGMMA and setmaxnreg exist on sm_90a alone" in x for x in texts)
    assert rules[0].decisions[0].reason == f"target cuda {arch}; need cuda sm_90a"


@pytest.mark.parametrize(
    ("rule", "given", "match"),
    [
        ("Matmul", {"config": 3}, "Matmul: found config=3; need an hs.MatmulConfig or None"),
        ("Matmul", {"accumulate": "float64"}, "found accumulate='float64'; need one of 'float32'"),
        ("Matmul", {"classes": (64, 16)}, r"found classes=\(64, 16\); need ascending ints"),
        ("Matmul", {"batch_invariant": 1}, "found batch_invariant=1; need True, False or None"),
        ("RowReduction", {"config": 3}, "found config=3; need an hs.RowReductionConfig or None"),
        ("ColumnReduction", {"config": 3}, "need an hs.ColumnReductionConfig or None"),
        ("Pointwise", {"config": 3}, "Pointwise: found config=3; need an hs.PointwiseConfig or"),
        ("rules", {"config": 3}, "rules: found config=3; need one of hs.MatmulConfig, hs.Attent"),
    ],
)
def test_a_rule_says_at_once_what_it_cannot_take(rule, given, match):
    with pytest.raises(ScheduleError, match=match):
        getattr(dlight, rule)(**given)


def test_sums_in_16_bits():
    mod = workloads.matmul(128, 128, 64, out_dtype="float16", acc_dtype="float16")
    decisions = []
    apply(module(product=mod), decisions)
    assert decisions[-1].reason == "sums in float32 instead of float16"
    strict = dlight.Matmul(accumulate=None)
    assert strict.apply(mod["main"], H200, False) is None
    assert "found a sum in float16; need a sum in float32" in strict.decisions[0].reason


@pytest.mark.parametrize(
    "classes", [(16, 64), {16: hs.MatmulConfig(), 64: hs.MatmulConfig()}, {16: 16, 64: 64}]
)
def test_size_classes_are_handed_on(classes):
    mod = workloads.matmul("m", 128, 64, out_dtype="float16", acc_dtype="float16")
    rule = dlight.Matmul(classes=classes)
    sch = rule.apply(mod["main"], H200, False)
    assert len(ir.kernels(sch.mod["main"])) == 2
    assert rule.decisions[0].reason == "sums in float32 instead of float16"
    for sizes in ((64, 128, 64), ("m", "n", 64), (16, "n", 64)):  # none of these has classes
        func = workloads.matmul(*sizes)["main"]
        assert len(ir.kernels(rule.apply(func, H200, False).mod["main"])) == 1


def test_bits_that_do_not_depend_on_the_rows():
    deep = workloads.matmul(64, 64, 8192)["main"]
    free, fixed = (dlight.Matmul(batch_invariant=x).apply(deep, H200, False) for x in (False, True))
    assert "clusterIdx" in str(free.mod) or "cluster" in str(free.mod)
    assert "cluster" not in str(fixed.mod)


class Crashing(ScheduleRule):
    def apply(self, func, target, tunable):
        raise AssertionError("r_loops")


def test_a_crash_is_a_refusal():
    rule = GuardedRule(Crashing(), "Crashing")
    assert rule.apply(workloads.matmul(64, 64, 64)["main"], H200, False) is None
    assert rule.decisions[0].reason == "crashed: AssertionError r_loops"
    ours = dlight.Matmul()
    ours.schedule = Crashing().apply
    with pytest.warns(UserWarning, match=r"tvm_hopper.dlight.Matmul: crashed: TypeError"):
        assert ours.apply(workloads.matmul(64, 64, 64)["main"], H200, False) is None


def test_stock_rules_in_their_order():
    assert [type(rule.rule).__name__ for rule in dlight.stock()] == list(STOCK)


@pytest.mark.parametrize("rows", [4, 1 << 25])  # of 2^31 elements TVM's analysis cannot tell
def test_reshapes_are_left_to_relax(rows):
    mod = model_of(lambda x: relax.op.reshape(x, (rows * 64,)), ((rows, 64), "float16"))
    mod = relax.transform.LegalizeOps()(mod)
    (func,) = (f for f in mod.functions.values() if isinstance(f, tirx.PrimFunc))
    rule = dlight.Pointwise()
    if rows > 4:
        assert rule.apply(func, H200, False) is not None
        return
    assert rule.apply(func, H200, False) is None
    assert "found a reshape, which relax does without a kernel" in rule.decisions[0].reason


ORDERS = list(itertools.permutations(("Matmul", "RowReduction", "Pointwise", "stock")))


@pytest.mark.sampled(every=5)
@pytest.mark.parametrize("order", ORDERS, ids="-".join)
def test_rules_in_any_order(order):
    """The first rule that takes a function has it, and what comes out builds."""
    mod = module(
        product=workloads.matmul(64, 64, 64),
        norm=memory_bound.rms_norm(4, 256),
        gate=memory_bound.silu_mul(4, 256),
    )
    decisions = []
    own = {x: [getattr(dlight, x)(decisions=decisions)] for x in order if x != "stock"}
    rules = [rule for x in order for rule in own.get(x) or dlight.stock(decisions)]
    with H200:
        out = dl.ApplyDefaultSchedule(*rules)(mod)
    by = taken(decisions)
    for name, rule in (("product", "Matmul"), ("norm", "RowReduction"), ("gate", "Pointwise")):
        is_first = order.index(rule) < order.index("stock")
        assert by[name] == rule if is_first else by[name].startswith("dl.gpu."), name
    text = tvm_hopper.capture.cuda_sources(tvm.compile(out, target=H200))
    assert any("wgmma" in x for x in text) == (by["product"] == "Matmul")


def test_products_are_tried_in_several_ways():
    """TMA cannot store this tile, which is found where it is lowered: threads store it."""
    b, m, n, k = (tirx.IntImm("int64", x) for x in (32, 2048, 128, 2048))
    x, y = (te.placeholder(s, "float16", name) for s, name in (((b, m, k), "x"), ((b, k, n), "y")))
    over = te.reduce_axis((0, k), "k")
    product = te.compute(
        (b, m, n), lambda h, i, j: te.sum(x[h, i, over] * y[h, over, j], over), name="product"
    )
    rule = next(r for r in dlight.rules() if r.name == "Matmul")
    found = rule.apply(te.create_prim_func([x, y, product]), H200, False)
    assert found is not None, rule.decisions[0].reason


def test_attention_whose_bits_do_not_depend_on_the_batch():
    """Neither splits of keys nor packed heads follow from how many rows there are."""
    rule = next(x for x in dlight.rules(batch_invariant=True) if isinstance(x, dlight.Attention))
    assert (rule.config.consumers, rule.config.splits, rule.config.packs) == (2, 1, False)
