"""The page that lists which PTX instructions are modelled is the code's own list."""

from pathlib import Path

import pytest
from tvm.backend.cuda.ptx.table import TABLE

from tvm_hopper.sim.modelled import (
    COMPUTED,
    INCOMPLETE,
    NO_EFFECT,
    coverage,
    device_functions,
    document,
)

PAGE = Path(__file__).resolve().parents[2] / "docs" / "simulator_instructions.md"


@pytest.fixture(scope="module")
def states():
    return {row.name: row.state for row in coverage()}


def test_the_page_is_what_the_code_says():
    assert PAGE.read_text() == document(), (
        f"{PAGE.name} is not what the code models; if meant: "
        "python -m tvm_hopper.sim.modelled > docs/simulator_instructions.md"
    )


def test_every_row_of_the_table_has_a_state(states):
    assert list(states) == list(TABLE)


@pytest.mark.parametrize(
    "name", ["tcgen05_ld", "clusterlaunchcontrol_try_cancel", "multimem_red", "fabric_wait"]
)
def test_instructions_of_later_chips_are_incomplete(states, name):
    assert states[name] == INCOMPLETE


def test_hints_have_no_effect_and_arithmetic_is_computed(states):
    assert states["prefetch"] == NO_EFFECT
    assert states["fma"] == states["cvt"] == states["ex2"] == COMPUTED


def test_device_functions_of_tvm_are_listed():
    found = device_functions()
    assert found["cta_reduce"]
    assert found["ldg"]
    assert not found["printf"]
    assert not found["tcgen05_encode_matrix_descriptor"]
