"""Statements of later stages run trips behind, by slots of what they are handed."""

import re
from itertools import pairwise

import pytest

from tests.transforms.scripts import changed, check, deeper, parse, run
from tvm_hopper import ir
from tvm_hopper.requests.keys import ASYNC_OP, LATE as LATE_KEY, SHIFT
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


@pytest.mark.parametrize(("extent", "exists"), [("8", ""), ("n", " and 1 <= n")])
def test_a_tile_gives_back_what_its_late_statements_read(extent, exists):
    """Loads of the next tile wait for the slot: not for the next tile's first iteration."""
    release = RELEASE.format(late=0, condition="tx % 32 == 0", trip="trip")
    kernel = changed(BEFORE.removeprefix(HEAD) + release, ("= k\n", "= h * 8 + k\n"))
    text = HEAD + "                for h in T.serial(4):\n" + deeper(kernel, 4)
    got = run(parse(text, ("T.serial(8", f"T.serial({extent}")), pipeline_compute_stages)
    blocks = ir.find_blocks(got.body, "tvm_hopper.release")
    found = [
        (str(ir.find_all(x, ir.IfThenElse)[0].condition), str(find_calls(x, FREE_SLOT)[0].trip))
        for x in blocks
    ]
    last = "h * 8 + 7" if extent == "8" else "h * 8 + n - 1"
    assert found == [("tx % 32 == 0 and k >= 1", "trip - 1"), (f"tx % 32 == 0{exists}", last)]


# -- products by warp groups that run an iteration late

GROUP = """
def func(C: T.Buffer((64,), "float32"), n: T.int32):
    for tx in T.thread_binding(160, thread="threadIdx.x"):
        with T.sblock("kernel", reads=[], writes=[C[0:64]]):
            keys = T.sblock_alloc_buffer((2, 64), "float16", scope="shared.dyn")
            values = T.sblock_alloc_buffer((2, 64), "float16", scope="shared.dyn")
            s = T.sblock_alloc_buffer((4,), "float32", scope="local")
            p = T.sblock_alloc_buffer((4,), "float16", scope="local")
            acc = T.sblock_alloc_buffer((4,), "float32", scope="local")
            if tx >= 128:
                for k in T.serial(8):
                    t: T.let[T.int32] = k
                    with T.sblock("", writes=[keys[t % 2, 0:64]], async_op="tma_load", channel=0):
                        T.call_extern("int32", "tvm_hopper.fill_slot", 0, t)
                    u: T.let[T.int32] = k
                    with T.sblock("", writes=[values[u % 2, 0:64]], async_op="tma_load", channel=1):
                        T.call_extern("int32", "tvm_hopper.fill_slot", 1, u)
"""
COUNTERS = """
t: T.let[T.int32] = k
u: T.let[T.int32] = k
"""
SCORES = """
T.call_extern("int32", "tvm_hopper.await_filled", 0, t)
with T.sblock("s", reads=[keys[t % 2, 0:64]], writes=[s[0:4]], async_op="wgmma"):
    T.evaluate(keys[t % 2, k])
"""
FREE_KEYS = """
with T.sblock("", reads=[], writes=[], release=[0, 4]):
    if tx % 32 == 0:
        T.call_extern("int32", "tvm_hopper.free_slot", 0, t)
"""
WEIGHTS = """
p[0] = T.Cast("float16", s[0] * T.Cast("float32", k))
T.call_extern("int32", "tvm_hopper.await_filled", 1, u)
"""
SUM = """
with T.sblock("sum", reads=[], writes=[], shift=1):
    with T.sblock("", reads=[p[0:4], values[u % 2, 0:64]], writes=[acc[0:4]], async_op="wgmma"):
        T.evaluate(values[u % 2, k])
"""
FREE_VALUES = """
with T.sblock("", reads=[], writes=[], release=[0, 4]):
    if tx % 32 == 0:
        T.call_extern("int32", "tvm_hopper.free_slot", 1, u)
"""
TOGETHER = "for k in T.serial(8, num_slots=2):" + deeper(
    COUNTERS + SCORES + FREE_KEYS + WEIGHTS + SUM + FREE_VALUES
)
LATE = ("shift", "late"), ("u % 2", "(u + 1) % 2"), (", k]", ", k - 1]")
FIRST = (("t % 2", "0"), ("u % 2", "0"), (", t)", ", 0)"), (", u)", ", 0)"), (", k]", ", 0]"))
OVERLAPPED = (
    changed(SCORES, *FIRST[:1], *FIRST[2:3], *FIRST[4:])
    + changed(FREE_KEYS, ("[0, 4]", "[0, 0]"), *FIRST[2:3])
    + changed(WEIGHTS, (", k)", ", 0)"), *FIRST[3:4])
    + 'with T.sblock("", reads=[], writes=[], release=[1, 0]):\n    T.evaluate(0)\n'
    + "for k in T.serial(1, 8, num_slots=2):"
    + deeper(
        COUNTERS
        + SCORES
        + changed(SUM, *LATE)
        + FREE_KEYS
        + WEIGHTS
        + changed(
            FREE_VALUES,
            ("[0, 4]", "[1, 4]"),
            ("== 0:", "== 0 and u >= 1:"),
            (", u)", ", u - 1)"),
        )
    )
    + changed(SUM, LATE[0], ("u % 2", "1"), (", k]", ", 7]"))
)


