"""Statements of later stages run trips behind, by slots of what they are handed."""

import pytest

from tests.transforms.scripts import check, parse, run
from tvm_hopper import ir
from tvm_hopper.requests.keys import SHIFT
from tvm_hopper.transforms.common.channel import FREE_SLOT, find_calls
from tvm_hopper.transforms.pipeline.late_stages import find_lateness, mark_late, staged_loops
from tvm_hopper.transforms.pipeline.pipeline_compute_stages import pipeline_compute_stages

HEAD = """
def func(A_map: T.handle("tensormap"), C: T.Buffer((64,), "float32"), n: T.int32):
    for bx in T.thread_binding(3, thread="blockIdx.x"):
        for tx in T.thread_binding(64, thread="threadIdx.x"):
            with T.sblock("kernel", reads=[], writes=[C[0:64]]):
                ring = T.sblock_alloc_buffer((3, 64), "float32", scope="shared.dyn", align=128)
"""
BEFORE = (
    HEAD
    + """
                for k in T.serial(8, num_slots=3):
                    with T.sblock("iteration", reads=[], writes=[]):
                        c = T.sblock_alloc_buffer((64,), "float32", scope="shared.dyn")
                        trip: T.let[T.int32] = k
                        with T.sblock("load", reads=[], writes=[ring[trip % 3, 0:64]],
                            async_op="tma_load", channel=0):
                            T.call_extern("int32", "tvm_hopper.fill_slot", 0, trip)
                            T.call_extern("int32", "tma", T.address_of(ring[trip % 3, 0]),
                                T.address_of(A_map), k)
                        c[63 - tx] = ring[trip % 3, tx]
                        with T.sblock("use", reads=[], writes=[], shift=1):
                            C[tx] = C[tx] + c[tx] * ring[trip % 3, tx] * T.Cast("float32", k)
"""
)
USE = """
                        with T.sblock("use", reads=[], writes=[], late=1):
                            C[tx] = C[tx] + c[{c}, tx] * ring[{a}, tx] * T.Cast("float32", {k})
"""
AFTER = (
    HEAD
    + """
                with T.sblock("stages", reads=[], writes=[], handed_on=0):
                    c = T.sblock_alloc_buffer((2, 64), "float32", scope="shared.dyn")
                    for k in T.serial(8, num_slots=3):
                        trip: T.let[T.int32] = k
                        with T.sblock("load", reads=[], writes=[ring[trip % 3, 0:64]],
                            async_op="tma_load", channel=0, reserved_slots=1):
                            T.call_extern("int32", "tvm_hopper.fill_slot", 0, trip)
                            T.call_extern("int32", "tma", T.address_of(ring[trip % 3, 0]),
                                T.address_of(A_map), k)
                        if 1 <= k:
"""
    + USE.format(c="(trip + 1) % 2", a="(trip + 2) % 3", k="k - 1").replace("\n    ", "\n        ")
    + """
                        c[trip % 2, 63 - tx] = ring[trip % 3, tx]
"""
    + USE.format(c="1", a="1", k="T.int32(7)").replace("\n    ", "\n")
)


def test_what_runs_later_goes_first_and_ends_behind_the_loop():
    """Slots of what is handed on, a copy's slot that is kept a trip longer."""
    check(run(parse(BEFORE), pipeline_compute_stages), parse(AFTER))


def test_a_loop_of_unknown_extent_asks_for_its_last_trips():
    got = run(parse(BEFORE, ("T.serial(8", "T.serial(n")), pipeline_compute_stages)
    conditions = [str(x.condition) for x in ir.find_all(got.body, ir.IfThenElse)]
    assert conditions == ["1 <= k", "n >= 1"]


@pytest.mark.parametrize(("extent", "rest"), [(0, 0), (1, 1)])
def test_no_trip_is_left_of_a_loop_without_any(extent, rest):
    got = run(parse(BEFORE, ("T.serial(8", f"T.serial({extent}")), pipeline_compute_stages)
    uses = ir.find_all(got.body, ir.SBlock, lambda x: x.name_hint == "use")
    assert len(uses) == 1 + rest


