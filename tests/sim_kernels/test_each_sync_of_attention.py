"""Attention with two products in flight: each sync is needed, and where it stands matters."""

import functools
from dataclasses import replace
from typing import Any

import pytest
import tvm
from tvm import s_tir, tirx

from tests.schedule.attention.programs import Case, program, values
from tests.schedule.attention.test_attention import H200, masked, scheduled
from tests.sim_kernels.each_sync import make_tests, rules_broken
from tests.sim_kernels.mutate import change, instructions, with_argument
from tvm_hopper import ir, schedule as hs
from tvm_hopper.simulation import Program, load, verify
from tvm_hopper.transforms.pipeline import pipeline_compute_stages

CASE = Case(h=1, kv=1, n=64, m=160, d=16, v=16)  # five steps over two slots
CONFIG = {"tile": (64, 32), "consumers": 1, "splits": 1}
POLICIES = ("eager", "on_wait", "lifo")
WORK = {"setmaxnreg", "cp_async_bulk_tensor_g2s_cluster", "wgmma_f16_ss", "wgmma_f16_rs"}
WORK |= {"tvm_hopper_code_fence", "tvm_hopper_hold_float32", "tvm_hopper_hold_uint32"}
# of every ring: tests/sim_kernels/test_each_product_sync_is_needed.py
WORK |= {"mbarrier_init", "fence_mbarrier_init", "tvm_storage_sync", "mbarrier_arrive_expect_tx"}
WORK |= {"griddepcontrol", "warp_sync"}
OVERWRITE, EARLY, REG = "RACE_OVERWRITE_BUSY", "RACE_READ_INFLIGHT", "WGMMA_REG_INFLIGHT"
REMOVED = {
    # the producer: a slot for the queries, which nobody fills again, for keys and for values
    ("mbarrier_wait", 0): set(),
    ("mbarrier_wait", 1): {OVERWRITE},
    ("mbarrier_wait", 2): {OVERWRITE},
    # queries; keys and values of the first step; those of the others
    **{("mbarrier_wait", x): {EARLY} for x in range(3, 8)},
    # scores of the first step and of the others, values behind them, and of the last step
    ("wgmma_fence", 0): {"WGMMA_FENCE_MISSING"},
    ("wgmma_fence", 1): {"WGMMA_FENCE_MISSING"},
    ("wgmma_fence", 2): set(),  # what it reads was computed in front of the fence before it
    ("wgmma_fence", 3): {"WGMMA_FENCE_MISSING"},
    **{("wgmma_commit_group", x): {REG} for x in range(4)},
    **{("wgmma_wait_group", x): {REG} for x in range(4)},
    # keys of the first step and of the others, queries, values
    **{("mbarrier_arrive_nocount", x): {"DEADLOCK"} for x in (0, 1, 3)},
    ("mbarrier_arrive_nocount", 2): set(),
}


@functools.cache
def right() -> tuple[Program, dict[str, Any]]:
    """Return the kernel as our passes emit it, and values."""
    return load(scheduled(CASE, **CONFIG).mod), values(CASE)


test_the_kernel_is_clean, test_simulator_misses_it, test_every_sync_is_in_the_table = make_tests(
    right, REMOVED, WORK, POLICIES
)


@functools.cache
def persistent() -> tuple[Program, dict[str, Any]]:
    """Return a kernel whose one thread block computes tiles of two steps and of one, in turn."""
    case = replace(CASE, n=128, m=128, h=2, kv=2, **masked(lambda i, j: j <= i))
    config = {**CONFIG, "tile": (64, 64), "persistent": 1}
    return load(scheduled(case, **config).mod), values(case)


@pytest.mark.parametrize(
    ("name", "number", "rule"),
    [
        ("mbarrier_wait", 0, OVERWRITE),  # queries of the next tile, while products read them
        ("mbarrier_wait", 3, EARLY),
        # their slot, behind the only scores and behind the last ones
        ("mbarrier_arrive_nocount", 1, "DEADLOCK"),
        ("mbarrier_arrive_nocount", 3, "DEADLOCK"),
        ("mbarrier_arrive_nocount", 5, "DEADLOCK"),  # the last values' slot, when a tile ends
    ],
)
def test_queries_of_the_next_tile(name, number, rule):
    program, given = persistent()
    assert not rules_broken(program, given, {rule}, POLICIES)
    assert rule in rules_broken(change(program, name, number, None), given, {rule}, POLICIES)


FIRST_SCORES, SCORES, SUM, LAST = range(4)  # waits


@pytest.mark.parametrize(("wait", "pending"), [(FIRST_SCORES, 1), (SCORES, 2), (SUM, 1), (LAST, 1)])
def test_results_that_are_read_at_a_wait_for_others(wait, pending):
    """Scores next to two products in flight; weights that a product reads are overwritten."""
    program, given = right()
    wrong = change(program, "wgmma_wait_group", wait, with_argument(0, pending))
    assert REG in rules_broken(wrong, given, {REG}, POLICIES)


