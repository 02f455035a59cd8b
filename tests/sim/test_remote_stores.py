"""st.async, red.async, cp.reduce.async.bulk into the cluster: values, order, what is illegal.

PTX ISA 9.1, 9.7.9.12, 9.7.13.8, 9.7.9.25.4.2.
"""

import numpy as np
import pytest
from tvm import tirx
from tvm.script import tirx as T

from tests.sim_kernels.mutate import change as mutated, with_argument
from tvm_hopper.simulation import simulate, verify

from . import ptx
from .hand_threaded import F32, U32, U64, Elements, Local, Shared, hand_threaded
from .kernels import POLICIES, lower, rules

STORE = "st_async.shared::cluster.mbarrier::complete_tx::bytes"
REDUCE = "red_async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes"
BULK = "cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes"
COUNT = {"f32": 1, "v2.u32": 2, "v4.f32": 4}
X = np.arange(128, dtype="float32")


def sent(
    form="f32", first=True, wait=True, last=True, expected=0, to="peer", bar_to="peer", cluster=2,
    place="own", again=False, shift=0,
):  # fmt: skip
    """Send each thread's element (or vector) to the peer CTA, which stores what has come."""
    count = COUNT[form]
    num_bytes = expected or 128 * 4
    kind = "uint32" if form.endswith("u32") else "float32"

    @hand_threaded(128, grid=2, cluster=cluster, smem=2048)
    def main(
        X: F32[128], Y: F32[256],
        bx, rank, tx, tile: Shared[F32], bar: Shared[U64], at: Local[U32, 2],
        v: Local[Elements(kind), 4],
    ):  # fmt: skip
        if tx == 0:
            ptx.init_mbarrier(bar[200], 1)
            T.ptx.fence.mbarrier_init.release.cluster()
            ptx.expect_bytes(bar[200], num_bytes)
        if first:
            T.cuda.cluster_sync()
        ptx.map_to_rank(
            at[0],
            tile[(tx if place == "own" else tx // 2) * count + shift],
            1 - rank if to == "peer" else rank,
        )
        ptx.map_to_rank(at[1], bar[200], 1 - rank if bar_to == "peer" else rank)
        if tx < 128 // count:
            for i in T.unroll(count):
                v[i] = T.reinterpret(kind, X[tx * count + i] + T.Cast("float32", rank))
            if form == "f32":
                T.ptx[STORE + ".f32"](at[0], v[0], at[1])
                if again:
                    T.ptx[STORE + ".f32"](at[0], v[0], at[1])
            elif form == "v2.u32":
                T.ptx[STORE + ".v2.u32"](at[0], v[0], v[1], at[1])
            else:
                T.ptx[STORE + ".v4.f32"](at[0], v[0], v[1], v[2], v[3], at[1])
        if wait:
            T.cuda.mbarrier_wait(T.address_of(bar[200]), 0)
        Y[bx * 128 + tx] = tile[tx]
        if last:
            T.cuda.cluster_sync()

    return main


@pytest.mark.parametrize("form", COUNT)
def test_a_store_reaches_the_other_cta(form):
    program = lower(sent(form))
    for policy, seed in POLICIES:
        result = simulate(program, {"X": X}, policy=policy, seed=seed).require_clean()
        assert np.array_equal(result.outputs["Y"], np.concatenate([X + 1, X]))


def test_a_store_may_stay_in_its_own_cta():
    program = lower(sent(to="own", bar_to="own"))
    result = simulate(program, {"X": X}).require_clean()
    assert np.array_equal(result.outputs["Y"], np.concatenate([X, X + 1]))


def test_the_whole_verdict_of_a_store_is_clean():
    report = verify(lower(sent()), {"X": X}).require_clean()
    assert report.skeletons[0].startswith("main_kernel: ")


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"first": False}, "MBAR_INIT_UNPUBLISHED"),
        ({"wait": False}, "RACE_READ_INFLIGHT"),
        ({"wait": False, "last": False}, "EXIT_PENDING_ASYNC"),
        ({"expected": 256}, "MBAR_TX_MISMATCH"),
        ({"expected": 1024}, "DEADLOCK"),
        ({"place": "pairs"}, "RACE_WRITE_WRITE"),
        ({"again": True, "expected": 1024}, "RACE_OVERWRITE_BUSY"),
        ({"form": "v2.u32", "shift": 1}, "MISALIGNED"),
        ({"shift": 4096}, "OOB_ACCESS"),
        ({"shift": 400}, "OOB_ACCESS"),
        ({"shift": -16}, "OOB_ACCESS"),
    ],
)
def test_what_is_wrong_with_a_store_is_named(change, rule):
    assert rule in rules(sent(**change), {"X": X})


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"to": "own"}, "a destination and an mbarrier in different CTAs"),
        ({"cluster": 1, "to": "own", "bar_to": "own"}, "a cluster of one CTA"),
    ],
)
def test_where_a_store_may_not_go_is_said(change, text):
    found = simulate(lower(sent(**change)), {"X": X}).findings
    (message,) = {f.message for f in found if f.rule == "ILLEGAL_OPERAND"}
    assert message.startswith(f"st.async with {text}")


