"""Published bugs of other projects: enough of them, each found, each fixed form clean."""

import pytest

from tests.seeded.__main__ import main
from tests.seeded.families.published.bugs import FIXED, GOLDEN, MUTATIONS
from tests.seeded.judging import false_alarms, judge, misses, verdict

FEW = (("on_wait", 0), ("random", 1))


def test_the_family_is_complete():
    assert [m.id for m in MUTATIONS] == [f"P{i:02}" for i in range(1, 100)]
    assert len({m.source for m in MUTATIONS}) >= 75
    assert all(m.source for m in MUTATIONS)
    assert {m.golden.name for m in MUTATIONS} == {g.name for g in GOLDEN}


@pytest.mark.sampled(every=8)
@pytest.mark.parametrize("mutation", MUTATIONS[6:], ids=lambda mutation: mutation.id)
def test_a_wrong_form_is_found(mutation):
    kernel = mutation.build()
    assert misses(mutation, judge(kernel)) == []
    assert verdict(kernel) in ("error", "review")


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("golden", [row[2] for row in FIXED], ids=lambda golden: golden.name)
def test_a_fixed_form_is_clean(golden):
    kernel = golden.build()
    judgement = judge(kernel, FEW)
    assert false_alarms(judgement) == []
    assert judgement.found["N"] == frozenset()
    assert verdict(kernel) == "clean"


def test_the_command_counts_bugs_by_source(capsys):
    assert main(["P21", "P22", "PF5", "--families", "published"]) == 0
    text = capsys.readouterr().out
    assert "published bugs found 1 of 1 (in 2 of 2 wrong forms), false alarms" in text
    assert text.rstrip().count("FlashKDA #24") == 2
