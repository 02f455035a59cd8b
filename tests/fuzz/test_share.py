"""A share of the fuzzer that every change must pass: the same cases each time, no fault among them.

`make fuzz` runs other and more cases. A case that fails here is shown whole, as a script, by
`python -m tests.fuzz --replay family:seed:number`.
"""

import warnings

import pytest

from tests.fuzz.families import FAMILIES
from tests.fuzz.judge import FAULTS, judge
from tests.fuzz.runner import generate, plan

SEED, CASES, CHUNKS = 2711, 100, 16
TASKS = list(plan(SEED, list(FAMILIES), CASES))


@pytest.mark.sampled(every=8)
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_no_fault(chunk):
    found = []
    for task in TASKS[chunk::CHUNKS]:
        case, _ = generate(task)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # numpy's of overflow, which the programs may do
            outcome = judge(case)
        if outcome.kind in FAULTS:
            found.append(f"{task.id}: {outcome.kind} ({outcome.phase}) {outcome.text[:300]}")
    assert not found, "\n".join(found)
