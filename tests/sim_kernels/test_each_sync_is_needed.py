"""Every sync instruction that our passes emit: without it, or with it wrong, the simulator objects.

Five iterations over two slots, two consumer warp groups; with no group pending and with one. And
pointwise kernels and products by mma.sync, with and without a producer. An instruction whose
removal nobody objected to would be superfluous, or unguarded.
"""

import functools
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from tvm import tirx

from tests.sim_kernels import pointwise_kernels, tensor_core_kernels
from tests.sim_kernels.each_sync import POLICIES, emitted_by, make_tests, rules_broken
from tests.sim_kernels.kernels import scheduled
from tests.sim_kernels.mutate import change, instructions, with_argument
from tvm_hopper import ir, schedule as hs
from tvm_hopper.simulation import Program, load
from tvm_hopper.static_check import check_sync
from tvm_hopper.testing import workloads
from tvm_hopper.testing.pointwise import Tiling
from tvm_hopper.testing.tensor_cores import ProductKind, WarpTiling

PROBLEM = {"m": 64, "n": 16, "k": 80}


@functools.cache
def right(pending: int) -> Program:
    """Return the kernel as our passes emit it."""
    _, kernel = scheduled(PROBLEM, (64, 16, 16), stages=2, consumers=2, wgmma_pending=pending)
    return load(kernel)


@functools.cache
def inputs() -> dict[str, Any]:
    """Return the arguments that every run gets."""
    a, b = workloads.make_inputs(workloads.matmul(**PROBLEM))
    return {"A": a, "B": b}


def simulated(program: Program, want: Collection[str] = ()) -> set[str]:
    """Return the rules that the simulator finds broken under any policy."""
    return rules_broken(program, inputs(), want)


def checked(program: Program) -> set[str]:
    """Return the rules that the static check finds broken."""
    (kernel,) = program.kernels.values()
    return {finding.rule for finding in check_sync(kernel, program.host)}


@dataclass(frozen=True)
class Bug:
    """An instruction to take away or to change, and the rules of which each must be found."""

    what: str
    pending: tuple[int, ...]
    instruction: str
    rules: set[str]
    which: int | None = None
    new: Any = None

    def apply(self, pending: int) -> Program:
        """Build the wrong kernel."""
        return change(right(pending), self.instruction, self.which, self.new)


BOTH = (0, 1)
WAIT, ARRIVE = "mbarrier_wait", "mbarrier_arrive_nocount"
EXPECT, GROUP = "mbarrier_arrive_expect_tx", "wgmma_wait_group"


def flipped(parity):
    return tirx.bitwise_xor(parity, 1)


def plus(value):
    return lambda old: tirx.const(int(old) + value, "uint32")


