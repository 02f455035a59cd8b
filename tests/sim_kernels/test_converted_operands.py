"""Operands that threads convert into registers: values, forms, each sync, and orders of these."""

import functools
import itertools

import numpy as np
import pytest
from tvm import s_tir, tirx
from tvm.target import Target

from tests.sim_kernels.each_sync import OF_A_RING, make_tests, rules_broken
from tests.sim_kernels.mutate import instructions
from tvm_hopper import ir, schedule as hs
from tvm_hopper.simulation import Program, load, simulate, verify
from tvm_hopper.testing.converted import converted_weight

SLOW = pytest.mark.slow
TILE = {"tile": (64, 16, 32), "consumers": 1, "stages": 3}
POLICIES = ("eager", "on_wait", "lifo")


def scheduled(extents, config, classes=None, **program):
    mod = converted_weight(*extents, **program)
    sch = s_tir.Schedule(mod)
    with Target("nvidia/nvidia-h200"):
        given = None if config is None else hs.MatmulConfig(**config)
        hs.matmul(sch, "C", given, classes=classes)
    return mod, sch.mod


@pytest.mark.parametrize(
    ("extents", "config", "program"),
    [
        ((20, 128, 64), {}, {"values": "ZS"}),
        pytest.param(
            (8, 64, 32), {}, {"stored": "uint8", "dtype": "bfloat16", "values": ""}, marks=SLOW
        ),
        ((20, 64, 64), {"cluster": (1, 2)}, {}),  # warps of two blocks give a slot back
        pytest.param((20, 128, 128), {}, {"stored": "float8_e4m3fn"}, marks=SLOW),
        pytest.param((20, 128, 128), {"consumers": 2}, {"is_left": True}, marks=SLOW),
        pytest.param((20, 128, 256), {"split_k": 2}, {}, marks=SLOW),
        pytest.param((20, 128, 256), {"split_k": hs.SplitK(2, "serial")}, {}, marks=SLOW),
        pytest.param((40, 128, 256), {"split_k": "stream", "persistent": 3}, {}, marks=SLOW),
        pytest.param((70, 128, 128), {"persistent": 2}, {}, marks=SLOW),
        pytest.param(
            (40, 128, 128), {"schedule": "pingpong", "consumers": 2, "persistent": 2}, {},
            marks=SLOW,
        ),
        pytest.param((20, 192, 64), {"tile": (192, 16, 32), "consumers": 3}, {}, marks=SLOW),
        pytest.param((20, 64, 64), {"stages": 1}, {"out_dtype": "float32"}, marks=SLOW),
        pytest.param((100, 256, 256), None, {}, marks=SLOW),
    ],
)  # fmt: skip
def test_values_and_verdicts(extents, config, program):
    mod, module = scheduled(extents, None if config is None else {**TILE, **config}, **program)
    report = verify(module, against=mod, target="nvidia/nvidia-h200").require_clean()
    assert "values compared" in str(report)


def test_size_classes_convert_the_same_weights():
    _, module = scheduled(("m", 64, 64), None, (8, 32))
    kernel, rng = load(module), np.random.default_rng(0)
    w, s = rng.integers(-128, 128, (64, 64)).astype("int8"), rng.integers(1, 3, 64)
    for m in (5, 40):
        x = rng.integers(-2, 3, (m, 64)).astype("float16")
        given = {"X": x, "W": w, "S": s.astype("float16")}
        got = simulate(kernel, given, "on_wait", 0)
        assert not got.findings
        want = x.astype("float64") @ (w * s[:, None]).T
        assert np.array_equal(got.outputs["D"].astype("float64"), want.astype("float16"))


