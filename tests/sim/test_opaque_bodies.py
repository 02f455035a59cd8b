"""Bodies that nobody sees: nothing is taken for granted behind them, and nothing is invented."""

import numpy as np
import pytest
from tvm.script import tirx as T

from tvm_hopper.sim.protocol.check import explore_skeleton
from tvm_hopper.simulation import simulate, verify
from tvm_hopper.static_check import check_sync

from . import ptx
from .hand_threaded import F32, U64, Local, Shared, hand_threaded
from .kernels import lower

X = np.arange(128, dtype="float32")
RAW = "__device__ void somebody_does(int x) {}"


def hidden(what, how):
    """Let a body that nobody sees do one step of a right kernel; `how` says how it is called."""

    @T.inline
    def call(tx):
        if how == "text":
            T.evaluate(T.cuda.func_call("somebody_does", tx, source_code=RAW))
        elif how == "condition":
            if T.call_extern("int32", "somebody_does", tx) > 0:
                T.cuda.nano_sleep(T.uint32(1))
        elif how == "loop":
            for _i in T.serial(T.call_extern("int32", "somebody_does", tx)):
                T.cuda.nano_sleep(T.uint32(1))
        else:
            T.evaluate(T.call_extern("void", "somebody_does", tx))

    @hand_threaded(128)
    def main(X: F32[128], Y: F32[128], tx, tile: Shared[F32], bar: Shared[U64]):
        if tx == 0:
            ptx.init_mbarrier(bar[100], 1)
        T.tvm_storage_sync("shared")
        if tx == 0 and what == "overflow":
            T.ptx.mbarrier.arrive.shared.b64(T.address_of(bar[100]), T.uint32(2))
        if tx == 0:
            if what == "arrive":
                call(tx)
            else:
                ptx.arrive(bar[100])
        tile[tx] = X[tx]
        if what == "fence":
            call(tx)
        else:
            T.ptx.fence.proxy.async_.shared__cta()
        T.tvm_storage_sync("shared")
        ptx.wait(bar[100], 0)
        if tx == 0:
            ptx.store_bytes(Y[0], tile[0], 512)
            if what == "commit":
                call(tx)
            else:
                T.ptx.cp.async_.bulk.commit_group()
            if what == "wait":
                call(tx)
            else:
                T.ptx["cp.async.bulk.wait_group.read"](0)

    return main


@pytest.mark.parametrize("how", ["call", "text", "condition", "loop"])
@pytest.mark.parametrize("what", ["arrive", "fence", "commit", "wait"])
def test_what_a_hidden_body_may_do_is_left_open_by_every_judge(what, how):
    program = lower(hidden(what, how))
    (kernel,) = program.kernels.values()
    for found in (
        check_sync(kernel, program.host),
        explore_skeleton(kernel, program.host).findings,
        simulate(program, {"X": X}).findings,
    ):
        assert {f.rule for f in found} == {"INCOMPLETE"}
        assert any("somebody_does" in f.message for f in found)
    if how == "call":
        assert verify(program, {"X": X}).verdict == "incomplete"


def test_the_same_kernel_without_a_hidden_body_is_clean():
    assert verify(lower(hidden("nothing", "call")), {"X": X}).verdict == "clean"


def test_a_rule_that_is_broken_before_the_hidden_body_is_an_error_of_every_judge():
    program = lower(hidden("overflow", "call"))
    (kernel,) = program.kernels.values()
    assert "MBAR_ARRIVE_OVERFLOW" in {f.rule for f in check_sync(kernel, program.host)}
    assert "MBAR_ARRIVE_OVERFLOW" in explore_skeleton(kernel, program.host).rules
    assert "MBAR_ARRIVE_OVERFLOW" in simulate(program, {"X": X}).rules


@hand_threaded(384, min_blocks=1)
def registers(X: F32[384], Y: F32[384], tx, *, hidden, least):
    """Hand registers from one warp group to two others, perhaps behind a hidden body."""
    if tx < 128:
        if hidden and tx == 0:
            T.evaluate(T.call_extern("void", "somebody_does", tx))
        T.ptx["setmaxnreg.dec.sync.aligned.u32"](least)
    else:
        T.ptx["setmaxnreg.inc.sync.aligned.u32"](232)
    Y[tx] = X[tx]


@pytest.mark.parametrize(
    ("hidden", "least", "rules"),
    [
        (False, 40, set()),
        (False, 48, {"SETMAXNREG_BUDGET"}),
        (True, 40, {"INCOMPLETE"}),
        (True, 48, {"INCOMPLETE"}),
    ],
)
def test_registers_are_not_counted_where_not_all_is_known(hidden, least, rules):
    program = lower(registers(hidden, least))
    (kernel,) = program.kernels.values()
    assert {f.rule for f in check_sync(kernel, program.host)} == rules


@hand_threaded(128, smem=512, then=lower)
def read_through(
    X: F32[128], P: U64[2], Y: F32[128], tx, places: Shared[U64], at: Local[U64, 2], *, how,
):  # fmt: skip
    """Read a row through an address that comes from somewhere."""
    words = T.decl_buffer((4,), "uint32", data=at.data, scope="local")
    v = T.alloc_buffer((1,), "float32", scope="local")
    if how == "table":
        T.ptx["ld.global.f32"](v[0], P[0] + T.Cast("uint64", tx * 4))
    if how == "register":
        at[1] = P[0]
        at[0] = at[1] + T.Cast("uint64", tx * 4)
        T.ptx["ld.global.f32"](v[0], at[0])
    if how == "loaded":
        T.ptx["ld.global.u64"](at[0], T.address_of(P[0]))
        T.ptx["ld.f32"](v[0], at[0])
    if how == "ldg":
        at[0] = T.cuda.ldg(T.address_of(P[0]), "uint64")
        T.ptx["ld.f32"](v[0], at[0])
    if how == "halves":
        words[0] = T.Cast("uint32", P[0])
        words[1] = T.uint32(0)
        T.ptx["ld.global.f32"](v[0], at[0])
    if how == "offset":
        at[0] = T.reinterpret("uint64", T.address_of(X[tx])) + P[1]
        T.ptx["ld.global.f32"](v[0], at[0])
    if how == "shared":
        if tx == 0:
            places[0] = T.reinterpret("uint64", T.address_of(X[0]))
        T.tvm_storage_sync("shared")
        at[0] = places[0] + T.Cast("uint64", tx * 4)
        T.ptx["ld.global.f32"](v[0], at[0])
    if how == "index":
        T.ptx["ld.global.f32"](v[0], T.address_of(X[T.Cast("int32", P[1]) + tx]))
    Y[tx] = v[0]


@pytest.mark.parametrize("how", ["table", "register", "loaded", "ldg", "halves"])
def test_an_address_that_is_read_from_memory_is_named_as_not_modelled(how):
    # a number that would be some tensor's address here
    result = simulate(read_through(how), {"X": X, "P": np.array([1 << 40, 0], "uint64")})
    assert result.rules == {"INCOMPLETE"}
    assert any("an address that is read from memory" in f.message for f in result.findings)


@pytest.mark.parametrize("how", ["offset", "shared", "index"])
def test_an_address_that_is_counted_from_a_known_place_is_followed(how):
    result = simulate(read_through(how), {"X": X, "P": np.zeros(2, "uint64")})
    assert result.rules == set()
    assert np.array_equal(result.outputs["Y"], X)
