"""A gate's activation in the kernel of gate and up, and what stays two kernels."""

import numpy as np
import pytest
import tvm
from tvm import relax, s_tir

from tests.relax import models
from tvm_hopper import ir, schedule as hs
from tvm_hopper.relax import fuse_gates, report
from tvm_hopper.relax.keep_records import records_of
from tvm_hopper.relax.records import OURS
from tvm_hopper.simulation import simulate
from tvm_hopper.testing.relax_forms import model_of

op = relax.op
K, N = 64, 48


def model(body, *, dtype="float16", columns=2 * N, rows=("b", "s")):
    """Return a model of one product and what is behind it."""
    shapes = (*rows, K), (columns, K), (columns,)
    return model_of(body, *((shape, dtype) for shape in shapes), takes_builder=True)


def linear(builder, x, weight):
    return builder.emit(op.matmul(x, builder.emit(op.permute_dims(weight))))


def halves(builder, y):
    parts = builder.emit(op.split(y, 2, -1))
    return builder.emit(relax.TupleGetItem(parts, 0)), builder.emit(relax.TupleGetItem(parts, 1))


def silu(builder, x, weight, bias):
    gate, up = halves(builder, linear(builder, x, weight))
    return builder.emit(op.multiply(op.nn.silu(gate), up))


def other_way_round(builder, x, weight, bias):
    up, gate = halves(builder, linear(builder, x, weight))
    return builder.emit(op.multiply(up, op.nn.gelu_tanh(gate)))


def with_bias(builder, x, weight, bias):
    gate, up = halves(builder, builder.emit(op.add(linear(builder, x, weight), bias)))
    return builder.emit(op.multiply(op.sigmoid(gate), up))


def in_float32(builder, x, weight, bias):
    y = builder.emit(op.matmul(x, op.permute_dims(weight), out_dtype="float32"))
    gate, up = halves(builder, y)
    return builder.emit(op.astype(op.multiply(op.nn.silu(gate), up), "float16"))


def one_half(builder, x, weight, bias):
    gate, _ = halves(builder, linear(builder, x, weight))
    return builder.emit(op.nn.silu(gate))


def three(builder, x, weight, bias):
    parts = builder.emit(op.split(linear(builder, x, weight), 3, -1))
    gate, up, more = (builder.emit(relax.TupleGetItem(parts, i)) for i in range(3))
    return builder.emit(op.add(op.multiply(gate, up), more))


FUSED = {x.__name__: x for x in (silu, other_way_round, with_bias, in_float32, one_half, three)}


def reference(name, x, weight, *bias):
    """Return what a model computes, in float64."""
    y = x.astype("float64") @ weight.reshape(2 * N, K).astype("float64").T
    y = y + bias[0].astype("float64") if bias else y
    if name == "three":
        gate, up, more = np.split(y, 3, axis=1)
        return gate * up + more
    gate, up = y[:, :N], y[:, N:]
    if name == "one_half":
        return gate / (1 + np.exp(-gate))
    if name == "other_way_round":
        gate, up = up, gate
        return up * gate * 0.5 * (1 + np.tanh((2 / np.pi) ** 0.5 * (gate + 0.044715 * gate**3)))
    return up / (1 + np.exp(-gate)) * (1 if name == "with_bias" else gate)


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("name", FUSED)
def test_one_kernel(name):
    mod = model(FUSED[name])
    done = models.schedule(mod, classes=(16,))
    (record,) = records_of(done)
    assert record.computed_by == OURS
    assert record.product is not None
    assert record.kernels[0].configuration
    func = models.with_names_apart(done[record.name]).with_attr("global_symbol", "main")
    given = models.draw(func, 3)
    want = reference(name, *given.values())
    got = simulate(func, given, target=models.H200)
    assert got.findings == ()
    out = str(func.params[-1].name)
    error = np.linalg.norm(got.outputs[out] - want) / np.linalg.norm(want)
    assert error < 2e-3


