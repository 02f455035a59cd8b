"""FuseThreadAxes: one thread axis, numbered as the hardware numbers threads."""

import pytest

from tests.transforms.scripts import check, given, parse, run
from tvm_hopper import ir
from tvm_hopper.transforms.prepare.fuse_thread_axes import FuseThreadAxes

before = parse("""
def before(A: T.Buffer((64,), "float16"), C: T.Buffer((256,), "float16")):
    for bx in T.thread_binding(2, thread="blockIdx.x"):
        for tx in T.thread_binding(32, thread="threadIdx.x"):
            for ty in T.thread_binding(4, thread="threadIdx.y", annotations={"note": 1}):
                with T.sblock("", reads=[A[0:64]], writes=[C[ty * 32 + tx]]):
                    tile = T.sblock_alloc_buffer((64,), "float16", scope="shared.dyn")
                    for i in range(64):
                        with T.sblock("copy", reads=[A[i]], writes=[tile[i]], async_copy="tma"):
                            tile[i] = A[i]
                    C[bx * 128 + ty * 32 + tx] = tile[tx]
""")


after = parse("""
def after(A: T.Buffer((64,), "float16"), C: T.Buffer((256,), "float16")):
    for bx in T.thread_binding(2, thread="blockIdx.x"):
        for t in T.thread_binding(128, thread="threadIdx.x", annotations={"note": 1}):
            with T.sblock("", reads=[A[0:64]], writes=[C[t // 32 * 32 + t % 32]]):
                tile = T.sblock_alloc_buffer((64,), "float16", scope="shared.dyn")
                for i in range(64):
                    with T.sblock("copy", reads=[A[i]], writes=[tile[i]], async_copy="tma"):
                        tile[i] = A[i]
                C[bx * 128 + t // 32 * 32 + t % 32] = tile[t % 32]
""")


def test_x_counts_first():
    check(run(before, FuseThreadAxes()), after)


@pytest.mark.parametrize("order", [("x", "y", "z"), ("z", "x", "y"), ("y", "z", "x")])
def test_three_axes_in_any_order(order):
    extents = {"x": 8, "y": 4, "z": 2}
    head = "".join(
        f"{'    ' * (n + 1)}for t{a} in T.thread_binding({extents[a]}, thread='threadIdx.{a}'):\n"
        for n, a in enumerate(order)
    )
    body = """
                with T.sblock("copy", async_copy="tma"):
                    C[tz, ty, tx] = T.float16(1)
"""
    shape = 'C: T.Buffer((2, 4, 8), "float16")'
    func = parse(f"@T.prim_func(private=True, s_tir=True)\ndef func({shape}):\n{head}{body}")

    want = parse("""
    def want(C: T.Buffer((2, 4, 8), "float16")):
        for t in T.thread_binding(64, thread="threadIdx.x"):
            with T.sblock("copy", async_copy="tma"):
                C[t // 32, t // 8 % 4, t % 8] = T.float16(1)
    """)

    got = run(func, FuseThreadAxes())
    assert str(ir.kernels(got)[0]).replace("threadIdx_x", "t") == str(ir.kernels(want)[0])


def test_a_kernel_without_copies_stays():
    func = parse("""
    def func(C: T.Buffer((8,), "float16")):
        for tx in T.thread_binding(4, thread="threadIdx.x"):
            for ty in T.thread_binding(2, thread="threadIdx.y"):
                C[ty * 4 + tx] = T.float16(1)
    """)

    assert run(func, FuseThreadAxes()).same_as(func)


def copies(store):
    func = given(store=store)("""
    def func(A: T.Buffer((4, 64), "float16"), C: T.Buffer((4, 64), "float16")):
        for bx in T.thread_binding(4, thread="blockIdx.x"):
            with T.sblock("kernel", reads=[], writes=[]):
                tile = T.sblock_alloc_buffer((64,), "float16", scope="shared.dyn")
                for i in range(64):
                    with T.sblock("load", async_copy="tma"):
                        tile[i] = A[bx, i]
                for i in range(64):
                    with T.sblock("store"):
                        T.sblock_attr({store: "tma"})
                        C[bx, i] = tile[i]
    """)

    return func


def test_a_kernel_of_copies_alone_gets_a_warp():
    func = copies("tvm_hopper.async_copy")
    got = run(func, FuseThreadAxes())
    (kernel,) = ir.kernels(got)
    assert [(tag, int(x.extent)) for tag, x in ir.thread_axes(kernel).items()] == [
        ("blockIdx.x", 4),
        ("threadIdx.x", 32),
    ]
    check(run(got, FuseThreadAxes()), got)


def test_a_kernel_that_also_stores_gets_none():
    """Every thread of a warp would make a plain store: who is to, a schedule has to say."""
    func = copies("other")
    assert run(func, FuseThreadAxes()).same_as(func)
