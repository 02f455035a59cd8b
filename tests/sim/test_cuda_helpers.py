"""Device functions that TVM prints: reductions of a warp and a block, conversions, sleep, traps."""

import ml_dtypes
import numpy as np
import pytest
from tvm.script import tirx as T

from tvm_hopper.simulation import simulate, verify

from .hand_threaded import F16, F32, I32, U32, U64, Elements, Local, Shared, hand_threaded
from .kernels import lower, rules

RNG = np.random.default_rng(2)
RACES = {"RACE_READ_INFLIGHT", "RACE_OVERWRITE_BUSY", "RACE_WRITE_WRITE", "UNINIT_READ"}
REDUCE = {"sum": np.sum, "max": np.max, "min": np.min}


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("op", REDUCE)
@pytest.mark.parametrize("width", [2, 8, 32])
@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_a_warp_reduces_within_groups_of_lanes(op, width, dtype):
    @hand_threaded(64)
    def main(X: Elements(dtype)[64], Y: Elements(dtype)[64], tx):
        Y[tx] = T.cuda.warp_reduce(X[tx], op, width)

    x = RNG.integers(-50, 50, 64).astype(dtype)
    verify(lower(main), {"X": x}).require_clean()
    found = simulate(lower(main), {"X": x}).outputs["Y"]
    want = REDUCE[op](x.reshape(-1, width), axis=1).repeat(width)
    assert (found == want).all()


def block(op, times, sync, num_warps=4, dtype="float32"):
    """Reduce over a block, twice with the same scratch memory."""

    @hand_threaded(128)
    def main(
        X: Elements(dtype)[256], Y: Elements(dtype)[256], tx, tile: Shared[Elements(dtype), 256],
    ):  # fmt: skip
        for i in T.serial(times):
            if sync:
                T.cuda.cta_sync()
            Y[i * 128 + tx] = T.cuda.cta_reduce(
                X[i * 128 + tx], op, num_warps, T.address_of(tile[0])
            )
        if times == 1:
            Y[128 + tx] = X[tx]

    return main


@pytest.mark.parametrize("op", REDUCE)
@pytest.mark.parametrize("times", [1, 2])
def test_a_block_reduces_and_all_threads_get_the_result(op, times):
    x = RNG.integers(-50, 50, 256).astype(np.float32)
    main = block(op, times, sync=True)
    verify(lower(main), {"X": x}).require_clean()
    found = simulate(lower(main), {"X": x}).outputs["Y"][: 128 * times].reshape(times, 128)
    assert (found == REDUCE[op](x.reshape(2, 128), axis=1)[:times, None]).all()


def test_two_reductions_with_one_scratch_memory_need_a_barrier_between():
    x = RNG.integers(-50, 50, 256).astype(np.float32)
    assert rules(block("sum", 2, sync=False), {"X": x}) & RACES


def test_fewer_warps_than_the_block_has_lose_values():
    """The helper reduces as many warps as it is told of; the others' values stay in the scratch."""
    x = np.ones(256, np.float32)
    found = simulate(lower(block("sum", 1, True, num_warps=2)), {"X": x}).outputs["Y"]
    assert (found[:128] == 64).all()


def test_a_block_reduction_needs_all_threads():
    @hand_threaded(128)
    def main(X: F32[128], Y: F32[128], tx, tile: Shared[F32]):
        Y[tx] = X[tx]
        if tx < 48:
            Y[tx] = T.cuda.cta_reduce(X[tx], "sum", 4, T.address_of(tile[0]))

    found = rules(main, {"X": np.ones(128, np.float32)})
    assert "WARP_CONVERGENCE" in found


@pytest.mark.parametrize("op", ["max", "min"])
def test_a_block_maximum_of_integers_is_incomplete_by_name(op):
    report = verify(lower(block(op, 1, True, dtype="int32")), {"X": np.ones(256, np.int32)})
    assert report.verdict == "incomplete"
    assert f"cta_reduce {op} of int32" in report.findings[0].message


