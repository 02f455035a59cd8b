"""PlanRingBuffers: loads get slots of rings, and the trips through them are counted."""

import pytest
from tvm import s_tir, tirx

from tests.transforms.scripts import check, deeper, nest, notes_of, parse, run
from tvm_hopper import ir
from tvm_hopper.errors import LoweringError
from tvm_hopper.pipeline import lower
from tvm_hopper.testing import copies
from tvm_hopper.testing.copies import Route
from tvm_hopper.transforms import PlanRingBuffers
from tvm_hopper.transforms.common.channel import find_calls, find_channels
from tvm_hopper.transforms.pipeline.plan_ring_buffers_plan import pipelined_loops

LOAD = "tvm_hopper.tma_load"

# `mma` and `store` stand for what LowerWgmma leaves: instructions, and code that knows its thread.
BEFORE = """
def func(A_map: T.handle("tensormap"), B_map: T.handle("tensormap"), C: T.Buffer((4,), "float32")):
    for bx in T.thread_binding(3, thread="blockIdx.x"):
        for tx in T.thread_binding(256, thread="threadIdx.x"):
            with T.sblock("", reads=[], writes=[C[0:4]]):
                acc = T.sblock_alloc_buffer((4,), scope="local")
                for i in range(4):
                    acc[i] = T.float32(0)
                for k in range(8, stage=[0, 0, 1], order=[0, 1, 2], async_stages=[0]):
                    with T.sblock("", reads=[], writes=[]):
                        a = T.sblock_alloc_buffer((2, 64, 64), "float16", scope="shared.dyn",
                            align=1024)
                        b = T.sblock_alloc_buffer((1, 16, 32), "float32", scope="shared.dyn",
                            align=1024)
                        with T.sblock("load_a", reads=[], writes=[a[0:2, 0:64, 0:64]],
                            async_op="tma_load"):
                            for panel in range(2):
                                T.call_extern("int32", LOAD, T.address_of(a[panel, 0, 0]),
                                    T.address_of(A_map), k * 128 + panel * 64, bx * 64)
                        with T.sblock("load_b", reads=[], writes=[b[0, 0:16, 0:32]],
                            async_op="tma_load"):
                            T.call_extern("int32", LOAD, T.address_of(b[0, 0, 0]),
                                T.address_of(B_map), k * 32, 0)
                        with T.sblock("mma", async_op="wgmma", writes=[acc[0:4]],
                            reads=[a[0:2, 0:64, 0:64], b[0, 0:16, 0:32], acc[0:4]]):
                            T.call_extern("int32", "mma", acc[0], T.address_of(a[0, 0, 0]),
                                T.address_of(b[0, 0, 0]), tx // 128, k)
                with T.sblock("store", reads=[acc[0:4]], writes=[C[0:4]]):
                    C[tx % 4] = acc[0]
""".replace("LOAD", repr(LOAD))