def ring(released=True, trips=3, scope="cluster"):
    """Send a row each turn; the reader hands the slot back to the peer, which waits for that."""

    @hand_threaded(128, grid=2, cluster=2, smem=2048)
    def main(
        X: F32[128], Y: F32[2, trips, 128],
        bx, rank, tx, tile: Shared[F32], bar: Shared[U64], at: Local[U32, 3],
    ):  # fmt: skip
        ptx.set_up(tx, (bar[200], 1), (bar[201], 128), sync=T.cuda.cluster_sync)
        ptx.map_to_rank(at[0], tile[tx], 1 - rank)
        for i in T.unroll(2):
            ptx.map_to_rank(at[1 + i], bar[200 + i], 1 - rank)
        for k in T.serial(trips):
            if tx == 0:
                ptx.expect_bytes(bar[200], 512)
            if released:
                T.cuda.mbarrier_wait_acquire_cluster(T.address_of(bar[201]), k % 2 ^ 1)
            T.ptx[STORE + ".f32"](at[0], X[tx] + T.Cast("float32", k), at[1])
            T.cuda.mbarrier_wait(T.address_of(bar[200]), k % 2)
            Y[bx, k, tx] = tile[tx]
            T.ptx[f"mbarrier.arrive.release.{scope}.shared::cluster.b64"](at[2], T.uint32(1))
        T.cuda.cluster_sync()

    return main


def test_a_slot_is_sent_to_again_once_it_is_released():
    verify(lower(ring()), {"X": X}).require_clean()
    found = simulate(lower(ring()), {"X": X}).outputs["Y"]
    assert np.array_equal(found, np.stack([np.stack([X, X + 1, X + 2])] * 2))


@pytest.mark.parametrize(
    ("change", "rule"),
    [({"released": False}, "RACE_OVERWRITE_BUSY"), ({"scope": "cta"}, "MBAR_SCOPE_TOO_NARROW")],
)
def test_a_slot_that_is_still_read_is_not_sent_to(change, rule):
    assert rule in rules(ring(**change), {"X": X})


