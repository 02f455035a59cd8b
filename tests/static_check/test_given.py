"""Loops and conditions that follow from integers in memory, with these integers at hand."""

import numpy as np
import pytest
from tvm import tirx

from tests.sim_kernels.test_extents_from_data import TARGET, tiled
from tvm_hopper import ir
from tvm_hopper.sim.launch.tensors import Pointer
from tvm_hopper.sim.protocol.check import explore_skeleton
from tvm_hopper.sim.protocol.given import given_integers
from tvm_hopper.static_check.sync import check_sync
from tvm_hopper.verification.program import load


@pytest.fixture(scope="module")
def program():
    return load(tiled("tma").mod, TARGET)


def followed(program, counts, func=None):
    (kernel,) = program.kernels.values()
    func = kernel if func is None else func
    given = {func.params[0]: np.array(counts, "int32")}
    report = explore_skeleton(func, program.host, given=given)
    return {x.rule for x in report.findings} | {
        x.rule for x in check_sync(func, program.host, given=given)
    }, report


def late(func):
    """Let the loads ahead stop one turn early."""

    def later(branch):
        if "N[" not in str(branch.condition) or "k + 2" not in str(branch.condition):
            return branch
        a, b = branch.condition.a, branch.condition.b
        return tirx.IfThenElse(a + 1 < b, branch.then_case, branch.else_case)

    return ir.replace(func, tirx.IfThenElse, later)


def test_every_kind_of_block_is_followed_once(program):
    rules, report = followed(program, [4, 0, 4, 1, 0, 4, 30, 31])
    assert rules == set()
    places = [text for text in report.covers.split("; ") if text.startswith("CTA")]
    assert [x.partition(")")[0] for x in places] == [f"CTA ({i}, 0, 0" for i in (0, 1, 3, 6)]
    assert report.covers.endswith("by the contents of N in this call")


def test_without_them_nothing_is_said(program):
    (kernel,) = program.kernels.values()
    report = explore_skeleton(kernel, program.host)
    assert report.verdict == "incomplete"
    assert "give N (inputs=)" in report.findings[0].message


@pytest.mark.parametrize(
    ("counts", "rules"), [([0, 1, 2, 2, 1, 0, 2, 2], set()), ([0] * 7 + [3], {"DEADLOCK"})]
)
def test_what_is_found_holds_of_these_numbers(program, counts, rules):
    """A load that is missing shows where a loop has the turn that waits for it, and only there."""
    (kernel,) = program.kernels.values()
    broken = kernel.with_body(late(kernel.body))
    assert not broken.body.same_as(kernel.body)
    assert followed(program, counts, broken)[0] == rules


def test_only_what_stays_is_given(program):
    (kernel,) = program.kernels.values()
    counts = np.arange(16, dtype="int32")
    numbers, *others = kernel.params
    places = [Pointer("N", 16), *[0.0] * len(others)]
    params = dict(zip("abcdef", places, strict=False))
    (found,) = given_integers(kernel, params, {"N": counts}, set()).values()
    np.testing.assert_array_equal(found, counts[4:])
    assert given_integers(kernel, params, {"N": counts}, {"N"}) == {}
    assert given_integers(kernel, params, {"N": counts, "Y": counts[3:5]}, {"Y"}) == {}
    assert given_integers(kernel, params, {"N": counts[::2]}, set()) == {}
    assert given_integers(kernel, params, {"N": counts.astype("float32")}, set()) == {}
    assert given_integers(kernel, params, {}, set()) == {}
    assert numbers in given_integers(kernel, params, {"N": counts}, set())