# One stage is 2 x 64 x 64 x 2 + 16 x 32 x 4 = 18432 bytes.
PLANNED = """
def func(A_map: T.handle("tensormap"), B_map: T.handle("tensormap"), C: T.Buffer((4,), "float32")):
    for bx in T.thread_binding(3, thread="blockIdx.x"):
        for tx in T.thread_binding(256, thread="threadIdx.x"):
            with T.sblock("kernel", reads=[], writes=[C[0:4]], kernel=1):
                acc = T.sblock_alloc_buffer((4,), scope="local")
                a = T.sblock_alloc_buffer((2, 2, 64, 64), "float16", scope="shared.dyn", align=1024)
                b = T.sblock_alloc_buffer((2, 1, 16, 32), "float32", scope="shared.dyn", align=1024)
                with T.sblock("tile", reads=[], writes=[], tile_work=1):
                    for i in range(4):
                        acc[i] = T.float32(0)
                    for k in T.serial(8, disable_unroll=True, num_slots=2):
                        trip: T.let[T.int32] = k
                        with T.sblock("load_a", reads=[],
                            writes=[a[trip % 2, 0:2, 0:64, 0:64], b[trip % 2, 0, 0:16, 0:32]],
                            async_op="tma_load", channel=0):
                            T.call_extern("int32", "tvm_hopper.fill_slot", 0, trip)
                            for panel in range(2):
                                T.call_extern("int32", LOAD,
                                    T.address_of(a[trip % 2, panel, 0, 0]), T.address_of(A_map),
                                    k * 128 + panel * 64, bx * 64)
                            T.call_extern("int32", LOAD, T.address_of(b[trip % 2, 0, 0, 0]),
                                T.address_of(B_map), k * 32, 0)
                        with T.sblock("mma", async_op="wgmma", writes=[acc[0:4]],
                            reads=[a[trip % 2, 0:2, 0:64, 0:64], b[trip % 2, 0, 0:16, 0:32],
                                acc[0:4]]):
                            T.call_extern("int32", "mma", acc[0],
                                T.address_of(a[trip % 2, 0, 0, 0]),
                                T.address_of(b[trip % 2, 0, 0, 0]), tx // 128, k)
                    with T.sblock("store", reads=[acc[0:4]], writes=[C[0:4]]):
                        C[tx % 4] = acc[0]
""".replace("LOAD", repr(LOAD))


# -- changes that make other kernels of it

K_LOOP = nest(BEFORE, "for k in")
ANNOTATIONS = "stage=[0, 0, 1], order=[0, 1, 2], async_stages=[0]"
FILL = nest(BEFORE, "for i in")
LOAD_B = nest(BEFORE, "load_b")
PLAIN_B = LOAD_B.replace('async_op="tma_load"', "other=1").replace(repr(LOAD), '"copy"')

PLAIN_COPY = ((LOAD_B, PLAIN_B.replace("load_b", "copy_b")), ("[0, 0, 1]", "[0, 1, 1]"))
NO_ANNOTATIONS = (f", {ANNOTATIONS}", "")
PLAIN_READER = ('async_op="wgmma"', "other=1")


def asking(note):
    """Return the change that puts an annotation beside those of the pipelined loop."""
    return ("async_stages=[0]", f"async_stages=[0], {note}")


ASK_PENDING = asking("wgmma_pending=1")
ASK_CONSUMERS = asking("consumers=2")
ASK_PERSISTENT = (
    'T.thread_binding(3, thread="blockIdx.x")',
    'T.thread_binding(4, thread="blockIdx.y"):\n'
    '     for bx in T.thread_binding(3, thread="blockIdx.x", persistent=2)',
)
NESTED = (K_LOOP, "                for n in range(3):\n" + deeper(K_LOOP))

# a tile that is loaded once, in front of the loop that reads it
OUTSIDE = (
    (
        FILL,
        f"""\
                q = T.sblock_alloc_buffer((8, 8), "float32", scope="shared.dyn", align=128)
                with T.sblock("load_q", reads=[], writes=[q[0:8, 0:8]], async_op="tma_load"):
                    T.call_extern("int32", "{LOAD}", T.address_of(q[0, 0]), T.address_of(B_map),
                        bx, 0)
{FILL}""",
    ),
    ("tx // 128, ", 'tx // 128 + T.Cast("int32", q[0, tx % 8]), '),
)

# a second loop, whose loads and product have tiles of their own
SECOND = (
    K_LOOP,
    K_LOOP
    + K_LOOP.replace("a = ", "c = ")
    .replace("b = ", "d = ")
    .replace("a[", "c[")
    .replace("b[", "d[")
    .replace("range(8,", "range(5,")
    .replace("[0, 0, 1]", "[0, 0, 3]"),
)


def trips(func):
    """Return the numbers of trips of a function's channels, as text, in order."""
    binds = {bind.var: str(bind.value) for bind in ir.find_all(func.body, tirx.Bind)}
    return [(call.channel, binds[call.trip]) for call in find_calls(func.body)]


def test_loads_get_the_slots_of_a_ring():
    check(run(parse(BEFORE), PlanRingBuffers()), parse(PLANNED))


