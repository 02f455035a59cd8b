"""BindDevice: questions about the device of a launch name the device, once it is known."""

import pytest
import tvm
from tvm import s_tir

from tests.transforms.scripts import check, parse, run
from tvm_hopper import ir, pipeline
from tvm_hopper import schedule as hs
from tvm_hopper.errors import LoweringError
from tvm_hopper.testing import workloads
from tvm_hopper.transforms.bind_device import NUM_SMS, BindDevice, ask_device, plan_device

HOST = """
@T.prim_func(private=True, s_tir=True)
def func(args: T.handle):
    T.func_attr({"calling_conv": 1})
    first: T.let[T.int32] = T.tvm_struct_get(args, 0, 9, "int32")
    second: T.let[T.int32] = T.tvm_struct_get(args, 1, 9, "int32")
    num_sms: T.let[T.int32] = T.call_packed("runtime.GetDeviceAttr", 2, WHICH, 7)
    T.call_packed("use", num_sms, second)
    T.call_packed("runtime.GetDeviceAttr", 2, WHICH, 1)
"""


def host(device: str = "-1", *edits):
    return parse(HOST, ("WHICH", device), *edits)


def test_the_device_of_the_first_tensor_is_named():
    """TVM's host checks that the other tensors are there too."""
    check(run(host(), BindDevice()), host("first"))


def test_again_finds_nothing():
    got = run(host(), BindDevice())
    assert plan_device(got) == ()
    assert run(got, BindDevice()).same_as(got)


def test_a_device_that_somebody_names_stays():
    named = host("3")
    assert run(named, BindDevice()).same_as(named)


def test_other_functions_stay():
    other = host("-1", ('"calling_conv": 1', '"calling_conv": 0'))
    assert run(other, BindDevice()).same_as(other)
    plain = parse(
        "@T.prim_func(private=True, s_tir=True)\n"
        "def func(args: T.handle):\n"
        "    T.call_packed('use', args)\n"
    )
    assert run(plain, BindDevice()).same_as(plain)


def test_refuses_a_launch_without_a_tensor():
    nowhere = host("-1", ("args, 0, 9", "args, 0, 8"), ("args, 1, 9", "args, 1, 8"))
    with pytest.raises(
        LoweringError, match=r"entry: found a kernel launch without a tensor argument; need one"
    ):
        run(nowhere.with_attr("global_symbol", "__tvm_ffi_entry"), BindDevice())


def test_a_question_is_a_call_of_tvm_s_runtime():
    call = ask_device(NUM_SMS)
    assert [str(call.args[0].value), *map(int, call.args[1:])] == [
        "runtime.GetDeviceAttr",
        2,
        -1,
        7,
    ]
    assert ir.dtype_of(call) == "int32"


def test_each_function_of_a_module_asks_about_its_own_device():
    module = tvm.IRModule()
    for name in ("f", "g"):
        func = workloads.matmul("m", 256, 64)["main"].with_attr("global_symbol", name)
        sch = s_tir.Schedule(tvm.IRModule({name: func}))
        sch.work_on(name)
        hs.matmul(sch, "C", hs.MatmulConfig((64, 64, 64), persistent=hs.BY_DEVICE))
        module.update(sch.mod)
    lowered = pipeline.lower(module, "nvidia/nvidia-h200")
    for name in ("f", "g"):
        asks = ir.find_all(
            lowered[name].body,
            ir.Call,
            lambda c: (
                len(c.args) == 4 and getattr(c.args[0], "value", "") == "runtime.GetDeviceAttr"
            ),
        )
        assert [call.args[2].name for call in asks] == ["dev_id"]
