"""Addresses of a cluster's shared memory: each lane's own CTA, and the window of `.shared::cta`."""

import numpy as np
import pytest
from tvm.script import tirx as T

from tvm_hopper.simulation import simulate

from . import ptx
from .hand_threaded import F32, U32, U64, Local, Shared, hand_threaded
from .kernels import lower, rules

CTAS = 4
A = {"A": np.arange(CTAS * 32, dtype="float32")}


@hand_threaded(32, grid=CTAS, cluster=CTAS, smem=2048)
def exchange(
    A: F32[CTAS * 32], C: F32[CTAS * 32],
    bx, rank, tx, tile: Shared[F32], at: Local[U32], value: Local[F32, 2],
    *, access, meet=True,
):  # fmt: skip
    """Let lane i touch a word of CTA i % 4, by one instruction for all lanes."""
    tile[tx] = A[bx * 32 + tx]
    tile[32 + tx] = T.float32(0)
    tile[64 + tx] = T.float32(0)
    value[1] = T.float32(0)
    if meet:
        T.cuda.cluster_sync()
    ptx.map_to_rank(at[0], tile[tx // 2 * 2], tx // 2 % CTAS)
    if access == "half a warp":
        if tx % 8 < 4:
            T.ptx.ld.shared__cluster.f32(value[0], at[0])
        else:
            value[0] = T.float32(-1)
    elif access == "ld.v2":
        T.ptx.ld.shared__cluster.v2.f32(value[0], value[1], at[0])
    elif access == "st":
        if tx % 2 == 0:
            T.ptx.st.shared__cluster.f32(at[0] + T.Cast("uint32", 128 + rank * 4), A[bx * 32 + tx])
    elif access == "atom":
        T.ptx["atom.relaxed.cluster.shared::cluster.add.f32"](
            value[0], at[0] + T.uint32(128), T.float32(1)
        )
    else:
        T.ptx.ld.shared__cluster.f32(value[0], at[0])
    T.cuda.cluster_sync()
    if access in ("st", "atom"):
        C[bx * 32 + tx] = tile[32 + tx]
    else:
        C[bx * 32 + tx] = value[0] + value[1]


LANE = np.arange(32)
OWNER = LANE // 2 % CTAS * 32 + LANE // 2 * 2  # the word that each lane points to


@pytest.mark.parametrize(
    ("access", "expected"),
    [
        ("ld", OWNER),
        ("ld.v2", 2 * OWNER + 1),
        ("half a warp", np.where(LANE % 8 < 4, OWNER, -1)),
    ],
)
@pytest.mark.parametrize("policy", ["eager", "random"])
def test_lanes_load_from_different_ctas(access, expected, policy):
    result = simulate(lower(exchange(access)), A, policy=policy).require_clean()
    assert np.array_equal(result.outputs["C"].reshape(CTAS, 32), np.tile(expected, (CTAS, 1)))


def test_lanes_store_to_different_ctas():
    """Lane 2 k of CTA `rank` writes place 2 k + rank of CTA k % 4."""
    result = simulate(lower(exchange("st")), A).require_clean()
    expected = np.zeros((CTAS, 32))
    for k in range(16):
        for rank in range(CTAS):
            if 2 * k + rank < 32:
                expected[k % CTAS, 2 * k + rank] = A["A"][rank * 32 + 2 * k]
    assert np.array_equal(result.outputs["C"].reshape(CTAS, 32), expected)


def test_lanes_add_in_different_ctas():
    result = simulate(lower(exchange("atom")), A).require_clean()
    here = (LANE // 2 % CTAS)[None] == np.arange(CTAS)[:, None]
    expected = np.where(here & (LANE % 2 == 0), 2 * CTAS, 0)
    assert np.array_equal(result.outputs["C"].reshape(CTAS, 32), expected)


@pytest.mark.parametrize("access", ["ld", "ld.v2", "half a warp"])
def test_each_of_the_ctas_is_judged(access):
    assert {"RACE_READ_INFLIGHT", "CLUSTER_TARGET_NOT_STARTED"} <= rules(
        exchange(access, meet=False), A
    )


@hand_threaded(32, grid=2, cluster=2, smem=2048)
def window(
    C: U32[64],
    bx, rank, tx, tile: Shared[U32], bar: Shared[U64], at: Local[U32], value: Local[U32],
    *, form, whose,
):  # fmt: skip
    """Touch the shared memory of one CTA by an instruction for the own window, or for all."""
    ptx.set_up(tx, (bar[200], 1), sync=None)
    tile[tx] = T.Cast("uint32", bx)
    value[0] = T.uint32(7)
    T.cuda.cluster_sync()
    ptx.map_to_rank(at[0], tile[tx], rank if whose == "own" else 1 - rank)
    if form.startswith("ld"):
        T.ptx[form](value[0], at[0])
    elif form.startswith("atom"):
        T.ptx[form](value[0], at[0], T.uint32(1))
    elif form.startswith("mbarrier"):
        if tx == 0:
            T.ptx[form](at[0] + T.uint32(1600))
    else:
        T.ptx[form](at[0], T.uint32(3))
    T.cuda.cluster_sync()
    C[bx * 32 + tx] = value[0]


OWN_WINDOW = [
    "ld.shared::cta.u32",
    "ld.shared.u32",
    "ld.relaxed.cluster.shared::cta.u32",
    "st.shared::cta.u32",
    "st.volatile.shared.u32",
    "atom.relaxed.cluster.shared::cta.add.u32",
    "red.relaxed.cluster.shared.add.u32",
    "mbarrier.arrive.release.cluster.shared::cta.b64",
]


@pytest.mark.parametrize("form", OWN_WINDOW)
def test_the_own_window_holds_no_address_of_another_cta(form):
    result = simulate(lower(window(form, "peer")), {})
    found = [one for one in result.findings if one.rule == "OOB_ACCESS"]
    assert any("outside of .shared::cta of cta" in one.message for one in found), result
    assert "need .shared::cluster" in found[0].message


@pytest.mark.parametrize("form", OWN_WINDOW[:2] + OWN_WINDOW[3:4] + OWN_WINDOW[5:7])
def test_an_address_that_maps_to_the_own_cta_is_in_its_window(form):
    assert rules(window(form, "own"), {}) == set()


@pytest.mark.parametrize(
    "form", [f.replace("::cta", "").replace("shared", "shared::cluster") for f in OWN_WINDOW]
)
def test_the_window_of_the_cluster_holds_both(form):
    assert rules(window(form, "peer"), {}) == set()