@pytest.mark.parametrize(
    ("stages", "slots"), [([0, 0, 3], 4), ([1, 1, 3], 3), ([0, 0, 0], 1)], ids=str
)
def test_slots_are_the_distance_of_the_stages(stages, slots):
    func = parse(BEFORE, ("[0, 0, 1]", str(stages)), ("stages=[0]", "stages=[0, 1]"))
    got = run(func, PlanRingBuffers())
    (ring,) = notes_of(got)
    assert ring.num_slots == slots
    assert [channel.num_slots for channel in find_channels(got.body)] == [slots]


def test_a_loop_without_pipeline_annotations_has_one_slot():
    one = (
        ("trip % 2", "0"),
        ("((2, 2, 64", "((1, 2, 64"),
        ("((2, 1, 16", "((1, 1, 16"),
        ("num_slots=2", "num_slots=1"),
    )
    got = run(parse(BEFORE, NO_ANNOTATIONS), PlanRingBuffers())
    check(got, parse(PLANNED, *one))


def test_a_kernel_needs_no_product():
    """Plain threads may read what loads bring: without roles, in the order of the program."""
    got = run(parse(BEFORE, PLAIN_READER), PlanRingBuffers())
    check(got, parse(PLANNED, PLAIN_READER))


def test_another_statement_may_stand_in_the_loop():
    """What is neither a load nor a product stays where it is, with the tile that it writes."""
    got = run(parse(BEFORE, *PLAIN_COPY), PlanRingBuffers())
    (channel,) = find_channels(got.body)
    assert channel.num_bytes == 2 * 64 * 64 * 2
    (loop,) = pipelined_loops(got.body)
    assert [x.name for x in loop.body.block.alloc_buffers] == ["b"]
    names = [block.name_hint for block in ir.find_all(loop, ir.SBlock)]
    assert names == ["", "load_a", "copy_b", "mma"]


def test_loads_of_two_loops_have_a_channel_each():
    got = run(parse(BEFORE, SECOND), PlanRingBuffers())
    first, second = find_channels(got.body)
    assert (first.number, first.num_slots, first.num_bytes) == (0, 2, 18432)
    assert (second.number, second.num_slots, second.num_bytes) == (1, 4, 18432)
    assert trips(got) == [(0, "k"), (1, "k")]
    loops = pipelined_loops(got.body)
    assert [int(x.annotations["tvm_hopper.num_slots"]) for x in loops] == [2, 4]
    assert not ir.find_all(got.body, ir.For, lambda x: "software_pipeline_stage" in x.annotations)


def test_a_load_outside_of_loops_has_one_slot():
    got = run(parse(BEFORE, *OUTSIDE), PlanRingBuffers())
    (kernel,) = ir.find_all(got.body, ir.SBlock, lambda x: x.name_hint == ir.KERNEL_BLOCK)
    shapes = {x.name: [int(n) for n in x.shape] for x in kernel.alloc_buffers}
    assert shapes == {"acc": [4], "q": [1, 8, 8], "a": [2, 2, 64, 64], "b": [2, 1, 16, 32]}
    assert trips(got) == [(0, "0"), (1, "k")]
    (fill,) = ir.find_all(got.body, ir.SBlock, lambda x: x.name_hint == "load_q")
    assert int(fill.annotations["tvm_hopper.channel"]) == 0
    (product,) = ir.find_all(got.body, ir.SBlock, lambda x: x.name_hint == "mma")
    (read,) = [x for x in ir.find_all(product, ir.TensorLoad) if x.source.name == "q"]
    assert [str(x) for x in read.indices] == ["0", "0", "tx % 8"]


def test_trips_count_all_iterations_of_nested_loops():
    got = run(parse(BEFORE, NESTED), PlanRingBuffers())
    loop = nest(PLANNED, "for k in")
    inside = deeper(loop.replace("trip: T.let[T.int32] = k", "trip: T.let[T.int32] = n * 8 + k"))
    check(got, parse(PLANNED, (loop, "                    for n in range(3):\n" + inside)))


