"""Atomics of halves, packed halves and vectors: numbers, order, alignment."""

import ml_dtypes
import numpy as np
import pytest
from tvm.script import tirx as T

from tvm_hopper.simulation import simulate, verify

from .hand_threaded import F32, U16, U32, Elements, Local, hand_threaded
from .kernels import lower, rules

RNG = np.random.default_rng(11)
RACES = {"RACE_READ_INFLIGHT", "RACE_OVERWRITE_BUSY", "RACE_WRITE_WRITE"}
HALVES = {"f16": np.float16, "bf16": ml_dtypes.bfloat16}


def adding(name, words, carrier, skew=0, result=False):
    """Apply an atomic with `words` registers in 64 threads of two CTAs, 8 places in turn."""
    size = 64 * words

    @hand_threaded(32, grid=2)
    def main(
        X: Elements(carrier)[size], Y: Elements(carrier)[8 * words + 8],
        bx, tx, r: Local[Elements(carrier), 8],
    ):  # fmt: skip
        for i in T.unroll(words):
            r[i] = X[(bx * 32 + tx) * words + i]
        if result:
            o = T.alloc_buffer((8,), carrier, scope="local")
            T.ptx[name](
                *[o[i] for i in range(words)],
                T.address_of(Y[tx % 8 * words + skew]),
                *[r[i] for i in range(words)],
            )
        else:
            T.ptx[name](T.address_of(Y[tx % 8 * words + skew]), *[r[i] for i in range(words)])

    return main


def inputs(kind, words, packed):
    """Return small integers: sums of them are exact in any order."""
    count = 64 * words * (2 if packed else 1)
    dtype = HALVES.get(kind, np.float32)
    x = RNG.integers(-3, 4, count).astype(np.float32).astype(dtype)
    y = RNG.integers(-3, 4, (8 * words + 8) * (2 if packed else 1)).astype(np.float32).astype(dtype)
    return x, y


def as_words(values, packed):
    if values.dtype == np.float32:
        return values
    return values.view(np.uint32 if packed else np.uint16)


OPS = {"add": np.add, "min": np.minimum, "max": np.maximum}


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("result", [False, True])
@pytest.mark.parametrize(
    ("text", "op", "kind", "words", "packed"),
    [
        ("add.noftz.f16", "add", "f16", 1, False),
        ("add.noftz.bf16", "add", "bf16", 1, False),
        ("add.noftz.f16x2", "add", "f16", 1, True),
        ("add.noftz.bf16x2", "add", "bf16", 1, True),
        ("add.v2.f32", "add", "f32", 2, False),
        ("add.v4.f32", "add", "f32", 4, False),
        ("add.noftz.v2.f16", "add", "f16", 2, False),
        ("add.noftz.v8.f16", "add", "f16", 8, False),
        ("add.noftz.v4.bf16x2", "add", "bf16", 4, True),
        ("min.noftz.v4.f16x2", "min", "f16", 4, True),
        ("max.noftz.v2.bf16", "max", "bf16", 2, False),
    ],
)
def test_each_element_is_combined_by_itself(result, text, op, kind, words, packed):
    carrier = "float32" if kind == "f32" else "uint32" if packed else "uint16"
    name = f"{'atom' if result else 'red'}.relaxed.gpu.global.{text}"
    main = adding(name, words, carrier, result=result)
    x, y = inputs(kind, words, packed)
    given = {"X": as_words(x, packed), "Y": as_words(y, packed)}
    verify(lower(main), given).require_clean()
    found = simulate(lower(main), given, policy="random", seed=1).outputs["Y"]
    elements = words * (2 if packed else 1)
    want = y.astype(np.float32).copy()
    for thread, values in enumerate(x.astype(np.float32).reshape(64, elements)):
        place = slice(thread % 8 * elements, thread % 8 * elements + elements)
        want[place] = OPS[op](want[place], values)
    dtype = HALVES.get(kind, np.float32)
    assert (found.view(dtype).astype(np.float32) == want).all()


