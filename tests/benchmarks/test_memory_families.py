"""A small program of each family of the population: clean kernels for an H200 and an A100."""

import contextlib
from dataclasses import replace

import pytest
import tvm
from tvm import s_tir

from benchmarks.memory_population.frameworks import to_relax
from benchmarks.memory_population.problems import population
from tests.relax import models
from tvm_hopper import dlight
from tvm_hopper.errors import HopperError
from tvm_hopper.simulation import verify

NUMBERS = (  # the smallest program of a family, of 4000
    *(521, 1208, 3162, 3012, 353, 3494, 401, 400, 3425, 850, 322, 2289, 3977, 3095, 2636, 895),
    *(3479, 313, 2663, 2691, 1287, 3809, 477, 3661, 1284, 1856, 517, 3013),
)
TO_FLOAT8 = 2636  # which an A100 does not convert to
RULES = (dlight.RowReduction(), dlight.ColumnReduction(), dlight.Pointwise())
TARGETS = ("nvidia/nvidia-h200", "nvidia/nvidia-a100")
ROWS, TABLE = 40, 64  # of a gather, whose table is as long as a vocabulary


def program(number: int) -> tvm.IRModule:
    problem = population(7, number + 1)[number]
    if "gather" in problem.name:
        (index, kind, _), (table, dtype, values), *rest = problem.inputs
        short = ((min(ROWS, index[0]),), kind, f"index:{TABLE}")
        problem = replace(problem, inputs=[short, ((TABLE, table[1]), dtype, values), *rest])
    (func,) = models.plain_functions(to_relax(problem)).values()
    return tvm.IRModule({"main": func.with_attr("global_symbol", "main")})


def scheduled(mod: tvm.IRModule) -> s_tir.Schedule:  # also where dlight asks for an H200
    for rule in RULES:
        sch = s_tir.Schedule(mod)
        with contextlib.suppress(HopperError):
            rule.schedule(sch)
            return sch
    raise AssertionError("no rule takes it")


@pytest.mark.sampled(every=8)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("number", NUMBERS)
def test_a_family_is_clean(number: int, target: str) -> None:
    mod = program(number)
    with tvm.target.Target(target):
        sch = scheduled(mod)
    given = {"against": mod, "target": target, "runs": (("on_wait", 0),), "max_ctas": ROWS}
    if (number, target) == (TO_FLOAT8, TARGETS[1]):
        with pytest.raises(HopperError, match=r"need a chip of compute capability 8\.9"):
            verify(sch, **given)
        return
    verify(sch, **given).require_clean()
