"""InsertSyncs: fences, commits, waits and barriers around what is asynchronous."""

import re
import textwrap

import pytest

from tests.transforms.scripts import changed, check, parse, run
from tvm_hopper import ir
from tvm_hopper.errors import LoweringError
from tvm_hopper.transforms import InsertSyncs

# `mma` and `tma` stand for the instructions that the passes before this one have left.
ROLES = """
def func(A_map: T.handle("tensormap"), C: T.Buffer((4,), "float32"), n: T.int32):
    for tx in T.thread_binding(256, thread="threadIdx.x"):
        with T.sblock("kernel", reads=[], writes=[]):
            acc = T.sblock_alloc_buffer((4,), scope="local")
            ring = T.sblock_alloc_buffer((2, 64), "float16", scope="shared.dyn")
            tile = T.sblock_alloc_buffer((64,), "float16", scope="shared.dyn")
            T.attr("tvm_hopper", "hand_threaded", 1)
            if tx < 128:
                if tx == 0:
                    for k in range(8):
                        trip: T.let[T.int32] = k
                        T.call_extern("int32", "tvm_hopper.await_free", 0, trip)
                        with T.sblock("load", reads=[], writes=[ring[trip % 2, 0:64]],
                            async_op="tma_load", channel=0):
                            T.call_extern("int32", "tvm_hopper.fill_slot", 0, trip)
                            T.call_extern("int32", "tma", T.address_of(ring[trip % 2, 0]),
                                T.address_of(A_map))
            else:
                for i in range(4):
                    acc[i] = T.float32(0)
                for k in T.serial(8, channel=0):
                    trip: T.let[T.int32] = k
                    T.call_extern("int32", "tvm_hopper.await_filled", 0, trip)
                    with T.sblock("mma", reads=[ring[trip % 2, 0:64], acc[0:4]], writes=[acc[0:4]],
                        async_op="wgmma"):
                        T.call_extern("int32", "mma", acc[0], T.address_of(ring[trip % 2, 0]))
                    with T.sblock("release", reads=[], writes=[], release=[0, 1]):
                        if (tx - 128) % 128 == 0:
                            T.call_extern("int32", "tvm_hopper.free_slot", 0, trip)
                with T.sblock("store", reads=[acc[0:4]], writes=[C[0:4]]):
                    C[tx % 4] = acc[0]
"""

# Every thread loads and computes: a ring of two slots that is filled one trip ahead.
ALONE = """
def func(A_map: T.handle("tensormap"), C: T.Buffer((64,), "float32"), n: T.int32):
    for tx in T.thread_binding(64, thread="threadIdx.x"):
        with T.sblock("kernel", reads=[], writes=[]):
            ring = T.sblock_alloc_buffer((2, 64), "float32", scope="shared.dyn")
            tile = T.sblock_alloc_buffer((64,), "float32", scope="shared.dyn")
            with T.sblock("load", reads=[], writes=[ring[0:2, 0:64]], ahead=[0],
                async_op="tma_load", channel=0):
                first: T.let[T.int32] = 0
                T.call_extern("int32", "tvm_hopper.fill_slot", 0, first)
                T.call_extern("int32", "tma", T.address_of(ring[first % 2, 0]),
                    T.address_of(A_map))
            for k in T.serial(8, channel=0):
                trip: T.let[T.int32] = k
                if k < 7:
                    with T.sblock("load", reads=[], writes=[ring[(trip + 1) % 2, 0:64]], ahead=[1],
                        async_op="tma_load", channel=0):
                        T.call_extern("int32", "tvm_hopper.fill_slot", 0, trip + 1)
                        T.call_extern("int32", "tma", T.address_of(ring[(trip + 1) % 2, 0]),
                            T.address_of(A_map))
                with T.sblock("use", reads=[ring[trip % 2, 0:64]], writes=[C[0:64]]):
                    C[tx] = C[tx] + ring[trip % 2, tx]
"""

