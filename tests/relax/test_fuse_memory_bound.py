"""Memory-bound calls that become one kernel, and those that stay several."""

import pytest
import tvm
from tvm import relax
from tvm.target import Target

from tests.relax import models
from tvm_hopper.dlight import rule
from tvm_hopper.relax import call_groups, fuse_memory_bound, report
from tvm_hopper.relax.keep_records import records_of
from tvm_hopper.relax.records import OURS
from tvm_hopper.testing.relax_forms import model_of

op = relax.op
N = 128


def model(body):
    """Return a model of rows of two tensors and one weight."""
    shapes = ("b", "s", N), ("b", "s", N), (N,)
    return model_of(body, *((x, "float16") for x in shapes), takes_builder=True)


def residual(builder, x, y, w):
    s = builder.emit(op.add(x, y))
    return relax.Tuple([s, builder.emit(op.nn.rms_norm(s, w, [-1]))])


def post_norm(builder, x, y, w):
    s = builder.emit(op.multiply(op.add(x, y), x))
    return builder.emit(op.nn.layer_norm(s, w, w, [-1]))


def twice(builder, x, y, w):
    s = builder.emit(op.add(x, y))
    one = builder.emit(op.nn.rms_norm(s, w, [-1]))
    return relax.Tuple([one, builder.emit(op.nn.softmax(s, -1))])


def late(builder, x, y, w):
    s = builder.emit(op.add(x, y))
    scale = builder.emit(op.exp(w))  # made after the sum, and read with it
    return builder.emit(op.nn.rms_norm(s, scale, [-1]))


def other_shape(builder, x, y, w):
    s = builder.emit(op.add(x, y))
    return relax.Tuple([s, builder.emit(op.sum(s, -1))])


def quantized(builder, x, y, w):
    s = builder.emit(op.astype(op.multiply(x, y), "float32"))
    largest = builder.emit(op.max(op.abs(s), -1, keepdims=True))
    scale = builder.emit(op.divide(op.add(largest, relax.const(1e-6)), relax.const(127.0)))
    return relax.Tuple([scale, builder.emit(op.astype(op.round(op.divide(s, scale)), "int8"))])


def log_sum_exp(builder, x, y, w):
    s = builder.emit(op.astype(op.add(x, y), "float32"))
    largest = builder.emit(op.max(s, -1, keepdims=True))
    total = builder.emit(op.sum(op.exp(op.subtract(s, largest)), -1, keepdims=True))
    return builder.emit(op.add(op.log(total), largest))


def permuted(builder, x, y, w):
    return builder.emit(op.permute_dims(builder.emit(op.nn.rms_norm(x, w, [-1])), [1, 0, 2]))


def two_readers(builder, x, y, w):
    s = builder.emit(op.multiply(x, y))
    return relax.Tuple([builder.emit(op.nn.silu(s)), builder.emit(op.tanh(op.add(s, w)))])


FUSED = {  # what is read, and how many tensors the one function has
    "residual": (residual, 5),
    "post_norm": (post_norm, 4),
    "twice": (twice, 5),
    "late": (late, 4),
    "other_shape": (other_shape, 4),
    "quantized": (quantized, 4),
    "log_sum_exp": (log_sum_exp, 3),
    "permuted": (permuted, 3),
    "two_readers": (two_readers, 5),
}


@pytest.mark.sampled(every=6)
@pytest.mark.parametrize("name", FUSED)
def test_one_kernel(name):
    body, tensors = FUSED[name]
    mod = model(body)
    done = models.schedule(mod)
    (fused,) = [x for x in records_of(done) if x.computed_by == OURS]
    assert len(fused.tensors) == tensors
    assert models.check_values(done, models.plain_functions(mod), (3,)) == 1


def product(builder, x, y, w):
    matrix = builder.emit(op.multiply(op.reshape(w, (N, 1)), op.reshape(w, (1, N))))
    s = builder.emit(op.add(x, op.matmul(y, matrix)))
    return relax.Tuple([s, builder.emit(op.nn.rms_norm(s, w, [-1]))])


def turned(builder, x, y, w):
    s = builder.emit(op.permute_dims(op.add(x, y), [1, 0, 2]))
    return builder.emit(op.nn.rms_norm(s, w, [-1]))


def single_row(builder, x, y, w):
    s = builder.emit(op.add(x, y))
    return builder.emit(op.matmul(s, op.broadcast_to(w, (N, N)), out_dtype="float32"))


@pytest.mark.parametrize("body", [product, turned, single_row], ids=lambda x: x.__name__)
def test_two_kernels(body):
    mod = model(body)
    names = [x.name for x in report(mod, models.H200, classes=(16,)).functions]
    assert len(names) > 1
    joined = [x for x in names if "add" in x and ("norm" in x or "sum" in x or "matmul" in x)]
    assert not [x for x in joined if body is not product or "norm" in x]


def test_what_no_rule_takes_stays_two(monkeypatch):
    monkeypatch.setattr(fuse_memory_bound.dlight.RowReduction, "apply", lambda *_: None)
    assert len(models.plain_functions(model(residual))) == 2


def test_what_tvm_does_not_fuse_stays_two(monkeypatch):
    def fail(*_):
        raise tvm.error.InternalError("not these")

    monkeypatch.setattr(fuse_memory_bound, "fuse_group", fail)
    assert len(models.plain_functions(model(residual))) == 2


def graph(mod):
    """Return the calls of a model's one block."""
    mod = models.legalized(mod)
    func = mod["main"]
    return call_groups.CallGraph(func, func.body.blocks[0])


def around(builder, x, y, w):
    s = builder.emit(op.nn.softmax(x, -1))
    t = builder.emit(op.nn.softmax(s, -1))
    return builder.emit(op.nn.rms_norm(op.add(op.nn.softmax(t, -1), s), w, [-1]))


def test_a_group_is_convex():
    found = graph(model(around))
    first, between, last = 0, 1, 2
    assert last in found.readers[between]
    assert between in found.readers[first]
    assert not found.is_convex({first, last})
    assert found.is_convex({first, between, last})
    found.grow(lambda x: not x.var.same_as(found.bindings[between].var), lambda _: True)
    assert all(between not in x for x in found.members if len(x) > 1)
    order = [x.calls if isinstance(x, call_groups.CallGroup) else (x,) for x in found.order()]
    places = {x.var: i for i, some in enumerate(order) for x in some}
    for binding, needs in zip(found.bindings, found.needs, strict=True):
        assert all(places[found.bindings[i].var] <= places[binding.var] for i in needs)


def test_groups_of_other_shapes_are_other_functions():
    mod = model_of(
        lambda *given: [op.nn.softmax(op.nn.softmax(x, -1), -1) for x in given],
        *(((rows, N), "float16") for rows in (4, 8)),
    )
    found = graph(mod)
    found.grow(lambda x: "softmax" in str(x), lambda _: True)
    one, other = (x.key for x in found.groups())
    assert one != other


def test_what_is_fused_on_trial_is_scheduled_once(monkeypatch):
    """The lowering for a look is most of a small model's build."""
    seen, check = [], rule.check_function
    monkeypatch.setattr(rule, "check_function", lambda *x: (seen.append(x[0]), check(*x))[1])
    run = relax.get_pipeline("tvm_hopper", classes=models.CLASSES)
    with Target(models.H200):
        run(model(residual))
    assert len(seen) == 1
