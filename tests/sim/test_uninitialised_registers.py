"""Registers that are used before their thread wrote them, and the same forms with a write."""

import numpy as np
import pytest
from tvm import tirx
from tvm.script import tirx as T

from tests.sim_kernels.mutate import change, with_argument
from tvm_hopper.simulation import simulate, verify

from . import test_wgmma
from .hand_threaded import F16, F32, I32, U32, Local, Shared, hand_threaded
from .kernels import lower, rules
from .test_illegal_operands import product

X = np.arange(128, dtype="float32")
GIVEN = {"X": X}


def named(value):
    """Choose by a value that has a name inside of the expression alone."""
    outer, inner = tirx.Var("outer", "float32"), tirx.Var("inner", "float32")
    chosen = tirx.Select(inner < tirx.const(3, "float32"), outer, inner)
    return tirx.Let(outer, value, tirx.Let(inner, outer * outer, chosen))


@hand_threaded(128, then=lower)
def used(
    X: F32[128], Y: F32[128],
    tx, tile: Shared[F32], v: Local[I32, 2], f: Local[F32, 4], *, how, written,
):  # fmt: skip
    """Use `v`, of which the second element is written, or not; `how` names the use."""
    v[0] = 1
    if written:
        v[1] = 1
    f[0] = T.float32(2)
    f[3] = T.Cast("float32", v[1])  # a copy is no use
    if how != "place":
        Y[tx] = X[tx]
    if how == "store":
        Y[tx] = T.Cast("float32", v[0] + v[1])
    elif how == "branch":
        if v[1] > 0:
            Y[tx] = T.float32(2)
    elif how == "loop":
        for i in T.serial(v[1]):
            Y[tx] = Y[tx] + T.Cast("float32", i)
    elif how == "while":
        while v[1] < 1:
            v[1] = v[1] + 1
    elif how == "index":
        Y[tx] = X[v[1] & 127]
    elif how == "place":
        Y[(tx + v[1]) & 127] = X[tx]
    elif how == "register index":
        f[v[1] & 1] = T.float32(3)
    elif how == "copy":
        f[1] = T.Cast("float32", v[1])
        f[2] = f[1] * T.float32(2)
        Y[tx] = f[2]
    elif how == "vector":
        f[1] = T.Cast("float32", v[1])
        tile[T.Ramp(tx * 2, 1, 2)] = f[T.Ramp(0, 1, 2)]
    elif how == "instruction":
        T.ptx["fma.rn.f32"](f[1], f[0], T.Cast("float32", v[1]), f[0])
        Y[tx] = f[1]
    elif how == "selp":
        T.ptx["selp.f32"](f[1], f[0], T.Cast("float32", v[1]), tx < 8)
        Y[tx] = f[1]
    elif how == "ptx store":
        T.ptx["st.shared.u32"](T.address_of(tile[tx]), T.Cast("uint32", v[1]))
    elif how == "predicate":
        T.ptx["st.shared.u32"](T.address_of(tile[tx]), T.uint32(1), pred=v[1] != 0)
    elif how == "barrier":
        T.ptx["barrier.sync"](T.Cast("uint32", v[1] & 1))
    elif how == "chosen":
        Y[tx] = T.if_then_else(tx < 8, T.Cast("float32", v[1]), T.float32(0))
    elif how == "named":
        Y[tx] = named(T.Cast("float32", v[1]))
    elif how == "and" and tx < 8 and v[1] > 0:
        Y[tx] = T.float32(2)


USES = [
    *("store", "branch", "loop", "while", "index", "place", "register index", "copy", "vector"),
    *("instruction", "selp", "ptx store", "predicate", "barrier", "chosen", "and", "named"),
]


@pytest.mark.parametrize("how", USES)
def test_a_register_is_written_before_it_is_used(how):
    assert simulate(used(how, False), GIVEN).rules == {"UNINIT_READ"}
    simulate(used(how, True), GIVEN).require_clean()


def test_the_whole_verdict_says_so():
    (found, *_) = verify(used("store", False), GIVEN).findings
    assert found.rule == "UNINIT_READ"
    assert "v: registers are used that lane 0 never wrote" in found.message
    assert verify(used("store", True), GIVEN).verdict == "clean"