BUGS = [
    # -- barriers before their first use
    Bug("full not initialised", BOTH, "mbarrier_init", {"MBAR_USE_BEFORE_INIT"}, 0),
    Bug("empty not initialised", BOTH, "mbarrier_init", {"MBAR_USE_BEFORE_INIT"}, 1),
    Bug("no fence after init", BOTH, "fence_mbarrier_init", {"MBAR_INIT_FENCE"}),
    Bug("no barrier after init", BOTH, "tvm_storage_sync", {"MBAR_INIT_UNPUBLISHED"}),
    Bug("full counts two", BOTH, "mbarrier_init", {"DEADLOCK"}, 0, with_argument(1, plus(1))),
    Bug("empty counts three", BOTH, "mbarrier_init", {"DEADLOCK"}, 1, with_argument(1, plus(1))),
    Bug(
        "empty counts one of two consumers",
        BOTH,
        "mbarrier_init",
        {"RACE_OVERWRITE_BUSY"},
        1,
        with_argument(1, plus(-1)),
    ),
    # -- the producer
    Bug("producer does not wait", BOTH, WAIT, {"RACE_OVERWRITE_BUSY"}, 0),
    Bug("producer starts at parity 0", BOTH, WAIT, {"DEADLOCK"}, 0, with_argument(1, flipped)),
    Bug("nothing expected", BOTH, EXPECT, {"DEADLOCK"}),
    Bug(
        "expects too few bytes", BOTH, EXPECT, {"MBAR_TX_MISMATCH"}, 0, with_argument(1, plus(-512))
    ),
    Bug("expects too many bytes", BOTH, EXPECT, {"DEADLOCK"}, 0, with_argument(1, plus(16))),
    # -- the consumers
    Bug("consumer does not wait", BOTH, WAIT, {"RACE_READ_INFLIGHT"}, 1),
    Bug(
        "consumer inverts parity", BOTH, WAIT, {"RACE_READ_INFLIGHT"}, 1, with_argument(1, flipped)
    ),
    Bug("no wgmma fence", BOTH, "wgmma_fence", {"WGMMA_FENCE_MISSING"}),
    Bug("no commit", BOTH, "wgmma_commit_group", {"RACE_OVERWRITE_BUSY", "WGMMA_REG_INFLIGHT"}),
    Bug("no wait in the loop", BOTH, GROUP, {"RACE_OVERWRITE_BUSY"}, 0),
    Bug(
        "one group too many in flight",
        BOTH,
        GROUP,
        {"RACE_OVERWRITE_BUSY"},
        0,
        with_argument(0, lambda old: tirx.IntImm("int32", int(old) + 1)),
    ),
    Bug("no wait before the epilogue", (1,), GROUP, {"WGMMA_REG_INFLIGHT"}, 1),
    Bug("slots never released", BOTH, ARRIVE, {"DEADLOCK"}),
    # -- registers
    Bug("no registers given back", BOTH, "setmaxnreg", {"SETMAXNREG_BUDGET"}, 0),
    Bug(
        "too many registers requested",
        BOTH,
        "setmaxnreg",
        {"SETMAXNREG_BUDGET"},
        1,
        with_argument(0, tirx.IntImm("int32", 240)),
    ),
]
CASES = [(bug, pending) for bug in BUGS for pending in bug.pending]


@pytest.mark.parametrize("pending", BOTH)
def test_the_kernel_itself_is_clean(pending):
    assert simulated(right(pending)) | checked(right(pending)) == set()


@pytest.mark.parametrize(("bug", "pending"), CASES, ids=lambda x: getattr(x, "what", x))
def test_simulator_finds_it(bug, pending):
    assert bug.rules <= simulated(bug.apply(pending), bug.rules)


# Who reads what is not in the skeleton that the static check follows, nor is the order of an
# initialisation and the asynchronous proxy: the simulator is the judge of these.
FOR_THE_SIMULATOR_ALONE = {
    ("no fence after init", 0),
    ("no fence after init", 1),
    ("no wait in the loop", 1),
    ("one group too many in flight", 1),
}


def test_static_check_finds_the_others():
    missed = {(bug.what, pending) for bug, pending in CASES if not checked(bug.apply(pending))}
    assert missed <= FOR_THE_SIMULATOR_ALONE


@pytest.mark.parametrize("pending", BOTH)
def test_one_thread_of_a_warp_group_releases(pending):
    program = right(pending)
    ((name, func),) = program.kernels.items()
    (arrive,) = instructions(func, ARRIVE)
    (guard,) = ir.find_all(func.body, tirx.IfThenElse, lambda x: x.then_case.same_as(arrive))
    body = ir.replace_nodes(func.body, tirx.IfThenElse, {guard: arrive})
    wrong = Program(program.host, {name: func.with_body(body)})
    assert "MBAR_ARRIVE_OVERFLOW" in simulated(wrong) & checked(wrong)


def test_more_registers_are_for_the_assembler_alone():
    """Without setmaxnreg.inc a consumer is right but has 168 registers: its judge is ptxas' log."""
    assert simulated(change(right(0), "setmaxnreg", 1)) == set()


def test_every_sync_instruction_is_in_the_table():
    # holds and code fences are for the compilers: tests/codegen/test_hold.py
    data = {"cp_async_bulk_tensor_g2s_cluster", "wgmma_f16_ss"}
    data |= {"tvm_hopper_hold_float32", "tvm_hopper_code_fence"}
    data |= {"griddepcontrol"}  # tests/transforms/launch/test_enable_programmatic_launch.py
    emitted = {name for pending in BOTH for name in emitted_by(right(pending))}
    assert emitted - data == {bug.instruction for bug in BUGS}


# -- pointwise kernels: five trips over two slots, with and without a producer

