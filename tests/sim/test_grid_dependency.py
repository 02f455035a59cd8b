"""griddepcontrol: what a launch that may begin early touches before it waits; and discard."""

import functools

import numpy as np
import pytest
from tvm.script import tirx as T

from tvm_hopper.sim.tir import PROGRAMMATIC, PROMISED, launch_tags
from tvm_hopper.simulation import Program, simulate, verify

from . import ptx
from .hand_threaded import F32, Local, hand_threaded
from .kernels import lower, rules

X = np.arange(128, dtype="float32")
LOAD = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"


def early(program, *which):
    """Let some launches of a program begin before those before them have ended."""
    kernels = dict(program.kernels)
    for number in which:
        name = sorted(kernels)[number]
        tags = [*launch_tags(kernels[name]), PROGRAMMATIC]
        kernels[name] = kernels[name].with_attr("tirx.kernel_launch_params", tags)
    return Program(program.host, kernels)


@functools.cache
def chain(wait="first", does="read", middle_waits=True):
    """Launch three kernels; the last uses what the first, or the second, has stored.

    The second waits in all threads, in none (False), or where the input, of 0 to 127, is below a
    number.
    """
    some, below = not isinstance(middle_waits, bool), float(middle_waits)

    @T.prim_func(s_tir=True)
    def main(
        X: T.Buffer((128,), "float32"),
        V: T.Buffer((128,), "float32"),
        W: T.Buffer((128,), "float32"),
        Y: T.Buffer((128,), "float32"),
    ):
        T.func_attr({"global_symbol": "main"})
        with T.attr(T.int32(0), "first", 1):
            T.launch_thread("blockIdx.x", 1)
            tx = T.launch_thread("threadIdx.x", 128)
            V[tx] = X[tx] + T.float32(1)
            T.ptx.griddepcontrol.launch_dependents()
        with T.attr(T.int32(0), "second", 1):
            T.launch_thread("blockIdx.x", 1)
            ty = T.launch_thread("threadIdx.x", 128)
            if some:
                if X[ty] < T.float32(below):
                    T.ptx.griddepcontrol.wait()
                W[ty] = X[ty] + T.float32(2)
            elif middle_waits:
                T.ptx.griddepcontrol.wait()
                W[ty] = V[ty] + T.float32(1)
            else:
                W[ty] = X[ty] + T.float32(2)
        with T.attr(T.int32(0), "third", 1):
            T.launch_thread("blockIdx.x", 1)
            tz = T.launch_thread("threadIdx.x", 128)
            smem = T.alloc_buffer((1024,), "uint8", scope="shared.dyn", align=1024)
            tile = T.decl_buffer((256,), "float32", data=smem.data, scope="shared.dyn")
            bar = T.decl_buffer((128,), "uint64", data=smem.data, scope="shared.dyn")
            if wait == "first":
                T.ptx.griddepcontrol.wait()
            if wait == "one warp" and tz < 32:
                T.ptx.griddepcontrol.wait()
            if wait == "one warp, and a barrier":
                if tz < 32:
                    T.ptx.griddepcontrol.wait()
                T.cuda.cta_sync()
            if does == "read":
                Y[tz] = W[tz]
            elif does == "read the oldest":
                Y[tz] = V[tz]
            elif does == "write":
                W[tz] = T.float32(3)
                Y[tz] = X[tz]
            elif does == "write what was read":
                V[tz] = T.float32(3)
                Y[tz] = X[tz]
            elif does == "nothing of theirs":
                Y[tz] = X[tz]
            else:
                if tz == 0:
                    ptx.init_mbarrier(bar[100], 1)
                    T.ptx.fence.mbarrier_init.release.cluster()
                    ptx.expect_and_load(tile[0], W[0], 512, bar[100])
                T.cuda.cta_sync()
                T.cuda.mbarrier_wait(T.address_of(bar[100]), 0)
                Y[tz] = tile[tz]
            if wait == "last":
                T.ptx.griddepcontrol.wait()

    return lower(main)


@pytest.mark.parametrize("does", ["read", "write", "copy", "read the oldest"])
@pytest.mark.parametrize("wait", ["first", "one warp, and a barrier"])
def test_behind_the_wait_everything_is_there(wait, does):
    result = simulate(early(chain(wait, does), 1, 2), {"X": X}, "random", 1)
    expected = {"write": X, "read the oldest": X + 1}.get(does, X + 2)
    assert np.array_equal(result.require_clean().outputs["Y"], expected)


@pytest.mark.parametrize("does", ["read", "write", "copy", "write what was read"])
@pytest.mark.parametrize("wait", ["never", "last", "one warp"])
def test_before_it_nothing_of_an_earlier_launch_may_be_touched(wait, does):
    found = simulate(early(chain(wait, does), 2), {"X": X}).findings
    rules_of = {f.rule for f in found}
    if wait == "one warp" and does == "copy":  # it is the warp that copies
        assert not found
    else:
        assert rules_of == {"GRID_DEPENDENCY"}


def test_a_finding_names_tensor_launch_and_fix():
    (found,) = simulate(early(chain("never", "write"), 2), {"X": X}).findings
    assert "writes W, which main_kernel_1 may still read or write" in found.message
    assert found.missing == "griddepcontrol.wait before this access"


def test_what_no_earlier_launch_uses_needs_no_wait():
    assert not simulate(early(chain("never", "nothing of theirs"), 1, 2), {"X": X}).findings


@pytest.mark.parametrize("wait", ["first", "last", "never"])
def test_without_the_tag_it_has_no_effect(wait):
    verify(chain(wait), {"X": X}).require_clean()


