"""The generator: cases follow from seed and number, or from their decisions, and nothing else."""

import random
import re
import subprocess
import sys
from collections import Counter

import pytest

from tests.fuzz.arrays import read
from tests.fuzz.draw import Draw, fresh
from tests.fuzz.epilogue import STEPS
from tests.fuzz.families import FAMILIES, SHARES
from tests.fuzz.families.bare_annotations import FORMS, why_illegal
from tests.fuzz.judge import judge
from tests.fuzz.product import TWISTS
from tests.fuzz.runner import Task, generate, plan


@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_seed_gives_the_same_case(family):
    for number in range(40):
        case, made = generate(Task(family, 3, number))
        again, _ = generate(Task(family, 3, number))
        from_decisions, remade = generate(Task(family, 9, 9, made))
        assert case == again == from_decisions
        assert made == remade


@pytest.mark.slow
def test_the_same_seed_gives_the_same_case_in_another_process():
    code = (
        "from tests.fuzz.runner import Task, generate\n"
        "print([generate(Task('matmul', 7, n))[1] for n in range(5)])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str([generate(Task("matmul", 7, n))[1] for n in range(5)])


@pytest.mark.parametrize("family", FAMILIES)
def test_another_seed_gives_other_cases(family):
    cases = {repr(generate(Task(family, seed, n))[0]) for seed in (0, 1) for n in range(20)}
    assert len(cases) > 30 if family != "hostile" else len(cases) > 20


@pytest.mark.parametrize("family", FAMILIES)
def test_any_list_of_numbers_is_a_case(family):
    rng = random.Random(0)
    for _ in range(40):
        FAMILIES[family](Draw([rng.randrange(-3, 99) for _ in range(rng.randrange(60))]))


def test_a_list_that_ends_decides_on_the_simplest():
    draw = Draw([2])
    assert [draw.choose("abc"), draw.choose("abc"), draw.chance(99)] == ["c", "a", False]
    assert draw.maybe("abc", 99) is None
    assert draw.some("abc", 99, 5) == []
    assert draw.made == [2, 0, 0, 0, 0]


def test_a_number_that_is_too_large_is_the_last_option():
    assert Draw([99, -1]).choose("abc") == "c"


@pytest.mark.parametrize("family", ["matmul", "configurations", "loops"])
def test_the_simplest_case_is_right(family):
    assert judge(FAMILIES[family](Draw([]))).kind == "right"


def test_stock_tvm_reads_nearly_every_program():
    invalid = 0
    for family in ("matmul", "programs", "loops"):
        for number in range(10):
            try:
                read(generate(Task(family, 5, number))[0].program)
            except Exception:
                invalid += 1
    assert invalid <= 1


def test_every_twist_and_every_step_is_drawn():
    text = " ".join(generate(Task("matmul", 2, n))[0].program.text for n in range(400))
    words = "relu silu gelu cross branch T.where strides= elem_offset T.int64 m_=_T.int rows start"
    for word in [*words.split(), "vb", "int8", "bfloat16", "float8", "T.max", "depth"]:
        assert word.replace("_=_", " = ") in text, word
    assert len(TWISTS) >= 20
    assert len(STEPS) >= 10


def test_families_come_by_their_shares():
    tasks = list(plan(0, list(FAMILIES), 10 * sum(SHARES.values())))
    counts = Counter(task.family for task in tasks)
    assert counts == {family: 10 * share for family, share in SHARES.items()}
    assert {task.family for task in tasks[: sum(SHARES.values())]} == set(FAMILIES)
    assert [t.number for t in tasks if t.family == "steps"] == list(range(30))


def test_a_family_alone_and_a_first_number():
    tasks = list(plan(4, ["hostile"], 3, first=7))
    assert [t.id for t in tasks] == ["hostile:4:7", "hostile:4:8", "hostile:4:9"]


@pytest.mark.parametrize(
    ("key", "place", "value", "why"),
    [
        ("tvm_hopper.consumers", "k0", "2", ""),
        ("tvm_hopper.consumers", "j0", "2", "does not belong"),
        ("tvm_hopper.consumers", "k0", "1.5", "of int"),
        ("tvm_hopper.consumers", "k0", "[2]", "one value"),
        ("software_pipeline_stage", "k0", "3", "a list"),
        ("software_pipeline_stage", "k0", '["0", "0", "2"]', "of int"),
        ("software_pipeline_stage", "k0", '[tirx.IntImm("int64", 0), 0, 2]', ""),
        ("tvm_hopper.strict", "func", "True", ""),
        ("TVM_HOPPER.consumers", "k0", "1", "no key"),
        ("mykey", "k0", "1.5", ""),
    ],
)
def test_what_is_no_legal_annotation(key, place, value, why):
    assert re.search(why, why_illegal(key, place, value))
    assert bool(why) == bool(why_illegal(key, place, value))


def test_the_vocabulary_knows_every_key():
    from tvm_hopper.requests.keys import KEYS

    assert set(KEYS) == {key for key in FORMS if key.startswith("tvm_hopper.")}


def test_fresh_draws_do_not_depend_on_each_other():
    assert fresh("a", 0, 1).index(1000) != fresh("a", 0, 2).index(1000)


def test_a_symbolic_extent_keeps_inside_of_its_tensors():
    """Stock TVM's own loops wrote behind a tensor whose part they began in the middle of."""
    assert judge(generate(Task("matmul", 112233, 3182))[0]).kind in ("right", "refused")
