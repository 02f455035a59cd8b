"""Lanes of one warp are threads: what orders them, and what does not."""

import numpy as np
import pytest
from tvm.script import tirx as T

from tvm_hopper.simulation import simulate, verify

from . import ptx
from .hand_threaded import F32, U32, U64, Local, Shared, hand_threaded
from .kernels import lower, rules

X = np.arange(1024, dtype="float32")
FEW = (("eager", 0), ("on_wait", 0), ("random", 1))


@hand_threaded(64)
def exchange(X: F32[64], Y: F32[64], tx, tile: Shared[F32], *, how):
    """Write a word of shared memory in each lane and read another lane's."""
    for _ in T.serial(2):
        if how == "copies":
            T.ptx["cp.async.ca.shared.global"](T.address_of(tile[tx]), T.address_of(X[tx]), 4)
            T.ptx.cp.async_.commit_group()
            T.ptx["cp.async.wait_group"](0)
        else:
            tile[tx] = X[tx]
        if how in ("meet", "read_unmet"):
            T.cuda.warp_sync()
        if how == "half":
            if tx % 32 < 16:
                T.ptx.bar.warp.sync(T.uint32(0xFFFF))
        if how == "own":
            Y[tx] = tile[tx]
        else:
            Y[tx] = tile[tx // 32 * 32 + (tx + 1) % 32]
        if how == "meet":
            T.cuda.warp_sync()


@pytest.mark.parametrize(
    ("how", "rule"),
    [
        ("meet", ""),
        ("own", ""),
        ("", "RACE_READ_INFLIGHT"),
        ("half", "RACE_READ_INFLIGHT"),
        ("copies", "RACE_READ_INFLIGHT"),
        ("read_unmet", "RACE_OVERWRITE_BUSY"),
    ],
)
def test_lanes_that_meet_may_exchange_words(how, rule):
    found = rules(exchange(how), {"X": X[:64]}, FEW)
    assert rule in found if rule else found == set()


@hand_threaded(128)
def loaded(
    X: F32[128], Y: F32[128], tx, ok: Local[U32], tile: Shared[F32], bar: Shared[U64], *, how,
):  # fmt: skip
    """Wait for a bulk copy by one lane of each warp, or by every lane."""
    ptx.set_up(tx, (bar[100], 1))
    if tx == 0:
        ptx.expect_and_load(tile[0], X[0], 512, bar[100])
    if how == "parities":
        ptx.wait(bar[100], T.if_then_else(tx % 32 == 0, 0, 1))
    elif how in ("acquire", "relaxed"):
        ok[0] = T.uint32(0)
        while ok[0] == T.uint32(0):
            T.ptx[f"mbarrier.try_wait.parity.{how}.cta.shared::cta.b64"](
                ok[0], T.address_of(bar[100]), T.uint32(0)
            )
    elif how == "test":
        ok[0] = T.uint32(0)
        while ok[0] == T.uint32(0):
            T.ptx["mbarrier.test_wait.parity.shared::cta.b64"](
                ok[0], T.address_of(bar[100]), T.uint32(0)
            )
    else:
        if tx % 32 == 0:
            ptx.wait(bar[100], 0)
    if how == "one_met":
        T.cuda.warp_sync()
    if how == "one_barrier":
        T.cuda.cta_sync()
    Y[tx] = tile[tx]


@pytest.mark.parametrize(
    ("how", "one_of"),
    [
        *((how, set()) for how in ("one_met", "one_barrier", "acquire", "test")),
        *((how, {"RACE_READ_INFLIGHT"}) for how in ("one", "relaxed")),
        # The lanes with the wrong one pass too early, or never, by who looks first.
        ("parities", {"RACE_READ_INFLIGHT", "DEADLOCK"}),
    ],
)
def test_a_wait_is_known_to_lanes_that_wait_or_meet(how, one_of):
    found = rules(loaded(how), {"X": X[:128]})
    assert found & one_of if one_of else found == set()


@hand_threaded(64)
def collective(X: F32[64], Y: F32[64], tx, *, how):
    """Shuffle or vote, by all lanes or by half of them."""
    if how == "half":
        if tx % 32 < 16:
            Y[tx] = T.cuda.__shfl_xor_sync(T.uint32(0xFFFFFFFF), X[tx], 1, 32)
        else:
            Y[tx] = X[tx]
    elif how == "half_named":
        if tx % 32 < 16:
            Y[tx] = T.cuda.__shfl_xor_sync(T.uint32(0xFFFF), X[tx], 1, 32)
        else:
            Y[tx] = X[tx]
    elif how == "not_named":
        Y[tx] = T.cuda.__shfl_xor_sync(T.uint32(0xFFFF), X[tx], 1, 32)
    elif how == "any":
        Y[tx] = T.Cast("float32", T.cuda.any_sync(T.uint32(0xFFFFFFFF), T.Cast("int32", tx == 40)))
    elif how == "ballot":
        Y[tx] = T.Cast(
            "float32",
            T.cuda.ballot_sync(T.uint32(0xFFFFFFFF), T.Cast("int32", tx % 32 < 3)),
        )


@pytest.mark.parametrize("how", ["half", "not_named"])
def test_lanes_of_a_shuffle_must_be_those_of_its_mask(how):
    assert rules(collective(how), {"X": X[:64]}, FEW) == {"WARP_CONVERGENCE"}


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("half_named", np.where(X[:64] % 32 < 16, (X[:64].astype(int) ^ 1), X[:64])),
        ("any", np.where(X[:64] < 32, 0, 1)),
        ("ballot", np.full(64, 7)),
    ],
)
def test_shuffles_and_votes_of_some_lanes(how, expected):
    result = simulate(lower(collective(how)), {"X": X[:64]}).require_clean()
    assert np.array_equal(result.outputs["Y"], expected)