MMA, RELEASE, STORE, USE = (
    f'with T.sblock("{name}"' for name in ("mma", "release", "store", "use")
)
AWAIT = 'T.call_extern("int32", "tvm_hopper.await_filled", 0, trip)'
FENCE = "T.ptx.wgmma.fence.sync.aligned()"
COMMIT = "T.ptx.wgmma.commit_group.sync.aligned()"
PROXY = 'T.ptx["fence.proxy.async.shared::cta"]()'
MEET = 'T.tvm_storage_sync("shared")'
MEET_IN_ROLE = "T.ptx.bar.sync(T.uint32(1), T.uint32(128))"
HOLD = (
    'T.call_intrin("void", "tirx.tvm_hopper_code_fence")',
    'for i in T.serial(4, annotations={"pragma_unroll": 4}):\n'
    '    T.call_intrin("void", "tirx.tvm_hopper_hold_float32", acc[i])',
)
LATE = (
    ("release=[0", "release=[1"),
    ("if (tx - 128) % 128 == 0:", "if (tx - 128) % 128 == 0 and trip >= 1:"),
    ('free_slot", 0, trip)', 'free_slot", 0, trip - 1)'),
)


def wait(pending):
    return f"T.ptx.wgmma.wait_group.sync.aligned({pending})"


def lines(script, before):
    """Return the line of a script that holds a text, with its indentation."""
    (line,) = [x for x in script.splitlines(keepends=True) if before in x]
    return line, line[: len(line) - len(line.lstrip())]


def indented(text, space):
    return textwrap.indent(text.rstrip("\n"), space) + "\n"


def front(script, before, *statements):
    """Return the change that puts statements in front of a line."""
    line, space = lines(script, before)
    return line, "".join(indented(x, space) for x in statements) + line


def expected(script, *changes):
    """Return a script without the annotations that the pass serves, and with what it places."""
    return parse(re.sub(r',\s*async_op="(wgmma|tma_load)"', "", changed(script, *changes)))


def places(script, *changes):
    """Lower a script and compare it with itself, changed."""
    check(run(parse(script), InsertSyncs()), expected(script, *changes))


# Roles.

ISSUE = front(ROLES, MMA, FENCE)


def test_a_release_of_this_trip_s_slot_waits_for_all():
    places(ROLES, ISSUE, front(ROLES, RELEASE, COMMIT, wait(0)))


def test_a_release_of_the_last_trip_s_slot_leaves_one_group_in_flight():
    """The wait in front of the result is kept there: nothing else holds the registers back."""
    script = changed(ROLES, *LATE)
    in_front = front(script, STORE, wait(0), *HOLD)
    places(script, ISSUE, front(script, RELEASE, COMMIT, wait(1)), in_front)


def test_what_nothing_reads_is_waited_for_at_the_end():
    script = changed(ROLES, *LATE, ("C[tx % 4] = acc[0]", "C[tx % 4] = T.float32(1)"))
    script = changed(script, ("reads=[acc[0:4]]", "reads=[]"))
    last, _ = lines(script, "C[tx % 4]")
    end = (last, last + "".join(indented(x, " " * 16) for x in (wait(0), *HOLD)))
    places(script, ISSUE, front(script, RELEASE, COMMIT, wait(1)), end)


def test_statements_that_touch_nothing_in_flight_come_before_the_wait():
    script = changed(ROLES, *LATE, front(ROLES, STORE, 'T.call_extern("int32", "other")'))
    places(
        script,
        ISSUE,
        front(script, RELEASE, COMMIT, wait(1)),
        front(script, STORE, wait(0), *HOLD),
    )


LOOK = "C[tx % 4] = acc[1]"


def test_a_use_in_the_next_trip_waits_there():
    """B1: what reads the accumulator stands in front of the operation, and runs behind it."""
    script = changed(ROLES, *LATE, front(ROLES, AWAIT, LOOK))
    places(
        script,
        front(script, LOOK, wait(0), *HOLD),
        ISSUE,
        front(script, RELEASE, COMMIT),  # the last trip's group is complete
        front(script, STORE, wait(0), *HOLD),
    )


def in_branch(script, condition="n > 0"):
    """Return the script with its product under a condition."""
    start, end = (
        script.index(f"                    {MMA}"),
        script.index(f"                    {RELEASE}"),
    )
    inside = indented(script[start:end], "    ")
    return script[:start] + f"                    if {condition}:\n" + inside + script[end:]


def test_an_operation_in_one_branch_of_a_role():
    """B2: a path without the operation needs no wait, and may execute one."""
    script = in_branch(ROLES)
    places(
        script,
        front(script, MMA, FENCE),
        (
            f"                    {RELEASE}",
            indented(COMMIT, " " * 24) + f"                    {RELEASE}",
        ),
        front(script, RELEASE, wait(0)),
    )


