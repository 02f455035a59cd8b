"""Modules of other people: strange names, endless loops, wild indices. None of it gets loose."""

import numpy as np
import pytest
from tvm.script import tirx as T

from tvm_hopper.sim.cta_selection import choose_blocks
from tvm_hopper.sim.kernel_code import compiled
from tvm_hopper.sim.launch.host import run_host
from tvm_hopper.sim.run import run_kernel
from tvm_hopper.sim.translate.scope import Scope
from tvm_hopper.simulation import simulate, verify

from . import ptx
from .hand_threaded import F32, I32, U64, Local, Shared, hand_threaded
from .kernels import lower, rules

X = np.arange(128, dtype="float32")


@hand_threaded(128)
def wild(
    X: F32[128], Y: F32[128], tx, tile: Shared[F32], bar: Shared[U64], reg: Local[F32, 4], *, how,
):  # fmt: skip
    """Do something that no memory or register is for."""
    for i in T.serial(4):
        reg[i] = X[tx]
    if how == "init beyond":
        if tx == 0:
            ptx.init_mbarrier(bar[128], 1)
    elif how == "init in global memory":
        if tx == 0:
            ptx.init_mbarrier(Y[0], 1)
    elif how == "copy from nowhere":
        if tx == 0:
            ptx.init_mbarrier(bar[100], 1)
            ptx.load_bytes(tile[0], X[100000], 4000000000, bar[100])
    elif how == "register":
        reg[0] = reg[7]
    elif how == "register of a loop":
        for i in T.serial(6):
            reg[i] = X[tx]
    elif how == "register before the first":
        for i in T.serial(2):
            reg[i - 1] = X[tx]
    elif how == "registers by lane":
        reg[0] = reg[tx % 8]
    elif how == "registers written by lane":
        reg[tx % 8 - 2] = X[tx]
    Y[tx] = reg[0]


@pytest.mark.parametrize(
    "how",
    [
        "init beyond",
        "init in global memory",
        "copy from nowhere",
        "register",
        "register of a loop",
        "register before the first",
        "registers by lane",
        "registers written by lane",
    ],
)
def test_places_that_do_not_exist_are_findings(how):
    assert "OOB_ACCESS" in rules(wild(how), {"X": X}, [("eager", 0), ("on_wait", 0)])


def test_lanes_that_name_different_barriers():
    @hand_threaded(128)
    def main(X: F32[128], Y: F32[128], tx):
        T.ptx.bar.sync(T.Cast("uint32", tx % 2 + 1), T.uint32(128))
        Y[tx] = X[tx]

    assert "WARP_CONVERGENCE" in rules(main, {"X": X}, [("eager", 0)])


@hand_threaded(128, then=lower)
def endless(X: F32[128], Y: F32[128], tx, count: Local[I32], *, how):
    count[0] = 0
    if how == "for":
        for _ in T.serial(T.int64(1 << 40)):
            Y[tx] = X[tx]
    elif how == "nested":
        for _ in T.serial(1000):
            for _ in T.serial(1000):
                for _ in T.serial(1000):
                    Y[tx] = X[tx]
    elif how == "while":
        while count[0] >= 0:
            count[0] = (count[0] + 1) % 1000
    Y[tx] = X[tx]


@pytest.mark.parametrize("how", ["for", "nested", "while"])
def test_a_run_that_takes_too_long_is_incomplete(how):
    report = verify(endless(how), {"X": X}, budget_s=0.5)
    assert {f.rule for f in report.findings} == {"INCOMPLETE"}
    assert {verdict for _, _, verdict in report.runs} == {"skipped"}


def many(ctas):
    @hand_threaded(128, grid=ctas)
    def main(X: F32[128], Y: F32[128], bx, tx):
        if bx == 0:
            T.tvm_storage_sync("shared")
            Y[tx] = X[tx]

    return lower(main)


def test_a_launch_that_does_not_fit_into_memory_is_incomplete():
    result = simulate(many(1 << 28), {"X": X})
    assert result.rules == {"INCOMPLETE"}
    assert "not run: 268435456 CTAs" in result.findings[0].message


def test_ctas_are_chosen_without_a_list_of_all():
    program = many(1 << 30)
    (launch,) = run_host(program.host, {"X": X, "Y": X.copy()})
    func = program.kernels[launch.kernel]
    choice = choose_blocks(func, launch.bind(func), 8)
    assert not choice.covered
    assert ((1 << 30) - 1, 0, 0) in choice.blocks


def test_names_of_a_module_are_never_code():
    scope = Scope()
    for name in ("x); __import__('os').abort(", "1st", "²", "ﬁ", "a\nb", "λ", "", "class"):
        made = scope.name(name)
        assert made.isidentifier()
        assert made.isascii()


@pytest.mark.parametrize("name", ["k'); import os #", "a\0b", "k\nraise SystemExit"])
def test_a_kernel_may_have_any_name(name):
    program = many(1)
    ((_, func),) = program.kernels.items()
    strange = func.with_attr("global_symbol", name)
    values = {p.name: X.copy() for p in strange.params}
    result = run_kernel(strange, values, (1, 1, 1), (128, 1, 1))
    assert not result.findings
    assert "import os" not in compiled(strange).source


def test_more_loops_than_python_nests_are_incomplete():
    @hand_threaded(128)
    def main(X: F32[128], Y: F32[128], tx):
        for a, b, c, d, e, f, g, h, i, j, k in T.grid(*[2] * 11):
            for x, m, n, o, p, q, r, s, t, u, v in T.grid(*[2] * 11):
                if a + b + c + d + e + f + g + h + i + j + k == 11:
                    Y[tx] = X[tx] + T.Cast("float32", x + m + n + o + p + q + r + s + t + u + v)

    result = simulate(lower(main), {"X": X})
    assert result.rules == {"INCOMPLETE"}
    assert "a function that Python cannot compile" in result.findings[0].message
