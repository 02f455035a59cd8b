"""Which CTAs differ in coordinates alone: the others must run, or the verdict is incomplete."""

import numpy as np
import pytest
from tvm import tirx
from tvm.script import tirx as T

from tvm_hopper.sim.cta_selection import MAX_COMMUNICATING, MAX_KINDS, choose_blocks
from tvm_hopper.sim.kinds.grid_values import GridValues, NotOfBlockError
from tvm_hopper.sim.kinds.groups import groups_of
from tvm_hopper.sim.launch.arguments import complete
from tvm_hopper.sim.launch.host import evaluate
from tvm_hopper.simulation import load, verify
from tvm_hopper.verification.launches import bound_launches

from .hand_threaded import F32, I32, U32, Local, Static, hand_threaded
from .kernels import lower

QUICK = (("eager", 0), ("on_wait", 0), ("random", 1))


def choice_of(program, max_ctas=8):
    values, _ = complete(program.arguments, {})
    (launch,) = bound_launches(program, values, 132)
    return choose_blocks(launch.func, launch.setup, max_ctas)


def kernel(body, grid=200, threads=64, rows=6400):
    """Build a kernel over A and C of `rows` integers, with a shared tile and a register."""

    @hand_threaded(threads, grid=grid)
    def main(A: I32[rows], C: I32[rows], bx, tx, tile: Static[I32, 256], n: Local[I32]):
        n[0] = 1
        if body == "iterations in a register":
            n[0] = bx // 150 + 1
            for _ in T.serial(n[0]):
                T.tvm_storage_sync("shared")
        if body == "iterations from memory":
            n[0] = A[bx]
            for _ in T.serial(n[0]):
                T.tvm_storage_sync("shared")
        if body == "iterations from one place":
            for _ in T.serial(A[0]):
                T.tvm_storage_sync("shared")
        if body == "place in shared memory":
            tile[(tx + bx * 8) % 64] = A[tx]
            T.tvm_storage_sync("shared")
            C[bx * 32] = tile[tx]
        if body == "a place for each":
            tile[(tx + bx) % 64] = A[tx]
            T.tvm_storage_sync("shared")
            C[bx * 32] = tile[tx]
        if body == "edge" and bx * 32 + tx < 6380:
            tile[tx] = A[tx]
        if body == "edge of global memory" and bx * 32 + tx < 6380:
            C[bx * 32 + tx % 32] = A[tx]
        if body == "one block meets" and bx == 123:
            if tx < 32:
                tile[tx] = A[tx]
            C[tx] = tile[tx]
            T.tvm_storage_sync("shared")
        if body == "while":
            n[0] = 0
            while n[0] < bx % 3:
                n[0] = n[0] + 1
                T.tvm_storage_sync("shared")
        if body == "strided rows":
            for r in T.serial(4):
                if r * 200 + bx < 730:
                    T.tvm_storage_sync("shared")
        if body == "strided rows of warps":
            for r in T.serial(3):
                if r * 400 + bx * 2 + tx // 32 < 1001:
                    tile[tx] = A[tx]
        if body == "one strided row":
            for r in T.serial(4):
                if r * 200 + bx == 330:
                    T.tvm_storage_sync("shared")
        if body == "choice":
            C[tx] = T.if_then_else(bx < 7, tile[tx], 0)
        if body == "loop from a separate place":
            for i in T.serial(bx % 2, 5):
                tile[tx + i] = 0

    return lower(main)


@pytest.mark.parametrize(
    ("body", "kinds"),
    [
        ("nothing", 1),
        ("iterations in a register", 2),
        ("iterations from one place", 1),
        ("place in shared memory", 8),
        ("edge", 3),  # whole, 44 of 64, 12 of 64
        ("edge of global memory", 1),
        ("one block meets", 2),
        ("while", 3),
        ("choice", 2),
        ("loop from a separate place", 2),
        ("strided rows", 2),  # four rows, or three
        ("strided rows of warps", 3),  # all, one warp of two in the last turn, or none
        ("one strided row", 2),
    ],
)
def test_each_kind_of_cta_runs(body, kinds):
    choice = choice_of(kernel(body))
    assert choice.covered, choice.reason
    if kinds == 1:
        assert "the others run the same protocol" in choice.reason
    else:
        assert f"one of each of the {kinds} kinds of CTA" in choice.reason
    special = {"iterations in a register": 150, "one block meets": 123, "edge": 198, "choice": 0}
    special |= {"one strided row": 130, "strided rows of warps": 100}
    assert (special.get(body, 0), 0, 0) in choice.blocks


