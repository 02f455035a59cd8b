"""What the host function may ask about the device that is simulated."""

import pytest
import tvm
from tvm import tirx

from tvm_hopper.errors import VerifyError
from tvm_hopper.sim.launch.host import HostInterpreter, run_host


def asks(*args):
    call = tirx.call_packed("runtime.GetDeviceAttr", *args)
    return tvm.tirx.PrimFunc([], tirx.Evaluate(call)), call


def test_the_number_of_sms_is_answered():
    func, call = asks(2, 0, 7)
    assert HostInterpreter(func, {}).expr(call) == 132
    assert HostInterpreter(func, {}, num_sms=78).expr(call) == 78
    assert run_host(func, {}, 78) == []


@pytest.mark.parametrize("args", [(2, 0, 5), (1, 0, 7)])
def test_other_questions_are_not_modelled(args):
    with pytest.raises(VerifyError, match=r"runtime.GetDeviceAttr: found .*; need"):
        run_host(asks(*args)[0], {})
