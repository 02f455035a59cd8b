"""What a target says of its device: the architecture, how many SMs, and which tags say it."""

from __future__ import annotations

import pytest
import tvm
from tvm import tirx
from tvm.target import Target

from tvm_hopper.errors import LoweringError, ScheduleError
from tvm_hopper.facts.arch import SM_80, SM_90A
from tvm_hopper.facts.devices import CHIPS, DEFAULT_NUM_SMS, NUM_SMS
from tvm_hopper.integration import autoload
from tvm_hopper.requests.targets import arch_of, chip_of_target, num_sms

autoload.register()


@pytest.mark.parametrize("part", NUM_SMS)
def test_a_tag_says_how_many_sms_the_part_has(part) -> None:
    target = Target(f"nvidia/nvidia-{part}")
    assert num_sms(target) == NUM_SMS[part]
    assert target.attrs["arch"] == "sm_90a"
    with target:
        assert num_sms() == NUM_SMS[part]


def test_the_number_survives_export_json_and_a_host() -> None:
    target = Target("nvidia/nvidia-h100-pcie")
    assert num_sms(Target(target.export())) == 114
    assert num_sms(tvm.ir.load_json(tvm.ir.save_json(target))) == 114
    assert num_sms(target.with_host(Target("llvm"))) == 114


def test_a_target_of_one_s_own_may_say_it() -> None:
    """A slice of a divided GPU, say."""
    assert num_sms(Target({"kind": "cuda", "arch": "sm_90a", "feature.num_sms": 16})) == 16


@pytest.mark.parametrize("part", NUM_SMS)
def test_a_tag_says_which_rates_the_part_has(part) -> None:
    target = Target(f"nvidia/nvidia-{part}")
    assert chip_of_target(target) == CHIPS[part]
    assert chip_of_target(tvm.ir.load_json(tvm.ir.save_json(target))) == CHIPS[part]


def test_a_target_of_one_s_own_may_name_a_part() -> None:
    own = {"kind": "cuda", "arch": "sm_90a", "feature.part": "h20"}
    assert chip_of_target(Target(own)) == CHIPS["h20"]
    assert chip_of_target(Target({**own, "feature.num_sms": 16})).num_sms == 16
    with pytest.raises(ScheduleError, match=r"found feature\.part = 'b200'; need one of h200"):
        chip_of_target(Target({**own, "feature.part": "b200"}))


def test_a_target_that_says_nothing_is_taken_for_the_largest_part() -> None:
    assert num_sms(Target("nvidia/nvidia-h100")) == DEFAULT_NUM_SMS  # a tag of TVM's own
    assert num_sms(Target({"kind": "cuda", "arch": "sm_90a"})) == DEFAULT_NUM_SMS
    assert num_sms() == DEFAULT_NUM_SMS


@pytest.mark.parametrize("value", [0, -1, "many"])
def test_refuses_what_is_no_number_of_sms(value) -> None:
    target = Target({"kind": "cuda", "arch": "sm_90a", "feature.num_sms": value})
    with pytest.raises(
        ScheduleError, match=r"target: found feature.num_sms = .*; need a number of"
    ):
        num_sms(target)


def function(target=None):
    func = tirx.PrimFunc([], tirx.Evaluate(0)).with_attr("global_symbol", "main")
    return func if target is None else func.with_attr("target", Target(target))


@pytest.mark.parametrize(
    ("target", "arch"),
    [
        ("nvidia/nvidia-h200", SM_90A),
        ("nvidia/nvidia-a100", SM_80),  # a tag of TVM's own
        ({"kind": "cuda", "arch": "sm_80"}, SM_80),
        ({"kind": "cuda", "arch": "sm_90a", "host": "llvm"}, SM_90A),
        (None, SM_90A),
    ],
    ids=str,
)
def test_the_arch_of_a_function_is_that_of_its_target(target, arch) -> None:
    assert arch_of(function(target)) is arch


@pytest.mark.parametrize(
    ("target", "found"),
    [({"kind": "cuda", "arch": "sm_90"}, "cuda sm_90"), ("llvm", "llvm")],
    ids=["no sm_90a", "no cuda"],
)
def test_refuses_an_arch_of_which_nothing_is_known(target, found) -> None:
    match = f"function main: found target {found}; need a cuda target with arch sm_80 or sm_90a$"
    with pytest.raises(LoweringError, match=match):
        arch_of(function(target))
