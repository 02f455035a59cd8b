"""Fences around relaxed accesses: whose they must be, of which scope, and what reads them."""

import numpy as np
import pytest
from tvm.script import tirx as T

from tvm_hopper.simulation import simulate

from . import ptx
from .hand_threaded import F32, U32, Local, Shared, hand_threaded
from .kernels import lower, rules

X = np.arange(512, dtype="float32")
IN = {"X": X, "F": np.zeros(4, "uint32")}


@hand_threaded(128, grid=4)
def last_block(
    X: F32[512], W: F32[512], Y: F32[128], F: U32[4],
    bx, tx, flag: Shared[U32], old: Local[U32], acc: Local[F32],
    *, before, middle, after, atomic="cuda", scope="gpu",
):  # fmt: skip
    """Leave a row in each of four CTAs; the last to count itself adds them up.

    `before`, `after`: who fences, "all" threads, thread "0" in front of the barrier, or nobody;
    `middle`: thread 0 fences on both sides of the atomic.
    """
    W[bx * 128 + tx] = X[bx * 128 + tx]
    if before == "all":
        T.cuda.thread_fence()
    if before == "all_acq_rel":
        T.ptx.fence.acq_rel.gpu()
    if before == "0":
        T.tvm_storage_sync("shared")
        if tx == 0:
            T.cuda.thread_fence()
    T.tvm_storage_sync("shared")
    if tx == 0:
        if middle:
            T.cuda.thread_fence()
        if atomic == "cuda":
            flag[0] = T.cuda.atomic_add(T.address_of(F[0]), T.uint32(1))
        else:
            T.ptx[f"atom.{atomic}.{scope}.global.add.u32"](old[0], T.address_of(F[0]), T.uint32(1))
            flag[0] = old[0]
        if middle:
            T.cuda.thread_fence()
    T.tvm_storage_sync("shared")
    if flag[0] == T.uint32(3):
        if after == "all":
            T.cuda.thread_fence()
        if after == "all_acq_rel":
            T.ptx.fence.acq_rel.gpu()
        acc[0] = T.float32(0)
        for i in T.serial(4):
            acc[0] = acc[0] + W[i * 128 + tx]
        Y[tx] = acc[0]


@pytest.mark.parametrize(
    "how",
    [
        ("all", False, "all"),
        ("0", False, "all"),
        ("", True, ""),
        ("", False, "", "acq_rel"),
        ("", True, "", "relaxed"),
    ],
    ids=str,
)
def test_the_last_block_sees_all_rows(how):
    program = lower(last_block(*how))
    for policy, seed in (("eager", 0), ("lifo", 0), ("random", 1)):
        result = simulate(program, IN, policy=policy, seed=seed)
        result.require_clean()
        assert np.array_equal(result.outputs["Y"], X.reshape(4, 128).sum(0))


@pytest.mark.parametrize(
    ("how", "rule"),
    [
        (("", False, "all"), "RACE_READ_INFLIGHT"),
        (("all", False, ""), "RACE_READ_INFLIGHT"),
        # Without `.sc` a fence releases what its own thread writes after it, and nothing else.
        (("all_acq_rel", False, "all_acq_rel"), "RACE_READ_INFLIGHT"),
        (("", False, "", "relaxed"), "RACE_READ_INFLIGHT"),
        (("", False, "", "acq_rel", "cta"), "MBAR_SCOPE_TOO_NARROW"),
    ],
    ids=str,
)
def test_the_last_block_needs_fences_on_both_sides(how, rule):
    assert rule in rules(last_block(*how), IN, [("eager", 0), ("random", 1)])


@hand_threaded(128, grid=2)
def flagged(
    X: F32[512], Y: F32[256], F: U32[4], bx, tx, flag: Local[U32], *, write, store, load, read,
):  # fmt: skip
    """Write a row and a flag in CTA 0; wait for the flag in CTA 1 and read the row."""
    if bx == 0:
        Y[tx] = X[tx]
        if write == "all":
            T.cuda.thread_fence()
        T.tvm_storage_sync("shared")
        if tx == 0:
            if write not in ("all", ""):
                T.ptx[f"fence.{write}"]()
            T.ptx[f"st.{store}.global.u32"](T.address_of(F[0]), T.uint32(1))
    else:
        if tx == 0:
            ptx.poll(f"ld.{load}.global.u32", flag, F[0])
            if read != "":
                T.ptx[f"fence.{read}"]()
        T.tvm_storage_sync("shared")
        Y[128 + tx] = Y[tx]


