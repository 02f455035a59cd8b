"""The shrinker: what is left of a case is what the fault needs."""

from tests.fuzz.case import Case, Program, Step
from tests.fuzz.draw import Draw
from tests.fuzz.families import FAMILIES
from tests.fuzz.judge import judge
from tests.fuzz.planted import product
from tests.fuzz.shrink import shrink, verdict


def words(draw: Draw) -> Case:
    """Make a case of words, a generator that needs no TVM."""
    found = draw.some(["a", "b", "needle", "c"], 60, 8)
    size = draw.choose((1, 2, 3, 5, 8))
    return Case(Program(" ".join(found)), (Step(f"size {size}"),))


def decisions(*numbers: int) -> list[int]:
    return list(numbers)


def test_what_the_fault_does_not_need_goes():
    made = decisions(1, 0, 1, 3, 1, 2, 1, 1, 0, 4)
    assert words(Draw(made)).program.text == "a c needle b"
    left = shrink(made, words, lambda case: "needle" in case.program.text)
    assert words(Draw(left)) == Case(Program("needle"), (Step("size 1"),))


def test_what_the_fault_needs_stays():
    made = decisions(1, 2, 1, 1, 0, 4)
    left = shrink(
        made,
        words,
        lambda case: "needle" in case.program.text and case.steps[0].text in ("size 5", "size 8"),
    )
    assert words(Draw(left)) == Case(Program("needle"), (Step("size 5"),))


def test_nothing_smaller_fails():
    made = decisions(1, 2, 0, 3)
    assert shrink(made, words, lambda case: False) == made


def test_it_gives_up_after_so_many_attempts():
    calls = []

    def is_same(case):
        calls.append(case)
        return False

    shrink(decisions(1, 1, 1, 2, 1, 3, 1, 1, 0, 4), words, is_same, attempts=5)
    assert len(calls) == 5
    shrink(decisions(1, 1, 1, 2, 0, 4), words, is_same, seconds=-1)
    assert len(calls) == 5


def test_no_case_is_run_twice():
    calls = []

    def is_same(case):
        calls.append(repr(case))
        return "needle" in case.program.text

    shrink(decisions(1, 0, 1, 2, 1, 1, 0, 2), words, is_same)
    assert len(calls) == len(set(calls))


def test_a_real_case_shrinks_to_its_fault():
    """Plant a step of an epilogue as the fault; the product around it becomes the plain one."""
    make = FAMILIES["configurations"]
    made = next(
        made for seed in range(400) if "T.sigmoid" in (made := _draw(make, seed))[1].program.text
    )
    left = shrink(made[0], make, lambda case: "T.sigmoid" in case.program.text)
    case = make(Draw(left))
    assert case.program.text.count("with T.sblock") <= 4
    assert product(64, 64, 64).text.count("64") <= case.program.text.count("64")
    assert not case.verify


def _draw(make, seed):
    import random

    draw = Draw(random.Random(seed))
    case = make(draw)
    return draw.made, case


def test_faults_are_alike_by_class_phase_and_message():
    assert verdict("unclear", "build", "tile 64") == verdict("unclear", "build", "tile 128")
    assert verdict("unclear", "build", "tile 64") != verdict("unclear", "hs.matmul", "tile 64")
    assert verdict("wrong", "simulate", "3 differ") == verdict("wrong", "simulate", "none is right")
    alarm = verdict("simulator-alarm", "simulate", "RACE_WRITE_WRITE: bytes")
    assert alarm == verdict("simulator-alarm", "simulate", "RACE_WRITE_WRITE: others")


def test_the_planted_fault_is_one():
    from tests.fuzz.planted import wrong

    assert judge(wrong(16, 8, 16)).kind == "wrong"