def test_a_loop_may_stand_between_the_threads_and_the_accumulator():
    """Each of its iterations fills and stores the accumulator anew."""
    axis = '(256, thread="threadIdx.x"):\n'
    got = run(parse(BEFORE, (axis, f"{axis}          for n in range(2):\n")), PlanRingBuffers())
    assert trips(got) == [(0, "n * 8 + k")]
    (kernel,) = ir.find_all(got.body, ir.SBlock, lambda x: x.name_hint == ir.KERNEL_BLOCK)
    assert [x.name for x in kernel.alloc_buffers] == ["a", "b"]


# -- loads in several places


LOAD_Q = nest(OUTSIDE[0][1], "load_q")
NEW_Q = OUTSIDE[0][1].partition(LOAD_Q)[0]
NEW_P = NEW_Q.replace("q =", "p =")
LOAD_P = LOAD_Q.replace("q[", "p[").replace("load_q", "load_p")


def around_k(*parts):
    """Return the change that puts a loop around the loop over k, and loads beside that one."""
    body = "".join(deeper(part) for part in parts)
    return (K_LOOP, f"{NEW_Q}{NEW_P}                for n in range(3):\n{body}")


def loads_of(root):
    """Return the channels and the rings of all loads, in order."""
    return [
        (int(block.annotations["tvm_hopper.channel"]), [x.source.name for x in block.writes])
        for block in ir.find_blocks(root, "tvm_hopper.channel")
    ]


def test_loads_of_an_outer_and_of_an_inner_loop():
    got = run(parse(BEFORE, around_k(LOAD_Q, K_LOOP)), PlanRingBuffers())
    assert trips(got) == [(0, "n"), (1, "n * 8 + k")]


def test_loads_on_both_sides_of_an_inner_loop():
    got = run(parse(BEFORE, around_k(LOAD_Q, K_LOOP, LOAD_P)), PlanRingBuffers())
    assert loads_of(got.body) == [(0, ["q", "p"]), (1, ["a", "b"])]
    assert trips(got) == [(0, "n"), (1, "n * 8 + k")]


def test_a_load_that_may_not_move_has_a_channel_of_its_own():
    """The loop in between reads what the iteration before has loaded."""
    look = ("tx // 128,", 'tx // 128 + T.Cast("int32", p[0, 0]),')
    got = run(parse(BEFORE, around_k(LOAD_Q, K_LOOP, LOAD_P), look), PlanRingBuffers())
    assert loads_of(got.body) == [(0, ["q"]), (1, ["a", "b"]), (2, ["p"])]
    assert trips(got) == [(0, "n"), (1, "n * 8 + k"), (2, "n")]
    s_tir.analysis.verify_well_formed(got, assert_mode=True)


def test_a_load_behind_a_loop_stays_there():
    look = ("tx // 128,", 'tx // 128 + T.Cast("int32", p[0, 0]),')
    got = run(parse(BEFORE, around_k(K_LOOP, LOAD_P), look), PlanRingBuffers())
    assert loads_of(got.body) == [(0, ["a", "b"]), (1, ["p"])]


def test_a_load_does_not_move_in_front_of_what_writes_its_source():
    store = "                            C[0] = T.float32(1)\n"
    source = ("reads=[], writes=[b[", "reads=[C[0:4]], writes=[b[")
    got = run(
        parse(BEFORE, (LOAD_B, store[4:] + LOAD_B), source, NO_ANNOTATIONS), PlanRingBuffers()
    )
    assert loads_of(got.body) == [(0, ["a"]), (1, ["b"])]


def test_a_load_beside_a_conditional_one_is_made_always():
    under_if = f"                if bx < 2:\n{deeper(LOAD_Q)}"
    got = run(parse(BEFORE, *OUTSIDE, (LOAD_Q, NEW_P + under_if + LOAD_P)), PlanRingBuffers())
    (branch,) = ir.find_all(got.body, ir.IfThenElse)
    assert [x for _, names in loads_of(branch) for x in names] == ["q"]


