"""Small kernels for the simulator's tests, and the way from script to final functions."""

import functools

import numpy as np
import tvm
import tvm.s_tir.pipeline  # registers the pipeline "s_tir"
from tvm.script import tirx as T
from tvm.tirx import compilation_pipeline as pipelines
from tvm.tirx.build import split_host_device_mods
from tvm.tirx.transform import BindTarget

from tvm_hopper.simulation import Program, simulate

from . import ptx

ENCODE = "runtime.cuTensorMapEncodeTiled"
LOAD_1D = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
STORE_1D = "cp.async.bulk.global.shared::cta.bulk_group"
POLICIES = (("eager", 0), ("on_wait", 0), ("lifo", 0), ("random", 1), ("random", 2))


def lower(func) -> Program:
    """Run the stock pipeline; shared views keep their names."""
    target = tvm.target.Target({"kind": "cuda", "arch": "sm_90a"}, host={"kind": "llvm"})
    mod = BindTarget(target)(tvm.IRModule({"main": func}))
    with target, tvm.transform.PassContext(disabled_pass=["tirx.StorageRewrite"]):
        passes, finalize_host, finalize_device = pipelines.get_tir_pipeline("s_tir")
        host, devices = split_host_device_mods(passes(mod))
        host = finalize_host()(host)
        ((_, device),) = devices.items()
        device = finalize_device()(device)
    kernels = {gv.name_hint: f for gv, f in device.functions.items()}
    return Program(next(iter(host.functions.values())), kernels)


def rules(func, inputs, policies=POLICIES) -> set[str]:
    """Union of the rules that any schedule breaks."""
    program = lower(func)
    found: set[str] = set()
    for policy, seed in policies:
        found |= simulate(program, inputs, policy=policy, seed=seed).rules
    return found


@functools.cache
def roundtrip(swizzle: int, rank: int, dtype: str, box, dims, coords, steps=None):
    """Build a kernel that loads one box by TMA and stores the shared bytes as they lie.

    With `steps`, of each dimension, the box given to the driver has that many times the elements.
    """
    size = int(np.prod(box))
    ones = list(steps or [1] * rank)
    box = [n * step for n, step in zip(box, ones, strict=True)]
    itemsize = np.dtype(dtype).itemsize
    strides = [int(np.prod(dims[:i])) * itemsize for i in range(1, rank)]
    load = f"cp.async.bulk.tensor.{rank}d.shared::cluster.global.mbarrier::complete_tx::bytes"
    flat = int(np.prod(dims))

    @T.prim_func(s_tir=True)
    def main(A: T.Buffer((flat,), dtype), C: T.Buffer((size,), dtype)):
        T.func_attr({"global_symbol": "main"})
        a_map: T.let[T.handle("tensormap")] = T.tvm_stack_alloca("tensormap", 1)
        T.call_packed(
            ENCODE, a_map, dtype, rank, A.data, *dims, *strides, *box, *ones, 0, swizzle, 2, 0
        )
        T.launch_thread("blockIdx.x", 1)
        tx = T.launch_thread("threadIdx.x", 128)
        with T.attr(T.int32(0), "hand_threaded", 1):
            smem = T.alloc_buffer(
                (size * itemsize + 1024,), "uint8", scope="shared.dyn", align=1024
            )
            tile = T.decl_buffer((size,), dtype, data=smem.data, scope="shared.dyn")
            bar = T.decl_buffer(
                (size * itemsize // 8 + 128,), "uint64", data=smem.data, scope="shared.dyn"
            )
            ptx.set_up(tx, (bar[size * itemsize // 8], 1))
            if tx == 0:
                ptx.expect_bytes(bar[size * itemsize // 8], size * itemsize)
                T.ptx[load](
                    T.address_of(tile[0]),
                    T.address_of(a_map),
                    *coords,
                    T.address_of(bar[size * itemsize // 8]),
                )
            ptx.wait(bar[size * itemsize // 8], 0)
            for i in T.serial((size + 127) // 128):
                if i * 128 + tx < size:
                    C[i * 128 + tx] = tile[i * 128 + tx]

    return lower(main)