def by_group(text):
    return parse(GROUP + deeper(text, 12))


def test_a_product_is_issued_behind_the_first_of_the_next_iteration():
    """The first iteration stands before the loop: no branch holds a product."""
    inner = deeper(OVERLAPPED)
    after = f'with T.sblock("stages", reads=[], writes=[], handed_on=0):\n{inner}'
    check(run(by_group(TOGETHER), pipeline_compute_stages), by_group(after))


@pytest.mark.parametrize(
    ("extent", "scores", "sums"), [("n", 2, 2), ("0", 1, 1), ("1", 2, 2), ("2", 2, 2)]
)
def test_a_late_product_of_a_loop_of_any_extent(extent, scores, sums):
    """Of no iteration nothing stands around the loop; of an unknown number it asks first."""
    text = changed(TOGETHER, ("T.serial(8", f"T.serial({extent}"))
    got = run(by_group(text), pipeline_compute_stages)
    blocks = [x.name_hint for x in ir.find_blocks(got.body, ASYNC_OP)]
    assert [blocks.count("s"), len(ir.find_blocks(got.body, LATE_KEY))] == [scores, sums]
    (loop,) = ir.find_all(got.body, ir.For, lambda x: "tvm_hopper.num_slots" in x.annotations)
    left = max(int(extent) - 1, 0) if extent != "n" else "n - 1"
    assert str(loop.extent) == str(left)
    asked = ir.find_all(got.body, ir.IfThenElse, lambda x: ir.find_blocks(x, ASYNC_OP))
    conditions = [str(x.condition) for x in asked if "n" in str(x.condition)]
    assert conditions == ["n >= 1"] * (2 if extent == "n" else 0)


SHOWN = ("bar(", '"s"', '"sum"', "p[0] =", "for k in T.serial(1")
IN_ORDER = """
if tx // 128 - 1 > 0: sync 8 + (tx // 128 - 1)
s
if T.bool(True): arrive 8 + tx % {own} // 128
p
for k
sync 8 + (tx // 128 - 1)
s
sum
if tx < {own} or k < 7: arrive 8 + tx % {own} // 128
p
sum
"""


@pytest.mark.parametrize("consumers", [2, 3])
def test_consumers_issue_the_products_of_an_iteration_in_order(consumers):
    """Each waits for the one before; nobody waits for the last one of the last iteration."""
    threads = ("thread_binding(160", f"thread_binding({128 * (consumers + 1)}")
    text = changed(TOGETHER, ("num_slots=2", "num_slots=2, in_order=1"))
    got = run(parse(changed(GROUP, threads) + deeper(text, 12)), pipeline_compute_stages)
    lines = [x.strip() for x in got.script().splitlines()]
    found = []
    for before, line in pairwise(lines):
        if not any(x in line for x in SHOWN):
            continue
        bar = re.search(r'bar\(T.Cast\("uint32", (.*)\), T.uint32\(256\), "", "(\w+)"', line)
        if bar:
            asked = f"{before} " if before.startswith("if ") else ""
            found.append(f"{asked}{bar[2]} {bar[1]}")
        else:
            found.append(re.sub(r'.*"(s|sum)".*|(p)\[.*|(for k).*', r"\1\2\3", line))
    assert found == IN_ORDER.format(own=128 * consumers).strip().splitlines()


def test_turns_go_on_where_the_loop_runs_again():
    """The first turn of a run waits for the last one of the run before, which all but one leave."""
    text = changed(TOGETHER, ("num_slots=2", "num_slots=2, in_order=1"))
    group = changed(GROUP, ("thread_binding(160", "thread_binding(384"))
    counted = re.sub(r"(\w: T.let\[T.int32\] =) k", r"\1 h * 8 + k", text)
    again = parse(group + deeper("for h in T.serial(4):\n" + deeper(counted), 12))
    lines = run(again, pipeline_compute_stages).script().splitlines()
    asked = [x.strip() for x, y in pairwise(lines) if "bar(" in y and x.strip().startswith("if ")]
    assert asked == [
        "if tx // 128 - 1 > 0 or T.Add(h * 8, 0) > 0:",
        "if T.bool(True):",
        "if tx < 256 or k < 7 or h < 3:",
    ]


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
