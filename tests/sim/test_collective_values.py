"""Votes, matches, reductions and shuffles of lanes, and barriers with votes."""

import numpy as np
import pytest
from tvm.script import tirx as T

from tvm_hopper.simulation import simulate, verify

from .hand_threaded import U32, Local, Shared, hand_threaded
from .kernels import lower, rules

RNG = np.random.default_rng(3)
WORDS = RNG.integers(0, 2**32, 64, dtype=np.uint64).astype(np.uint32)
FEW = RNG.integers(0, 3, 64).astype(np.uint32)
ALL = 0xFFFFFFFF


def run(name, x, extra=(), outputs=1, predicate=False):
    """Run one collective instruction over X and return Y, shape (warps, lanes, outputs)."""
    threads = len(x)
    given = [T.uint32(e) for e in extra]

    @hand_threaded(threads)
    def main(X: U32[threads], Y: U32[threads * outputs], tx, r: Local[U32, 2]):
        r[0] = T.uint32(0)
        r[1] = T.uint32(0)
        if predicate:
            T.ptx[name](r[0], X[tx] > T.uint32(1), *given)
        elif outputs == 2:
            T.ptx[name](r[0], r[1], X[tx], *given)
        else:
            T.ptx[name](r[0], X[tx], *given)
        for i in T.unroll(outputs):
            Y[tx * outputs + i] = r[i]

    verify(lower(main), {"X": x}).require_clean()
    result = simulate(lower(main), {"X": x})
    return result.outputs["Y"].reshape(-1, 32, outputs)


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("redux_sync.add.u32", lambda v: sum(map(int, v)) & ALL),
        ("redux_sync.min.u32", min),
        ("redux_sync.max.u32", max),
        ("redux_sync.and.b32", lambda v: np.bitwise_and.reduce(v)),
        ("redux_sync.or.b32", lambda v: np.bitwise_or.reduce(v)),
        ("redux_sync.xor.b32", lambda v: np.bitwise_xor.reduce(v)),
    ],
)
def test_a_reduction_gives_one_value_to_all_lanes(name, function):
    found = run(name, WORDS, (ALL,))
    for warp, values in zip(found, WORDS.reshape(2, 32), strict=True):
        assert (warp[:, 0] == function(values)).all()


def test_lanes_with_the_same_value_are_matched():
    found = run("match.any.sync.b32", FEW, (ALL,))
    for warp, values in zip(found, FEW.reshape(2, 32), strict=True):
        want = [sum(1 << j for j in range(32) if values[j] == v) for v in values]
        assert warp[:, 0].tolist() == want


@pytest.mark.parametrize("alike", [True, False])
def test_match_all_tells_whether_all_lanes_hold_one_value(alike):
    x = np.full(32, 7, np.uint32)
    if not alike:
        x[5] = 8
    found = run("match.all.sync.b32", x, (ALL,), outputs=2)
    assert (found[0, :, 0] == (ALL if alike else 0)).all()
    assert (found[0, :, 1] == alike).all()


@pytest.mark.parametrize(
    ("mode", "function"),
    [
        ("all", lambda h: int(h.all())),
        ("any", lambda h: int(h.any())),
        ("uni", lambda h: int(h.all() or not h.any())),
    ],
)
@pytest.mark.parametrize("values", [[0] * 32, [2] * 32, [0, 2] * 16])
def test_votes(mode, function, values):
    x = np.array(values, np.uint32)
    found = run(f"vote_sync.{mode}.pred", x, (ALL,), predicate=True)
    assert (found[0, :, 0] == function(x > 1)).all()


def test_a_ballot_names_the_lanes():
    found = run("vote_sync.ballot.b32", FEW, (ALL,), predicate=True)
    for warp, values in zip(found, FEW.reshape(2, 32), strict=True):
        assert (warp[:, 0] == sum(1 << j for j in range(32) if values[j] > 1)).all()


def shuffled(mode, values, b, c):
    """Return values and predicates as the text of PTX computes them."""
    outs = []
    for lane in range(32):
        segment, clamp = c >> 8 & 31, c & 31
        most = (lane & segment) | (clamp & ~segment & 31)
        least = lane & segment
        if mode == "up":
            source = lane - b
            inside = source >= most
        else:
            source = {"down": lane + b, "bfly": lane ^ b, "idx": least | (b & ~segment & 31)}[mode]
            inside = source <= most
        outs.append((values[source] if inside else values[lane], int(inside)))
    return outs


@pytest.mark.parametrize("mode", ["up", "down", "bfly", "idx"])
@pytest.mark.parametrize(("b", "c"), [(1, 31), (3, 31), (2, 0x181F), (9, 0x1C1F), (5, 11), (1, 0)])
def test_shuffles_say_whether_their_source_was_in_range(mode, b, c):
    found = run(f"shfl_sync.{mode}.b32", WORDS[:32], (b, c, ALL), outputs=2)
    assert [tuple(map(int, row)) for row in found[0]] == [
        (int(v), p) for v, p in shuffled(mode, WORDS[:32], b, c)
    ]


def test_a_matrix_is_transposed():
    found = run("movmatrix.sync.aligned.m8n8.trans.b16", WORDS[:32])
    matrix = np.ascontiguousarray(WORDS[:32]).view(np.uint16).reshape(8, 8)
    want = np.ascontiguousarray(matrix.T).view(np.uint32).ravel()
    assert (found[0, :, 0] == want).all()


