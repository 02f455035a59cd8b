"""What Relax makes of layers is taken by a rule, and computes what it should in the simulator.

`verify(against=...)` evaluates the plain function in float64 and bounds the rounding errors of
the type that it computes in.
"""

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.target import Target

from tvm_hopper import dlight, ir
from tvm_hopper.errors import HopperError
from tvm_hopper.requests import keys
from tvm_hopper.simulation import verify
from tvm_hopper.testing.relax_forms import NORM, legalize

op = relax.op
H200 = Target("nvidia/nvidia-h200")
ROWS = {"s": 5, "n": 2}
OURS = 5  # rules, in front of TVM's


def half(*shape):
    return shape, "float16"


def brain(*shape):
    return shape, "bfloat16"


def single(*shape):
    return shape, "float32"


def silu_of_split(x):
    gate, up = (relax.TupleGetItem(op.split(x, 2, -1), i) for i in range(2))
    return op.multiply(op.nn.silu(gate), up)


def heads(x, w):
    return op.reshape(op.matmul(x, op.permute_dims(w)), (1, 16, 4, 32))


def parts(x):
    split = op.split(x, [32, 48], 1)
    return [relax.TupleGetItem(split, i) for i in range(3)]


def parts_of_heads(x):
    split = op.split(op.reshape(x, (x.ty.shape[1], 12, 64)), [4, 8], 1)
    return [relax.TupleGetItem(split, i) for i in range(3)]


def through_float32(x):
    wide = op.multiply(op.astype(x, "float32"), relax.const(2.0, "float32"))
    return op.astype(wide, "bfloat16")


WIDER = "reductions in float32 instead of {}"
FORMS = {  # expression, tensors, rule, what it says
    "rms_norm": (
        lambda x, w: op.nn.rms_norm(x, w, **NORM), [brain("n", "s", 256), brain(256)],
        "RowReduction", "",
    ),
    "rms_norm of one row": (
        lambda x, w: op.nn.rms_norm(x, w, **NORM), [half(1, 1, 256), half(256)],
        "RowReduction", "",
    ),
    "layer_norm": (
        lambda x, w, b: op.nn.layer_norm(x, w, b, **NORM), [half("s", 256), half(256), half(256)],
        "RowReduction", "",
    ),
    "softmax float16": (
        lambda x: op.nn.softmax(x, axis=-1), [half(2, 3, 100)],
        "RowReduction", WIDER.format("float16"),
    ),
    "softmax bfloat16": (
        lambda x: op.nn.softmax(x, axis=-1), [brain(1, "s", 128)],
        "RowReduction", WIDER.format("bfloat16"),
    ),
    "log_softmax": (
        lambda x: op.nn.log_softmax(x, axis=-1), [brain(6, 100)],
        "RowReduction", WIDER.format("bfloat16"),
    ),
    "mean": (
        lambda x: op.mean(x, axis=-1, keepdims=True), [half(6, 128)],
        "RowReduction", WIDER.format("float16"),
    ),
    "sum": (
        lambda x: op.sum(x, axis=-1), [brain(6, 128)],
        "RowReduction", WIDER.format("bfloat16"),
    ),
    "variance": (
        lambda x: op.variance(x, axis=-1), [half(6, 128)],
        "RowReduction", WIDER.format("float16"),
    ),
    "max": (
        lambda x: op.max(x, axis=-1), [half(6, 128)], "RowReduction", WIDER.format("float16"),
    ),
    "depthwise convolution": (
        lambda x, w: op.nn.relu(op.nn.conv2d(x, w, padding=1, groups=16)),
        [half(2, 16, 8, 8), half(16, 1, 3, 3)], "Pointwise", WIDER.format("float16"),
    ),
    "pooling": (
        lambda x: op.nn.avg_pool2d(x, (2, 2), (2, 2)), [brain(2, 16, 8, 8)],
        "Pointwise", WIDER.format("bfloat16"),
    ),
    "column sums": (lambda x: op.sum(x, axis=[0]), [single(40, 64)], "ColumnReduction", ""),
    "column means": (
        lambda x: op.mean(x, axis=[0, 1], keepdims=True), [half(3, 20, 64)],
        "ColumnReduction", WIDER.format("float16"),
    ),
    "greatest of columns": (
        lambda x: op.max(x, axis=0), [brain(300, 64)],
        "ColumnReduction", WIDER.format("bfloat16"),
    ),
    "silu times": (
        lambda x, y: op.multiply(op.nn.silu(x), y), [brain("s", 256)] * 2, "Pointwise", "",
    ),
    "split, silu, times": (silu_of_split, [half("n", "s", 512)], "Pointwise", ""),
    "casts": (through_float32, [half(6, 256)], "Pointwise", ""),
    "bias": (op.add, [half(1, "s", 256), half(256)], "Pointwise", ""),
    "permuted heads": (
        lambda x: op.permute_dims(x, [0, 2, 1, 3]), [half("n", "s", 4, 64)], "Pointwise", "",
    ),
    "transposed": (lambda x: op.permute_dims(x), [half(32, 48)], "Pointwise", ""),
    "concatenated": (
        lambda x, y: op.concat([x, y], axis=-1), [half(6, 64), half(6, 32)], "Pointwise", "",
    ),
    "parts of three widths": (parts, [half(6, 64, 16)], "Pointwise", ""),
    "parts of heads": (parts_of_heads, [half(1, "s", 768)], "Pointwise", ""),
    "seven columns": (op.add, [half("s", 7), half(7)], "Pointwise", ""),
    "repeated heads": (lambda x: op.repeat(x, 4, 2), [half(1, 16, 2, 64)], "Pointwise", ""),
    "rows by index": (
        lambda x, i: op.take(x, i, axis=0), [half(100, 256), (("s",), "int32")], "Pointwise", "",
    ),
    "last token": (
        lambda x: op.strided_slice(x, [1], [15], [16]), [half(1, 16, 64)], "Pointwise", "",
    ),
    "product of one row": (
        op.matmul, [half(1, 1, 256), half(256, 128)],
        "Matmul", "sums in float32 instead of float16",
    ),
    "product, heads after it": (
        heads, [brain(1, 16, 256), brain(128, 256)],
        "Matmul", "sums in float32 instead of bfloat16",
    ),
    "product, bias, gelu": (
        lambda x, w, b: op.nn.gelu(op.add(op.matmul(x, op.permute_dims(w)), b)),
        [half(40, 256), half(128, 256), half(128)],
        "Matmul", "sums in float32 instead of float16",
    ),
}  # fmt: skip


