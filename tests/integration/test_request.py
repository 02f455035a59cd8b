"""Requests that no schedule through `tvm_hopper.schedule` can make are refused all the same."""

import pytest
from tvm import s_tir
from tvm.target import Target

from tvm_hopper import schedule as hs
from tvm_hopper.errors import HopperError
from tvm_hopper.requests import keys
from tvm_hopper.requests.marks import Request, check_host, check_request, mark_requests
from tvm_hopper.testing import workloads


def test_key_on_a_loop_bound_to_another_axis_is_refused():
    name, key = next((n, k) for n, k in keys.KEYS.items() if k.axis)
    request = Request(place=keys.LOOP, owner="by", name=name, value=8, axis="blockIdx.y")
    with pytest.raises(HopperError, match=rf"on a loop bound to blockIdx\.y; need .*{key.axis}"):
        check_request("main", request)


def test_key_of_a_serial_loop_on_a_bound_one_is_refused():
    request = Request(keys.LOOP, "part", keys.ACROSS_BLOCKS, "blockIdx.z", axis="threadIdx.y")
    need = r"across_blocks on a loop bound to threadIdx\.y; need it on a serial loop"
    with pytest.raises(HopperError, match=need):
        check_request("main", request)


@pytest.mark.parametrize("name", ["A_shared.dyn", "C_init", "C_update", "C_local"])
def test_key_of_a_loop_of_blocks_on_the_elements_of_one_is_refused(name):
    sch = s_tir.Schedule(workloads.matmul(64, 64, 64))
    hs.matmul(sch, "C", hs.MatmulConfig(tile=(64, 64, 64), stages=2, consumers=1))
    sch.annotate(sch.get_loops(sch.get_sblock(name))[-1], keys.ACROSS_CLUSTER, 1)
    with pytest.raises(HopperError, match="need it on a loop over a sum, or around several blocks"):
        mark_requests(sch.mod)


def test_an_early_load_of_nothing_is_refused():
    request = Request(keys.BLOCK, "C_init", keys.EARLY_LOADS, 1, reads=False)
    with pytest.raises(HopperError, match=r"block C_init: found .*early_loads of nothing in glob"):
        check_request("main", request)


def test_host_without_llvm_is_refused():
    with pytest.raises(HopperError, match=r"main: found host target c; need llvm: tensor maps"):
        check_host("main", Target("nvidia/nvidia-h200", host="c"))


def test_host_with_llvm_and_no_host_are_taken():
    check_host("main", Target("nvidia/nvidia-h200", host="llvm"))
    check_host("main", Target("nvidia/nvidia-h200"))