def test_trips_begin_at_0_where_a_loop_does_not():
    got = run(
        parse(BEFORE, (NESTED[0], NESTED[1].replace("range(3)", "range(1, 3)"))),
        PlanRingBuffers(),
    )
    ((_, trip),) = trips(got)
    assert trip == "(n - 1) * 8 + k"


def test_a_load_may_use_a_variable_of_the_loop():
    bound = "                        at: T.let[T.int32] = k * 2\n" + LOAD_B.replace("k * 32", "at")
    got = run(parse(BEFORE, (LOAD_B, bound), NO_ANNOTATIONS), PlanRingBuffers())
    s_tir.analysis.verify_well_formed(got, assert_mode=True)
    (load,) = ir.find_blocks(got.body, "tvm_hopper.channel")
    assert [bind.var.name for bind in ir.find_all(load, tirx.Bind)] == ["at"]
    assert len(ir.find_all(got.body, tirx.Bind)) == 2  # the trip's too: nobody else needs `at`


def test_a_variable_that_others_use_too_stays_for_them():
    bound = "                        at: T.let[T.int32] = k * 2\n" + LOAD_B.replace("k * 32", "at")
    change = (LOAD_B, bound), ("tx // 128,", "tx // 128 + at,")
    got = run(parse(BEFORE, *change, NO_ANNOTATIONS), PlanRingBuffers())
    s_tir.analysis.verify_well_formed(got, assert_mode=True)
    assert sorted(x.var.name for x in ir.find_all(got.body, tirx.Bind)) == ["at", "at", "trip"]


@pytest.mark.parametrize("outer", ["a persistent kernel", "a loop"])
def test_a_condition_between_counted_loops_and_loads_is_refused(outer):
    """Turns of a slot that no load fills would shift the parities of all later ones."""
    under_if = f"                if bx < 2:\n{deeper(K_LOOP)}"
    change = (K_LOOP, under_if)
    if outer == "a loop":
        change = (
            K_LOOP,
            f"                for n in range(3):\n{deeper(under_if)}".replace("bx <", "n <"),
        )
    func = parse(BEFORE, change, PLAIN_READER, *([ASK_PERSISTENT] if outer != "a loop" else []))
    with pytest.raises(LoweringError):
        run(func, PlanRingBuffers())


POINTERS = 'T.tvm_access_ptr(T.type_annotation("float16"), {}.data, {}, 512, 1), {}'


def test_pointers_go_to_the_slot_too():
    """A pointer with an offset is moved by whole slots, a bare one points to the slot's start."""
    offset = "tx * 64 + k"
    func = parse(
        BEFORE,
        ("T.address_of(a[0, 0, 0])", POINTERS.format("a", offset, "b.data")),
        PLAIN_READER,
    )
    moved = POINTERS.format(
        "a", f"trip % 2 * 8192 + {offset}", "T.address_of(b[trip % 2, 0, 0, 0])"
    )
    want = parse(PLANNED, ("T.address_of(a[trip % 2, 0, 0, 0])", moved), PLAIN_READER)
    check(run(func, PlanRingBuffers()), want)


# -- what the CUDA compiler may unroll


@pytest.mark.parametrize(("load", "rolled"), [("cp_async", False), ("tma", True), ("bulk", True)])
def test_loops_in_which_each_thread_copies_by_itself_may_be_unrolled(load, rolled):
    route = Route((8, 64), 3, load, None, stages=2, threads=64)
    sch = copies.schedule(copies.copy(48, 64), route)
    for last in ("PlanRingBuffers", "LowerChannelsToMbarriers"):
        func = lower(sch.mod, "nvidia/nvidia-h200", until=f"tvm_hopper.{last}")["main"]
        (loop,) = [x for x in ir.find_all(func.body, ir.For) if str(x.loop_var.name) == "i0_1"]
        assert ("disable_unroll" in loop.annotations) == rolled