def test_a_race_in_one_block_of_many_is_found():
    report = verify(kernel("one block meets"), runs=QUICK)
    assert any(f.rule.startswith(("RACE", "UNINIT")) for f in report.findings), str(report)


def test_what_memory_decides_is_not_proved():
    choice = choice_of(kernel("iterations from memory"))
    assert not choice.covered
    assert "by way of memory" in choice.reason
    assert choice.findings()[0].rule == "INCOMPLETE"


def copied(place, grid=200):
    """Copy words to shared memory by cp.async, and let one of them say how often to meet."""

    @hand_threaded(32, grid=grid)
    def main(A: I32[6400], bx, tx, tile: Static[I32, 128]):
        if place == "own":
            T.ptx["cp.async.cg.shared.global"](
                T.address_of(tile[tx * 4]), T.address_of(A[bx * 32 + tx % 8 * 4]), T.int32(16)
            )
        else:
            T.ptx["cp.async.cg.shared.global"](
                T.address_of(tile[tx * 4]), T.address_of(A[tx * 4]), T.int32(16)
            )
        T.ptx["cp.async.wait_all"]()
        T.tvm_storage_sync("shared")
        for _ in T.serial(tile[0]):
            T.tvm_storage_sync("shared")

    return lower(main)


def test_what_a_copy_brings_from_a_place_of_its_own_is_not_proved():
    choice = choice_of(copied("own"))
    assert not choice.covered
    assert "by way of memory" in choice.reason
    assert choice_of(copied("common")).covered


def test_more_kinds_than_may_run_are_not_covered():
    choice = choice_of(kernel("a place for each"))
    assert not choice.covered
    assert choice.reason == f"64 kinds with 64 CTAs are more than {MAX_KINDS}"
    assert choice_of(kernel("a place for each"), max_ctas=64).covered


# -- CTAs that communicate -----------------------------------------------------------------------


def semaphores(tiles, splits, odd=-1, by="ld.acquire.gpu.global.u32"):
    """Build a serial split-K: CTA (tile, k) waits until its tile's word is k, then sets k + 1.

    `odd`: the tile whose last CTA waits for a value that nobody sets.
    """

    @hand_threaded(32, grid=(tiles, None, splits))
    def main(X: F32[32], C: F32[tiles * 32], F: U32[tiles], bx, bz, tx, v: Local[U32]):
        if tx == 0:
            v[0] = T.uint32(0)
            if bx == odd:
                while v[0] != T.Cast("uint32", bz * 2):
                    T.ptx[by](v[0], T.address_of(F[bx]))
            else:
                while v[0] != T.Cast("uint32", bz):
                    T.ptx[by](v[0], T.address_of(F[bx]))
        T.tvm_storage_sync("shared")
        C[bx * 32 + tx] = C[bx * 32 + tx] + X[tx]
        T.tvm_storage_sync("shared")
        if tx == 0:
            T.ptx["st.release.gpu.global.u32"](T.address_of(F[bx]), T.Cast("uint32", bz + 1))

    return lower(main)


def inputs(tiles):
    return {
        "X": np.arange(32, dtype="float32"),
        "C": np.zeros(tiles * 32, "float32"),
        "F": np.zeros(tiles, "uint32"),
    }


def test_one_group_of_many_alike_runs():
    program = semaphores(60, 5)
    choice = choice_of(program)
    assert choice.covered
    assert choice.blocks == tuple((0, 0, k) for k in range(5))
    assert "in groups of 5" in choice.reason
    verify(program, inputs(60), runs=QUICK).require_clean()


