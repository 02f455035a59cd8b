"""The short form of a kernel is the long one."""

import tvm
from tvm.script import tirx as T

from . import ptx
from .hand_threaded import F32, U64, Local, Map, Shared, Static, hand_threaded


@T.prim_func(s_tir=True)
def long(X: T.Buffer((64, 32), "float32"), Y: T.Buffer((128,), "float32")):
    T.func_attr({"global_symbol": "main"})
    x_map: T.let[T.handle("tensormap")] = T.tvm_stack_alloca("tensormap", 1)
    T.call_packed(
        "runtime.cuTensorMapEncodeTiled", x_map, "float32", 2, X.data, 32, 64, 128, 32, 8, 1, 1,
        0, 3, 2, 0,
    )  # fmt: skip
    bx = T.launch_thread("blockIdx.x", 2)
    T.launch_thread("clusterCtaIdx.x", 2)
    tx = T.launch_thread("threadIdx.x", 64)
    with (
        T.attr(T.int32(0), "tirx.launch_bounds_min_blocks_per_sm", 1),
        T.attr(T.int32(0), "hand_threaded", 1),
    ):
        word = T.alloc_buffer((1,), "float32", scope="local")
        smem = T.alloc_buffer((512,), "uint8", scope="shared.dyn", align=1024)
        tile = T.decl_buffer((128,), "float32", data=smem.data, scope="shared.dyn")
        bar = T.decl_buffer((64,), "uint64", data=smem.data, scope="shared.dyn")
        two = T.alloc_buffer((2,), "float32", scope="shared")
        if tx == 0:
            T.ptx.mbarrier.init.shared.b64(T.address_of(bar[60]), T.uint32(1))
            T.ptx.fence.mbarrier_init.release.cluster()
        T.tvm_storage_sync("shared")
        T.ptx.prefetch.tensormap(T.address_of(x_map))
        word[0] = tile[tx] + two[1]
        Y[bx * 64 + tx] = word[0]


@hand_threaded(64, grid=2, cluster=2, smem=512, min_blocks=1)
def short(
    X: F32[64, 32], Y: F32[128], x_map: Map("X", (32, 64), (32, 8), 3),
    bx, tx, word: Local[F32], tile: Shared[F32], bar: Shared[U64], two: Static[F32, 2], *, place,
):  # fmt: skip
    ptx.set_up(tx, (bar[place], 1))
    T.ptx.prefetch.tensormap(T.address_of(x_map))
    word[0] = tile[tx] + two[1]
    Y[bx * 64 + tx] = word[0]


def test_the_short_form_is_the_long_one():
    tvm.ir.assert_structural_equal(short(60), long)
    assert short(place=60) is short(60)