def test_a_vote_of_the_block_inside_of_an_expression_is_incomplete_by_name():
    @hand_threaded(128)
    def main(X: I32[128], Y: I32[128], tx):
        Y[tx] = T.if_then_else(X[tx] > 0, T.cuda.syncthreads_or(X[tx]), 0)

    report = verify(lower(main), {"X": np.ones(128, np.int32)})
    assert report.verdict == "incomplete"
    assert "one side of an expression" in report.findings[0].message


@pytest.mark.parametrize("op", ["add", "min"])
def test_lanes_reduce_words(op):
    function = getattr(T.cuda, f"reduce_{op}_sync_u32")

    @hand_threaded(64)
    def main(X: U32[64], Y: U32[64], tx):
        Y[tx] = function(T.uint32(0xFFFFFFFF), X[tx])

    x = RNG.integers(0, 2**32, 64, dtype=np.uint64).astype(np.uint32)
    found = simulate(lower(main), {"X": x}).outputs["Y"].reshape(2, 32)
    reduce = {"add": lambda v: v.sum(dtype=np.uint32), "min": np.min}[op]
    assert (found == np.array([reduce(v) for v in x.reshape(2, 32)])[:, None]).all()


def pairs(*columns):
    """Return two columns of float32 as words, the first one low."""
    both = np.stack([np.asarray(c, np.float32) for c in columns], axis=1)
    return np.ascontiguousarray(both).view(np.uint64).ravel()


def words(*columns):
    """Return columns of bfloat16 as words, the first one low."""
    both = np.stack([np.asarray(c, ml_dtypes.bfloat16) for c in columns], axis=1)
    return np.ascontiguousarray(both).view(np.uint32).ravel()


