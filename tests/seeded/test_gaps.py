"""The families of what validators of declared pipelines leave out: complete, and opaque by name."""

import pytest

from tests.seeded.catalogue import BY_ID, FAMILIES
from tests.seeded.families.gaps.opaque_bodies import NAMED
from tests.seeded.judging import verdict
from tests.seeded.lowering import lower
from tests.seeded.running import run

GAPS = {family.mutations[0].id[0]: family for family in FAMILIES if family.mutations}


@pytest.mark.parametrize(("letter", "bugs"), [("O", 14), ("B", 17), ("H", 38), ("X", 30)])
def test_a_family_is_complete(letter, bugs):
    family = GAPS[letter]
    assert [m.id for m in family.mutations] == [f"{letter}{i:02}" for i in range(1, bugs + 1)]
    assert len(family.golden) >= 3
    assert {m.golden.name for m in family.mutations} == {g.name for g in family.golden}


@pytest.mark.parametrize("id", NAMED)
def test_what_is_opaque_is_named_and_never_clean(id):
    kernel = BY_ID[id].build()
    lowered = lower(kernel.func)
    messages = [f.message for f in run(kernel, lowered).findings if f.rule == "INCOMPLETE"]
    assert any(NAMED[id] in message for message in messages), messages
    raced = any("RACE_READ_INFLIGHT" in group for group in BY_ID[id].expected)
    assert verdict(kernel) == ("error" if raced else "incomplete")