ALONE, SPLIT = "one role", "producer"
TILINGS = {
    ALONE: Tiling(tile=(4, 64), threads=64, steps=5, stages=2),
    SPLIT: Tiling(tile=(4, 64), threads=128, vector=2, steps=5, stages=2, roles=hs.Roles(1)),
}
SHAPE = (20, 64)
MEET, FENCE = "tvm_storage_sync", "fence_proxy"
# For each instruction the rules that have to be broken without it.
REMOVED = {
    (ALONE, "mbarrier_init", 0): {"MBAR_USE_BEFORE_INIT"},
    (ALONE, "fence_mbarrier_init", 0): {"MBAR_INIT_FENCE"},
    # Here the loop's own barrier comes in front of the first wait, and is enough.
    (ALONE, MEET, 0): set(),
    (ALONE, MEET, 1): {"RACE_OVERWRITE_BUSY"},
    (ALONE, EXPECT, 0): {"DEADLOCK"},
    (ALONE, EXPECT, 1): {"DEADLOCK"},
    (ALONE, FENCE, 0): {"PROXY_FENCE_MISSING_WAR"},
    (ALONE, WAIT, 0): {"RACE_READ_INFLIGHT", "EXIT_PENDING_ASYNC"},
    (SPLIT, "mbarrier_init", 0): {"MBAR_USE_BEFORE_INIT"},
    (SPLIT, "mbarrier_init", 1): {"MBAR_USE_BEFORE_INIT"},
    (SPLIT, "fence_mbarrier_init", 0): {"MBAR_INIT_FENCE"},
    (SPLIT, MEET, 0): {"MBAR_INIT_UNPUBLISHED"},
    (SPLIT, EXPECT, 0): {"DEADLOCK"},
    (SPLIT, WAIT, 0): {"RACE_OVERWRITE_BUSY"},
    (SPLIT, WAIT, 1): {"RACE_READ_INFLIGHT"},
    (SPLIT, FENCE, 0): {"PROXY_FENCE_MISSING_WAR"},
    (SPLIT, "warp_sync", 0): {"RACE_OVERWRITE_BUSY"},
    (SPLIT, ARRIVE, 0): {"DEADLOCK"},
}


@functools.cache
def pointwise(kind: str) -> tuple[Program, dict]:
    """Return the kernel as our passes emit it, and values."""
    _, sch = pointwise_kernels.scheduled("exp_add", SHAPE, TILINGS[kind], "float32")
    rng = np.random.default_rng(1)
    return load(sch.mod), {name: rng.integers(-3, 4, SHAPE).astype("float32") for name in "AB"}


(
    test_pointwise_kernels_are_clean,
    test_simulator_misses_it_in_pointwise_kernels,
    test_every_sync_of_pointwise_kernels_is_in_the_table,
) = make_tests(pointwise, REMOVED, {"cp_async_bulk_tensor_g2s_cluster"})


# -- products by mma.sync: the same instructions, and each of them as necessary

TEAMS = {
    ALONE: WarpTiling(tile=(32, 32, 16), stages=2),
    SPLIT: WarpTiling(tile=(32, 32, 16), stages=2, roles=hs.Roles(1)),
}
PRODUCT = (32, 32, 80)


@functools.cache
def tensor_core(kind: str) -> tuple[Program, dict]:
    """Return the kernel as our passes emit it, and values."""
    sch = tensor_core_kernels.scheduled(PRODUCT, TEAMS[kind])
    return load(sch.mod), tensor_core_kernels.make_inputs(PRODUCT, ProductKind())


(
    test_products_by_mma_sync_are_clean,
    test_simulator_misses_it_in_products_by_mma_sync,
    test_every_sync_of_products_by_mma_sync_is_in_the_table,
) = make_tests(
    tensor_core,
    REMOVED,
    {"cp_async_bulk_tensor_g2s_cluster", "ldmatrix", "mma"},
    POLICIES[:4],
)


def test_one_arrival_for_all_warps_is_too_few():
    """A warp that has read its part says nothing of what others still read."""
    program, values = tensor_core(SPLIT)
    wrong = change(program, "mbarrier_init", 1, with_argument(1, tirx.const(1, "uint32")))
    rules = rules_broken(wrong, values, (), POLICIES[:4])
    assert {"RACE_OVERWRITE_BUSY", "MBAR_ARRIVE_OVERFLOW"} & rules