@pytest.mark.parametrize("order", ["bshd", "bhsd"])
def test_rotary_embedding(order):
    """As importers write it, after a reshape: cos times x and sin times (-x2, x1)."""
    heads = {"b": 2, "s": 35, "h": 3, "d": 2 * N // 3}
    rng = np.random.default_rng(1)
    place = (2, 35, 1, heads["d"]) if order == "bshd" else (2, 1, 35, heads["d"])
    cos, sin = (rng.standard_normal(place).astype("float16") for _ in range(2))

    def rotary(builder, x, weight, bias):
        y = builder.emit(op.reshape(linear(builder, x, weight), [heads[a] for a in "bshd"]))
        y = y if order == "bshd" else builder.emit(op.permute_dims(y, [0, 2, 1, 3]))
        first, second = halves(builder, y)
        other = builder.emit(op.concat([op.negative(second), first], -1))
        turned = op.multiply(other, relax.const(sin))
        return builder.emit(op.add(op.multiply(y, relax.const(cos)), turned))

    done = models.schedule(model(rotary, rows=(2, 35)))
    (record,) = records_of(done)
    assert record.computed_by == OURS
    func = models.with_names_apart(done[record.name]).with_attr("global_symbol", "main")
    given = models.draw(func, 3)
    names = [x for x, y in given.items() if y.size == cos.size]
    given.update(
        zip(
            names,
            (y.reshape(given[x].shape) for x, y in zip(names, (cos, sin), strict=True)),
            strict=True,
        )
    )
    x, weight, *_ = given.values()
    y = (x.astype("float64") @ weight.astype("float64").T).reshape(2, 35, 3, -1)
    y = y if order == "bshd" else y.transpose(0, 2, 1, 3)
    other = np.concatenate(np.split(-y, 2, -1)[::-1], -1)
    other[..., N // 3 :] *= -1
    want = y * cos + other * sin
    got = simulate(func, given, target=models.H200)
    assert got.findings == ()
    out = got.outputs[str(func.params[-1].name)].reshape(want.shape)
    assert np.linalg.norm(out - want) < 2e-3 * np.linalg.norm(want)


@pytest.mark.parametrize("rows", [(1, 70), (130,), ("b", 1)])
def test_other_rows(rows):
    done = models.schedule(model(silu, rows=rows))
    (record,) = records_of(done)
    assert record.computed_by == OURS


def test_bfloat16():
    (record,) = records_of(models.schedule(model(silu, dtype="bfloat16")))
    assert record.computed_by == OURS


def read_twice(builder, x, weight, bias):
    y = linear(builder, x, weight)
    gate, up = halves(builder, y)
    return relax.Tuple([builder.emit(op.multiply(op.nn.silu(gate), up)), y])


def pairs(builder, x, weight, bias):
    y = linear(builder, x, weight)
    gate = builder.emit(op.strided_slice(y, [2], [0], [2 * N], [2]))
    up = builder.emit(op.strided_slice(y, [2], [1], [2 * N], [2]))
    return builder.emit(op.multiply(gate, up))


def turned(builder, x, weight, bias):
    gate, up = halves(builder, linear(builder, x, weight))
    return builder.emit(op.permute_dims(op.multiply(op.nn.silu(gate), up), [1, 0, 2]))


@pytest.mark.parametrize("body", [read_twice, pairs, turned], ids=lambda x: x.__name__)
def test_two_kernels(body):
    names = [x.name for x in report(model(body), models.H200, classes=(16,)).functions]
    assert len(names) > 1


def test_columns_that_are_no_eights():
    names = [x.name for x in report(model(silu, columns=88), models.H200, classes=(16,)).functions]
    assert len(names) == 2


@pytest.mark.parametrize("dtype", ["float32"])
def test_types_that_no_product_of_ours_has(dtype):
    found = report(model(silu, dtype=dtype), models.H200).functions
    assert len(found) == 2
    assert not any(x.product for x in found if x.computed_by == OURS)


def test_sums_as_the_model_says():
    found = report(model(silu), models.H200, accumulate=None).functions
    assert len(found) == 2


def test_what_tvm_does_not_fuse_stays_two(monkeypatch):
    def fail(*_):
        raise tvm.error.InternalError("not these")

    monkeypatch.setattr(fuse_gates, "fuse_group", fail)
    assert len(models.plain_functions(model(silu))) == 2


def test_indices_are_plain():
    """Nothing is left of j % N for columns j below N, by which tiles would not be found."""
    mod = model(silu)
    (func,) = models.plain_functions(mod).values()
    indices = [str(x.indices) for x in ir.find_all(func.body, ir.TensorLoad)]
    assert not any(str(N) in x for x in indices), indices
    config = hs.MatmulConfig(tile=(64, 64, 64), consumers=1, accumulate="float32")
    sch = s_tir.Schedule(func.with_attr("global_symbol", "main"))
    hs.matmul(sch, "NT_matmul", config)