@hand_threaded(128, smem=2048, then=lower)
def harmless(
    X: F32[128], Y: F32[128],
    tx, half: Shared[F16], v: Local[F32, 4], w: Local[F32, 4], words: Local[U32, 4],
    *, how,
):  # fmt: skip
    """Leave a register without a value where nobody asks for it."""
    if how == "copied":  # and overwritten
        w[1] = v[1] + T.float32(1)
        w[1] = T.float32(1)
        Y[tx] = w[1]
    elif how == "lanes":  # each lane uses what it wrote
        if tx % 2 == 0:
            v[0] = T.float32(1)
        else:
            v[1] = T.float32(2)
        if tx % 2 == 0:
            Y[tx] = v[0]
        else:
            Y[tx] = v[1]
    elif how == "chosen":
        if tx < 8:
            v[0] = T.float32(1)
        Y[tx] = T.if_then_else(tx < 8, v[0], T.float32(0))
    elif how == "or":
        if tx < 8:
            v[0] = T.float32(1)
        Y[tx] = T.float32(0)
        if tx >= 8 or v[0] > T.float32(0):
            Y[tx] = T.float32(1)
    elif how == "selp":
        w[0] = T.float32(3)
        T.ptx["selp.f32"](w[1], w[0], v[0], tx >= 0)
        Y[tx] = w[1]
    elif how == "lane index":
        for i in T.serial(4):
            v[(tx + i) % 4] = T.float32(1)
        Y[tx] = v[0] + v[tx % 4]
    elif how == "vectors":
        v[T.Ramp(0, 1, 2)] = X[T.Ramp(tx // 2 * 2, 1, 2)]
        w[T.Ramp(0, 1, 4)] = v[T.Ramp(0, 1, 4)]  # of which half holds nothing
        Y[tx] = w[0] + w[1]
    elif how == "shuffle":  # of a lane that has it
        if tx % 32 == 0:
            v[0] = T.float32(1)
        Y[tx] = T.tvm_warp_shuffle(T.uint32(0xFFFFFFFF), v[0], 0, 32, 32)
    else:  # fragments, filled by instructions
        T.ptx.mov.b32(words[0], T.uint32(0))
        for i in T.serial(8):
            half[tx * 8 + i] = T.float16(0)
        T.cuda.cta_sync()
        T.ptx["ldmatrix.sync.aligned.m8n8.x4.shared.b16"](
            words[0], words[1], words[2], words[3], T.address_of(half[tx % 32 * 8])
        )
        for i in T.serial(4):
            w[i] = T.float32(0)
        T.ptx["mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"](
            v[0], v[1], v[2], v[3], words[0], words[1], words[2], words[3], words[0],
            words[1], w[0], w[1], w[2], w[3],
        )  # fmt: skip
        T.cuda.cta_sync()
        T.ptx["stmatrix.sync.aligned.m8n8.x2.shared.b16"](
            T.address_of(half[tx // 32 * 256 + tx % 32 * 8]), words[0], words[1]
        )
        Y[tx] = v[0] + v[3]


HARMLESS = [
    *("copied", "lanes", "chosen", "or", "selp", "lane index", "vectors", "shuffle", "fragments"),
]


@pytest.mark.parametrize("how", HARMLESS)
def test_nothing_is_said_of_registers_that_are_not_used(how):
    simulate(harmless(how), GIVEN).require_clean()


@hand_threaded(32)
def multiplied(
    Y: F32[32], tx, a: Local[U32, 4], b: Local[U32, 2], c: Local[F32, 4], d: Local[F32, 4],
    *, missing,
):  # fmt: skip
    """Multiply by `mma`, with one register of the named operand not written."""
    for i in T.serial(4):
        if missing != "a" or i > 0:
            a[i] = T.uint32(0)
        if missing != "c" or i > 0:
            c[i] = T.float32(0)
    for i in T.serial(2):
        if missing != "b, one lane" or i > 0 or tx != 5:
            b[i] = T.uint32(0)
    T.ptx["mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"](
        d[0], d[1], d[2], d[3], a[0], a[1], a[2], a[3], b[0], b[1], c[0], c[1], c[2], c[3]
    )
    if missing == "c, not stored":
        Y[tx] = d[1]
    else:
        Y[tx] = d[0]


@pytest.mark.parametrize("missing", ["a", "b, one lane", "c"])
def test_a_product_of_a_warp_holds_what_its_operands_hold(missing):
    assert rules(multiplied(missing), {}, [("eager", 0)]) == {"UNINIT_READ"}


@pytest.mark.parametrize("missing", ["", "c, not stored"])
def test_a_product_of_a_warp_is_told_by_element(missing):
    assert rules(multiplied(missing), {}, [("eager", 0)]) == set()


@pytest.mark.parametrize(("adds", "found"), [(0, set()), (1, {"UNINIT_READ"})])
def test_a_product_of_a_group_adds_to_what_is_there(adds, found):
    """With scale-d 0 the accumulators need not hold anything."""
    scale_d = with_argument(test_wgmma.N // 2 + 2, tirx.IntImm("int32", adds))
    program = change(product(), "wgmma_f16_ss", 0, scale_d)
    assert simulate(program, {"X": np.zeros(4096, "uint32")}).rules == found