@pytest.mark.parametrize(
    "how",
    [
        ("acq_rel.gpu", "volatile", "volatile", "acq_rel.gpu"),
        ("all", "volatile", "volatile", "sc.gpu"),
        ("acq_rel.gpu", "relaxed.gpu", "acquire.gpu", ""),
        ("release.gpu", "relaxed.gpu", "relaxed.gpu", "acquire.gpu"),
        ("", "release.gpu", "relaxed.gpu", "acq_rel.gpu"),
        ("", "release.gpu", "acquire.gpu", ""),
    ],
    ids=str,
)
def test_a_flag_with_fences_publishes_a_row(how):
    assert rules(flagged(*how), IN, [("eager", 0), ("lifo", 0), ("random", 1)]) == set()


RACE, NARROW = {"RACE_READ_INFLIGHT"}, {"MBAR_SCOPE_TOO_NARROW"}


@pytest.mark.parametrize(
    ("how", "rules_of_it"),
    [
        (("", "release.cta", "acquire.gpu", ""), NARROW),
        (("", "release.gpu", "acquire.cta", ""), NARROW),
        (("", "relaxed.gpu", "relaxed.gpu", ""), RACE),
        (("acq_rel.cta", "relaxed.gpu", "acquire.gpu", ""), RACE | NARROW),
        (("acq_rel.cluster", "relaxed.gpu", "acquire.gpu", ""), RACE | NARROW),
        (("acq_rel.gpu", "relaxed.cta", "acquire.gpu", ""), RACE | NARROW),
        (("acq_rel.gpu", "relaxed.gpu", "relaxed.gpu", "acq_rel.cta"), RACE | NARROW),
        (("acquire.gpu", "relaxed.gpu", "acquire.gpu", ""), RACE | NARROW),
        (("acq_rel.gpu", "relaxed.gpu", "relaxed.gpu", "release.gpu"), RACE | NARROW),
        (("", "volatile", "volatile", "acq_rel.gpu"), RACE | NARROW),
    ],
    ids=lambda x: "-".join(sorted(x)) if isinstance(x, set) else str(x),
)
def test_a_fence_too_narrow_or_of_the_wrong_kind_publishes_nothing(how, rules_of_it):
    """At least one of the rules is broken."""
    assert rules(flagged(*how), IN, [("eager", 0), ("random", 1)]) & rules_of_it


def relay(ctas):
    """Add to one row, a CTA after the other, in the order that a semaphore gives."""

    @hand_threaded(128, grid=ctas)
    def main(X: F32[128], Y: F32[128], F: U32[4], bx, tx, turn: Local[U32]):
        if tx == 0:
            turn[0] = T.uint32(0)
            while turn[0] != T.Cast("uint32", bx):
                T.ptx["ld.acquire.gpu.global.u32"](turn[0], T.address_of(F[0]))
        T.tvm_storage_sync("shared")
        Y[tx] = Y[tx] + X[tx]
        T.tvm_storage_sync("shared")
        if tx == 0:
            T.ptx["st.release.gpu.global.u32"](T.address_of(F[0]), T.Cast("uint32", bx + 1))

    return main


def test_a_spinning_warp_sees_a_store_that_comes_between_its_load_and_its_sleep():
    program = lower(relay(4))
    inputs = {"X": X[:128], "Y": np.zeros(128, "float32"), "F": np.zeros(4, "uint32")}
    for seed in (20, 57, *range(8)):
        simulate(program, inputs, policy="random", seed=seed).require_clean()