@hand_threaded(32)
def halves(X: U32[32], Y: U32[32], tx, r: Local[U32], *, name, args):
    """Execute a collective in the lower half of a warp alone, with the mask of all."""
    r[0] = T.uint32(0)
    if tx < 16:
        T.ptx[name](r[0], X[tx], *args)
    Y[tx] = r[0]


@pytest.mark.parametrize(
    "name", ["redux_sync.add.u32", "redux_sync.or.b32", "match.any.sync.b32", "match.all.sync.b32"]
)
@pytest.mark.parametrize("named", [ALL, 0xFFFF])
def test_every_lane_of_the_mask_has_to_take_part(name, named):
    found = rules(halves(name, (T.uint32(named),)), {"X": WORDS[:32]})
    assert found == ({"WARP_CONVERGENCE"} if named == ALL else set())


def test_a_transposition_needs_the_whole_warp():
    name = "movmatrix.sync.aligned.m8n8.trans.b16"
    assert rules(halves(name, ()), {"X": WORDS[:32]}) == {"WARP_CONVERGENCE"}


# -- barriers with votes --------------------------------------------------------------------------

THREADS = 128
VALUES = RNG.integers(0, 4, THREADS).astype(np.uint32)


def voting(name, extra=(), mixed=False, missing=False):
    """Store to shared memory, vote at a barrier, read what another warp stored."""
    given = [T.uint32(e) for e in extra]

    @hand_threaded(128)
    def main(X: U32[128], Y: U32[256], tx, tile: Shared[U32], r: Local[U32]):
        r[0] = T.uint32(0)
        tile[tx] = X[tx]
        if mixed:
            if tx < 32:
                T.ptx["bar.sync"](*given)
            else:
                T.ptx[name](r[0], *given, X[tx] > T.uint32(2))
        else:
            if not missing:
                T.ptx[name](r[0], *given, X[tx] > T.uint32(2))
        Y[tx] = r[0]
        Y[128 + tx] = tile[127 - tx]

    return main


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("text", ["bar.red", "barrier.red", "bar.cta.red"])
@pytest.mark.parametrize("extra", [(1,), (1, THREADS)])
@pytest.mark.parametrize(
    ("op", "function"),
    [
        ("popc.u32", lambda h: int(h.sum())),
        ("and.pred", lambda h: int(h.all())),
        ("or.pred", lambda h: int(h.any())),
    ],
)
def test_a_barrier_counts_the_votes_of_all_its_threads(text, extra, op, function):
    main = voting(f"{text}.{op}", extra)
    verify(lower(main), {"X": VALUES}).require_clean()
    found = simulate(lower(main), {"X": VALUES}).outputs["Y"]
    assert (found[:128] == function(VALUES > 2)).all()
    assert (found[128:] == VALUES[::-1]).all()


def test_without_the_barrier_the_threads_race():
    found = rules(voting("bar.red.popc.u32", (1,), missing=True), {"X": VALUES})
    assert found & {"RACE_READ_INFLIGHT", "RACE_OVERWRITE_BUSY", "UNINIT_READ"}


def test_a_barrier_with_votes_and_one_without_do_not_mix():
    found = rules(voting("bar.red.popc.u32", (1, THREADS), mixed=True), {"X": VALUES})
    assert "NAMED_BAR_MISMATCH" in found


@pytest.mark.parametrize("op", ["and", "or"])
@pytest.mark.parametrize("values", [[0], [3], [0, 3]])
def test_the_block_votes(op, values):
    vote = T.cuda.syncthreads_and if op == "and" else T.cuda.syncthreads_or

    @hand_threaded(128)
    def main(X: U32[128], Y: U32[256], tx, tile: Shared[U32]):
        tile[tx] = X[tx]
        Y[tx] = T.Cast("uint32", vote(T.Cast("int32", X[tx] > T.uint32(2))))
        Y[128 + tx] = tile[127 - tx]

    x = np.resize(np.array(values, np.uint32), 128)
    verify(lower(main), {"X": x}).require_clean()
    found = simulate(lower(main), {"X": x}).outputs["Y"]
    want = (x > 2).all() if op == "and" else (x > 2).any()
    assert (found[:128] == int(want)).all()
    assert (found[128:] == x[::-1]).all()


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("kind", ["redux", "add", "helper", "vector", "ldg", "block"])
@pytest.mark.parametrize("value", [0, 1])
def test_what_they_compute_may_steer_the_kernel(kind, value):
    """A race that only some values lead to: no run may leave the values out."""

    @hand_threaded(128)
    def main(X: U32[128], Y: U32[128], tx, tile: Shared[U32], r: Local[U32, 2]):
        if kind == "redux":
            T.ptx["redux_sync.max.u32"](r[0], X[tx], T.uint32(0xFFFFFFFF))
        elif kind == "add":
            T.ptx["add.u32"](r[0], X[tx], T.uint32(0))
        elif kind == "helper":
            r[0] = T.cuda.reduce_add_sync_u32(T.uint32(0xFFFFFFFF), X[tx])
        elif kind == "block":
            r[0] = T.Cast("uint32", T.cuda.syncthreads_or(T.Cast("int32", X[tx])))
        elif kind == "vector":
            T.ptx["ld.global.v2.u32"](r[0], r[1], T.address_of(X[tx // 2 * 2]))
        else:
            r[0] = T.cuda.ldg(T.address_of(X[tx]), "uint32")
        tile[tx] = X[tx]
        if r[0] > T.uint32(0):
            Y[tx] = tile[127 - tx]
        else:
            Y[tx] = T.uint32(0)

    report = verify(lower(main), {"X": np.full(128, value, np.uint32)})
    assert report.verdict == ("error" if value else "clean"), str(report)