@pytest.mark.parametrize(
    ("text", "words", "carrier"),
    [("add.v4.f32", 4, "float32"), ("add.noftz.v8.f16", 8, "uint16"), ("add.noftz.f16x2", 1, "h2")],
)
def test_a_vector_atomic_is_aligned_to_its_size(text, words, carrier):
    if carrier == "h2":  # a pair at an odd half
        name = f"red.relaxed.gpu.global.{text}"

        @hand_threaded(32)
        def main(X: U32[64], Y: U16[16], tx):
            T.ptx[name](T.address_of(Y[1]), X[tx])

        given = {"X": np.zeros(64, np.uint32), "Y": np.zeros(16, np.uint16)}
    else:
        main = adding(f"red.relaxed.gpu.global.{text}", words, carrier, skew=1)
        given = {"X": np.zeros(64 * words, carrier), "Y": np.zeros(8 * words + 8, carrier)}
    assert rules(main, given) == {"MISALIGNED"}


@pytest.mark.parametrize("plain", [True, False])
def test_a_plain_store_beside_an_atomic_races(plain):
    @hand_threaded(64)
    def main(Y: F32[4], tx):
        v = T.float32(1)
        if tx < 32:
            T.ptx["red.relaxed.gpu.global.add.v4.f32"](T.address_of(Y[0]), v, v, v, v)
        else:
            if tx == 32:
                if plain:
                    T.ptx["st.global.v4.f32"](T.address_of(Y[0]), v, v, v, v)
                else:
                    T.ptx["red.relaxed.gpu.global.add.v4.f32"](T.address_of(Y[0]), v, v, v, v)

    found = rules(main, {"Y": np.zeros(4, np.float32)})
    assert bool(found & RACES) == plain


def handed(sem):
    """Add to a vector of counters behind a store; the other CTA waits for them and reads."""
    name = f"atom.{sem}.gpu.global.add.v2.f32"

    @hand_threaded(32, grid=2)
    def main(F: F32[2], D: F32[32], Y: F32[32], bx, tx, r: Local[F32, 4]):
        one = T.float32(1)
        if bx == 0:
            D[tx] = T.Cast("float32", tx)
            T.cuda.warp_sync()
            if tx == 0:
                T.ptx[name](r[0], r[1], T.address_of(F[0]), one, one)
        else:
            r[3] = T.float32(0)
            while r[3] == T.float32(0):
                T.ptx["ld.acquire.gpu.global.f32"](r[3], T.address_of(F[1]))
            Y[tx] = D[tx]

    return main


@pytest.mark.parametrize("sem", ["release", "acq_rel", "relaxed"])
def test_a_vector_atomic_releases_at_each_of_its_elements(sem):
    given = {"F": np.zeros(2, np.float32), "D": np.zeros(32, np.float32)}
    assert bool(rules(handed(sem), given) & RACES) == (sem == "relaxed")


@hand_threaded(64)
def counting(Y: U32[2], Z: U32[64], tx, r: Local[U32], *, name, result):
    r[0] = T.uint32(0)
    if result:
        T.ptx[name](r[0], T.address_of(Y[0]), T.Cast("uint32", tx + 1))
    else:
        T.ptx[name](T.address_of(Y[0]), T.Cast("uint32", tx + 1))
    Z[tx] = r[0]


@pytest.mark.parametrize("result", [True, False])
def test_an_exchange_hands_each_value_on_once(result):
    main = counting("atom.relaxed.gpu.global.exch.b32", result)
    given = {"Y": np.zeros(2, np.uint32)}
    verify(lower(main), given).require_clean()
    found = simulate(lower(main), given)
    if result:
        left = set(range(65)) - set(found.outputs["Z"].tolist())
        assert left == {int(found.outputs["Y"][0])}
    assert 0 < found.outputs["Y"][0] <= 64


def test_an_atomic_without_a_result_adds():
    main = counting("atom.relaxed.gpu.global.add.u32", False)
    assert simulate(lower(main), {"Y": np.zeros(2, np.uint32)}).outputs["Y"][0] == 64 * 65 // 2


def test_a_compare_and_swap_without_a_result_swaps_once():
    @hand_threaded(64)
    def main(Y: U32[1], tx):
        T.ptx["atom.relaxed.gpu.global.cas.b32"](
            T.address_of(Y[0]), T.uint32(0), T.Cast("uint32", tx + 5)
        )

    found = simulate(lower(main), {"Y": np.zeros(1, np.uint32)}).outputs["Y"][0]
    assert 5 <= found < 69
