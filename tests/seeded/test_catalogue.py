"""Each seeded bug is found with its class, each golden kernel and control is clean."""

import pytest

from tests.seeded.__main__ import main
from tests.seeded.catalogue import BY_ID, CONTROLS, FAMILIES, GOLDEN, HOPPER_MUTATIONS, MUTATIONS
from tests.seeded.families import memory_kernels, products
from tests.seeded.judging import (
    ASSEMBLER_REPAIRS,
    Judgement,
    assembler_log,
    false_alarms,
    judge,
    misses,
)
from tests.seeded.lowering import lower

REPAIRED = [mutation for mutation in MUTATIONS if "P" in mutation.layers]


def test_the_catalogue_is_complete():
    assert [mutation.id for mutation in HOPPER_MUTATIONS] == [f"M{i:02}" for i in range(1, 63)]
    assert len({mutation.id for mutation in MUTATIONS}) == len(MUTATIONS)
    assert len({family.name for family in FAMILIES}) == len(FAMILIES)
    assert sum(len(family.mutations) for family in FAMILIES) == len(MUTATIONS)
    assert len({golden.name for golden in GOLDEN}) == len(GOLDEN)
    assert [control.id for control in CONTROLS] == [f"N{i}" for i in range(1, 18)]


def _some_quick(mutations):
    """Mark as slow what brings no rule, kernel or judges that no mutation before it has.

    Of the later kinds each run looks for the first bug.
    """
    seen, marked = set(), []
    for one in mutations:
        brings = {*one.expected, one.golden.name, one.layers}
        brings |= {rule for group in one.expected for rule in group}
        quick = brings - seen if one in HOPPER_MUTATIONS else int(one.id[1:]) == 1
        seen |= brings
        marked.append(pytest.param(one, id=one.id, marks=[] if quick else [pytest.mark.slow]))
    return marked


@pytest.mark.parametrize("mutation", _some_quick(MUTATIONS))
def test_mutation_is_found(mutation):
    assert misses(mutation, judge(mutation.build(), mutation=mutation)) == []


def _right_kernels():
    """Kernels, and controls that are none of these.

    Slow: most of the published ones, and those of test_memory_kinds.py and test_product_kinds.py.
    """
    verified = (*memory_kernels.GOLDEN, *products.GOLDEN)
    for golden in GOLDEN:
        published = golden.name.startswith("P ") and golden.name not in ("P ring", "P flag")
        slow = [pytest.mark.slow] if published or golden in verified else []
        yield pytest.param(golden, id=golden.name, marks=slow)
    for control in CONTROLS:
        if control.golden not in GOLDEN:
            yield pytest.param(control.golden, id=control.id)


@pytest.mark.parametrize("golden", [*_right_kernels()])
def test_right_kernel_is_clean(golden):
    judgement = judge(golden.build())
    assert false_alarms(judgement) == []
    assert judgement.found["N"] == frozenset()


@pytest.mark.slow
@pytest.mark.parametrize("golden", GOLDEN, ids=lambda golden: golden.name)
def test_golden_kernel_assembles_unchanged(golden):
    kernel = golden.build()
    log = assembler_log(lower(kernel.func, kernel.arch))
    if log is None:
        pytest.skip("needs nvcc")
    assert not ASSEMBLER_REPAIRS.search(log)
    assert "0 bytes spill stores" in log


@pytest.mark.slow
@pytest.mark.parametrize("mutation", REPAIRED, ids=lambda mutation: mutation.id)
def test_assembler_says_that_it_repairs(mutation):
    kernel = mutation.build()
    log = assembler_log(lower(kernel.func, kernel.arch))
    if log is None:
        pytest.skip("needs nvcc")
    assert ASSEMBLER_REPAIRS.search(log)


def test_a_wrong_class_is_a_miss():
    nothing = Judgement({letter: frozenset({"OOB_ACCESS"}) for letter in "SVXN"})
    assert misses(BY_ID["M04"], nothing) == [
        "nobody found MBAR_TX_MISMATCH",
        "static found only ['OOB_ACCESS']",
        "simulator found only ['OOB_ACCESS']",
    ]
    assert len(false_alarms(nothing)) == 4


def test_the_table_refuses_an_unknown_id(capsys):
    assert main(["M99"]) == 2
    assert "found ['M99']; need ids" in capsys.readouterr().out


def test_the_table_prints_rows_and_succeeds(capsys):
    assert main(["M04", "N16"]) == 0
    text = capsys.readouterr().out
    assert "MBAR_TX_MISMATCH" in text
    assert "clean" in text
    # M04 is found by the static check, N16 is a control: one bug, one right kernel
    assert "| Hopper matmuls | 1 of 1 | 1 of 1 | 1 | 0 | 0 | 0 |" in text
