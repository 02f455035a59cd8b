"""A flag in global memory publishes a row from one CTA to another, at the right scope only."""

import numpy as np
import pytest
from tvm.script import tirx as T

from tests.sim.hand_threaded import F32, U32, Local, hand_threaded

from .kernels import rules

A = {"A": np.arange(128, dtype="float32"), "S": np.zeros(1, "uint32")}


@hand_threaded(128, grid=2)
def handover(
    A: F32[128], W: F32[128], C: F32[128], S: U32[1],
    bx, tx, flag: Local[U32], *, store, load, fences=False, wait=True,
):  # fmt: skip
    if bx == 0:
        W[tx] = A[tx]
        T.tvm_storage_sync("shared")
        if tx == 0:
            if fences:
                T.ptx.fence.acq_rel.gpu()
            T.ptx[store](T.address_of(S[0]), T.uint32(1))
    else:
        if tx == 0 and wait:
            flag[0] = T.uint32(0)
            while flag[0] == T.uint32(0):
                T.ptx[load](flag[0], T.address_of(S[0]))
            if fences:
                T.ptx.fence.acq_rel.gpu()
        T.tvm_storage_sync("shared")
        C[tx] = W[tx]


@pytest.mark.parametrize(
    ("store", "load", "fences", "expected"),
    [
        ("st.release.gpu.global.u32", "ld.acquire.gpu.global.u32", False, set()),
        ("st.relaxed.gpu.global.u32", "ld.relaxed.gpu.global.u32", True, set()),
        ("st.relaxed.gpu.global.u32", "ld.relaxed.gpu.global.u32", False, {"RACE"}),
        ("st.release.cta.global.u32", "ld.acquire.gpu.global.u32", False, {"SCOPE"}),
        ("st.release.gpu.global.u32", "ld.acquire.cta.global.u32", False, {"SCOPE"}),
    ],
)
def test_release_and_acquire_must_both_reach_the_other_cta(store, load, fences, expected):
    found = rules(handover(store, load, fences), A, [("eager", 0), ("random", 1)])
    if expected == {"SCOPE"}:
        assert "MBAR_SCOPE_TOO_NARROW" in found
    elif expected:
        assert "RACE_READ_INFLIGHT" in found
    else:
        assert found == set()


def test_no_wait_is_a_race():
    func = handover("st.release.gpu.global.u32", "ld.acquire.gpu.global.u32", wait=False)
    assert rules(func, A) & {"RACE_READ_INFLIGHT", "RACE_OVERWRITE_BUSY", "UNINIT_READ"}