def test_an_operation_in_both_branches_of_a_role():
    """B2: each is its own group, and one wait behind the join covers both."""
    script = in_branch(ROLES)
    start, end = (
        script.index("                    if n > 0:"),
        script.index(f"                    {RELEASE}"),
    )
    other = script[start:end].replace("if n > 0:", "else:").replace('"mma"', '"other"')
    script = script[:end] + other + script[end:]
    otherwise = "                    else:\n                        with"
    places(
        script,
        front(script, MMA, FENCE),
        (otherwise, indented(COMMIT, " " * 24) + otherwise),
        front(script, 'with T.sblock("other"', FENCE),
        front(
            script,
            RELEASE,
            "    " + COMMIT,
            wait(0),
        ),
    )


def test_a_loop_of_one_trip_is_held():
    """It will be no loop, and nothing else keeps what reads the results behind the wait."""
    script = changed(ROLES, ("T.serial(8", "T.serial(1"))
    places(script, ISSUE, front(script, RELEASE, COMMIT, wait(0)), front(script, STORE, *HOLD))


FILL = "tile[tx - 128] = T.float16(1)"
READ = "C[0] = T.Cast('float32', tile[5])"


def test_threads_of_a_role_meet_at_a_barrier_of_their_own():
    script = changed(ROLES, front(ROLES, STORE, FILL, READ))
    places(
        script,
        ISSUE,
        front(script, RELEASE, COMMIT, wait(0)),
        front(script, READ, MEET_IN_ROLE),
    )


def test_a_role_s_first_thread_makes_a_copy_that_every_thread_would_make():
    copy = "for j in range(64):\n    tile[j] = T.float16(1)"
    script = changed(ROLES, front(ROLES, STORE, copy, READ))
    elected = "if tx == 128:\n    " + copy.replace("\n", "\n    ")
    places(
        script,
        ISSUE,
        front(script, RELEASE, COMMIT, wait(0)),
        (indented(copy, " " * 16), indented(elected, " " * 16)),
        front(script, READ, MEET_IN_ROLE),
    )


# No roles.

FILLED = 'T.call_extern("int32", "tvm_hopper.await_filled", 0, trip)'


def alone(script, *changes):
    """Lower a script whose threads do all; their marks keep TVM's own barriers out."""
    got = run(parse(script), InsertSyncs())
    start = script.index('        with T.sblock("kernel"')
    inside = script[:start] + '        T.attr("tvm_hopper", "hand_threaded", 1)\n' + script[start:]
    check(got, expected(inside, *changes))


def test_a_ring_without_roles_is_fenced_for_the_copy_and_waited_for_by_its_readers():
    alone(ALONE, front(ALONE, "if k < 7:", PROXY, MEET), front(ALONE, USE, FILLED))


def test_a_reader_in_an_arm_leaves_the_wait_to_every_trip():
    """The copy is made wherever there is such a trip, also one that does not read it."""
    start = ALONE.index(f"                {USE}")
    script = (
        ALONE[:start]
        + "                if k > n:\n                    tile[tx] = ring[trip % 2, tx]\n"
    )
    alone(script, front(script, "if k < 7:", PROXY, MEET), front(script, "if k > n:", FILLED))


def test_a_copy_that_nothing_reads_is_waited_for_in_its_trip():
    """Only the thread that issues it touches the ring, so it waits alone."""
    start = ALONE.index(f"                {USE}")
    script = ALONE[:start] + "                C[tx] = T.float32(1)\n"
    end = (
        script[script.index("                C[tx]") :],
        "                C[tx] = T.float32(1)\n                if tx == 0:\n"
        + indented(FILLED, " " * 20),
    )
    alone(script, front(script, "if k < 7:", PROXY), end)


def test_a_copy_of_one_slot_is_waited_for_by_its_reader():
    one = changed(
        ALONE[: ALONE.index("            for k in T.serial")],
        (" ahead=[0],", ""),
        ("                first: T.let[T.int32] = 0\n", ""),
        (
            '            with T.sblock("load"',
            '            first: T.let[T.int32] = 0\n            with T.sblock("load"',
        ),
    )
    script = (one + "            C[tx] = ring[first % 2, tx]\n").replace("first", "trip_0")
    alone(script, front(script, "C[tx] =", FILLED.replace("trip", "trip_0")))