def test_the_group_that_is_not_alike_runs_too_and_hangs():
    program = semaphores(60, 3, odd=41)
    choice = choice_of(program)
    assert {block[0] for block in choice.blocks} == {0, 41}
    report = verify(program, inputs(60), runs=QUICK)
    assert "DEADLOCK" in {f.rule for f in report.findings}


@pytest.mark.parametrize("by", ["ld.relaxed.gpu.global.u32", "ld.volatile.global.u32"])
def test_every_load_that_may_hear_makes_a_group(by):
    assert "in groups of 4" in choice_of(semaphores(30, 4, by=by)).reason


def test_one_large_group_runs_whole():
    program = semaphores(1, 40)
    choice = choice_of(program)
    assert choice.covered
    assert len(choice.blocks) == 40
    verify(program, inputs(1), runs=QUICK).require_clean()


def test_a_group_beyond_the_limit_is_incomplete():
    choice = choice_of(semaphores(1, MAX_COMMUNICATING + 1))
    assert not choice.covered
    assert f"only the first {MAX_COMMUNICATING} were run" in choice.reason


def flags(place, grid=300, atomic="heard"):
    """Build CTAs that set a flag and look at another one."""

    @hand_threaded(32, grid=grid)
    def main(A: I32[1200], F: I32[1200], bx, tx, v: Local[I32]):
        if tx == 0:
            if place == "own":
                v[0] = T.cuda.atomic_add(T.address_of(F[bx]), 1)
            if place == "pairs":
                v[0] = T.cuda.atomic_add(T.address_of(F[bx // 2]), 1)
            if place == "neighbours":
                v[0] = T.cuda.atomic_add(T.address_of(F[bx]), 1)
                v[0] = T.cuda.atomic_add(T.address_of(F[bx + 1]), 1)
            if place == "memory":
                v[0] = T.cuda.atomic_add(T.address_of(F[A[bx]]), 1)
            if place == "unheard":
                T.evaluate(T.cuda.atomic_add(T.address_of(F[0]), 1))
        if place == "threads":
            v[0] = T.cuda.atomic_add(T.address_of(F[bx % 2 * 32 + tx]), 1)

    return lower(main)


@pytest.mark.parametrize(
    ("place", "sizes"),
    [("own", {1}), ("pairs", {2}), ("threads", {150}), ("unheard", {1})],
)
def test_groups_are_those_that_share_words(place, sizes):
    program = flags(place)
    values, _ = complete(program.arguments, {})
    (launch,) = bound_launches(program, values, 132)
    groups = groups_of(launch.func, launch.setup)
    assert not groups.trouble
    assert {len(kind) for kind in groups.kinds} == sizes


@pytest.mark.parametrize(
    ("place", "grid", "reason"),
    [
        ("neighbours", 1100, "1 kinds with 1100 CTAs are more than 1024"),
        ("memory", 1100, "which words CTAs share by cuda.atomic_add is not known"),
        ("memory", 200, None),
        ("neighbours", 200, None),
    ],
)
def test_a_group_that_cannot_be_told_is_the_whole_grid(place, grid, reason):
    choice = choice_of(flags(place, grid))
    assert choice.covered is (reason is None)
    assert choice.everything is (reason is None)
    assert reason is None or reason in choice.reason


def test_a_million_ctas_are_sorted_quickly():
    choice = choice_of(kernel("edge", grid=1 << 20, rows=64))
    assert choice.covered
    assert choice.total == 1 << 20


def test_too_many_ctas_to_sort_are_not_covered():
    choice = choice_of(kernel("edge", grid=1 << 25, rows=64))
    assert not choice.covered
    assert "33554432 CTAs" in choice.reason


# -- values and keys -------------------------------------------------------------------------------


def random_expression(rng, leaves, depth=3):
    if depth == 0 or rng.random() < 0.2:
        return (
            leaves[rng.integers(len(leaves))]
            if rng.random() < 0.7
            else tirx.IntImm("int32", int(rng.integers(-4, 9)))
        )
    a, b = (random_expression(rng, leaves, depth - 1) for _ in "ab")
    divisor = tirx.IntImm("int32", int(rng.integers(1, 9)))
    makers = [
        lambda: a + b,
        lambda: a - b,
        lambda: a * tirx.IntImm("int32", int(rng.integers(-3, 5))),
        lambda: tirx.floordiv(a, divisor),
        lambda: tirx.floormod(a, divisor),
        lambda: tirx.truncdiv(a, divisor),
        lambda: tirx.truncmod(a, divisor),
        lambda: tirx.min(a, b),
        lambda: tirx.max(a, b),
        lambda: tirx.Select(a < b, a, b),
        lambda: tirx.if_then_else(a >= b, b, a),
    ]
    return makers[rng.integers(len(makers))]()


@pytest.mark.parametrize("seed", range(40))
def test_values_of_all_ctas_are_those_of_each(seed):
    rng = np.random.default_rng(seed)
    x, y = (tirx.Var(name, "int32") for name in "xy")
    func = tirx.PrimFunc([], tirx.Evaluate(0))
    grid = (5, 7, 1)
    values = GridValues(func, {}, grid, {x: "blockIdx.x", y: "blockIdx.y"}, {})
    expr = random_expression(rng, [x, y])
    got = np.broadcast_to(values.of(expr), (35,))
    for number, (i, j, _) in enumerate(values.blocks(np.arange(35))):
        assert got[number] == evaluate(expr, {x: i, y: j}, {}, {})


def test_a_value_that_has_a_name_of_its_own():
    """TVM writes a division by what is not known to be positive so."""
    x, q = tirx.Var("x", "int32"), tirx.Var("q", "int32")
    func = tirx.PrimFunc([], tirx.Evaluate(0))
    values = GridValues(func, {}, (5, 1, 1), {x: "blockIdx.x"}, {})
    expr = tirx.Let(q, tirx.truncdiv(x, 2), tirx.Select(q > 1, q - 1, q))
    assert values.of(expr).tolist() == [0, 0, 1, 1, 1]


def test_a_value_that_needs_more_than_the_block_is_refused():
    x = tirx.Var("x", "int32")
    values = GridValues(tirx.PrimFunc([], tirx.Evaluate(0)), {}, (4, 1, 1), {x: "blockIdx.x"}, {})
    for expr in (tirx.Var("t", "int32") + x, tirx.floordiv(x, x), tirx.Cast("float32", x)):
        with pytest.raises(NotOfBlockError):
            values.of(expr)


@pytest.mark.parametrize("seed", range(60))
def test_ctas_of_one_key_take_every_branch_alike(seed):
    """Keys decide nothing wrong: equal keys, equal truth for every thread and trip."""
    from tvm_hopper.sim.kinds.flow import BLOCK, Flow
    from tvm_hopper.sim.kinds.keys import Keys

    rng = np.random.default_rng(1000 + seed)
    x, t = tirx.Var("x", "int32"), tirx.Var("t", "int32")
    flow = Flow(block_vars={x: "blockIdx.x"}, taints={x: frozenset({BLOCK})})
    flow.extents[t] = tirx.IntImm("int32", 6)
    values = GridValues(tirx.PrimFunc([], tirx.Evaluate(0)), {}, (24, 1, 1), flow.block_vars, {})
    a, b = (random_expression(rng, [x, t]) for _ in "ab")
    condition = [a < b, a <= b, a > b, a >= b, tirx.EQ(a, b), tirx.NE(a, b)][rng.integers(6)]
    keys = Keys(flow, values).of(condition)
    table = [tuple(int(key[i]) for key in keys) for i in range(24)]
    seen = {}
    for i in range(24):
        row = tuple(bool(evaluate(condition, {x: i, t: j}, {}, {})) for j in range(6))
        assert seen.setdefault(table[i], row) == row


def test_an_emitted_persistent_kernel_is_of_few_kinds():
    from tvm import s_tir

    from tvm_hopper import schedule as hs
    from tvm_hopper.testing import workloads

    sch = s_tir.Schedule(workloads.matmul(2048, 2048, 128))
    hs.matmul(sch, "C", hs.MatmulConfig(tile=(128, 128, 64), stages=2, persistent=100))
    choice = choice_of(load(sch.mod))
    assert choice.covered
    assert "one of each of the 2 kinds" in choice.reason