A, B = (RNG.normal(size=32).astype(np.float32) for _ in range(2))
HA, HB = (v.astype(ml_dtypes.bfloat16) for v in (A, B))
Q = "uint64"
CASES = {
    "make_float2": (("float32", "float32"), Q, (A, B), pairs(A, B)),
    "float2_x": ((Q,), "float32", (pairs(A, B),), A),
    "float2_y": ((Q,), "float32", (pairs(A, B),), B),
    "fmul2_rn": ((Q, Q), Q, (pairs(A, B), pairs(B, B)), pairs(A * B, B * B)),
    "fadd2_rn": ((Q, Q), Q, (pairs(A, B), pairs(B, B)), pairs(A + B, B + B)),
    "float22bfloat162_rn": (("float32", "float32"), "uint32", (A, B), words(HA, HB)),
    "float22bfloat162_rn_from_float2": ((Q,), "uint32", (pairs(A, B),), words(HA, HB)),
    "bfloat1622float2": (
        ("uint32",), Q, (words(HA, HB),), pairs(HA.astype(np.float32), HB.astype(np.float32)),
    ),
    "hmin2": (
        ("uint32", "uint32"), "uint32", (words(HA, HB), words(HB, HA)),
        words(np.minimum(HA, HB), np.minimum(HA, HB)),
    ),
    "hmax2": (
        ("uint32", "uint32"), "uint32", (words(HA, HB), words(HB, HA)),
        words(np.maximum(HA, HB), np.maximum(HA, HB)),
    ),
    "fp8x4_e4m3_from_float4": (
        ("float32",) * 4, "uint32", (A, B, B, A),
        np.ascontiguousarray(
            np.stack([A, B, B, A], axis=1).astype(ml_dtypes.float8_e4m3fn)
        ).view(np.uint32).ravel(),
    ),
    "fdividef": (("float32", "float32"), "float32", (A, B), A / B),
    "ffs_u32": (
        ("uint32",), "int32", (np.arange(32, dtype=np.uint32) * 4,),
        [(v & -v).bit_length() for v in range(0, 128, 4)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_helpers_compute(name):
    kinds, out, arrays, want = CASES[name]
    function = getattr(T.cuda, name)
    kinds = [*kinds, *["float32"] * (4 - len(kinds))]
    arrays = [*arrays, *[A] * (4 - len(arrays))]
    count = len(CASES[name][0])

    @hand_threaded(32)
    def main(
        X: Elements(kinds[0])[32], V: Elements(kinds[1])[32], W: Elements(kinds[2])[32],
        Z: Elements(kinds[3])[32], Y: Elements(out)[32],
        tx,
    ):  # fmt: skip
        if count == 1:
            Y[tx] = function(X[tx])
        elif count == 2:
            Y[tx] = function(X[tx], V[tx])
        else:
            Y[tx] = function(X[tx], V[tx], W[tx], Z[tx])

    given = dict(zip("XVWZ", arrays, strict=True))
    verify(lower(main), given).require_clean()
    assert (simulate(lower(main), given).outputs["Y"] == want).all()


@pytest.mark.parametrize("vec", ["", "v2", "v4"])
def test_loads_through_the_read_only_path(vec):
    count = int(vec[1:] or 1) if vec else 1

    @hand_threaded(128 // count)
    def main(X: F32[128], Y: F32[128], tx, r: Local[F32, 4]):
        if count == 1:
            r[0] = T.cuda.ldg(T.address_of(X[tx]), "float32")
        elif count == 2:
            T.cuda.ldg(
                T.address_of(X[tx * 2]),
                "float32",
                dst=(T.address_of(r[0]), T.address_of(r[1])),
                vec="v2",
            )
        else:
            T.cuda.ldg(
                T.address_of(X[tx * 4]),
                "float32",
                vec="v4",
                dst=(
                    T.address_of(r[0]),
                    T.address_of(r[1]),
                    T.address_of(r[2]),
                    T.address_of(r[3]),
                ),
            )
        for i in T.unroll(count):
            Y[tx * count + i] = r[i]

    x = RNG.normal(size=128).astype(np.float32)
    verify(lower(main), {"X": x}).require_clean()
    assert (simulate(lower(main), {"X": x}).outputs["Y"] == x).all()


@pytest.mark.parametrize("name", ["float8tohalf8", "float22half2"])
def test_registers_are_converted_through_pointers(name):
    count = 8 if name == "float8tohalf8" else 2

    @hand_threaded(32)
    def main(X: F32[256], Y: F32[256], tx, f: Local[F32, 8], h: Local[F16, 8]):
        for i in T.unroll(8):
            f[i] = X[tx * 8 + i]
            h[i] = T.float16(0)  # a buffer whose address alone is used is made smaller
        if name == "float8tohalf8":
            T.evaluate(T.cuda.float8tohalf8(T.address_of(f[0]), T.address_of(h[0])))
            T.evaluate(T.cuda.half8tofloat8(T.address_of(h[0]), T.address_of(f[0])))
        else:
            T.evaluate(T.cuda.float22half2(T.address_of(h[0]), T.address_of(f[0])))
            for i in T.unroll(2):
                f[i] = T.Cast("float32", h[i])
        for i in T.unroll(8):
            Y[tx * 8 + i] = f[i]

    x = RNG.normal(size=256).astype(np.float32)
    verify(lower(main), {"X": x}).require_clean()
    found = simulate(lower(main), {"X": x}).outputs["Y"].reshape(32, 8)
    want = x.reshape(32, 8).copy()
    want[:, :count] = want[:, :count].astype(np.float16)
    assert (found == want).all()


def test_a_conversion_in_memory_is_incomplete_by_name():
    @hand_threaded(32)
    def main(X: F32[256], Y: F16[256], tx):
        T.evaluate(T.cuda.float8tohalf8(T.address_of(X[tx * 8]), T.address_of(Y[tx * 8])))

    report = verify(lower(main), {"X": np.zeros(256, np.float32)})
    assert report.verdict == "incomplete"
    assert "cuda.float8tohalf8" in report.findings[0].message


@hand_threaded(32, grid=2)
def waiting(F: U32[1], Y: U32[2], bx, tx, r: Local[U32], *, sleep):
    if tx == 0:
        if bx == 1:
            T.ptx["st.release.gpu.global.u32"](T.address_of(F[0]), T.uint32(1))
            Y[1] = T.uint32(1)
        else:
            r[0] = T.uint32(0)
            while r[0] == T.uint32(0):
                if sleep:
                    T.cuda.nano_sleep(20)
                T.ptx["ld.acquire.gpu.global.u32"](r[0], T.address_of(F[0]))
            Y[0] = r[0]


@pytest.mark.parametrize("sleep", [True, False])
def test_a_thread_may_sleep_while_it_waits(sleep):
    verify(lower(waiting(sleep)), {"F": np.zeros(1, np.uint32)}).require_clean()


@pytest.mark.parametrize("least", [0, 5])
def test_a_trap_that_is_reached_is_an_error(least):
    @hand_threaded(32)
    def main(X: I32[32], Y: I32[32], tx):
        T.evaluate(T.cuda.trap_when_assert_failed(X[tx] >= least))
        Y[tx] = X[tx]

    assert rules(main, {"X": np.arange(32, dtype=np.int32)}) == ({"TRAP"} if least else set())


@pytest.mark.parametrize("register", ["laneid", "cluster_ctarank", "smid"])
def test_special_registers(register):
    @hand_threaded(64)
    def main(Y: I32[64], tx):
        Y[tx] = T.cuda.mov_sreg(32, register)

    report = verify(lower(main), {})
    assert report.verdict == ("incomplete" if register == "smid" else "clean"), str(report)
    if register != "smid":
        want = np.arange(64) % 32 if register == "laneid" else np.zeros(64)
        assert (simulate(lower(main), {}).outputs["Y"] == want).all()


@pytest.mark.parametrize("what", ["printf", "clock64"])
def test_what_is_not_modelled_is_incomplete_by_name(what):
    @hand_threaded(32)
    def main(Y: U64[32], tx):
        Y[tx] = T.uint64(0)
        if what == "printf":
            T.evaluate(T.cuda.printf("x"))
        else:
            Y[tx] = T.cuda.clock64()

    report = verify(lower(main), {})
    assert report.verdict == "incomplete"
    assert f"cuda.{what}" in report.findings[0].message


@pytest.mark.parametrize("outside", [0, 8])
def test_what_all_blocks_of_a_large_grid_do_is_proved(outside):
    """Two CTAs run; loads through the read-only path and stores are in bounds for all of them."""
    count = 300

    @hand_threaded(128, grid=count)
    def main(
        X: F32[count * 128], U: U32[count * 128], Y: F32[count * 128],
        bx, tx, tile: Shared[F32], r: Local[U32, 2], f: Local[F32, 3],
    ):  # fmt: skip
        f[0] = T.cuda.ldg(T.address_of(X[bx * 128 + tx + bx // 299 * outside]), "float32")
        f[1] = T.cuda.cta_reduce(
            T.cuda.warp_reduce(f[0], "max", 32), "sum", 4, T.address_of(tile[0])
        )
        T.ptx["ex2.approx.ftz.f32"](f[2], f[0])
        r[0] = T.cuda.reduce_add_sync_u32(T.uint32(0xFFFFFFFF), U[bx * 128 + tx])
        T.ptx["redux_sync.max.u32"](r[1], U[bx * 128 + tx], T.uint32(0xFFFFFFFF))
        Y[bx * 128 + tx] = f[1] + f[2] + T.Cast("float32", r[0] + r[1])

    report = verify(
        lower(main),
        {"X": np.ones(count * 128, np.float32), "U": np.ones(count * 128, np.uint32)},
    )
    assert report.verdict == ("error" if outside else "clean"), str(report)
