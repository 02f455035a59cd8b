"""Every refusal of the passes: what is asked, in the smallest IR, and the message that comes back.

The last test collects the places where the errors were raised and compares them with all `raise`
statements of the sources.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import re
import traceback
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import tvm
from tvm import tirx

from tests.transforms.refusals.across_threads import ACROSS_THREADS
from tests.transforms.refusals.case import Case
from tests.transforms.refusals.clusters import CLUSTERS
from tests.transforms.refusals.copies import COPIES, TILES
from tests.transforms.refusals.dma import DMA
from tests.transforms.refusals.fragments import FRAGMENTS
from tests.transforms.refusals.kernels import REST, RING, RINGS, THREADS
from tests.transforms.refusals.loads import LOADS
from tests.transforms.refusals.mechanisms import MECHANISMS
from tests.transforms.refusals.memory_bound import MEMORY_BOUND
from tests.transforms.refusals.pipelines import PIPELINES
from tests.transforms.refusals.products import PRODUCT, PRODUCTS
from tests.transforms.refusals.reductions import REDUCTIONS
from tests.transforms.refusals.selection import SELECTION
from tests.transforms.refusals.stores import STORES
from tests.transforms.refusals.stream import STREAM
from tests.transforms.refusals.syncs import SYNCS
from tests.transforms.refusals.tile_operands import TILE_OPERANDS
from tests.transforms.refusals.turns import TURNS
from tests.transforms.scripts import parse
from tvm_hopper import ir, pipeline
from tvm_hopper.errors import LoweringError, VerifyError
from tvm_hopper.facts.arch import SM_90A
from tvm_hopper.pipeline.passes import check_well_formed
from tvm_hopper.transforms.pipeline.plan_ring_buffers_plan import plan_pipelines

CASES = [
    *COPIES,
    *DMA,
    *TILES,
    *LOADS,
    *MECHANISMS,
    *FRAGMENTS,
    *MEMORY_BOUND,
    *PRODUCTS,
    *RINGS,
    *PIPELINES,
    *ACROSS_THREADS,
    *REDUCTIONS,
    *CLUSTERS,
    *REST,
    *SELECTION,
    *SYNCS,
    *STREAM,
    *TILE_OPERANDS,
    *TURNS,
    *STORES,
    *THREADS,
]


@functools.cache
def refusal(one: Case) -> LoweringError:
    """Return the error that a case ends with."""
    with pytest.raises(LoweringError) as caught:
        one()
    return caught.value


@pytest.mark.parametrize("one", CASES, ids=lambda one: one.name)
def test_refused(one):
    assert re.search(one.match, str(refusal(one)))


def test_names_of_cases_are_unique():
    assert len({one.name for one in CASES}) == len(CASES)


# -- places that no script reaches through a pass


def test_a_ring_needs_a_slot():
    (plan,) = plan_pipelines(ir.kernels(parse(RING))[0], SM_90A)
    with pytest.raises(LoweringError, match="loop k: found 0 stages; need at least 1"):
        replace(plan.pipelines[0], num_slots=0)


def test_transforms_is_no_package_of_its_own():
    path = Path(__file__).parents[2] / "transforms" / "__init__.py"
    spec = importlib.util.spec_from_file_location("transforms", path)
    with pytest.raises(ImportError, match=r"a part of tvm_hopper: import tvm_hopper\.transforms"):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


def test_lower_names_the_passes_that_it_knows():
    with pytest.raises(ValueError, match=r"found no pass named 'X'; need one of .*LowerWgmma"):
        pipeline.lower(parse(PRODUCT), "nvidia/nvidia-h200", until="X")
    with pytest.raises(ValueError, match=r"did you mean tvm_hopper\.LowerWgmma\?$"):
        pipeline.lower(parse(PRODUCT), "nvidia/nvidia-h200", until="LowerWgmma")


def test_lower_needs_a_target():
    with pytest.raises(ValueError, match="found no target; need one as argument or a `with target"):
        pipeline.lower(parse(PRODUCT))


def test_a_pass_that_breaks_the_ir_is_named(monkeypatch):
    monkeypatch.setenv("TVM_HOPPER_VERIFY", "1")
    free = tirx.PrimFunc([], tirx.Evaluate(tirx.Var("x", "int32")))
    with pytest.raises(VerifyError, match="main after SomePass: found IR that is not well formed"):
        check_well_formed([], tvm.IRModule({"main": free}), after="SomePass")


# -- every raise is reached

FOLDERS = ("transforms", "tvm_hopper/analysis")


@dataclass(frozen=True)
class Raise:
    """A `raise` statement of the sources."""

    file: str
    first: int
    last: int
    source: str

    def holds(self, frame: traceback.FrameSummary) -> bool:
        """Tell whether a stack frame stands in the statement."""
        return Path(frame.filename).name == self.file and self.first <= frame.lineno <= self.last


def raise_statements() -> list[Raise]:
    """Return all `raise` statements of the passes."""
    root = Path(__file__).parents[2]
    paths = sorted(path for folder in FOLDERS for path in (root / folder).rglob("*.py"))
    return [
        Raise(path.name, node.lineno, node.end_lineno, ast.unparse(node))
        for path in paths
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Raise)
    ]


# no script gets there: tested by name above
ELSEWHERE = (
    "a part of tvm_hopper",
    "at least 1')",
    "a factor that is no load has no indices",
    "loops whose loads are handed over",  # tests/schedule/test_turns.py
    "shared memory that consumer groups would use",  # the same
    "vectors of {dtype}",  # tests/transforms/launch/test_assert_alignment.py
    "request.explained",  # tests/transforms/test_named_stages.py
    "one loop whose consumers take turns",  # tests/transforms/pipeline, compute stages
    "one column of the",  # tests/sim_kernels/test_staged_epilogues.py
)


def test_every_raise_of_the_passes_is_reached():
    frames = [f for one in CASES for f in traceback.extract_tb(refusal(one).__traceback__)]
    missed = [
        one
        for one in raise_statements()
        if not any(map(one.holds, frames)) and not any(text in one.source for text in ELSEWHERE)
    ]
    assert not missed
