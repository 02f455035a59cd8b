"""Outputs that are staged where a residual came: values, verdicts, and which sync is needed."""

import functools

import pytest

from tests.sim_kernels.each_sync import POLICIES, product, rules_broken
from tests.sim_kernels.kernels import scheduled
from tests.sim_kernels.mutate import change, instructions
from tvm_hopper.simulation import Program, verify

SLOW = pytest.mark.slow
SMALL = {"m": 256, "n": 128, "k": 48, "epilogue": ("residual", "relu"), "out_dtype": "float16"}
BF16 = {"dtype": "bfloat16", "out_dtype": "bfloat16"}
STAGED = {"stages": 2, "consumers": 2, "persistent": 1, "store": "tma", "store_parts": 2}


@pytest.mark.parametrize(
    ("problem", "config"),
    [
        ({}, {}),
        pytest.param({"m": 200, "n": 120}, {}, marks=SLOW),
        pytest.param(
            {"dtype": "bfloat16", "out_dtype": "bfloat16"}, {"operand_slots": 1}, marks=SLOW
        ),
        pytest.param({"epilogue": ("residual", "gelu")}, {"persistent": 0}, marks=SLOW),
        pytest.param({"epilogue": ("bias_col", "residual")}, {"store_parts": 1}, marks=SLOW),
        pytest.param({"out_dtype": "float32"}, {}, marks=SLOW),
        pytest.param({}, {"cluster": (1, 2), "tile": (128, 64, 16)}, marks=SLOW),
    ],
)
def test_values_and_every_interleaving(problem, config):
    config = STAGED | config
    mod, module = scheduled(SMALL | problem, config.pop("tile", (128, 128, 16)), **config)
    report = verify(module, against=mod).require_clean()
    assert "values compared" in str(report)


@functools.cache
def right() -> tuple[Program, dict]:
    return product(SMALL, (128, 128, 16), **STAGED)


def is_clean(program: Program) -> bool:
    return not any(rules_broken(program, right()[1], policies=[policy]) for policy in POLICIES)


def test_the_kernel_itself_is_clean():
    assert is_clean(right()[0])


def test_one_array_serves_both():
    text = str(right()[0].kernels)
    assert "residual_shared" in text
    assert "D_shared" not in text


@pytest.mark.parametrize(
    ("name", "which"), [("bar_sync_count", 0), ("bar_sync_count", 1), ("fence_proxy", 0)]
)
def test_a_barrier_less_is_a_race(name, which):
    (kernel,) = right()[0].kernels.values()
    assert len(instructions(kernel, name)) > which
    assert not is_clean(change(right()[0], name, which))
