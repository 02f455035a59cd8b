"""Atomics and ordered accesses of two CTAs race unless each scope holds the other thread."""

import numpy as np
import pytest
from tvm.script import tirx as T

from tvm_hopper.simulation import verify

from .hand_threaded import F32, U32, Local, hand_threaded
from .kernels import lower, rules

IN = {"X": np.arange(64, dtype="float32"), "C": np.zeros(4, "uint32")}
RUNS = (("eager", 0), ("lifo", 0))


def touched(first, second, ctas=2, cluster=1, before="", of=0):
    """Touch one word in each of two CTAs, which nothing orders; `before`: weakly, in CTA `of`."""

    @T.inline
    def touch(how, word, C):
        if how.startswith("ld"):
            T.ptx[how](word[0], T.address_of(C[0]))
        elif how.startswith("atom"):
            T.ptx[how](word[0], T.address_of(C[0]), T.uint32(1))
        else:
            T.ptx[how](T.address_of(C[0]), T.uint32(1))

    @hand_threaded(64 // ctas, grid=ctas, cluster=cluster)
    def main(X: F32[64], Y: F32[64], C: U32[4], bx, tx, word: Local[U32]):
        Y[bx * (64 // ctas) + tx] = X[bx * (64 // ctas) + tx]
        if before == "read" and tx == 0 and bx == of:
            word[0] = C[0]
        if before == "write" and tx == 0 and bx == of:
            C[0] = T.uint32(0)
        if tx == 0 and bx == 0:
            touch(first, word, C)
        if tx == (32 if ctas == 1 else 0) and bx == ctas - 1:
            touch(second, word, C)

    return main


ADD, LOAD, STORE = (
    "red.relaxed.{}.global.add.u32",
    "ld.relaxed.{}.global.u32",
    "st.relaxed.{}.global.u32",
)
PAIRS = [(ADD, ADD), (STORE, LOAD), (ADD, LOAD), ("atom.relaxed.{}.global.add.u32", STORE)]


@pytest.mark.sampled(every=5)
@pytest.mark.parametrize("pair", PAIRS, ids=str)
@pytest.mark.parametrize(
    ("scopes", "cluster", "ctas", "strong"),
    [
        (("gpu", "gpu"), 1, 2, True),
        (("sys", "gpu"), 1, 2, True),
        (("cta", "gpu"), 1, 2, False),
        (("gpu", "cta"), 1, 2, False),
        (("cluster", "cluster"), 1, 2, False),
        (("cluster", "gpu"), 2, 2, True),
        (("cta", "gpu"), 2, 2, False),
        (("cta", "cta"), 1, 1, True),
    ],
)
def test_both_scopes_must_hold_the_other_thread(pair, scopes, cluster, ctas, strong):
    first, second = (form.format(scope) for form, scope in zip(pair, scopes, strict=True))
    found = rules(touched(first, second, ctas, cluster), IN, RUNS)
    assert found == (set() if strong else {"MBAR_SCOPE_TOO_NARROW"})


def test_the_finding_names_both_scopes():
    program = lower(touched(ADD.format("cta"), ADD.format("gpu")))
    (found, *_) = verify(program, IN).findings
    assert "in scope gpu of the one and cta of the other" in found.message
    assert "holds both threads" in found.missing


@pytest.mark.parametrize("policy", ["eager", "lifo", "in_turn"])
@pytest.mark.parametrize("of", [0, 1])
@pytest.mark.parametrize("before", ["read", "write"])
def test_a_weak_access_in_front_of_a_strong_one_races_with_the_other_cta(before, of, policy):
    kernel = touched(ADD.format("gpu"), ADD.format("gpu"), before=before, of=of)
    found = rules(kernel, IN, [(policy, 0)])
    assert found & {"RACE_WRITE_WRITE", "RACE_OVERWRITE_BUSY", "RACE_READ_INFLIGHT"}
