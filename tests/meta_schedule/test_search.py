"""The search: the built-in choice first, nothing twice, and the best soon."""

import math

import numpy as np
import pytest
from tvm.target import Target

from tvm_hopper import schedule as hs
from tvm_hopper.errors import ScheduleError
from tvm_hopper.meta_schedule.matmul_problems import as_matmul
from tvm_hopper.meta_schedule.memory_problems import as_memory_bound
from tvm_hopper.meta_schedule.schedulers import Scheduled, kernel_name, schedule_fast
from tvm_hopper.meta_schedule.scheduling import schedule_with
from tvm_hopper.meta_schedule.search import UNLIKE, Measured, Search, points_of
from tvm_hopper.schedule.dry_run import left_to_the_build
from tvm_hopper.testing import memory_bound, workloads

H200 = Target("nvidia/nvidia-h200")


@pytest.fixture(scope="module")
def rows():
    return as_memory_bound(memory_bound.rms_norm(256, 512)["main"], H200)


def truth(problem, config):
    """Return a time that the model does not know: a slope over its own features."""
    complete = problem.resolved(config)
    features = problem.features([complete])[0]
    slope = np.linspace(-0.1, 0.1, len(features))
    return float(problem.estimates([complete])[0] * 1.3 * np.exp(slope @ features))


def run(search, batches, count):
    made = []
    for _ in range(batches):
        for x in search.propose(count):
            made.append(x)
            search.report(Measured(x.config, x.kernel, truth(search.problem, x.config)))
    return made


def test_it_begins_with_the_choice_and_repeats_nothing(rows):
    search = Search(rows)
    assert search.expected_gain() == math.inf
    made = run(search, 5, 6)
    assert made[0].config == hs.RowReductionConfig()
    assert search.first_us == truth(rows, hs.RowReductionConfig())
    assert len({x.kernel for x in made}) == len(made) == 30
    legal = [truth(rows, c) for c in rows.configurations()]
    assert search.best.microseconds <= 1.03 * min(legal)
    wrong = [abs(math.log(x.predicted_us / truth(rows, x.config))) for x in made]
    assert np.mean(wrong[-12:]) < 0.25 * np.mean(wrong[:6])
    assert search.expected_gain() < 0.05


def test_every_third_trial_is_of_a_shape_that_nobody_tried():
    mod = workloads.matmul(512, 1024, 512, out_dtype="float16")
    problem = as_matmul(mod["main"], H200)

    def made(_problem, asked):
        return [Scheduled(None, str(config)) for config, _ in asked]

    search = Search(problem, schedule=made)
    (first,) = search.propose(1)
    search.report(Measured(first.config, first.kernel, 10.0))
    shapes = []
    for _ in range(30):
        (x,) = search.propose(1)
        search.report(
            Measured(x.config, x.kernel, 10.0 + (problem.shape_of(x.config) != shapes[:1]))
        )
        shapes.append(problem.shape_of(x.config))
    fresh = [x not in shapes[:i] for i, x in enumerate(shapes)]
    assert all(fresh[UNLIKE - 1 :: UNLIKE])
    assert len(set(shapes)) > 30 // UNLIKE


def test_what_is_known_is_not_tried_again(rows):
    made = run(Search(rows), 2, 6)
    known = [Measured(x.config, x.kernel, truth(rows, x.config)) for x in made]
    again = Search(rows, known)
    assert again.best.microseconds == min(x.microseconds for x in known)
    fresh = again.propose(8)
    assert not {x.kernel for x in fresh} & {x.kernel for x in made}
    assert hs.RowReductionConfig() not in [x.config for x in fresh]


def test_failures_are_avoided_and_do_not_win(rows):
    search = Search(rows)
    (first,) = search.propose(1)
    search.report(Measured(first.config, first.kernel, None))
    assert search.best is None
    assert search.first_us is None
    (second,) = search.propose(1)
    search.report(Measured(second.config, second.kernel, 20.0))
    assert search.best.config == second.config
    both = points_of(rows, [Measured(first.config, "a", None), Measured(second.config, "b", 20.0)])
    assert both.residuals[0] == pytest.approx(both.residuals[1] + 1)


def test_it_ends_when_nothing_is_left():
    problem = as_memory_bound(memory_bound.copy(32, 64)["main"], H200)
    search = Search(problem)
    made = []
    while batch := search.propose(16):
        made += batch
        for x in batch:
            search.report(Measured(x.config, x.kernel, 5.0))
    assert search.is_exhausted
    assert search.expected_gain() == 0.0
    assert len({x.kernel for x in made}) == len(made)


def test_it_starts_from_the_best_of_a_problem_like_it():
    small = as_matmul(workloads.matmul(128, 128, 256)["main"], H200)
    other = as_matmul(workloads.matmul(128, 128, 192)["main"], H200)
    config = next(c for c in small.configurations() if c.tile == (64, 64, 64) and c.parts == 1)
    near = [(other, [Measured(config, "x", 3.0), Measured(hs.MatmulConfig(), "y", 9.0)])]
    made = Search(small, near=near).propose(3)
    assert [x.config for x in made][:2] == [hs.MatmulConfig(), config]


def test_kernels_are_told_apart_by_what_changes_code():
    func = workloads.matmul(128, 128, 128)["main"]
    config = hs.MatmulConfig((64, 64, 64), stages=2, consumers=1, raster=1, persistent=0)
    same = hs.MatmulConfig((64, 64, 64), stages=2, consumers=1, raster=1, persistent=0,
                           swizzle=None)  # fmt: skip
    other = hs.MatmulConfig((64, 64, 64), stages=1, consumers=1, raster=1, persistent=0)
    names = [kernel_name(schedule_with(func, x)) for x in (config, same, other)]
    assert names[0] == names[1] != names[2]


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(
    ("mod", "find"),
    [
        (workloads.matmul(256, 512, 128, "TN", out_dtype="float16"), as_matmul),
        (memory_bound.layer_norm(256, 512), as_memory_bound),
        (memory_bound.silu_mul(256, 500), as_memory_bound),
    ],
    ids=("product", "rows", "elements"),
)
def test_schedules_without_a_rehearsal_are_the_same(mod, find):
    problem = find(mod["main"], H200)
    configs = problem.configurations()
    for config in configs[:: len(configs) // 4]:
        with left_to_the_build():
            fast, slow = schedule_fast(problem, config), problem.schedule(config)
        assert kernel_name(fast) == kernel_name(slow)
        assert str(fast.trace) == str(slow.trace)


def test_what_does_not_fit_is_refused_without_a_rehearsal_too(rows):
    with pytest.raises(ScheduleError, match="whole vectors"):
        schedule_fast(rows, hs.RowReductionConfig(vector=16))
