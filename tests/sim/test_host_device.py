"""What the host function may ask about the device that is simulated."""

import pytest
import tvm
from tvm import tirx

from tvm_hopper.errors import VerifyError
from tvm_hopper.facts.arch import SM_80, SM_90A
from tvm_hopper.sim.launch.host import HostInterpreter, run_host
from tvm_hopper.sim.tir import arch_of_kernel


def asks(*args):
    call = tirx.call_packed("runtime.GetDeviceAttr", *args)
    return tvm.tirx.PrimFunc([], tirx.Evaluate(call)), call


def test_the_number_of_sms_is_answered():
    func, call = asks(2, 0, 7)
    assert HostInterpreter(func, {}).expr(call) == 132
    assert HostInterpreter(func, {}, num_sms=78).expr(call) == 78
    assert run_host(func, {}, 78) == []


def test_the_device_is_that_of_the_arch():
    version, registers = asks(2, 0, 4), asks(2, 0, 9)
    assert HostInterpreter(version[0], {}).expr(version[1]) == "9.0"
    assert HostInterpreter(version[0], {}, arch=SM_80).expr(version[1]) == "8.0"
    assert HostInterpreter(registers[0], {}).expr(registers[1]) == 65536


def test_a_kernel_s_arch_is_its_target_s():
    func = tirx.PrimFunc([], tirx.Evaluate(0))
    assert arch_of_kernel(func) is SM_90A
    for target, arch in (("nvidia/nvidia-a100", SM_80), ("nvidia/nvidia-h200", SM_90A)):
        assert arch_of_kernel(func.with_attr("target", tvm.target.Target(target))) is arch
    assert arch_of_kernel(func.with_attr("target", tvm.target.Target("llvm"))) is SM_90A


@pytest.mark.parametrize("args", [(2, 0, 5), (1, 0, 7)])
def test_other_questions_are_not_modelled(args):
    with pytest.raises(VerifyError, match=r"runtime.GetDeviceAttr: found .*; need"):
        run_host(asks(*args)[0], {})
