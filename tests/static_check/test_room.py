"""Shared memory of final kernels: what threads copy gets its slots from TVM, the last of all."""

import pytest
import tvm
from tvm import s_tir, te

from tvm_hopper import schedule as hs
from tvm_hopper.errors import LoweringError


def pipelined(stages):
    x = te.placeholder((2, 128, 512), "float32", name="X")
    y = te.compute((2, 128, 512), lambda b, k, i: x[b, k, i] * 2, name="Y")
    sch = s_tir.Schedule(te.create_prim_func([x, y]))
    block, k, thread = sch.get_loops("Y")
    tile = sch.cache_read("Y", 0, "shared.dyn")
    sch.compute_at(tile, k)
    sch.bind(block, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")
    hs.async_copy(sch, tile, "none")
    hs.pipeline(sch, k, stages=stages)
    return sch.mod


@pytest.mark.parametrize(
    ("target", "most"), [("nvidia/nvidia-h200", 232448), ("nvidia/nvidia-a100", 166912)]
)
def test_more_than_a_block_may_have_is_refused(target, most):
    fits = most // 2048
    tvm.compile(pipelined(fits), target=target)
    need = rf"{(fits + 1) * 2048} bytes; need at most {most}; take fewer stages or a smaller tile$"
    with pytest.raises(LoweringError, match=rf"^kernel main_kernel: found shared memory .* {need}"):
        tvm.compile(pipelined(fits + 1), target=target)


def bound(mechanism, **axes):
    """Schedule a copy through shared memory, with as many threads and blocks as axes say."""
    shape = [*axes.values(), 16]
    x = te.placeholder(shape, "float16", name="X")
    y = te.compute(shape, lambda *i: x(*i) + te.const(1, "float16"), name="Y")
    sch = s_tir.Schedule(te.create_prim_func([x, y]))
    tile = sch.cache_read("Y", 0, "shared.dyn")
    *loops, _ = sch.get_loops("Y")
    sch.compute_at(tile, loops[len([x for x in axes if x.startswith("block")]) - 1])
    for tag, loop in zip(axes, loops, strict=True):
        sch.bind(loop, tag.replace("_", "Idx."))
    hs.async_copy(sch, tile, mechanism)
    return sch.mod


THREADS = "so that each thread has more of the elements"


@pytest.mark.parametrize(
    ("by", "axes", "found"),
    [
        ("tma", {"block_x": 2, "thread_x": 1056}, f"1056 threads .* at most 1024; .*{THREADS}"),
        ("tma", {"block_x": 2, "thread_x": 48, "thread_y": 32}, "1536 threads in a block"),
        ("none", {"block_x": 2, "thread_x": 48, "thread_y": 32}, "32 x 48 threads in a block"),
        ("none", {"block_x": 1, "thread_x": 4, "thread_z": 65}, "threadIdx.z of 65; .* 64; split"),
        ("none", {"block_x": 1, "block_y": 65536, "thread_x": 4}, "blockIdx.y of 65536; .* 65535;"),
    ],
)
def test_more_than_a_launch_may_have_is_refused(by, axes, found):
    """The assembler takes any number, and the driver says no more than that it is invalid."""
    with pytest.raises(LoweringError, match=f"found {found}"):
        tvm.compile(bound(by, **axes), target="nvidia/nvidia-h200")