WORK = {"setmaxnreg", "cp_async_bulk_tensor_g2s_cluster", "wgmma_f16_rs"}
WORK |= {"griddepcontrol", "tvm_hopper_hold_uint32"}
REMOVED = OF_A_RING | {
    ("mbarrier_init", 2): {"MBAR_USE_BEFORE_INIT"},
    ("mbarrier_init", 3): {"MBAR_USE_BEFORE_INIT"},
    ("mbarrier_wait", 0): {"RACE_OVERWRITE_BUSY"},
    ("mbarrier_wait", 1): {"RACE_OVERWRITE_BUSY"},
    ("mbarrier_arrive_expect_tx", 1): {"DEADLOCK"},
    ("mbarrier_wait", 2): {"RACE_READ_INFLIGHT"},
    ("fence_proxy", 0): {"PROXY_FENCE_MISSING_WAR"},
    ("warp_sync", 0): {"RACE_OVERWRITE_BUSY"},
    ("mbarrier_wait", 3): {"RACE_READ_INFLIGHT"},
    ("wgmma_wait_group", 0): {"WGMMA_REG_INFLIGHT", "RACE_OVERWRITE_BUSY"},
    ("mbarrier_arrive_nocount", 1): {"DEADLOCK"},
}


@functools.cache
def right():
    """Return the kernel as our passes emit it: four steps over two slots of either operand."""
    _, module = scheduled((16, 64, 128), {**TILE, "stages": 2})
    rng = np.random.default_rng(0)
    return load(module), {
        "X": rng.integers(-2, 3, (16, 128)).astype("float16"),
        "W": rng.integers(-9, 9, (64, 128)).astype("int8"),
        "S": rng.integers(1, 3, 64).astype("float16"),
    }


test_the_kernel_is_clean, test_simulator_misses_it, test_every_sync_is_in_the_table = make_tests(
    right, REMOVED, WORK, POLICIES
)

# statements of a step: what is between two names belongs to the first of them
AWAIT, CONVERT, GIVE, OTHER, FENCE, MULTIPLY, COMMIT, WAIT, RELEASE = (
    3,
    4,
    7,
    10,
    11,
    12,
    15,
    16,
    17,
)
NAMES = (0, AWAIT, CONVERT, GIVE, OTHER, FENCE, MULTIPLY, COMMIT, WAIT, RELEASE, 18)


@pytest.mark.parametrize(
    ("order", "rules"),
    [
        # the slot of the narrow tile goes back before threads have read it
        (
            (0, AWAIT, GIVE, CONVERT, OTHER, FENCE, MULTIPLY, COMMIT, WAIT, RELEASE),
            {"RACE_OVERWRITE_BUSY"},
        ),
        # registers are set behind the fence
        (
            (0, AWAIT, OTHER, FENCE, CONVERT, GIVE, MULTIPLY, COMMIT, WAIT, RELEASE),
            {"WGMMA_FENCE_MISSING"},
        ),
        # registers are set again while the product reads them
        (
            (0, AWAIT, CONVERT, OTHER, FENCE, MULTIPLY, COMMIT, CONVERT, GIVE, WAIT, RELEASE),
            {"WGMMA_REG_INFLIGHT"},
        ),
        # the slot of the other operand goes back while the product reads it
        (
            (0, AWAIT, CONVERT, GIVE, OTHER, FENCE, MULTIPLY, COMMIT, RELEASE, WAIT),
            {"RACE_OVERWRITE_BUSY"},
        ),
        # later than it could, and right
        ((0, AWAIT, CONVERT, OTHER, FENCE, MULTIPLY, COMMIT, WAIT, GIVE, RELEASE), set()),
    ],
)
def test_another_order(order, rules):
    program, values = right()
    ((name, kernel),) = program.kernels.items()
    (commit,) = instructions(kernel, "wgmma_commit_group")
    around = ir.find_all(kernel.body, tirx.SeqStmt, lambda x: any(map(commit.same_as, x.seq)))
    parts = list(around[0].seq)
    ends = dict(itertools.pairwise(NAMES))
    changed = [part for first in order for part in parts[first : ends[first]]]
    body = ir.replace_nodes(kernel.body, tirx.SeqStmt, {around[0]: ir.seq(changed)})
    found = rules_broken(Program(program.host, {name: kernel.with_body(body)}), values, rules)
    assert found >= rules
    assert bool(found) == bool(rules)
