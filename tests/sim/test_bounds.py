"""Every operation that takes an address, with addresses below and above what it may touch."""

import numpy as np
import pytest
from tvm.script import tirx as T

from tvm_hopper.facts import wgmma as facts
from tvm_hopper.simulation import simulate

from . import ptx, test_wgmma
from .hand_threaded import U8, U32, Local, Map, Shared, hand_threaded
from .kernels import LOAD_1D, STORE_1D, lower

SHARED_BYTES, GLOBAL_BYTES = 2048, 4096
COPY = "cp.async.ca.shared.global"
TMA = "cp.async.bulk.tensor.1d"
REDUCE = "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32"
SIZE = 64
# What each emits for an address `p`, with an element of shared memory, one of the tensor, an
# mbarrier, a tensor map and registers at hand.
OF_SHARED = {
    "ld": lambda p, s, g, b, m, r: T.ptx["ld.shared.u32"](r[0], p),
    "ld.acquire": lambda p, s, g, b, m, r: T.ptx["ld.acquire.gpu.shared.u32"](r[0], p),
    "st": lambda p, s, g, b, m, r: T.ptx["st.shared.u32"](p, r[0]),
    "st.vec": lambda p, s, g, b, m, r: T.ptx["st.shared.v2.b32"](p, r[0], r[1]),
    "st.release": lambda p, s, g, b, m, r: T.ptx["st.release.gpu.shared.u32"](p, r[0]),
    "atom": lambda p, s, g, b, m, r: T.ptx["atom.shared.add.u32"](r[1], p, r[0]),
    "cp.async": lambda p, s, g, b, m, r: T.ptx[COPY](p, g, 4),
    "bulk load": lambda p, s, g, b, m, r: T.ptx[LOAD_1D](p, g, T.uint32(SIZE), b),
    "bulk load signals": lambda p, s, g, b, m, r: T.ptx[LOAD_1D](s, g, T.uint32(SIZE), p),
    "bulk store": lambda p, s, g, b, m, r: T.ptx[STORE_1D](g, p, T.uint32(SIZE)),
    "bulk reduce": lambda p, s, g, b, m, r: T.ptx[REDUCE](g, p, T.uint32(SIZE)),
    "TMA load": lambda p, s, g, b, m, r: T.ptx[
        f"{TMA}.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
    ](p, m, 0, b),
    "TMA store": lambda p, s, g, b, m, r: T.ptx[f"{TMA}.global.shared::cta.tile.bulk_group"](
        m, 0, p
    ),
    "init": lambda p, s, g, b, m, r: T.ptx.mbarrier.init.shared.b64(p, T.uint32(1)),
    "inval": lambda p, s, g, b, m, r: T.ptx.mbarrier.inval.shared.b64(p),
    "arrive": lambda p, s, g, b, m, r: T.ptx.mbarrier.arrive.shared.b64(p),
    "wait": lambda p, s, g, b, m, r: T.cuda.mbarrier_wait(p, 1),
}
OF_TENSORS = {
    "ld": lambda p, s, g, b, m, r: T.ptx["ld.u32"](r[0], p),
    "ld.acquire": lambda p, s, g, b, m, r: T.ptx["ld.acquire.gpu.u32"](r[0], p),
    "ld.vec": lambda p, s, g, b, m, r: T.ptx["ld.global.v2.b32"](r[0], r[1], p),
    "st": lambda p, s, g, b, m, r: T.ptx["st.u32"](p, r[0]),
    "st.release": lambda p, s, g, b, m, r: T.ptx["st.release.gpu.u32"](p, r[0]),
    "red": lambda p, s, g, b, m, r: T.ptx["red.global.add.u32"](p, r[0]),
    "cp.async": lambda p, s, g, b, m, r: T.ptx[COPY](s, p, 4),
    "bulk load": lambda p, s, g, b, m, r: T.ptx[LOAD_1D](s, p, T.uint32(SIZE), b),
    "bulk store": lambda p, s, g, b, m, r: T.ptx[STORE_1D](p, s, T.uint32(SIZE)),
    "bulk reduce": lambda p, s, g, b, m, r: T.ptx[REDUCE](p, s, T.uint32(SIZE)),
    "discard": lambda p, s, g, b, m, r: T.ptx["discard.global.L2"](p),
}
CASES = [("shared", name) for name in OF_SHARED] + [("global", name) for name in OF_TENSORS]


def operation(space, name, place):
    """Make one operation, by one lane, at a byte of its memory."""
    emit = (OF_SHARED if space == "shared" else OF_TENSORS)[name]

    @hand_threaded(32, smem=SHARED_BYTES)
    def main(
        W: U8[GLOBAL_BYTES], X: U8[GLOBAL_BYTES], Y: U32[32],
        a_map: Map("X", (GLOBAL_BYTES,), (64,), 0, 0),
        tx, raw: Shared[U8], r: Local[U32, 4],
    ):  # fmt: skip
        for i in T.unroll(4):
            r[i] = T.uint32(0)
        raw[tx] = W[tx] + X[tx]
        if tx == 0:
            ptx.init_mbarrier(raw[1024], 1)
            emit(
                T.address_of(raw[place]) if space == "shared" else T.address_of(X[place]),
                T.address_of(raw[0]),
                T.address_of(X[0]),
                T.address_of(raw[1024]),
                T.address_of(a_map),
                r,
            )
        Y[tx] = r[0]

    return lower(main)


@pytest.mark.sampled(every=5)
@pytest.mark.parametrize(("space", "name"), CASES)
def test_an_address_outside_is_found_and_named(space, name):
    zeros = np.zeros(GLOBAL_BYTES, np.uint8)
    memory = "shared memory of cta" if space == "shared" else "X, which has"
    for place in (-128, SHARED_BYTES if space == "shared" else GLOBAL_BYTES):
        result = simulate(operation(space, name, place), {"W": zeros, "X": zeros})
        (message,) = (f.message for f in result.findings if f.rule == "OOB_ACCESS")
        assert f" bytes [{place}, " in message
        assert memory in message


@pytest.mark.parametrize("operand", ["A", "B"])
@pytest.mark.parametrize("start", [-128, 16384])
def test_an_operand_of_wgmma_outside(operand, start):
    legal = facts.Descriptor(0, 16, 1024, 0, 128).encode()
    moved = legal + (start >> 4)
    result = test_wgmma.run_with(*((moved, legal) if operand == "A" else (legal, moved)))
    (found,) = (f for f in result.findings if f.rule == "OOB_ACCESS")
    assert f"operand {operand} reads bytes" in found.message
