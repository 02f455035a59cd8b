"""A serial loop becomes an axis of thread blocks, and what is said of it."""

import pytest

from tests.transforms.scripts import check, notes_of, parse, run
from tvm_hopper import ir
from tvm_hopper.transforms.common.explain_notes import RemarkNote
from tvm_hopper.transforms.split_k.bind_reduction_loop_to_grid import bind_reduction_loop_to_grid
from tvm_hopper.transforms.split_k.bind_reduction_loop_to_grid_plan import plan_reduction_loop

BEFORE = """
def func(C: T.Buffer((256,), "float32"), D: T.Buffer((256,), "float32")):
    for bx in T.thread_binding(4, thread="blockIdx.x"):
        for tx in T.thread_binding(64, thread="threadIdx.x"):
            for part in T.serial(8, across_blocks="blockIdx.z"):
                with T.sblock("", reads=[], writes=[]):
                    tile = T.sblock_alloc_buffer((64,), "float32", scope="shared.dyn")
                    tile[tx] = T.Cast("float32", part)
                    with T.sblock("add", reads=[tile[0:64]], writes=[C[0:256]],
                        async_op="bulk_reduce", reduce="add"):
                        T.ptx["cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32"](
                            T.address_of(C[bx * 64]),
                            T.cuda.cvta_generic_to_shared(T.address_of(tile[0])),
                            T.uint32(256),
                        )
"""
AFTER = """
def func(C: T.Buffer((256,), "float32"), D: T.Buffer((256,), "float32")):
    for part in T.thread_binding(8, thread="blockIdx.z"):
        for bx in T.thread_binding(4, thread="blockIdx.x"):
            for tx in T.thread_binding(64, thread="threadIdx.x"):
                with T.sblock("", reads=[], writes=[]):
                    tile = T.sblock_alloc_buffer((64,), "float32", scope="shared.dyn")
                    tile[tx] = T.Cast("float32", part)
                    with T.sblock("add", reads=[tile[0:64]], writes=[C[0:256]],
                        async_op="bulk_reduce"):
                        T.ptx["cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32"](
                            T.address_of(C[bx * 64]),
                            T.cuda.cvta_generic_to_shared(T.address_of(tile[0])),
                            T.uint32(256),
                        )
"""
LOOP = 'T.serial(8, across_blocks="blockIdx.z")'
SERIAL = (LOOP, "T.serial(8)")


def test_a_loop_becomes_an_axis():
    got = run(parse(BEFORE), bind_reduction_loop_to_grid)
    check(got, parse(AFTER))
    (kernel,) = ir.kernels(got)
    assert not plan_reduction_loop(kernel)


def test_two_loops_become_two_axes():
    inner = 'T.serial(2, across_blocks="blockIdx.y")'
    lines = BEFORE.splitlines(keepends=True)
    place = next(n for n, line in enumerate(lines) if LOOP in line)
    nested = [*lines[: place + 1], f"                for half in {inner}:\n"]
    nested += [
        line.replace("                ", "                    ", 1) for line in lines[place + 1 :]
    ]
    got = run(parse("".join(nested)), bind_reduction_loop_to_grid)
    (kernel,) = ir.kernels(got)
    extents = {tag: int(axis.extent) for tag, axis in ir.thread_axes(kernel).items()}
    assert extents == {"blockIdx.x": 4, "blockIdx.y": 2, "blockIdx.z": 8, "threadIdx.x": 64}


def test_a_serial_loop_stays_and_the_request_is_served():
    served = (', reduce="add"', "")
    check(run(parse(BEFORE, SERIAL), bind_reduction_loop_to_grid), parse(BEFORE, SERIAL, served))


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            (),
            "store add: combines C by add in global memory, 8 thread blocks of blockIdx.z each "
            "element; in any order, so that the last bits of float32 sums may differ from run to "
            "run",
        ),
        ((SERIAL, ('reduce="add"', 'reduce="max"')),
         "store add: combines C by max in global memory"),
    ],
)  # fmt: skip
def test_what_explain_says(changes, text):
    # A function has notes where its target is known.
    import tvm

    func = parse(BEFORE, *changes).with_attr("target", tvm.target.Target("nvidia/nvidia-h200"))
    assert notes_of(run(func, bind_reduction_loop_to_grid)) == (RemarkNote(text),)