def staged(newest, tiles, full=False):
    """Reuse one of two staging buffers once all but the `newest` stores are over."""
    wait = "cp.async.bulk.wait_group" if full else "cp.async.bulk.wait_group.read"

    @hand_threaded(128, smem=2048)
    def main(X: F32[512], Y: F32[512], tx, tile: Shared[F32]):
        for it in T.serial(tiles):
            if tx == 0:
                T.ptx[wait](newest)
            T.tvm_storage_sync("shared")
            tile[it % 2 * 128 + tx] = X[it * 128 + tx]
            T.ptx.fence.proxy.async_.shared__cta()
            T.tvm_storage_sync("shared")
            if tx == 0:
                ptx.store_bytes(Y[it * 128], tile[it % 2 * 128], 512)
                T.ptx.cp.async_.bulk.commit_group()
        if tx == 0:
            T.ptx["cp.async.bulk.wait_group.read"](0)

    return main


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("newest", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("tiles", [3, 4])
def test_a_wait_for_all_but_more_groups_than_there_are_waits_for_none(newest, tiles, full):
    inputs = {"X": X[:512], "Y": np.zeros(512, "float32")}
    found = rules(staged(newest, tiles, full), inputs)
    assert found == (set() if newest == 1 else {"RACE_OVERWRITE_BUSY"})


def chain(ctas, condition):
    """Let CTA i wait until the word says i, and add one."""

    @hand_threaded(1, grid=ctas, smem=256)
    def main(C: U32[256], F: U32[2], bx, told: Shared[U32], turn: Local[U32]):
        told[0] = T.Cast("uint32", bx)
        if condition == "registers":
            T.cuda.wait_until(
                turn[0], T.address_of(F[0]), turn[0] == T.Cast("uint32", bx), ptx_type="u32"
            )
        else:
            T.cuda.wait_until(turn[0], T.address_of(F[0]), turn[0] == told[0], ptx_type="u32")
        C[bx] = turn[0]
        # a word beside it changes too, which concerns nobody
        T.ptx.red.relaxed.gpu.global_.add.u32(T.address_of(F[1]), T.uint32(1))
        T.ptx.red.release.gpu.global_.add.u32(T.address_of(F[0]), T.uint32(1))

    return lower(main)


@pytest.mark.parametrize("condition", ["registers", "shared memory"])
@pytest.mark.parametrize("policy", ["eager", "lifo", "random", "starve:0"])
def test_a_chain_of_waits_gets_to_its_end(condition, policy):
    words = {"F": np.zeros(2, "uint32"), "C": np.zeros(256, "uint32")}
    result = simulate(chain(24, condition), words, policy=policy).require_clean()
    assert np.array_equal(result.outputs["C"][:24], np.arange(24))
    assert result.outputs["F"].tolist() == [24, 24]


def test_a_wait_for_a_word_that_stays_is_a_deadlock():
    words = {"F": np.array([1, 0], "uint32"), "C": np.zeros(256, "uint32")}
    result = simulate(chain(3, "registers"), words, policy="eager")
    assert result.rules == {"DEADLOCK"}
    assert "spins in" in result.findings[0].message


def test_a_waiting_warp_looks_again_at_its_own_words_alone():
    """Once for each turn that is not its own: not after every change of memory."""
    words = {"F": np.zeros(2, "uint32"), "C": np.zeros(256, "uint32")}
    looks = simulate(chain(50, "registers"), words, policy="lifo").steps
    assert looks < 50 * 50


@hand_threaded(128, grid=3)
def handed_on(X: F32[512], Y: F32[256], F: U32[4], bx, tx, flag: Local[U32], *, how):
    """CTA 0 releases a row by a flag, CTA 1 writes the flag in its own way, CTA 2 acquires that."""
    if bx == 0:
        Y[tx] = X[tx]
        T.tvm_storage_sync("shared")
        if tx == 0:
            T.ptx["st.release.gpu.global.u32"](T.address_of(F[0]), T.uint32(1))
            if how == "the same thread stores again":
                T.ptx["st.relaxed.gpu.global.u32"](T.address_of(F[0]), T.uint32(2))
                T.ptx["st.relaxed.gpu.global.u32"](T.address_of(F[1]), T.uint32(1))
    elif bx == 1:
        if tx == 0 and how != "the same thread stores again":
            ptx.poll("ld.relaxed.gpu.global.u32", flag, F[0])
            if how == "another thread adds":
                T.ptx["red.relaxed.gpu.global.add.u32"](T.address_of(F[0]), T.uint32(1))
            else:
                if how == "another thread fences and stores":
                    T.ptx["fence.acq_rel.gpu"]()
                T.ptx["st.relaxed.gpu.global.u32"](T.address_of(F[0]), T.uint32(2))
            T.ptx["st.relaxed.gpu.global.u32"](T.address_of(F[1]), T.uint32(1))
    else:
        if tx == 0:
            ptx.poll("ld.relaxed.gpu.global.u32", flag, F[1])
            while flag[0] < T.uint32(2):
                T.ptx["ld.acquire.gpu.global.u32"](flag[0], T.address_of(F[0]))
        T.tvm_storage_sync("shared")
        Y[128 + tx] = Y[tx]


@pytest.mark.parametrize(
    ("how", "wanted"),
    [
        ("another thread stores", {"RACE_READ_INFLIGHT"}),
        ("another thread adds", set()),
        ("another thread fences and stores", set()),
        ("the same thread stores again", set()),
    ],
)
def test_a_plain_store_by_another_thread_hands_no_release_on(how, wanted):
    assert rules(handed_on(how), IN, [("eager", 0), ("lifo", 0), ("random", 1)]) == wanted