def test_plain_stores_of_some_threads_are_not_elected_away():
    """The first thread is not among those that take the branch."""
    copy = "if tx > 32:\n    for j in range(64):\n        tile[j] = T.float32(1)"
    script = changed(ALONE, front(ALONE, USE, copy))
    alone(script, front(script, "if k < 7:", PROXY, MEET), front(script, USE, FILLED))


def test_what_a_barrier_in_front_of_a_copy_is_relied_on_for_does_not_hang_on_its_condition():
    """The last trip makes no copy, and reads what other threads wrote in the trip before."""
    swap = "C[tx] = tile[63 - tx]"
    script = changed(ALONE, front(ALONE, USE, swap))
    fill, _ = lines(script, "C[tx] = C[tx] + ring")
    script = changed(script, (fill, fill + indented("tile[tx] = C[tx]", " " * 16)))
    found = run(parse(script), InsertSyncs()).script()
    assert found.count(MEET[:20]) == 2


def test_threads_that_make_different_numbers_of_trips_do_not_meet_in_their_loop():
    loop = "for j in range(tx):\n    tile[tx] = T.float32(1)\n    C[tx] = tile[j]"
    with pytest.raises(LoweringError, match="which is not uniform"):
        run(parse(changed(ALONE, front(ALONE, USE, loop))), InsertSyncs())


# What is refused.


@pytest.mark.parametrize("condition", ["tx > 200", "acc[0] > T.float32(0)", "v > 0"])
def test_a_product_that_only_some_threads_issue(condition):
    bind = "v: T.let[T.int32] = tx // 2"
    script = in_branch(changed(ROLES, front(ROLES, AWAIT, bind)), condition)
    message = (
        "block mma: found wgmma in a branch that is not uniform; need a uniform branch, since all "
        "threads of a warp group execute it; take the block out of the branch, or make the "
        "condition the same for all threads"
    )
    with pytest.raises(LoweringError) as caught:
        run(parse(script), InsertSyncs())
    assert str(caught.value) == message


def test_threads_that_would_meet_in_a_branch():
    branch = (
        "if tx > 32:\n"
        "    tile[tx] = T.float32(1)\n"
        '    with T.sblock("turn", reads=[tile[0:64]], writes=[tile[0:64]]):\n'
        "        tile[tx] = tile[63 - tx]"
    )
    with pytest.raises(LoweringError, match=r"^block \w+: found a use of what other threads did"):
        run(parse(changed(ALONE, front(ALONE, USE, branch))), InsertSyncs())


def test_a_loop_of_copies_that_only_some_threads_run():
    start, loop = ALONE.index("            for k in T.serial"), None
    loop = indented(ALONE[start:], "    ")
    script = ALONE[:start] + "            if tx > 32:\n" + loop
    with pytest.raises(LoweringError, match=r"^loop k: found a ring that is advanced in a branch"):
        run(parse(script), InsertSyncs())


def test_a_store_to_a_tile_that_copies_run_ahead_into():
    message = (
        r"^block use: found a write of 'ring', whose copies are made only if they are read; need "
        r"such copies .*; store to a separate tile, or take the pipeline's stages away$"
    )
    store = ("C[tx] = C[tx] + ring", "ring[trip % 2, tx] = C[tx] + ring")
    with pytest.raises(LoweringError, match=message):
        run(parse(changed(ALONE, store)), InsertSyncs())


@pytest.mark.parametrize("turns", [1, 2])
def test_a_pipeline_of_one_turn_is_none(turns):
    """Threads came to copy: TVM's own pass would wait for groups, and print none in vectors."""
    text = f"""
def func(C: T.Buffer((64,), "float32")):
    for bx in T.thread_binding(3, thread="blockIdx.x"):
        for tx in T.thread_binding(64, thread="threadIdx.x"):
            for k in range({turns}, stage=[0, 3], order=[0, 1], async_stages=[0]):
                C[tx] = C[tx] + T.float32(1)
                C[tx] = C[tx] * T.float32(2)
"""
    got = run(parse(text), InsertSyncs())
    (loop,) = ir.find_all(got.body, ir.For, lambda x: x.loop_var.name == "k")
    assert len(loop.annotations) == (0 if turns == 1 else 3)
