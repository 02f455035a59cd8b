"""Products of symbolic depth whose sum has no term: every way to compute them stores zeros."""

import numpy as np
import pytest
import tvm
from tvm import s_tir, te

from tvm_hopper import ir, schedule as hs
from tvm_hopper.simulation import verify

TILE = (64, 64, 64)
MODES = {
    "default": {},
    "cluster": {"tile": TILE, "split_k": 2},
    "workspace": {"tile": TILE, "split_k": hs.SplitK(3, "workspace")},
    "one after another": {"tile": TILE, "split_k": hs.SplitK(2, "serial")},
    "in any order": {"tile": TILE, "split_k": hs.SplitK(2, "atomic")},
    "persistent": {"tile": TILE, "persistent": -1},
    "shared loads": {"tile": TILE, "cluster": (1, 2)},
    "in turn": {"tile": (128, 128, 64), "schedule": "pingpong"},
    "stored by TMA": {"tile": TILE, "store": "tma"},
    "transposed": {"tile": TILE, "form": "transposed"},
}


def product():
    """Build C[64, 64] = A B^T of 8 q terms; Z tells q, which no shape names alone."""
    q = ir.Var("q", "int32")
    a, b = (te.placeholder((64, 8 * q), "float16", name=name) for name in "AB")
    z = te.placeholder((q,), "float32", name="Z")
    k = te.reduce_axis((0, 8 * q), "k")

    def term(i, j):
        return te.sum(a[i, k].astype("float32") * b[j, k].astype("float32"), axis=k)

    func = te.create_prim_func([a, b, z, te.compute((64, 64), term, name="C")])
    return tvm.IRModule({"main": func})


@pytest.mark.sampled(every=6)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("terms", [0, pytest.param(16, marks=pytest.mark.slow)])
def test_a_sum_without_terms(mode, terms):
    mod = product()
    sch = s_tir.Schedule(mod)
    hs.matmul(sch, "C", hs.MatmulConfig(**MODES[mode]))
    given = {name: np.ones((64, terms), "float16") for name in "AB"}
    verify(sch, against=mod, inputs={**given, "Z": np.zeros(terms // 8, "float32")}).require_clean()
