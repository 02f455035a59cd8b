"""Processes that schedule candidates: the same kernels, refusals, and what they cannot answer."""

import pytest
from tvm.target import Target

from tvm_hopper import schedule as hs
from tvm_hopper.meta_schedule import schedulers
from tvm_hopper.meta_schedule.matmul_problems import as_matmul
from tvm_hopper.meta_schedule.memory_problems import as_memory_bound
from tvm_hopper.meta_schedule.schedulers import Schedulers, scheduled_here, spare_processes
from tvm_hopper.meta_schedule.search import Measured, Search
from tvm_hopper.testing import memory_bound, workloads

H200 = Target("nvidia/nvidia-h200")
TOO_WIDE = hs.RowReductionConfig(vector=16)


@pytest.fixture(scope="module")
def one():
    made = Schedulers(1)
    made.start()
    yield made
    made.close()


@pytest.fixture(scope="module")
def rows():
    return as_memory_bound(memory_bound.rms_norm(64, 512)["main"], H200)


def test_a_process_schedules_as_this_one_does(one, rows):
    product = as_matmul(workloads.matmul(256, 256, 256)["main"], H200)
    for problem in (rows, product):
        asked = [(problem.built_in(), False), *((x, True) for x in problem.configurations()[:3])]
        here, there = scheduled_here(problem, asked), one.schedule(problem, asked)
        assert [x.kernel for x in here] == [x.kernel for x in there]
        assert all(x.sch is not None for x in here)
        assert all(x.sch is None and "main" in x.mod for x in there)


def test_what_does_not_fit_is_refused_and_costs_nothing_else(one, rows):
    asked = [(TOO_WIDE, True), (rows.built_in(), True)]
    for made in (scheduled_here(rows, asked), one.schedule(rows, asked)):
        assert made[0] is None
        assert made[1].kernel


def test_what_a_process_cannot_answer_is_scheduled_here(rows):
    broken = Schedulers(1)
    broken._pool.fail("no worker is left")
    try:
        (made,) = broken.schedule(rows, [(rows.built_in(), True)])
        assert made.sch is not None
    finally:
        broken.close()


def test_without_processes_this_one_schedules(rows):
    none = Schedulers(0)
    none.start()
    assert none.schedule(rows, [(rows.built_in(), True)])[0].sch is not None
    none.close()


def test_a_search_proposes_the_same_through_processes(one, rows):
    texts = []
    for schedule in (scheduled_here, one.schedule):
        search = Search(rows, schedule=schedule)
        made = search.propose(4)
        for x in made:
            search.report(Measured(x.config, x.kernel, 5.0))
        texts.append([x.config for x in made + search.propose(3)])
    assert texts[0] == texts[1]


def test_few_processors_are_left_to_builders():
    assert [spare_processes(x) for x in (2, 7, 8, 32, 128)] == [0, 0, 2, 8, schedulers.MOST]
