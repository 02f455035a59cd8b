"""What builders and runners are given and cannot be: one sentence, before anything is started."""

import pytest

from tvm_hopper import meta_schedule
from tvm_hopper.errors import TuningError
from tvm_hopper.meta_schedule.arguments import check_method


@pytest.mark.parametrize("value", [0, -1, True, 1.5, "2", None])
def test_numbers_of_fake_gpus(value):
    with pytest.raises(TuningError, match=r"^fake_gpus: found count=.*; need a number from 1 to"):
        meta_schedule.fake_gpus(value)


@pytest.mark.parametrize(
    ("faults", "found"),
    [
        ({2: ("segfault", 1)}, "faults={2: "),
        ({0: ("boom", 1)}, "faults={0: "),
        ({0: "segfault"}, "faults={0: "),
        ({0: ("segfault", 0)}, "fault 'segfault' every=0"),
    ],
)
def test_faults_that_are_none(faults, found):
    with pytest.raises(TuningError, match=f"^fake_gpus: found {found}.*; need a number"):
        meta_schedule.fake_gpus(2, faults)


@pytest.mark.parametrize("value", [0, True, 1.5, "2"])
def test_numbers_of_a_builder_and_a_runner(value):
    with pytest.raises(TuningError, match=r"^ArtifactBuilder: found workers=.*; need a number"):
        meta_schedule.ArtifactBuilder(value)
    for name in ("retire_after", "processes", "repeats"):
        with pytest.raises(TuningError, match=f"^GpuRunner: found {name}=.*; need a number from 1"):
            meta_schedule.GpuRunner(**{name: value})


@pytest.mark.parametrize("value", [0, -1.0, float("nan"), True, "2", None, 10**400])
def test_deadlines(value):
    for made in (meta_schedule.ArtifactBuilder, meta_schedule.GpuRunner):
        with pytest.raises(TuningError, match=r": found seconds=.*; need a number above 0"):
            made(seconds=value)


def test_a_class_is_no_runner():
    with pytest.raises(TuningError, match=r"tune: found runner=<class .*; need one"):
        check_method("tune", "runner", meta_schedule.FakeRunner, "run", "one")
    check_method("tune", "check", print, "__call__", "one")
    check_method("tune", "runner", None, "run", "one")
