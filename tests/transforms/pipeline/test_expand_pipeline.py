"""ExpandPipeline: where the threads that read also load, loads run ahead in their loop."""

import pytest

from tests.transforms.pipeline.test_plan_ring_buffers import (
    BEFORE,
    K_LOOP,
    LOAD_Q,
    NESTED,
    OUTSIDE,
    PLAIN_READER,
    SECOND,
    around_k,
)
from tests.transforms.scripts import check, deeper, nest, parse, run
from tvm_hopper import ir
from tvm_hopper.requests.keys import CP_ASYNC, READ_SLOT
from tvm_hopper.transforms import ExpandPipeline, PlanRingBuffers, SpecializeWarps
from tvm_hopper.transforms.common.channel import find_calls

LOOP = """
def func(A_map: T.handle("tensormap"), C: T.Buffer((64,), "float32"), n: T.int32):
    for bx in T.thread_binding(3, thread="blockIdx.x"):
        for tx in T.thread_binding(64, thread="threadIdx.x"):
            with T.sblock("kernel", reads=[], writes=[C[0:64]]):
                ring = T.sblock_alloc_buffer((4, 64), "float32", scope="shared.dyn", align=128)
                for k in T.serial(8, disable_unroll=True, num_slots=4):
                    trip: T.let[T.int32] = k
                    with T.sblock("load", reads=[], writes=[ring[trip % 4, 0:64]],
                        async_op="tma_load", channel=0):
                        T.call_extern("int32", "tvm_hopper.fill_slot", 0, trip)
                        T.call_extern("int32", "tma", T.address_of(ring[trip % 4, 0]),
                            T.address_of(A_map), k)
                    with T.sblock("use", reads=[ring[trip % 4, 0:64]], writes=[C[0:64]]):
                        C[tx] = C[tx] + ring[trip % 4, tx]
"""

AHEAD = """
def func(A_map: T.handle("tensormap"), C: T.Buffer((64,), "float32"), n: T.int32):
    for bx in T.thread_binding(3, thread="blockIdx.x"):
        for tx in T.thread_binding(64, thread="threadIdx.x"):
            with T.sblock("kernel", reads=[], writes=[C[0:64]]):
                ring = T.sblock_alloc_buffer((4, 64), "float32", scope="shared.dyn", align=128)
                with T.sblock("load", reads=[], writes=[ring[0:4, 0:64]], async_op="tma_load",
                    channel=0, ahead=[0, 1, 2]):
                    for j in range(3):
                        trip: T.let[T.int32] = j
                        T.call_extern("int32", "tvm_hopper.fill_slot", 0, trip)
                        T.call_extern("int32", "tma", T.address_of(ring[trip % 4, 0]),
                            T.address_of(A_map), j)
                for k in T.serial(8, disable_unroll=True):
                    trip: T.let[T.int32] = k
                    if k < 5:
                        with T.sblock("load", reads=[], writes=[ring[(trip + 3) % 4, 0:64]],
                            async_op="tma_load", channel=0, ahead=[3]):
                            T.call_extern("int32", "tvm_hopper.fill_slot", 0, trip + 3)
                            T.call_extern("int32", "tma", T.address_of(ring[(trip + 3) % 4, 0]),
                                T.address_of(A_map), k + 3)
                    with T.sblock("use", reads=[ring[trip % 4, 0:64]], writes=[C[0:64]]):
                        C[tx] = C[tx] + ring[trip % 4, tx]
"""

FIRST = nest(AHEAD, "for j in").partition("\n")[2]


def guarded(condition):
    """Return the change that puts a condition around the first loads."""
    return (FIRST, f"                        if {condition}:\n{deeper(FIRST)}")


def test_the_first_loads_stand_in_front_of_the_loop():
    check(run(parse(LOOP), ExpandPipeline()), parse(AHEAD))


def test_as_many_iterations_as_loads_ahead_need_no_condition_in_front():
    three = ("T.serial(8", "T.serial(3")
    want = parse(AHEAD, ("T.serial(8", "T.serial(3"), ("if k < 5:", "if k < 0:"))
    check(run(parse(LOOP, three), ExpandPipeline()), want)


def test_fewer_iterations_than_loads_ahead_make_fewer_loads():
    two = ("T.serial(8", "T.serial(2")
    fewer = (("range(3)", "range(2)"), ("[0, 1, 2]", "[0, 1]"))
    want = parse(AHEAD, ("T.serial(8", "T.serial(2"), ("if k < 5:", "if k < -1:"), *fewer)
    check(run(parse(LOOP, two), ExpandPipeline()), want)


def test_a_number_of_iterations_that_run_time_knows_is_asked_for():
    many = ("T.serial(8", "T.serial(n")
    want = (("T.serial(8", "T.serial(n"), ("if k < 5:", "if k + 3 < n:"), guarded("j < n"))
    check(run(parse(LOOP, many), ExpandPipeline()), parse(AHEAD, *want))


def test_one_slot_leaves_nothing_to_load_ahead():
    single = ("num_slots=4", "num_slots=1")
    ring = ("buffer((4, 64)", "buffer((1, 64)")
    unmarked = (", num_slots=4", "")
    got = run(parse(LOOP, single, ring), ExpandPipeline())
    check(got, parse(LOOP, unmarked, ring))