def test_what_late_statements_alone_use_outlives_the_iteration():
    """One slot is enough: each writes it before it reads it."""
    use = ("C[tx] = C[tx] + c[tx] *", "d[0] = c[tx]\n                            C[tx] = d[0] *")
    alloc = "c = T.sblock_alloc_buffer("
    local = 'd = T.sblock_alloc_buffer((1,), "float32", scope="local")\n                        '
    got = run(parse(BEFORE, use, (alloc, local + alloc)), pipeline_compute_stages)
    (block,) = ir.find_all(got.body, ir.SBlock, lambda x: x.name_hint == "outlive")
    assert [x.name for x in block.alloc_buffers] == ["d"]


RELEASE = """
                        with T.sblock("release", reads=[], writes=[], release=[{late}, 1]):
                            if {condition}:
                                T.call_extern("int32", "tvm_hopper.free_slot", 0, {trip})
"""


@pytest.mark.parametrize(
    ("late", "slots", "later"), [(0, 3, 1), (1, 3, 2), (1, 2, 1)], ids=["0", "1", "no slot left"]
)
def test_slots_that_are_read_later_are_given_back_later(late, slots, later):
    """So late that the producer, which waits for it, has filled what this trip reads."""
    condition, trip = "tx % 32 == 0", "trip"
    if late:
        condition, trip = f"{condition} and trip >= {late}", f"trip - {late}"
    text = BEFORE + RELEASE.format(late=late, condition=condition, trip=trip)
    got = run(
        parse(text.replace("trip % 3", f"trip % {slots}").replace("(3, 64)", f"({slots}, 64)")),
        pipeline_compute_stages,
    )
    (block,) = ir.find_blocks(got.body, "tvm_hopper.release")
    (free,) = ir.find_all(block, ir.IfThenElse)
    (call,) = find_calls(block, FREE_SLOT)
    assert int(block.annotations["tvm_hopper.release"][0]) == later
    assert str(free.condition) == f"tx % 32 == 0 and trip >= {later}"
    assert str(call.trip) == f"trip - {later}"


# -- what can run later

STAGED = """
def func(A_map: T.handle("tensormap"), C: T.Buffer((64,), "float32"), n: T.int32):
    for tx in T.thread_binding(64, thread="threadIdx.x"):
        with T.sblock("kernel", reads=[], writes=[C[0:64]]):
            sum = T.sblock_alloc_buffer((64,), "float32", scope="shared.dyn")
            count = T.sblock_alloc_buffer((1,), "int32", scope="local")
            for k in T.serial(8, stage=[0, 1, 2], order=[0, 1, 2], async_stages=[0]):
                with T.sblock("iteration", reads=[], writes=[]):
                    a = T.sblock_alloc_buffer((64,), "float32", scope="shared.dyn")
                    c = T.sblock_alloc_buffer((64,), "float32", scope="shared.dyn")
                    with T.sblock("load", reads=[], writes=[a[0:64]], async_op="tma_load"):
                        T.call_extern("int32", "tma", T.address_of(a[0]), T.address_of(A_map), k)
                    c[63 - tx] = a[tx]
                    C[tx] = C[tx] + c[tx]
"""
SECOND = "C[tx] = C[tx] + c[tx]"
PRODUCT = """with T.sblock('{}', reads=[c[0:64]], writes=[], async_op='wgmma'):
                        T.evaluate(c[tx])"""
