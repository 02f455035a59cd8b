"""Vector loads and stores, cache hints, and registers that hold another kind of number."""

import numpy as np
import pytest
from tvm.script import tirx as T

from tvm_hopper.simulation import simulate, verify

from .hand_threaded import F32, U32, U64, Elements, Local, Shared, hand_threaded
from .kernels import lower, rules

RNG = np.random.default_rng(5)
RACES = {"RACE_READ_INFLIGHT", "RACE_OVERWRITE_BUSY", "UNINIT_READ", "RACE_WRITE_WRITE"}


def copy(load, store, dtype, count, register, skew=0, hint=False):
    """Copy `count` elements a thread with one load and one store."""
    size = 32 * count + 32

    @hand_threaded(32)
    def main(
        X: Elements(dtype)[size], Y: Elements(dtype)[size],
        tx, r: Local[Elements(register), 8], q: Local[U64],
    ):  # fmt: skip
        T.ptx["createpolicy.fractional.L2::evict_last.b64"](q[0], T.float32(1))
        if hint:
            T.ptx[load](*[r[i] for i in range(count)], T.address_of(X[tx * count + skew]), q[0])
            T.ptx[store](T.address_of(Y[tx * count + skew]), *[r[i] for i in range(count)], q[0])
        else:
            T.ptx[load](*[r[i] for i in range(count)], T.address_of(X[tx * count + skew]))
            T.ptx[store](T.address_of(Y[tx * count + skew]), *[r[i] for i in range(count)])
        if tx == 0:
            for i in T.serial(skew):
                Y[i] = X[i]
            for i in T.serial(32 - skew):
                Y[32 * count + skew + i] = X[32 * count + skew + i]

    return main


def values(dtype, count):
    return RNG.integers(0, 100, 32 * count + 32).astype(dtype)


@pytest.mark.parametrize(
    ("load", "store", "dtype", "count", "register"),
    [
        ("ld.global.v2.f32", "st.global.v2.f32", "float32", 2, "float32"),
        ("ld.global.v4.f32", "st.global.v4.f32", "float32", 4, "float32"),
        ("ld.global.v2.f64", "st.global.v2.f64", "float64", 2, "float64"),
        ("ld.global.v4.b32", "st.global.v4.b32", "float32", 4, "float32"),
        ("ld.global.v4.b32", "st.global.v4.b32", "float32", 4, "uint32"),
        ("ld.global.v4.b16", "st.global.v4.b16", "float16", 4, "float16"),
        ("ld.global.v2.b16", "st.global.v2.b16", "bfloat16", 2, "uint16"),
        ("ld.global.v4.u8", "st.global.v4.u8", "uint8", 4, "uint8"),
        ("ld.global.v4.s8", "st.global.v4.s8", "int8", 4, "int8"),
        ("ld.global.nc.v4.f32", "st.global.v4.f32", "float32", 4, "float32"),
        ("ld.global.nc.L1::no_allocate.L2::128B.v4.f32", "st.global.L1::evict_first.v4.f32",
         "float32", 4, "float32"),
        ("ldu.global.v2.f32", "st.global.cs.v2.f32", "float32", 2, "float32"),
        ("ld.global.v8.f32", "st.global.v8.f32", "float32", 8, "float32"),
        ("ld.relaxed.gpu.global.v4.u32", "st.relaxed.gpu.global.v4.u32", "uint32", 4, "uint32"),
        ("ld.volatile.global.v2.u32", "st.volatile.global.v2.u32", "uint32", 2, "uint32"),
    ],
)  # fmt: skip
def test_vectors_are_copied(load, store, dtype, count, register):
    x = values(dtype if dtype != "bfloat16" else "float32", count)
    if dtype == "bfloat16":
        import ml_dtypes

        x = x.astype(ml_dtypes.bfloat16)
    main = copy(load, store, dtype, count, register)
    verify(lower(main), {"X": x}).require_clean()
    assert (simulate(lower(main), {"X": x}).outputs["Y"] == x).all()


def test_a_cache_policy_changes_nothing():
    x = values("float32", 4)
    names = ("ld.global.L2::cache_hint.v4.f32", "st.global.L2::cache_hint.v4.f32")
    main = copy(*names, "float32", 4, "float32", hint=True)
    verify(lower(main), {"X": x}).require_clean()
    assert (simulate(lower(main), {"X": x}).outputs["Y"] == x).all()


