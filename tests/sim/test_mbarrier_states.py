"""Arrivals with a count and a state, without completion, what was pending; atomics without ftz."""

import functools

import numpy as np
import pytest
from tvm.script import tirx as T

from tvm_hopper.simulation import simulate, verify

from . import ptx
from .hand_threaded import F32, U32, U64, Local, Shared, hand_threaded
from .kernels import POLICIES, lower

X = np.arange(128, dtype="float32")


@hand_threaded(128, smem=2048, then=lower)
def counted(
    X: F32[128], Y: F32[128], P: U32[4],
    tx, tile: Shared[F32], bar: Shared[U64], state: Local[U64, 2], count: Local[U32],
    ok: Local[U32],
    *, first=3, second=1, expected=128, form="arrive.noComplete", query="own",
):  # fmt: skip
    """Let lane 0 of each warp arrive for some, then every warp's last lane for the rest.

    Stores what was pending before each of the first arrivals.
    """
    if tx == 0:
        ptx.init_mbarrier(bar[200], expected)
    T.cuda.cta_sync()
    tile[tx] = X[tx]
    T.cuda.warp_sync()
    state[0] = T.uint64(0)
    if tx % 32 == 0:
        T.ptx[f"mbarrier.{form}.release.cta.shared::cta.b64"](
            state[0], T.address_of(bar[200]), T.uint32(first)
        )
        if query == "own":
            T.ptx["mbarrier.pending_count.b64"](count[0], state[0])
            P[tx // 32] = count[0]
    T.ptx["mbarrier.arrive.release.cta.shared::cta.b64"](
        state[1], T.address_of(bar[200]), T.uint32(second)
    )
    if query == "other" and tx % 32 == 0:
        T.ptx["mbarrier.pending_count.b64"](count[0], state[1])
        P[tx // 32] = count[0]
    ok[0] = T.uint32(0)
    while ok[0] == T.uint32(0):
        T.ptx["mbarrier.test_wait.shared::cta.b64"](ok[0], T.address_of(bar[200]), state[1])
    Y[tx] = tile[(tx + 40) % 128]


GIVEN = {"X": X, "P": np.zeros(4, "uint32")}


@pytest.mark.parametrize(("policy", "seed"), POLICIES)
def test_an_arrival_hands_out_what_was_pending(policy, seed):
    program = counted(expected=140)  # 4 times 3, and 128
    result = simulate(program, GIVEN, policy, seed).require_clean()
    pending = sorted(result.outputs["P"].tolist(), reverse=True)
    assert pending[0] == 140
    assert all(0 <= 140 - p <= 9 + 96 for p in pending)
    assert np.array_equal(result.outputs["Y"], np.roll(X, -40))


def test_a_count_and_a_state_together():
    program = counted(1, 2, 260, query="")  # 4 times 1, and 128 times 2
    assert simulate(program, GIVEN).require_clean()


def test_an_arrival_that_leaves_counts_no_more():
    program = counted(expected=140, form="arrive_drop.noComplete", query="")
    assert simulate(program, GIVEN).require_clean()


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"first": 128, "expected": 128}, "ILLEGAL_OPERAND"),
        ({"query": "other", "expected": 140}, "ILLEGAL_OPERAND"),
        ({"expected": 120}, "MBAR_ARRIVE_OVERFLOW"),
        ({"expected": 160}, "DEADLOCK"),
    ],
)
def test_what_is_wrong_with_it_is_named(options, rule):
    found = simulate(counted(**options), GIVEN)
    assert rule in found.rules, found.findings


@functools.cache
def added(form):
    """Add subnormal numbers without flushing them."""
    count = int(form[-1]) if form[-2:-1] == "v" else 1
    vector = f".v{count}" if count > 1 else ""
    name = form.partition(".")[0]

    @hand_threaded(128)
    def main(X: F32[128], Y: F32[128], tx, old: Local[F32, 2]):
        if count == 1:
            if name == "red":
                T.ptx["red.relaxed.gpu.global.add.noftz.f32"](T.address_of(Y[tx]), X[tx])
            else:
                T.ptx["atom.relaxed.gpu.global.add.noftz.f32"](old[0], T.address_of(Y[tx]), X[tx])
        elif tx < 64:
            if name == "red":
                T.ptx[f"red.relaxed.gpu.global.add.noftz{vector}.f32"](
                    T.address_of(Y[tx * 2]), X[tx * 2], X[tx * 2 + 1]
                )
            else:
                T.ptx[f"atom.relaxed.gpu.global.add.noftz{vector}.f32"](
                    old[0], old[1], T.address_of(Y[tx * 2]), X[tx * 2], X[tx * 2 + 1]
                )

    return lower(main)


@pytest.mark.parametrize("form", ["red", "atom", "red.v2", "atom.v2"])
def test_atomics_without_flushing(form):
    x = np.full(128, 1e-42, "float32")
    result = simulate(added(form), {"X": x, "Y": x.copy()}).require_clean()
    assert np.array_equal(result.outputs["Y"], x + x)


def test_the_whole_verdict_of_counted_arrivals():
    """The skeleton does not follow waits by state; all else is clean."""
    report = verify(counted(expected=140), GIVEN)
    assert {f.rule for f in report.findings} == {"INCOMPLETE"}
    assert all("while loop around synchronisation" in f.message for f in report.findings)
