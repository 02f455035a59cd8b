"""What the simulator does not model ends as incomplete, and nothing is said of what follows."""

import numpy as np
import pytest
from tvm.script import tirx as T

from tvm_hopper.simulation import simulate, verify

from . import ptx
from .hand_threaded import F32, U32, U64, Local, Shared, hand_threaded
from .kernels import lower

X = np.arange(128, dtype="float32")


@hand_threaded(128)
def early(X: F32[128], Y: F32[128], tx, tile: Shared[F32], *, how):
    """End some warps before the others meet."""
    if tx < 32:
        Y[tx] = X[tx]
    else:
        tile[tx] = X[tx]
        if how == "block":
            T.cuda.cta_sync()
        if how == "uncounted":
            T.ptx.bar.sync(T.uint32(2))
        if how == "counted":
            T.ptx.bar.sync(T.uint32(1), T.uint32(128))
        Y[tx] = tile[(tx - 32 + 48) % 96 + 32]


@pytest.mark.parametrize("how", ["block", "uncounted"])
def test_a_barrier_of_the_block_does_not_wait_for_threads_that_have_exited(how):
    verify(lower(early(how)), {"X": X}).require_clean()


def test_a_barrier_with_a_count_waits_for_that_many():
    report = verify(lower(early("counted")), {"X": X})
    assert {f.rule for f in report.findings} == {"DEADLOCK"}


@hand_threaded(128)
def opaque(X: F32[128], Y: F32[128], tx, tile: Shared[F32], *, what):
    """Run one operation that is not modelled, and go wrong after it, or before."""
    if what == "before":
        Y[tx] = tile[tx]
    if what == "print":
        T.evaluate(T.cuda.printf("x"))
    elif what == "later chip":
        T.ptx["st_bulk.weak.shared::cta"](T.address_of(tile[0]), T.uint32(64))
    elif what == "condition":
        if T.call_extern("int32", "somebody_knows", tx) > 0:
            Y[tx] = X[tx]
    else:
        T.evaluate(T.call_extern("void", "somebody_does", tx))
    Y[tx] = tile[tx]


@pytest.mark.parametrize("what", ["print", "later chip", "call", "condition"])
def test_nothing_is_said_of_what_follows_an_unknown_operation(what):
    program = lower(opaque(what))
    result = simulate(program, {"X": X})
    assert result.rules == {"INCOMPLETE"}
    assert result.stopped
    assert verify(program, {"X": X}).verdict == "incomplete"


def test_what_is_wrong_before_an_unknown_operation_is_an_error():
    assert simulate(lower(opaque("before")), {"X": X}).rules == {"INCOMPLETE", "UNINIT_READ"}


def pushed(to):
    """Send a row to the peer of a cluster, or to the own CTA, which waits for it."""
    copy = "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes"

    @hand_threaded(128, grid=2, cluster=2, smem=2048)
    def main(
        X: F32[128], Y: F32[256],
        bx, rank, tx, tile: Shared[F32], bar: Shared[U64], at: Local[U32, 2],
    ):  # fmt: skip
        ptx.set_up(tx, (bar[200], 1), sync=None)
        tile[tx] = X[tx] + T.Cast("float32", rank)
        T.ptx.fence.proxy.async_.shared__cta()
        if tx == 0:
            ptx.expect_bytes(bar[200], 512)
        T.cuda.cluster_sync()
        if tx == 0:
            ptx.map_to_rank(at[0], tile[256], 1 - rank if to == "peer" else 1)
            ptx.map_to_rank(at[1], bar[200], 1 - rank if to == "peer" else 1)
            T.ptx[copy](
                at[0], T.cuda.cvta_generic_to_shared(T.address_of(tile[0])), T.uint32(512),
                at[1],
            )  # fmt: skip
        ptx.wait(bar[200], 0)
        Y[bx * 128 + tx] = tile[256 + tx]
        T.cuda.cluster_sync()

    return main


def test_the_skeleton_follows_copies_into_another_cta():
    verify(lower(pushed("peer")), {"X": X}).require_clean()


def test_the_skeleton_counts_their_bytes_where_they_land():
    report = verify(lower(pushed("one")), {"X": X})
    assert {"DEADLOCK", "MBAR_TX_MISMATCH"} & {f.rule for f in report.findings}