@pytest.mark.parametrize(
    ("load", "store", "count", "skew"),
    [
        ("ld.global.v2.f32", "st.global.v2.f32", 2, 1),
        ("ld.global.v4.f32", "st.global.v4.f32", 4, 2),
        ("ld.global.v8.f32", "st.global.v8.f32", 8, 4),
        ("ld.relaxed.gpu.global.v4.f32", "st.relaxed.gpu.global.v4.f32", 4, 2),
        ("ldu.global.v4.f32", "st.global.v4.f32", 4, 1),
    ],
)
def test_a_vector_is_aligned_to_its_size(load, store, count, skew):
    x = values("float32", count)
    main = copy(load, store, "float32", count, "float32", skew)
    assert rules(main, {"X": x, "Y": np.zeros_like(x)}) == {"MISALIGNED"}


@hand_threaded(64)
def exchange(X: F32[256], Y: F32[256], tx, tile: Shared[F32], r: Local[F32, 4], *, sync):
    """Store four elements a thread to shared memory, load those of another warp."""
    T.ptx["ld.global.v4.f32"](r[0], r[1], r[2], r[3], T.address_of(X[tx * 4]))
    T.ptx["st.shared.v4.f32"](T.address_of(tile[tx * 4]), r[0], r[1], r[2], r[3])
    if sync:
        T.cuda.cta_sync()
    T.ptx["ld.shared.v4.f32"](r[0], r[1], r[2], r[3], T.address_of(tile[252 - tx * 4]))
    T.ptx["st.global.v4.f32"](T.address_of(Y[252 - tx * 4]), r[0], r[1], r[2], r[3])


def test_vectors_of_other_warps_need_a_barrier():
    x = RNG.normal(size=256).astype(np.float32)
    verify(lower(exchange(True)), {"X": x}).require_clean()
    assert (simulate(lower(exchange(True)), {"X": x}).outputs["Y"] == x).all()
    assert rules(exchange(False), {"X": x}) & RACES


@hand_threaded(32, grid=2)
def flagged(F: U32[2], D: F32[32], Y: F32[32], bx, tx, r: Local[U32, 2], *, store, load):
    """CTA 0 writes data and a vector of flags; CTA 1 waits for the flags and reads the data."""
    if bx == 0:
        D[tx] = T.Cast("float32", tx)
        T.cuda.warp_sync()
        if tx == 0:
            T.ptx[store](T.address_of(F[0]), T.uint32(1), T.uint32(2))
    else:
        r[1] = T.uint32(0)
        while r[1] != T.uint32(2):
            T.ptx[load](r[0], r[1], T.address_of(F[0]))
        Y[tx] = D[tx]


INPUTS = {"F": np.zeros(2, np.uint32), "D": np.zeros(32, np.float32)}


def test_a_vector_that_releases_and_one_that_acquires_order_memory():
    main = flagged("st.release.gpu.global.v2.u32", "ld.acquire.gpu.global.v2.u32")
    verify(lower(main), INPUTS).require_clean()


@pytest.mark.parametrize("weaker", ["store", "load"])
def test_relaxed_vectors_order_nothing(weaker):
    store = "st.relaxed.gpu.global.v2.u32" if weaker == "store" else "st.release.gpu.global.v2.u32"
    load = "ld.relaxed.gpu.global.v2.u32" if weaker == "load" else "ld.acquire.gpu.global.v2.u32"
    assert rules(flagged(store, load), INPUTS) & RACES


@pytest.mark.parametrize("load", ["ld.global.b32", "ldu.global.b32", "ld.global.nc.b32"])
def test_words_are_looked_at_as_the_register_holds_them(load):
    @hand_threaded(32)
    def main(X: F32[32], Y: F32[32], tx, r: Local[F32, 2]):
        T.ptx[load](r[0], T.address_of(X[tx]))
        T.ptx["mov.b32"](r[1], r[0])
        T.ptx["st.global.b32"](T.address_of(Y[tx]), r[1])

    x = RNG.normal(size=32).astype(np.float32)
    assert (simulate(lower(main), {"X": x}).outputs["Y"] == x).all()


def test_registers_of_128_bits_are_incomplete_by_name():
    @hand_threaded(32)
    def main(X: U64[32], Y: U64[32], tx, r: Local[Elements("uint128")]):
        if tx < 16:
            T.ptx["ld.global.b128"](r[0], T.address_of(X[tx * 2]))
        Y[tx] = X[tx]

    report = verify(lower(main), {"X": np.arange(32, dtype=np.uint64)})
    assert report.verdict == "incomplete"