def test_a_block_that_allocates_keeps_its_place_in_the_loop():
    start, end = LOOP.index("                    trip:"), len(LOOP)
    body = deeper(LOOP[start:end])
    block = (
        '                    with T.sblock("", reads=[], writes=[]):\n'
        '                        own = T.sblock_alloc_buffer((4,), "float32", scope="local")\n'
    )
    got = run(parse(LOOP, (LOOP[start:end], block + body)), ExpandPipeline())
    first, loop = [x for x in ir.find_all(got.body, ir.For) if x.loop_var.name in "jk"]
    assert not ir.find_all(first, ir.SBlock, lambda x: bool(x.alloc_buffers))
    assert [x.name for x in loop.body.block.alloc_buffers] == ["own"]
    assert [block.name_hint for block in ir.find_all(loop, ir.SBlock)] == ["", "load", "use"]


def loads_ahead(func):
    """Return how many trips ahead the blocks of loads are, by the loop around them, in order."""
    found = []
    for loop in ir.find_all(func.body, ir.For, lambda x: "disable_unroll" in x.annotations):
        for block in ir.find_all(loop, ir.SBlock, lambda x: "tvm_hopper.channel" in x.annotations):
            text = str(ir.find_all(block, ir.Call)[0].args[2])
            found.append((loop.loop_var.name, text.partition(" + ")[2]))
    return found


@pytest.mark.parametrize(
    ("changes", "ahead"),
    [
        ((), [("k", "1")]),
        ((NESTED,), [("k", "1")]),
        ((SECOND,), [("k", "1"), ("k", "3")]),
        (OUTSIDE, [("k", "1")]),
    ],
    ids=["one loop", "nested loops", "two loops", "a load outside of loops"],
)
def test_every_planned_loop_without_roles_is_expanded(changes, ahead):
    got = run(parse(BEFORE, *changes, PLAIN_READER), PlanRingBuffers(), ExpandPipeline())
    assert loads_ahead(got) == ahead
    assert not ir.find_all(got.body, ir.For, lambda x: "tvm_hopper.num_slots" in x.annotations)


def test_a_single_first_load_has_numbers_for_its_trip():
    got = run(parse(BEFORE, PLAIN_READER), PlanRingBuffers(), ExpandPipeline())
    first, _ = ir.find_blocks(got.body, "tvm_hopper.channel")
    text = first.script()
    assert "a[0, panel, 0, 0]" in text
    assert "panel * 64" in text
    assert not {"0 * ", "0 %", "FloorMod", "trip"} & set(text.split())
    assert "* 128" not in text


def test_loads_around_a_loop_of_loads_are_kept():
    """The first loads of the inner loop stand beside the outer loop's own load."""
    stages = ("range(3)", "range(3, stage=[0, 1], order=[0, 1], async_stages=[0])")
    func = parse(BEFORE, around_k(LOAD_Q, K_LOOP), stages, PLAIN_READER)
    got = run(func, PlanRingBuffers(), ExpandPipeline())
    found = [
        (block.name_hint, [int(x) for x in block.annotations["tvm_hopper.ahead"]])
        for block in ir.find_blocks(got.body, "tvm_hopper.channel")
    ]
    assert found == [("load_q", [0]), ("load_q", [1]), ("load_a", [0]), ("load_a", [1])]


def test_loops_of_roles_stay():
    func = run(parse(BEFORE), PlanRingBuffers(), SpecializeWarps())
    check(run(func, ExpandPipeline()), func)


# -- behind what feeds tensor cores

USE = nest(AHEAD, '"use"')
ROWS = USE.replace(
    "C[tx] = C[tx] + ring[trip % 4, tx]",
    'T.ptx_legacy.ldmatrix(False, 4, ".b16", C.data, tx, T.address_of(ring[trip % 4, 0]), 0, '
    'dtype="float32")',
)
MULTIPLY = ROWS.replace('"use"', '"more"')
TO_ROWS = (USE, ROWS + MULTIPLY)
CHUNKS = [('"tma_load"', '"cp_async"'), ('"tma"', f'"{CP_ASYNC}"')]
SLOTS = [("(4, 64)", "(2, 64)"), ("num_slots=4", "num_slots=2")]


def loop_body(func):
    (kernel,) = ir.kernels(func)
    loop = ir.find_all(kernel, ir.For, lambda x: x.loop_var.name == "k")[-1]
    return ir.statements(loop.body)


def test_without_a_slot_to_spare_it_stands_in_front():
    got = loop_body(run(parse(LOOP, TO_ROWS, *CHUNKS, *SLOTS), ExpandPipeline()))
    assert [type(x).__name__ for x in got[:2]] == ["Bind", "IfThenElse"]


def test_chunks_of_threads_stand_behind_the_first_rows_without_a_condition():
    """The last iterations, which load nothing, are peeled off."""
    got = run(parse(LOOP, TO_ROWS, *CHUNKS), ExpandPipeline())
    (kernel,) = ir.kernels(got)
    loops = [x for x in ir.find_all(kernel, ir.For) if x.loop_var.name == "k"]
    assert [(int(x.min), int(x.extent)) for x in loops] == [(0, 5), (5, 1), (6, 1), (7, 1)]
    names = [
        [x.block.name_hint for x in ir.statements(loop.body) if isinstance(x, ir.SBlockRealize)]
        for loop in loops
    ]
    assert names == [["use", "load", "more"], *[["use", "more"]] * 3]
    calls = [find_calls(loop.body, READ_SLOT) for loop in loops]
    assert [len(x) for x in calls] == [0, 1, 1, 1]


def test_a_box_that_one_thread_issues_stays_in_front_of_the_rows():
    want = AHEAD.replace(*TO_ROWS)
    check(run(parse(LOOP, TO_ROWS), ExpandPipeline()), parse(want))


def test_chunks_that_feed_no_tensor_core_keep_their_condition():
    got = loop_body(run(parse(LOOP, *CHUNKS), ExpandPipeline()))
    assert isinstance(got[1], ir.IfThenElse)
