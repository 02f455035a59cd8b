"""Ask about the device that a launch is on: `call_packed("runtime.GetDeviceAttr", ...)`.

Which device that is, a host function learns from its tensors, once it is packed:

    dev_id = tensor argument 0 .device_id
    num_sms = call_packed("runtime.GetDeviceAttr", 2, -1, 7)        written at the hook
  ->
    dev_id = tensor argument 0 .device_id
    num_sms = call_packed("runtime.GetDeviceAttr", 2, dev_id, 7)

TVM's host checks that all tensors are on the same device, and makes it the current one.  The
function is a part of TVM's C++ runtime.  It costs a call of `cudaDeviceGetAttribute`, which is no
work on a stream and so may be captured in a CUDA graph.

Before: the host function is packed.  After: no question without a device is left.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.ir import StringImm
from tvm.tirx.transform import prim_func_pass

from tvm_hopper import ir
from tvm_hopper.errors import cannot_lower

GET_ATTRIBUTE = "runtime.GetDeviceAttr"
CUDA = 2  # DLPack's kDLCUDA
NUM_SMS = 7  # DeviceAttrKind::kMultiProcessorCount of tvm/runtime/device_api.h
UNKNOWN_DEVICE = -1  # CUDA refuses it, should it ever be left
_DEVICE_ARGUMENT = 2  # of the call: name, type of the device, its number, attribute
_DEVICE_FIELD = 9  # TVMStructFieldKind::kDLTensorDeviceId of `tvm_struct_get`
_PACKED = 1  # CallingConv::kCPackedFunc


@dataclass(frozen=True)
class DeviceQuestion:
    """One call, and the variable that holds the number of the device."""

    call: ir.Call
    device: ir.Var


def ask_device(attribute: int) -> ir.Call:
    """Build a host expression for an attribute of the device that will run the kernel."""
    return tirx.call_packed(GET_ATTRIBUTE, CUDA, UNKNOWN_DEVICE, attribute)


def plan_device(func: tirx.PrimFunc) -> tuple[DeviceQuestion, ...]:
    """Find the questions of a packed host function, and its device."""
    if int(func.attrs.get("calling_conv", 0)) != _PACKED:
        return ()
    calls = ir.find_all(func.body, ir.Call, _is_open)
    if not calls:
        return ()
    devices = ir.find_all(func.body, tirx.Bind, lambda bind: _is_device(bind.value))
    if not devices:
        raise cannot_lower(
            str(func.attrs.get("global_symbol", "a host function")).removeprefix("__tvm_ffi_"),
            "a kernel launch without a tensor argument",
            "one, which says on which device",
        )
    return tuple(DeviceQuestion(call, devices[0].var) for call in calls)


def _is_open(call: ir.Call) -> bool:
    args = call.args
    asks = len(args) > _DEVICE_ARGUMENT and isinstance(args[0], StringImm)
    return (
        asks
        and args[0].value == GET_ATTRIBUTE
        and ir.is_const(args[_DEVICE_ARGUMENT], UNKNOWN_DEVICE)
    )


def _is_device(value: Any) -> bool:
    is_field = isinstance(value, ir.Call) and str(value.op.name).endswith("tvm_struct_get")
    return is_field and ir.is_const(value.args[2], _DEVICE_FIELD)


def rewrite_device(func: tirx.PrimFunc, plan: tuple[DeviceQuestion, ...]) -> tirx.PrimFunc:
    """Name the device in every question."""
    bound = {}
    for question in plan:
        args = list(question.call.args)
        args[_DEVICE_ARGUMENT] = question.device
        bound[question.call] = ir.Call(question.call.op, args, ret_ty=question.call.ty)
    return func.with_body(ir.replace_nodes(func.body, ir.Call, bound))


@prim_func_pass(opt_level=0, name="tvm_hopper.BindDevice")
class BindDevice:
    """See the module's docstring for the rewrite."""

    def transform_function(self, func, mod, ctx):
        """Name the device in one host function."""
        if not (plan := plan_device(func)):
            return func
        after = rewrite_device(func, plan)
        assert not plan_device(after), "BindDevice left a question open"
        return after