def apply(func, **options):
    """Ask our rules in their order; return the schedule, or None, and all decisions."""
    decisions = []
    for rule in dlight.rules(decisions, **options)[:OURS]:
        sch = rule.apply(func, H200, False)
        if sch is not None:
            return sch, decisions
    return None, decisions


def arrays(func, rng):
    """Return the arguments of symbolic shape: they fix it; indices lie in their table."""
    found = {}
    for param in func.params:
        shape = [ROWS[n.name] if hasattr(n, "name") else int(n) for n in param.ty.shape]
        if any(hasattr(n, "name") for n in param.ty.shape):
            kind = ir.dtype_of(param)
            values = rng.integers(0, 100, shape) if "int" in kind else rng.normal(size=shape)
            found[param.name] = values.astype(kind)
    return found


@pytest.mark.sampled(every=6)
@pytest.mark.parametrize("name", FORMS)
def test_a_form_is_ours_and_right(name):
    build, tensors, rule, reason = FORMS[name]
    mod = legalize(build, *tensors)
    taken = {}
    for gv, func in mod.functions_items():
        sch, decisions = apply(func)
        taken[gv.name_hint] = (decisions[-1].rule, decisions[-1].reason)
        if sch is None:
            continue
        inputs = arrays(func, np.random.default_rng(0))
        verify(sch, inputs or None, against=tvm.IRModule({gv: func})).require_clean()
    assert (rule, reason) in taken.values(), taken


def test_residual_and_norm_with_both_outputs():
    def both(x, y, w):
        total = op.add(x, y)
        return [total, op.nn.rms_norm(total, w, **NORM)]

    mod = legalize(both, half(6, 256), half(6, 256), half(256))
    rules = {apply(func)[1][-1].rule for _, func in mod.functions_items()}
    assert rules == {"Pointwise", "RowReduction"}


def test_parts_of_other_widths_are_kernels_of_their_own():
    (func,) = legalize(parts, half(6, 64, 16)).functions.values()
    sch, _ = apply(func)
    kernels = ir.kernels(sch.mod["main"])
    assert [x.annotations[keys.MEMORY_BOUND] for x in kernels] == [keys.POINTWISE] * 2


REFUSED = {  # expression, tensors, rule that should say why, what it says
    "columns": (
        lambda x: op.nn.softmax(x, axis=1), [single(2, "s", 10)],
        "ColumnReduction", "s elements of each of 10 columns; need numbers that are known",
    ),
    "symbolic columns": (
        lambda x: op.nn.softmax(x, axis=-1), [half(4, "s")], "RowReduction", "rows of s elements",
    ),
    "float32": (
        lambda x, w: op.matmul(x, op.permute_dims(w)), [single("s", 256), single(128, 256)],
        "Matmul", "tensor a0: found float32; need a type that tensor cores multiply",
    ),
    "bytes by columns": (
        lambda x, w: op.matmul(x, w, out_dtype="int32"), [((32, 64), "int8"), ((64, 32), "int8")],
        "Matmul", "found int8 whose neighbours in memory are not neighbours along k",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_says_why(name):
    build, tensors, rule, reason = REFUSED[name]
    (func,) = legalize(build, *tensors).functions.values()
    sch, decisions = apply(func)
    assert sch is None
    assert reason in {x.rule: x.reason for x in decisions}[rule]


def test_sums_in_16_bits_are_refused_on_demand():
    (func,) = legalize(lambda x: op.nn.softmax(x, axis=-1), half(4, 64)).functions.values()
    sch, decisions = apply(func, accumulate=None)
    assert sch is None
    assert "found a reduction in float16" in decisions[2].reason
    for rule in (dlight.RowReduction, dlight.ColumnReduction):
        with pytest.raises(HopperError, match="accumulate='float16'; need 'float32' or None"):
            rule("float16")