LOCAL_C = (
    'c = T.sblock_alloc_buffer((64,), "float32", scope="shared.dyn")',
    'c = T.sblock_alloc_buffer((64,), "float32", scope="local")',
)
STAGE = "stage=[0, 1, 2]"
OBSTACLES = {
    "its extent is read from memory of threads": [("T.serial(8", "T.serial(count[0]")],
    "it is no serial loop": [("T.serial(8", "T.unroll(8")],
    "copies stand in a later stage than what computes first": [
        (STAGE, STAGE.replace("0, 1", "1, 0"))
    ],
    "a later statement needs c of an earlier stage's": [(STAGE, STAGE.replace("1, 2", "2, 1"))],
    "sum is allocated around the loop, once": [
        (SECOND, "C[tx] = C[tx] + sum[tx]"),
        ("c[63 - tx]", "sum[63 - tx]"),
    ],
    "all products are late": [(SECOND, PRODUCT.format("use"))],
    "a later one multiplies by warp groups, more than one iteration late": [
        (STAGE, STAGE.replace("1, 2]", "1, 1, 3]")),
        ("order=[0, 1, 2]", "order=[0, 1, 2, 3]"),
        (SECOND, f"{PRODUCT.format('first')}\n                    {PRODUCT.format('second')}"),
    ],
    "others than products are late next to one": [
        (STAGE, STAGE.replace("1, 2]", "1, 1, 2, 2]")),
        ("order=[0, 1, 2]", "order=[0, 1, 2, 3, 4]"),
        (
            SECOND,
            f"{PRODUCT.format('first')}\n                    {SECOND}\n"
            f"                    {PRODUCT.format('second')}",
        ),
    ],
    "copies stand inside of a later one": [
        (
            SECOND,
            "for j in range(2):\n                        "
            "with T.sblock('inner', reads=[], writes=[sum[0:64]], async_op='tma_load'):\n"
            f"                            {SECOND}",
        )
    ],
    "sum is stored asynchronously": [
        (STAGE, STAGE.replace("2]", "2, 2]")),
        ("order=[0, 1, 2]", "order=[0, 1, 2, 3]"),
        ("c[63 - tx]", "sum[63 - tx]"),
        (
            SECOND,
            "sum[tx] = sum[tx] + c[tx]\n                    "
            "with T.sblock('store', reads=[sum[0:64]], writes=[], async_op='tma_store'):\n"
            f"                        {SECOND}",
        ),
    ],
    "m is bound among them": [
        (STAGE, STAGE.replace("2]", "1, 2]")),
        ("order=[0, 1, 2]", "order=[0, 1, 2, 3]"),
        (SECOND, f"m: T.let[T.int32] = k\n                    {SECOND}"),
    ],
}


def lateness(*changes):
    (kernel,) = ir.kernels(parse(STAGED, *changes))
    (loop,) = staged_loops(kernel)
    return kernel, loop, find_lateness(loop)


def test_stages_behind_the_first_that_computes_are_late():
    kernel, loop, found = lateness()
    assert (found.trips, found.stages, found.reason) == ((0, 0, 1), (1, 2), None)
    assert found.remark("loop k") == "loop k: later stages of [1, 2] run 1 iteration late"
    (block,) = ir.find_blocks(mark_late(kernel, [loop]), SHIFT)
    assert int(block.annotations[SHIFT]) == 1


def test_registers_are_handed_on_in_one_iteration():
    _, _, found = lateness(LOCAL_C)
    assert (found.trips, found.registers) == ((0, 0, 0), ("c",))
    assert str(found.remark("loop k")).endswith("in one iteration: registers c are handed on in it")


def test_one_stage_is_not():
    _, _, found = lateness((STAGE, STAGE.replace("2]", "1]")))
    assert found.trips == (0, 0, 0)
    assert found.remark("loop k") is None


@pytest.mark.parametrize("reason", OBSTACLES)
def test_what_cannot_run_later_stays_and_says_why(reason):
    kernel, loop, found = lateness(*OBSTACLES[reason])
    assert not any(found.trips)
    assert found.reason == reason
    assert "compute in one iteration: " + reason in str(found.remark("loop k"))
    assert mark_late(kernel, [loop]).same_as(kernel)
