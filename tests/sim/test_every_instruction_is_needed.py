"""Remove one synchronising instruction of a kernel of ours: the simulator must object.

Were the result clean, the instruction would be superfluous, or the simulator blind to it.
"""

import functools

import numpy as np
import pytest
import tvm_ffi
from tvm import ir, s_tir, tirx

from tvm_hopper import schedule as hs
from tvm_hopper.sim.tir import statement_text
from tvm_hopper.simulation import Program, load, simulate
from tvm_hopper.testing import workloads

WORDS = (
    "mbarrier", "fence", "wgmma", "cp.async.bulk", "setmaxnreg.dec", "tvm_storage_sync", "bar.sync",
)  # fmt: skip
NUM_INSTRUCTIONS = 18  # of the kernel below; more when the lowering emits more
POLICIES = (("eager", 0), ("on_wait", 0), ("random", 1), ("starve:consumer", 0))


@functools.cache
def kernel():
    sch = s_tir.Schedule(workloads.matmul(136, 128, 5 * 64, "NT", "float16", "float16"))
    hs.matmul(sch, "C", hs.MatmulConfig(tile=(128, 128, 64), stages=2, consumers=2))
    program = load(sch.mod)
    (func,) = program.kernels.values()
    found = []

    def visit(stmt):
        if isinstance(stmt.value, ir.Call):
            text = statement_text(stmt, 400)
            if any(word in text for word in WORDS):
                found.append((text, stmt))

    tvm_ffi.structural_walk(func.body, (tirx.Evaluate, visit))
    return program, func, found


def without(number):
    program, func, found = kernel()
    target = found[number][1]
    nothing = tirx.Evaluate(tirx.IntImm("int32", 0))
    body = tvm_ffi.structural_map(
        func.body,
        (tirx.Evaluate, lambda stmt: nothing if stmt.same_as(target) else stmt),
        order="pre",
    )
    (name,) = program.kernels
    return Program(program.host, {name: func.with_body(body)})


def inputs():
    rng = np.random.default_rng(0)
    return {
        "A": rng.integers(-2, 3, (136, 320)).astype("float16"),
        "B": rng.integers(-2, 3, (128, 320)).astype("float16"),
    }


def wrong(program, all_policies=False):
    """Name what is wrong under any policy: rules, or the numbers; of one, where that will do."""
    given = inputs()
    want = given["A"].astype("float64") @ given["B"].astype("float64").T
    found = set()
    for policy, seed in POLICIES:
        result = simulate(program, given, policy=policy, seed=seed)
        found |= result.rules
        output = next(v for k, v in result.outputs.items() if k not in given)
        if not np.array_equal(output.astype("float64"), want):
            found.add("WRONG_NUMBERS")
        if found - {"INCOMPLETE"} and not all_policies:
            break
    return found


def test_the_whole_kernel_is_clean():
    assert wrong(kernel()[0], all_policies=True) == set()


def test_there_is_something_to_remove():
    assert len(kernel()[2]) == NUM_INSTRUCTIONS


@pytest.mark.parametrize("number", range(NUM_INSTRUCTIONS))
def test_without_one_instruction_it_is_not(number):
    _, _, found = kernel()
    rules = wrong(without(number))
    assert rules, f"clean without: {found[number][0]}"
    assert rules != {"INCOMPLETE"}
