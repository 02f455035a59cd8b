"""What relax makes of a linear layer is scheduled as it comes."""

import numpy as np
import tvm
from tvm import relax, s_tir
from tvm.script import ir as I
from tvm.script import relax as R

from tvm_hopper import schedule as hs
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
