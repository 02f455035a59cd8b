"""The host counts a kernel's thread blocks by the device, once that is known."""

import pytest
import tvm
from tvm import s_tir, tirx

from tests.transforms.scripts import check, parse, run
from tvm_hopper import ir, pipeline, schedule as hs
from tvm_hopper.facts.devices import balanced_blocks
from tvm_hopper.testing import workloads
from tvm_hopper.transforms.tile_scheduling.size_persistent_grid import SizePersistentGrid, ask_count

HOST = """
def func(args: T.handle):
    T.func_attr({"calling_conv": 1})
    first: T.let[T.int32] = T.tvm_struct_get(args, 0, 9, "int32")
    second: T.let[T.int32] = T.tvm_struct_get(args, 1, 9, "int32")
    num_blocks: T.let[T.int32] = T.call_packed("tvm_hopper.count_blocks", 40, 1)
    T.call_packed("kernel", num_blocks, second)
    more: T.let[T.int32] = T.call_packed("tvm_hopper.count_blocks", second, 3)
    T.call_packed("kernel", more, second)
"""

COUNTED = """
def func(args: T.handle):
    T.func_attr({"calling_conv": 1})
    first: T.let[T.int32] = T.tvm_struct_get(args, 0, 9, "int32")
    second: T.let[T.int32] = T.tvm_struct_get(args, 1, 9, "int32")
    num_sms: T.let[T.int32] = T.call_packed("runtime.GetDeviceAttr", 2, first, 7)
    turns: T.let[T.int32] = T.truncdiv(num_sms + 39, num_sms)
    num_blocks: T.let[T.int32] = T.truncdiv(turns + 39, turns)
    T.call_packed("kernel", num_blocks, second)
    sms: T.let[T.int32] = T.call_packed("runtime.GetDeviceAttr", 2, first, 7)
    turns_1: T.let[T.int32] = T.truncdiv(second * 3 + sms - 1, sms)
    more: T.let[T.int32] = T.truncdiv(second + turns_1 - 1, turns_1)
    T.call_packed("kernel", more, second)
"""


def test_the_device_of_the_first_tensor_is_asked():
    """TVM's host checks that the other tensors are there too."""
    check(run(parse(HOST), SizePersistentGrid()), parse(COUNTED))


def test_other_functions_stay():
    other = parse(HOST, ('"calling_conv": 1', '"calling_conv": 0'))
    assert run(other, SizePersistentGrid()).same_as(other)
    plain = parse(
        "@T.prim_func(private=True, s_tir=True)\n"
        "def func(args: T.handle):\n"
        "    T.func_attr({'calling_conv': 1})\n"
        "    T.call_packed('use', args)\n"
    )
    assert run(plain, SizePersistentGrid()).same_as(plain)


def counted(tiles, num_sms, slices=1):
    """Evaluate a count out of the pass's own statements."""
    func = parse(HOST, ("40, 1", f"{tiles}, {slices}"))
    values, count = {}, 0
    for bind in ir.find_all(run(func, SizePersistentGrid()).body, tirx.Bind)[2:5]:
        value = num_sms if bind.var.name == "num_sms" else ir.substitute(bind.value, values)
        values[bind.var] = count = int(ir.simplify(value)) if bind.var.name != "num_sms" else value
    return count


@pytest.mark.parametrize("num_sms", [1, 2, 7, 31, 32, 78, 114, 132])
def test_as_many_blocks_as_balance(num_sms):
    for tiles in (1, 32, 221, 512):
        assert counted(tiles, num_sms) == balanced_blocks(tiles, num_sms)


def test_slices_of_a_grid_share_the_device():
    """Three times 32 tiles on 20 SMs: five turns, of seven blocks in each slice."""
    assert counted(32, 20, slices=3) == 7


def test_a_count_is_an_int32_of_which_tvm_knows_nothing_else():
    call = ask_count(40)
    assert [str(call.args[0].value), *map(int, call.args[1:])] == ["tvm_hopper.count_blocks", 40, 1]
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
        calls = ir.find_all(lowered[name].body, ir.Call, lambda call: len(call.args) == 4)
        asks = [c for c in calls if getattr(c.args[0], "value", "") == "runtime.GetDeviceAttr"]
        assert [call.args[2].name for call in asks] == ["dev_id"]


def test_clusters_that_do_not_fill_all_sms():
    """Of four blocks 30 run at once on 132 SMs, of two 66."""
    assert counted(128, 132, "4, 30") == 26  # five turns
    assert counted(128, 132, "2, 66") == 64
    assert counted(5, 2, "4, 30") == 1
    assert ask_count(40, 4, in_cluster=True).args[-1].value == 30


def test_tiles_that_the_device_alone_counts():
    """Blocks are as many as run at once: balanced for 133 tiles, half of them would idle."""
    assert counted(133, 132) == 67
    assert counted(133, 132, "1, 0, 1") == 132
    assert counted(20, 132, "1, 0, 1") == 20
    assert counted(133, 132, "4, 30, 1") == 30
    assert [int(x) for x in ask_count(40, 1, at_most=True).args[1:]] == [40, 1, 0, 1]