@pytest.mark.parametrize(
    ("space", "want"), [("global", 1), ("shared", 0), ("shared::cta", 0), ("shared::cluster", 0)]
)
@pytest.mark.parametrize("where", ["global", "shared"])
def test_generic_addresses_know_their_space(space, want, where):
    text = f"isspacep.{space}"

    @hand_threaded(32)
    def main(X: U32[32], Y: U32[32], tx, tile: Shared[U32], r: Local[U32]):
        if where == "global":
            T.ptx[text](r[0], T.address_of(X[tx]))
        else:
            tile[tx] = X[tx]
            T.ptx[text](r[0], T.address_of(tile[tx]))
        Y[tx] = r[0]

    found = simulate(lower(main), {"X": np.zeros(32, np.uint32)}).outputs["Y"]
    assert (found == (want if where == "global" else 1 - want)).all()


@pytest.mark.parametrize("space", ["shared", "shared::cta", "global"])
def test_addresses_go_to_their_space_and_back(space):
    to, back = f"cvta.to.{space}.u64", f"cvta.{space}.u64"

    @hand_threaded(32)
    def main(X: U32[32], Y: U32[32], tx, tile: Shared[U32], q: Local[U64, 2], r: Local[U32]):
        tile[tx] = X[tx]
        if space == "global":
            T.ptx[to](q[0], T.address_of(X[tx]))
        else:
            T.ptx[to](q[0], T.address_of(tile[tx]))
        T.ptx[back](q[1], q[0])
        T.ptx["ld.u32"](r[0], T.reinterpret("handle", q[1]))
        Y[tx] = r[0]

    x = np.arange(32, dtype=np.uint32)
    assert (simulate(lower(main), {"X": x}).outputs["Y"] == x).all()


def test_spaces_that_do_not_exist_here_are_incomplete_by_name():
    @hand_threaded(32)
    def main(X: U32[32], Y: U32[32], tx, r: Local[U32]):
        T.ptx["isspacep.const"](r[0], T.address_of(X[tx]))
        Y[tx] = r[0]

    report = verify(lower(main), {"X": np.zeros(32, np.uint32)})
    assert report.verdict == "incomplete"
    assert "state space const" in report.findings[0].message


@pytest.mark.parametrize("name", ["st.relaxed.gpu.global.u32", "st.release.gpu.global.u32"])
def test_a_store_with_an_order_reads_nothing(name):
    @hand_threaded(32)
    def main(X: U32[32], Y: U32[32], tx):
        T.ptx[name](T.address_of(Y[tx]), X[tx])

    assert rules(main, {"X": np.arange(32, dtype=np.uint32)}) == set()


def test_an_atomic_reads_what_it_finds():
    @hand_threaded(32)
    def main(Y: U32[32], tx):
        T.ptx["red.relaxed.gpu.global.add.u32"](T.address_of(Y[tx]), T.uint32(1))

    assert rules(main, {}) == {"UNINIT_READ"}


@pytest.mark.parametrize("how", ["address_of", "ptr"])
@pytest.mark.parametrize("dtype", ["int32", "int16"])
def test_an_address_is_as_wide_as_one_whatever_its_index_is_read_from(how, dtype):
    @hand_threaded(64)
    def main(X: Elements(dtype)[64], C: U32[4096], Y: U32[64], tx, r: Local[U32]):
        if how == "address_of":
            T.ptx["atom.relaxed.gpu.global.add.u32"](
                r[0], T.address_of(C[T.Cast("int32", X[tx])]), T.uint32(1)
            )
        else:
            T.ptx["atom.relaxed.gpu.global.add.u32"](
                r[0], C.access_ptr("rw", offset=T.Cast("int32", X[tx])), T.uint32(1)
            )
        Y[tx] = r[0]

    given = {"X": np.arange(64).astype(dtype) // 2, "C": np.arange(4096, dtype=np.uint32)}
    report = simulate(lower(main), given)
    assert report.rules == set()
    assert (report.outputs["C"] - given["C"]).sum() == 64


@hand_threaded(32)
def shifted(X: F32[66], Y: F32[66], tx, *, load_from, store_to):
    """Copy pairs by TIR's own vectors, from and to places that are two apart."""
    Y[T.Ramp(tx * 2 + store_to, 1, 2)] = X[T.Ramp(tx * 2 + load_from, 1, 2)]
    if tx == 0:
        for i in T.serial(store_to):
            Y[i] = T.float32(0)
        for i in T.serial(2 - store_to):
            Y[64 + store_to + i] = T.float32(0)


def test_a_load_that_is_not_proved_aligned_is_printed_element_by_element():
    x = {"X": np.arange(66, dtype="float32")}
    assert rules(shifted(1, 0), x) == set()
    assert rules(shifted(0, 1), x) == {"MISALIGNED"}
    verify(lower(shifted(1, 0)), x).require_clean()
