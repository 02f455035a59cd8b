"""Plain kernels: divergence, loops, types, shuffles, atomics, bounds, uninitialised memory."""

import ml_dtypes
import numpy as np
import pytest
from tvm.script import tirx as T

from tvm_hopper.simulation import simulate

from .hand_threaded import F32, I32, Elements, Local, Static, hand_threaded
from .kernels import lower, rules

X = np.arange(128, dtype="float32")


def one_block(body_name, size=128, dtype="float32", out=128):
    """Build `C[i] = body(A, i)` for one block of `size` threads."""

    @hand_threaded(size)
    def main(A: Elements(dtype)[128], C: Elements(dtype)[out], tx, acc: Local[Elements(dtype), 2]):
        if body_name == "divergent":
            if tx % 3 == 0:
                C[tx] = A[tx] * T.float32(2)
            else:
                if tx % 3 == 1:
                    C[tx] = -A[tx]
                else:
                    C[tx] = T.float32(7)
        if body_name == "lane_loop":
            acc[0] = T.float32(0)
            for i in T.serial(tx % 5):
                acc[0] = acc[0] + A[i]
            C[tx] = acc[0]
        if body_name == "while":
            acc[0] = A[tx]
            while acc[0] > T.float32(10):
                acc[0] = acc[0] - T.float32(10)
            C[tx] = acc[0]
        if body_name == "guarded":
            C[tx] = T.if_then_else(tx < 100, A[tx + 28], T.float32(-1))
        if body_name == "logical":
            if (tx > 0 and A[tx - 1] > T.float32(50)) or tx == 3:
                C[tx] = T.float32(1)
            else:
                C[tx] = T.float32(0)
        if body_name == "math":
            C[tx] = T.exp(-A[tx]) + T.sqrt(A[tx]) + T.max(A[tx], T.float32(3))
        if body_name == "select":
            C[tx] = T.Select(tx // 7 % 2 == 0, A[tx], T.Cast("float32", tx - 200))
        if body_name == "shuffle":
            C[tx] = T.tvm_warp_shuffle_down(T.uint32(0xFFFFFFFF), A[tx], 4, 32, 32)
        if body_name == "out_of_bounds":
            C[tx + 1] = A[tx]
        if body_name == "uninitialised":
            C[tx] = C[127 - tx] + A[tx]
        if body_name == "half":
            if tx < 64:
                C[tx] = A[tx]
        if body_name == "unordered":
            C[0] = A[tx]

    return main


def wrapped(x):
    while x > 10:
        x -= 10
    return x


@pytest.mark.parametrize(
    ("body", "want"),
    [
        ("divergent", lambda i: X[i] * 2 if i % 3 == 0 else (-X[i] if i % 3 == 1 else 7)),
        ("lane_loop", lambda i: X[: i % 5].sum()),
        ("while", lambda i: wrapped(X[i])),
        ("guarded", lambda i: X[i + 28] if i < 100 else -1),
        ("logical", lambda i: float((i > 0 and X[i - 1] > 50) or i == 3)),
        ("math", lambda i: np.exp(-X[i]) + np.sqrt(X[i]) + max(X[i], np.float32(3))),
        ("select", lambda i: X[i] if i // 7 % 2 == 0 else i - 200),
        ("shuffle", lambda i: X[i + 4] if i % 32 < 28 else X[i]),
    ],
)
def test_lanes_compute_what_a_thread_would(body, want):
    result = simulate(lower(one_block(body)), {"A": X}).require_clean()
    assert np.allclose(result.outputs["C"], [want(i) for i in range(128)], rtol=1e-6)


def test_a_block_need_not_be_whole_warps():
    result = simulate(lower(one_block("divergent", size=100, out=100)), {"A": X}).require_clean()
    assert result.outputs["C"][99] == 198


@pytest.mark.parametrize(
    ("body", "rule"),
    [
        ("out_of_bounds", "OOB_ACCESS"),
        ("uninitialised", "UNINIT_READ"),
        ("half", "OUTPUT_COVERAGE"),
        ("unordered", "RACE_WRITE_WRITE"),
    ],
)
def test_a_wrong_access_is_named(body, rule):
    assert rule in rules(one_block(body), {"A": X}, [("eager", 0)])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8", "int32", "float64"])
def test_types_keep_their_arithmetic(dtype):
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))

    @hand_threaded(64, by_hand=False)
    def main(A: Elements(dtype)[128], C: Elements(dtype)[128], tx):
        for v in T.vectorized(2):
            C[tx * 2 + v] = A[tx * 2 + v] + A[tx * 2 + v]

    a = np.arange(-64, 64).astype(kind)
    result = simulate(lower(main), {"A": a}).require_clean()
    assert np.array_equal(result.outputs["C"], a + a)


def test_atomics_of_many_blocks_add_up():
    @hand_threaded(64, grid=4, by_hand=False)
    def main(S: I32[1], tx):
        if tx % 2 == 0:
            T.evaluate(T.cuda.atomic_add(T.address_of(S[0]), T.int32(3)))

    result = simulate(lower(main), {"S": np.zeros(1, "int32")}).require_clean()
    assert result.outputs["S"][0] == 4 * 32 * 3


def test_a_barrier_orders_shared_memory_and_its_absence_is_a_race():
    def build(synced):
        @hand_threaded(128)
        def main(A: F32[128], C: F32[128], tx, tile: Static[F32, 128]):
            tile[tx] = A[tx]
            if synced:
                T.tvm_storage_sync("shared")
            C[tx] = tile[127 - tx]

        return main

    assert rules(build(True), {"A": X}) == set()
    assert rules(build(False), {"A": X}) >= {"RACE_READ_INFLIGHT"}


def test_an_unknown_operation_is_incomplete_by_name():
    @hand_threaded(128, by_hand=False)
    def main(A: F32[128], C: F32[128], tx):
        C[tx] = T.call_extern("float32", "my_fn", A[tx])

    result = simulate(lower(main), {"A": X})
    assert result.verdict == "incomplete"
    assert "my_fn" in result.findings[0].message


def test_a_seed_replays_to_the_same_steps_and_events():
    program = lower(one_block("while"))
    first, second, other = (simulate(program, {"A": X}, policy="random", seed=s) for s in (5, 5, 6))
    assert (first.steps, first.events) == (second.steps, second.events)
    assert other.events != first.events
