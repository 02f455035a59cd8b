"""What relax makes of a linear layer is scheduled as it comes."""

import numpy as np
import pytest
import tvm
from tvm import relax, s_tir, te
from tvm.script import ir as I, relax as R

from tvm_hopper import schedule as hs
from tvm_hopper.errors import ScheduleError
from tvm_hopper.simulation import verify
from tvm_hopper.testing.serial import run_serially


@I.ir_module
class Linear:
    @R.function
    def main(
        x: R.Tensor((1, "s", 72), "float16"),
        w: R.Tensor((72, 96), "float16"),
        b: R.Tensor((96,), "float16"),
    ):
        with R.dataflow():
            y = R.matmul(x, w)
            z = R.add(y, b)
            out = R.nn.relu(z)
            R.output(out)
        return out


def legalised():
    """Return the fused PrimFunc: float16 sums, int64 loops, a batch of one, symbolic rows."""
    mod = Linear
    for step in ("LegalizeOps", "AnnotateTIROpPattern", "FuseOps", "FuseTIR"):
        mod = getattr(relax.transform, step)()(mod)
    (func,) = (f for f in mod.functions.values() if isinstance(f, tvm.tirx.PrimFunc))
    return tvm.IRModule({"main": func.with_attr("global_symbol", "main")})


def test_linear_layer():
    sch = s_tir.Schedule(legalised())
    hs.matmul(sch, "matmul", hs.MatmulConfig((64, 64, 64), accumulate="float32"))
    assert "tvm_hopper.accumulate" in sch.get(sch.get_sblock("matmul_update_o")).annotations
    rng = np.random.default_rng(0)
    x, w, b = (
        rng.integers(-2, 3, shape).astype("float16") for shape in ((1, 65, 72), (72, 96), (96,))
    )
    got = run_serially(sch.mod, [x, w, b], s=65)
    want = np.maximum(x.astype("float64") @ w.astype("float64") + b, 0)
    np.testing.assert_array_equal(got, want)


def unit_loops(batch):
    """Return a product as TVM's simplifier leaves it: the constant 0 for each dimension of one."""
    m, k, n = 64 if batch else 1, 128, 96
    shape = (1, m, k) if batch else (1, 1, k)
    x, w = te.placeholder(shape, "float16", name="X"), te.placeholder((n, k), "float16", name="W")
    axis = te.reduce_axis((0, k), name="k")
    y = te.compute(
        (1, m, n), lambda b, i, j: te.sum(x[b, i, axis] * w[j, axis], axis=axis), name="Y"
    )
    mod = tvm.IRModule({"main": te.create_prim_func([x, w, y])})
    return mod, tvm.tirx.transform.StmtSimplify()(mod)


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("batch", [False, True])
def test_loops_of_one_that_bind_nothing(batch):
    plain, mod = unit_loops(batch)
    assert "T.axis.spatial(1, 0)" in mod.script()
    sch = s_tir.Schedule(mod)
    hs.matmul(sch, "Y", hs.MatmulConfig(accumulate="float32"))
    assert verify(sch, against=plain).verdict == "clean"


def test_a_type_that_is_no_operand_is_named_with_its_tensor():
    s = tvm.tirx.Var("s", "int64")
    x, w = te.placeholder((s, 128), "float32", name="X"), te.placeholder((96, 128), name="W")
    k = te.reduce_axis((0, 128), name="k")
    y = te.compute((s, 96), lambda i, j: te.sum(x[i, k] * w[j, k], axis=k), name="Y")
    mod = tvm.IRModule({"main": te.create_prim_func([x, w, y])})
    with pytest.raises(
        ScheduleError,
        match=r"tensor X: found float32; need a type that tensor .*; give operands=\"tf32\"",
    ):
        hs.matmul(s_tir.Schedule(mod), "Y")
