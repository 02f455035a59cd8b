"""RemoveRestrict: kernels that begin early promise nothing of their pointers."""

import pytest
from tvm import s_tir

from tests.transforms.launch.test_enable_programmatic_launch import AFTER, BEFORE, ONE
from tests.transforms.scripts import parse, run
from tvm_hopper import schedule as hs
from tvm_hopper.pipeline.run import lower_final
from tvm_hopper.testing import workloads
from tvm_hopper.transforms import RemoveRestrict
from tvm_hopper.transforms.launch.enable_programmatic_launch import LAUNCH_PARAMS, PROGRAMMATIC
from tvm_hopper.transforms.launch.remove_restrict import NO_ALIAS


@pytest.mark.parametrize("tags", [[], [PROGRAMMATIC]], ids=["ever", "early"])
def test_the_word_is_taken_off_kernels_that_begin_early(tags):
    func = parse(AFTER).with_attr(NO_ALIAS, True).with_attr(LAUNCH_PARAMS, ["blockIdx.x", *tags])
    got = run(func, RemoveRestrict())
    assert (NO_ALIAS in got.attrs) == (not tags)
    assert [str(x) for x in got.attrs[LAUNCH_PARAMS]] == ["blockIdx.x", *tags]


def test_what_does_not_wait_is_launched_as_ever():
    func = parse(BEFORE).with_attr(NO_ALIAS, True)
    got = run(func.with_attr(LAUNCH_PARAMS, ["blockIdx.x", PROGRAMMATIC]), RemoveRestrict())
    assert NO_ALIAS in got.attrs
    assert [str(x) for x in got.attrs[LAUNCH_PARAMS]] == ["blockIdx.x"]


@pytest.mark.parametrize("config", [ONE, hs.MatmulConfig(form="dots", early_launch="weights")])
def test_the_launch_says_so_and_pointers_may_be_one_another(config):
    sch = s_tir.Schedule(workloads.matmul(1, 64, 256, "NT", "float16", "float16"))
    hs.matmul(sch, "C", config)
    (kernel,) = lower_final(sch.mod, "nvidia/nvidia-h200").device.functions.values()
    assert PROGRAMMATIC in [str(x) for x in kernel.attrs[LAUNCH_PARAMS]]
    assert NO_ALIAS not in kernel.attrs
    other = s_tir.Schedule(workloads.matmul(1, 64, 256, "NT", "float16", "float16"))
    hs.matmul(other, "C", hs.MatmulConfig(form="direct"))
    (kernel,) = lower_final(other.mod, "nvidia/nvidia-h200").device.functions.values()
    assert NO_ALIAS in kernel.attrs