@hand_threaded(32)
def initialised(X: F32[32], Y: F32[32], tx, bar: Shared[U64], *, met):
    """Initialise an mbarrier in one lane, and use it in all lanes of the warp."""
    if tx == 0:
        ptx.init_mbarrier(bar[0], 32)
    if met:
        T.cuda.warp_sync()
    ptx.arrive(bar[0])
    ptx.wait(bar[0], 0)
    Y[tx] = X[tx]


@pytest.mark.parametrize("met", [True, False])
def test_an_mbarrier_of_one_lane_is_made_known_to_its_warp(met):
    found = rules(initialised(met), {"X": X[:32]})
    assert found == (set() if met else {"MBAR_INIT_UNPUBLISHED"})


@hand_threaded(32, then=lower)
def sides(X: F32[32], Y: F32[32], tx, tile: Shared[F32], bar: Shared[U64], *, first, second):
    """Let lane 0 and the other lanes of a warp wait for each other, in two sides of a branch."""
    if tx == 0:
        ptx.init_mbarrier(bar[100], 31)
        ptx.init_mbarrier(bar[101], 1)
    T.tvm_storage_sync("shared")
    if tx == 0:
        if first == "arrive":
            tile[0] = X[0]
            ptx.arrive(bar[101])
        ptx.wait(bar[100], 0)
        Y[0] = tile[31]
        if first == "late":
            ptx.arrive(bar[101])
    else:
        if second == "unordered":
            ptx.arrive(bar[100])
        tile[tx] = X[tx]
        if second == "late":
            ptx.wait(bar[101], 0)
        if second != "unordered":
            ptx.arrive(bar[100])
        if second == "arrive":
            ptx.wait(bar[101], 0)
        Y[tx] = tile[tx]


@pytest.mark.parametrize(
    ("first", "second", "rule"),
    [
        ("", "", ""),
        ("arrive", "arrive", ""),
        ("arrive", "late", ""),
        ("late", "arrive", ""),
        ("late", "late", "DEADLOCK"),
        ("", "unordered", "RACE_READ_INFLIGHT"),
    ],
)
def test_lanes_in_two_sides_of_a_branch_may_wait_for_each_other(first, second, rule):
    report = verify(sides(first, second), {"X": X[:32]})
    assert report.verdict == "error" if rule else report.require_clean()
    assert not rule or rule in {f.rule for f in report.findings}


@T.prim_func(s_tir=True)
def halves(F: T.Buffer((1,), "uint32"), Y: T.Buffer((64,), "float32")):
    """Half a warp waits for a word that the other half stores, which waits for another warp."""
    T.func_attr({"global_symbol": "main"})
    T.launch_thread("blockIdx.x", 1)
    tx = T.launch_thread("threadIdx.x", 64)
    with T.attr(T.int32(0), "hand_threaded", 1):
        smem = T.alloc_buffer((1024,), "uint8", scope="shared.dyn", align=1024)
        bar = T.decl_buffer((128,), "uint64", data=smem.data, scope="shared.dyn")
        flag = T.alloc_buffer((1,), "uint32", scope="local")
        ptx.set_up(tx, (bar[0], 32), (bar[1], 16))
        if tx < 32:
            if tx < 16:
                ptx.wait(bar[0], 0)
                T.ptx["st.release.gpu.global.u32"](T.address_of(F[0]), T.uint32(1))
            else:
                flag[0] = T.uint32(0)
                T.cuda.wait_until(
                    flag[0], T.address_of(F[0]), flag[0] == T.uint32(1), ptx_type="u32"
                )
                ptx.arrive(bar[1])
        else:
            ptx.arrive(bar[0])
        Y[tx] = T.float32(1)


@pytest.mark.parametrize("policy", ["eager", "lifo"])
def test_each_half_of_a_warp_is_woken_by_what_it_waits_for(policy):
    result = simulate(lower(halves), {"F": np.zeros(1, "uint32")}, policy=policy)
    assert not result.findings, result.findings