def test_with_the_tag_the_whole_verdict_follows():
    assert verify(early(chain("first"), 1, 2), {"X": X}).verdict == "clean"
    assert verify(early(chain("never"), 2), {"X": X}).verdict == "error"


def test_a_launch_that_does_not_wait_keeps_older_ones_in_flight():
    """The third waits for the second, of which no thread has waited for the first."""
    program = early(chain("first", "read the oldest", False), 1, 2)
    (found,) = simulate(program, {"X": X}).findings
    assert found.rule == "GRID_DEPENDENCY"
    assert "no thread of the launch between the two waits for it" in found.message


@pytest.mark.parametrize(("below", "found"), [(-1, {"GRID_DEPENDENCY"}), (1, set())])
def test_a_wait_counts_where_a_thread_executes_it(below, found):
    """One thread that waits holds up its launch; a wait that none executes waits for nothing."""
    program = early(chain("first", "read the oldest", below), 1, 2)
    assert simulate(program, {"X": X}).rules == found
    assert verify(program, {"X": X}).verdict == ("error" if found else "clean")


def discarded(what="", shift=0, store=True):
    """Discard 128 bytes of a tensor, store to them again, and read."""

    @T.prim_func(s_tir=True)
    def main(W: T.Buffer((128,), "float32"), Y: T.Buffer((128,), "float32")):
        T.func_attr({"global_symbol": "main"})
        T.launch_thread("blockIdx.x", 1)
        tx = T.launch_thread("threadIdx.x", 128)
        with T.attr(T.int32(0), "hand_threaded", 1):
            smem = T.alloc_buffer((1024,), "uint8", scope="shared.dyn", align=1024)
            if what == "race":
                W[tx] = T.float32(1)
            if tx == 0:
                if what == "shared":
                    T.ptx["discard.L2"](T.reinterpret("uint64", T.address_of(smem[0])))
                else:
                    T.ptx["discard.global.L2"](T.address_of(W[32 + shift]))
            T.cuda.cta_sync()
            if store and tx >= 32 and tx < 64:
                W[tx] = T.float32(7)
            Y[tx] = W[tx]

    return main


def test_what_is_stored_behind_a_discard_is_read():
    result = simulate(lower(discarded()), {"W": X}).require_clean()
    assert np.array_equal(result.outputs["Y"], np.where((X >= 32) & (X < 64), 7, X))
    assert verify(lower(discarded()), {"W": X}).verdict == "clean"


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"store": False}, "UNINIT_READ"),
        ({"what": "race"}, "RACE_WRITE_WRITE"),
        ({"what": "shared"}, "ILLEGAL_OPERAND"),
        ({"shift": 4}, "MISALIGNED"),
        ({"shift": 96}, "OOB_ACCESS"),
    ],
)
def test_what_is_wrong_with_a_discard_is_named(options, rule):
    assert rule in rules(discarded(**options), {"W": X})


@hand_threaded(128, by_hand=False, then=lower)
def first(X: F32[128], Y: F32[128], tx, given: Local[F32], *, waits):
    if waits == "first":
        T.ptx.griddepcontrol.wait()
    given[0] = X[tx]
    if waits == "after loads":
        T.ptx.griddepcontrol.wait()
    Y[tx] = given[0]


@pytest.mark.parametrize(
    ("waits", "promised", "buffers"),
    [
        ("first", [], set()),
        ("after loads", [], {"X"}),
        ("after loads", [0], set()),
        ("never", [], {"X", "Y"}),
        ("never", [0], {"Y"}),
    ],
)
def test_the_first_launch_waits_for_those_in_front_of_its_call(waits, promised, buffers):
    """They may write what it loads, except what is promised, and read what it stores."""
    program = early(first(waits), 0)
    program = Program(program.host.with_attr(PROMISED, promised), program.kernels)
    found = simulate(program, {"X": X}).findings
    assert {f.rule for f in found} <= {"GRID_DEPENDENCY"}
    assert {f.buffer for f in found} == buffers
    assert verify(program, {"X": X}).verdict == ("error" if buffers else "clean")
    assert not simulate(first(waits), {"X": X}).findings


@pytest.mark.parametrize("begins", ["first", "after the wait"])
def test_who_lets_the_next_launch_begin_before_it_waits_keeps_older_ones_in_flight(begins):
    @T.prim_func(s_tir=True)
    def main(X: T.Buffer((128,), "float32"), Y: T.Buffer((128,), "float32")):
        T.func_attr({"global_symbol": "main"})
        V = T.alloc_buffer((128,), "float32")
        with T.attr(T.int32(0), "first", 1):
            T.launch_thread("blockIdx.x", 1)
            tx = T.launch_thread("threadIdx.x", 128)
            V[tx] = X[tx] + T.float32(1)
        with T.attr(T.int32(0), "second", 1):
            T.launch_thread("blockIdx.x", 1)
            T.launch_thread("threadIdx.x", 128)
            if begins == "first":
                T.ptx.griddepcontrol.launch_dependents()
            T.ptx.griddepcontrol.wait()
            if begins != "first":
                T.ptx.griddepcontrol.launch_dependents()
        with T.attr(T.int32(0), "third", 1):
            T.launch_thread("blockIdx.x", 1)
            tz = T.launch_thread("threadIdx.x", 128)
            Y[tz] = V[tz]

    program = early(lower(main), 1, 2)
    program = Program(program.host.with_attr(PROMISED, [1]), program.kernels)
    found = {(f.rule, f.buffer) for f in simulate(program, {"X": X}).findings}
    tensors = {buffer for _, buffer in found}
    assert found <= {("GRID_DEPENDENCY", buffer) for buffer in tensors}
    assert any(t.startswith("V") for t in tensors) is (begins == "first")