def reordered(program: Program, late: tuple[str, int], early: tuple[str, int]) -> Program:
    """Move a statement of the loop over keys behind another one of it."""
    ((name, kernel),) = program.kernels.items()
    moved, before = (instructions(kernel, x)[n] for x, n in (late, early))
    around = ir.find_all(kernel.body, tirx.SeqStmt, lambda x: ir.uses_node(x, moved))
    step = [x for x in around if ir.uses_node(x, before)][-1]
    first, second = (next(x for x in step.seq if ir.uses_node(x, one)) for one in (before, moved))
    rest = [x for x in step.seq if not x.same_as(second)]
    at = next(n for n, x in enumerate(rest) if x.same_as(first)) + 1
    changed = ir.seq(rest[:at], second, rest[at:])
    body = ir.replace_nodes(kernel.body, tirx.SeqStmt, {step: changed})
    return Program(program.host, {name: kernel.with_body(body)})


WAIT = ("wgmma_wait_group", SUM)
PACKED = ("tvm_hopper_hold_uint32", 1)
VALUES, NEXT_SCORES = ("mbarrier_arrive_nocount", 3), ("wgmma_wait_group", SCORES)


@pytest.mark.parametrize(
    ("late", "early", "rule"),
    [
        (WAIT, PACKED, REG),  # weights are overwritten while the product before reads them
        (VALUES, NEXT_SCORES, OVERWRITE),  # values go back while the product reads them
    ],
    ids=["weights", "values"],
)
def test_another_order(late, early, rule):
    program, given = right()
    assert rule in rules_broken(reordered(program, late, early), given, {rule}, POLICIES)


def test_a_first_iteration_that_is_not_in_front_of_the_loop(monkeypatch):
    """The first late product multiplies what no iteration has left: its values are another's."""
    monkeypatch.setattr(pipeline_compute_stages, "_first_iteration", lambda *_: None)
    monkeypatch.setattr(pipeline_compute_stages, "_without_first", lambda loop: loop)
    rules = rules_broken(load(scheduled(CASE, **CONFIG).mod), values(CASE), policies=POLICIES)
    assert rules & {EARLY, "UNINIT_READ", "DEADLOCK"}


# -- consumers that take turns at the tensor cores

BOTH = replace(CASE, n=128)


@functools.cache
def in_turns() -> Program:
    """Return the kernel with two consumers, whose products are issued in order."""
    return load(scheduled(BOTH, tile=(128, 32), consumers=2, in_order=True, splits=1).mod)


def to_itself(barrier: Any) -> Any:
    """Return the other one of the barriers 8 and 9."""
    return tirx.const(17, "uint32") - barrier


@pytest.mark.parametrize(
    ("name", "new", "rule"),
    [
        ("bar_sync_count", None, "NAMED_BAR_MISMATCH"),
        ("bar_arrive", None, "DEADLOCK"),
        ("bar_arrive", with_argument(0, to_itself), "NAMED_BAR_MISMATCH/DEADLOCK"),
    ],
    ids=["no wait", "no arrival", "swapped"],
)
def test_barriers_of_the_order(name, new, rule):
    """Of the first iteration, and of those in the loop."""
    assert rules_broken(in_turns(), values(BOTH), policies=POLICIES) == set()
    for which in range(2):
        rules = rules_broken(change(in_turns(), name, which, new), values(BOTH), policies=POLICIES)
        assert rules & set(rule.split("/")), which


# -- wrong values


EDGE = replace(CASE, **masked(lambda i, j: j <= i + 96))
SEEDED = {
    "a mask one off": ("S", " <= ", " < "),
    "a rescale missed once": (
        "acc",
        "rescale[vi]",
        "T.Select(vj0 == 2, T.float32(1), rescale[vi])",
    ),
}


@pytest.mark.parametrize("name", SEEDED)
def test_wrong_values(name):
    """Errors of arithmetic, which no rule of the machine says anything about."""
    func = hs.online(program(EDGE), (64, 32), 1)["main"]
    text, (target, old, new) = func.script(), SEEDED[name]
    (line,) = [x for x in text.splitlines() if x.strip().startswith(f"{target}[") and old in x]
    sch = s_tir.Schedule(tvm.script.from_source(text.replace(line, line.replace(old, new))))
    hs.attention(sch, hs.AttentionConfig(**CONFIG))
    report = verify(sch.mod, against=program(EDGE), runs=[("on_wait", 0)], target=H200)
    assert {x.rule for x in report.findings} == {"WRONG_VALUE"}