def reduced(op="add", kind="u32", sync=True, to="peer", zeroed=True, how="red"):
    """Let two threads (or two CTAs' bulk reductions) combine into each word of a row."""
    dtype = {"u32": "uint32", "s32": "int32", "b32": "uint32", "u64": "uint64"}[kind]
    size = np.dtype(dtype).itemsize
    sends = 2 if how == "red" else 1
    step = BULK + f".{op}.{kind}"

    @hand_threaded(128, grid=2, cluster=2, smem=4096)
    def main(
        X: Elements(dtype)[128], Y: Elements(dtype)[256],
        bx, rank, tx, tile: Shared[Elements(dtype), 4096 // size], bar: Shared[U64],
        at: Local[U32, 2],
    ):  # fmt: skip
        if tx == 0:
            ptx.init_mbarrier(bar[400], 1)
            T.ptx.fence.mbarrier_init.release.cluster()
            ptx.expect_bytes(bar[400], sends * 128 * size)
        if zeroed:
            tile[tx] = T.Cast(dtype, 5)
        tile[128 + tx] = X[tx]
        if how == "bulk":
            T.ptx.fence.proxy.async_.shared__cta()
        if sync:
            T.cuda.cluster_sync()
        else:
            T.ptx.barrier.cluster.arrive.relaxed.aligned()
            T.ptx.barrier.cluster.wait.acquire.aligned()
        ptx.map_to_rank(at[0], tile[tx if how == "red" else 0], 1 - rank if to == "peer" else rank)
        ptx.map_to_rank(at[1], bar[400], 1 - rank if to == "peer" else rank)
        if how == "red":
            T.ptx[REDUCE + f".{op}.{kind}"](at[0], X[tx], at[1])
            T.ptx[REDUCE + f".{op}.{kind}"](at[0], X[tx], at[1])
        elif tx == 0:
            T.ptx[step](
                at[0], T.cuda.cvta_generic_to_shared(T.address_of(tile[128])),
                T.uint32(128 * size), at[1],
            )  # fmt: skip
        T.cuda.mbarrier_wait(T.address_of(bar[400]), 0)
        Y[bx * 128 + tx] = tile[tx]
        T.cuda.cluster_sync()

    return main


def stepwise(op, old, b, bits):
    """Return what one reduction leaves, in plain integers."""
    results = {
        "add": old + b, "min": min(old, b), "max": max(old, b), "and": old & b, "or": old | b,
        "xor": old ^ b, "inc": 0 if old >= b else old + 1,
        "dec": b if not 0 < old <= b else old - 1,
    }  # fmt: skip
    return results[op] % (1 << bits)


FORMS = [
    *[("add", kind) for kind in ("u32", "s32", "u64")],
    *[(op, kind) for op in ("min", "max") for kind in ("u32", "s32")],
    *[(op, "b32") for op in ("and", "or", "xor")], ("inc", "u32"), ("dec", "u32"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("op", "kind", "how"),
    [*[(*form, "red") for form in FORMS], *[(*form, "bulk") for form in FORMS[::4]]],
)
def test_a_reduction_reaches_the_other_cta(op, kind, how):
    dtype = {"s32": "int32", "u64": "uint64"}.get(kind, "uint32")
    x = np.arange(128).astype(dtype)
    x[:4] = [0, 5, 4, np.iinfo(dtype).max]
    result = simulate(lower(reduced(op, kind, how=how)), {"X": x}, policy="random", seed=2)
    bits = 8 * x.itemsize
    expected = []
    for b in x.tolist():
        found = 5
        for _ in range(2 if how == "red" else 1):
            found = stepwise(op, found, b, bits)
        expected.append(found)
    row = np.array(expected, f"uint{bits}").view(dtype)
    assert np.array_equal(result.require_clean().outputs["Y"], np.concatenate([row, row]))


@pytest.mark.parametrize("how", ["red", "bulk"])
def test_the_whole_verdict_of_a_reduction_is_clean(how):
    verify(lower(reduced(how=how)), {"X": np.arange(128, dtype="uint32")}).require_clean()


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"sync": False}, "MBAR_SCOPE_TOO_NARROW"),
        ({"zeroed": False}, "UNINIT_READ"),
        ({"to": "own"}, "ILLEGAL_OPERAND"),
        ({"how": "bulk", "zeroed": False}, "UNINIT_READ"),
        ({"how": "bulk", "sync": False}, "MBAR_SCOPE_TOO_NARROW"),
    ],
)
def test_what_is_wrong_with_a_reduction_is_named(change, rule):
    assert rule in rules(reduced(**change), {"X": np.arange(128, dtype="uint32")})


def forwarded(fence):
    """Store by bulk copy what asynchronous stores brought."""
    bulk = "cp.async.bulk.global.shared::cta.bulk_group"

    @hand_threaded(128, grid=2, cluster=2, smem=2048)
    def main(
        X: F32[128], Y: F32[256],
        bx, rank, tx, tile: Shared[F32], bar: Shared[U64], at: Local[U32, 2],
    ):  # fmt: skip
        if tx == 0:
            ptx.init_mbarrier(bar[200], 1)
            T.ptx.fence.mbarrier_init.release.cluster()
            ptx.expect_bytes(bar[200], 512)
        T.cuda.cluster_sync()
        ptx.map_to_rank(at[0], tile[tx], 1 - rank)
        ptx.map_to_rank(at[1], bar[200], 1 - rank)
        T.ptx[STORE + ".f32"](at[0], X[tx], at[1])
        if tx == 0:
            T.cuda.mbarrier_wait(T.address_of(bar[200]), 0)
            if fence:
                T.ptx.fence.proxy.async_.shared__cta()
            T.ptx[bulk](T.address_of(Y[bx * 128]), T.address_of(tile[0]), T.uint32(512))
            T.ptx.cp.async_.bulk.commit_group()
            T.ptx["cp.async.bulk.wait_group"](0)
        T.cuda.cluster_sync()

    return main


def test_what_a_store_brought_is_of_the_generic_proxy():
    assert rules(forwarded(True), {"X": X}) == set()
    assert rules(forwarded(False), {"X": X}) == {"PROXY_FENCE_MISSING"}


@pytest.mark.parametrize(
    ("address", "rule", "text"),
    [
        (1 << 44, "ILLEGAL_OPERAND", "an address that is not of shared memory"),
        (5 << 24 | 2048, "OOB_ACCESS", "no mbarrier can lie at"),
    ],
)
def test_a_store_into_no_shared_memory(address, rule, text):
    program = lower(sent())
    for operand in (0, 2):
        new = with_argument(operand, tirx.IntImm("uint64", address))
        program = mutated(program, "st_async", 0, new)
    found = [f.message for f in simulate(program, {"X": X}).findings if f.rule == rule]
    assert any(text in message for message in found), found
