"""Products of a batch and symbolic rows: several batch axes, one operand's, and parts of sums."""

import numpy as np
import pytest
from tvm import s_tir
from tvm.target import Target

from tvm_hopper import schedule as hs
from tvm_hopper.simulation import simulate
from tvm_hopper.testing.contractions import contraction

H200 = "nvidia/nvidia-h200"
CLUSTER = {"split_k": hs.SplitK(parts=2, mode="cluster")}


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(
    ("formula", "config"),
    [
        ("bmk,nk->bmn", {}),  # of a batch that is rows
        ("hmk,bhnk->bhmn", {}),
        ("mk,bnk->bmn", CLUSTER),
        ("bmk,bnk->bmn", CLUSTER),
        ("mk,bnk->bmn", {"tile": (64, 16, 128)}),  # a depth that no tile divides
    ],
)
def test_values(formula, config):
    """Each tile finds its rows and its part of the batch, whatever number of rows there are."""
    extents = {"b": 2, "h": 2, "m": 70, "n": 16, "k": 192 if "tile" in config else 128}
    sides, out = formula.split("->")
    shapes = [tuple(extents[x] for x in side) for side in (*sides.split(","), out)]
    named = {x: extents[x] for x in dict.fromkeys(formula) if x.isalpha()} | {"m": "ms"}
    mod = contraction(
        formula, named, ("float16", "float16"), epilogue=lambda c, *at: c(*at).astype("float16")
    )
    sch = s_tir.Schedule(mod)
    with Target(H200):
        hs.matmul(sch, "C", hs.MatmulConfig(**{"tile": (64, 16, 64), **config}))
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-3, 4, x).astype("float16") for x in shapes[:2])
    *_, first, second, last = [x.name for x in sch.mod["main"].params]
    given = {first: a, second: b, last: np.zeros(shapes[2], "float16")}
    done = simulate(sch, given, target=H200)
    assert done.findings == ()
    np.testing.assert_array_equal(done.outputs[last], np.einsum(formula, a, b, dtype="float32"))
