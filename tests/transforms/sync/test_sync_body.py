"""A kernel's statements as the sync engine sees them, and back."""

import pytest
import tvm
from tvm import tirx

from tests.transforms.scripts import changed, nest, parse
from tests.transforms.sync.test_insert_syncs import ALONE, ROLES, USE, front, in_branch
from tvm_hopper import ir
from tvm_hopper.ir import once
from tvm_hopper.sync import Branch, Loop
from tvm_hopper.transforms.sync.sync_body import BodyReader, flatten
from tvm_hopper.transforms.sync.sync_writer import BodyWriter


def read(script, consumers=False):
    """Return the reader, the statements read, and what they were."""
    (kernel,) = ir.kernels(parse(script))
    axis = ir.thread_axes(kernel)["threadIdx.x"]
    reader = BodyReader(kernel, axis.loop_var, consumers, 128 if consumers else 0)
    stmt = axis.body
    if consumers:
        (split,) = ir.find_all(kernel, ir.IfThenElse, lambda x: x.else_case is not None)
        stmt = split.else_case
    return reader, reader.sequence(stmt), stmt


def described(body):
    """Return a body as nested tuples of what matters in a test."""
    found = []
    for node in body:
        if isinstance(node, Loop):
            rings = sorted(ring.name for ring in node.advances)
            found.append(("loop", node.min_trips, rings, described(node.body)))
        elif isinstance(node, Branch):
            found.append(("branch", node.is_uniform, *map(described, node.arms)))
        else:
            accesses = [
                f"{'w' if x.is_write else 'r'} {x.buffer.name}@{x.ahead}" for x in node.accesses
            ]
            marks = [x for x in ("is_release", "is_acquire", "only_if_read") if getattr(node, x)]
            found.append((node.name, node.op or node.issuer, *marks, *accesses))
    return found


TRIP = ("Bind", "all")


def test_a_role():
    _, items, _ = read(ROLES, consumers=True)
    assert described(flatten(items)) == [
        ("For", "all", "w acc#1@0"),
        (
            "loop",
            1,
            ["ring#0"],
            [
                TRIP,
                ("wait for the other role", "all", "is_acquire", "w ring#0@0"),
                ("mma", "wgmma", "r ring#0@0", "r acc#1@0", "w acc#1@0"),
                ("release", "all", "is_release", "w ring#0@0"),
            ],
        ),
        ("store", "all", "r acc#1@0", "w C#2@0"),
    ]


def test_a_release_of_an_earlier_trip_names_its_version():
    script = changed(ROLES, ("release=[0", "release=[1"))
    _, items, _ = read(script, consumers=True)
    loop = flatten(items)[1]
    assert [access.ahead for access in loop.body[3].accesses] == [-1]


def test_an_operation_in_a_branch_of_a_role():
    _, items, _ = read(in_branch(ROLES), consumers=True)
    kind, is_uniform, arm, other = described(flatten(items)[1].body)[2]
    assert (kind, is_uniform, other) == ("branch", True, [])
    assert [step[0] for step in arm] == ["mma"]


LOAD = ("load", "tma_load", "only_if_read")


def test_loads_that_run_ahead():
    """The condition of a copy is part of its step: the engine knows that who reads has it."""
    _, items, _ = read(ALONE)
    assert described(flatten(items)) == [
        (*LOAD, "w ring#0@0"),
        (
            "loop",
            1,
            ["ring#0"],
            [
                ("kernel", "all"),
                (*LOAD, "w ring#0@1"),
                ("use", "all", "r C#1@0", "r ring#0@0", "w C#1@0"),
            ],
        ),
    ]


def test_a_copy_that_a_trip_may_not_read_is_read_by_a_step_that_stands_for_the_trip():
    arm = "if k > n:\n    tile[tx] = ring[trip % 2, tx]"
    script = changed(ALONE, front(ALONE, USE, arm))
    _, items, _ = read(script)
    names = [node[0] for node in described(flatten(items)[1].body)]
    assert names == ["kernel", "load", "iteration that reads ring#0", "branch", "use"]
    unread = ALONE[: ALONE.index(f"                {USE}")]
    names = [node[0] for node in described(flatten(read(unread)[1])[1].body)]
    assert names == ["kernel", "load", "iteration that reads ring#0"]


def test_a_number_of_trips_that_run_time_knows_may_be_none():
    _, items, _ = read(changed(ALONE, ("T.serial(8", "T.serial(n")))
    assert flatten(items)[1].min_trips == 0


def with_statement(text):
    """Return the step or branch that a statement in front of the reader becomes."""
    reader, items, _ = read(changed(ALONE, front(ALONE, USE, text)))
    return described(flatten(items)[1].body[2:-1]), reader


FILL = "for j in range(64):\n    tile[j] = T.float32(1)"


def indent(text):
    return "    " + text.replace("\n", "\n    ")


def test_what_every_thread_would_store_is_stored_by_one():
    assert with_statement(FILL)[0] == [("kernel", "thread", "w tile#1@0")]
    # Not where some threads take another way: it may be among those.
    assert with_statement("if tx > 5:\n" + indent(FILL))[0] == [
        ("branch", False, [("kernel", "all", "w tile#1@0")], [])
    ]
    (loop,) = with_statement(FILL.replace("[j]", "[(j + tx) % 64]"))[0]
    assert loop[0] == "loop"


@pytest.mark.parametrize(
    ("condition", "is_uniform"),
    [("k > 3", True), ("n > 3", True), ("tx > 3", False), ("v > 3", False), ("C[0] > 0.0", True)],
)
def test_threads_agree_about_a_condition_or_not(condition, is_uniform):
    text = f"v: T.let[T.int32] = tx // 2\nif {condition}:\n    tile[tx] = T.float32(1)"
    assert with_statement(text)[0][1][:2] == ("branch", is_uniform)


def test_threads_that_leave_a_loop_at_different_times():
    (node,) = with_statement("for j in range(tx):\n    tile[tx] = T.float32(1)")[0]
    kind, is_uniform, (loop,), other = node
    assert (kind, is_uniform, loop[0], other) == ("branch", False, "loop", [])


@pytest.mark.parametrize(
    ("script", "consumers"),
    [(ROLES, True), (in_branch(ROLES), True), (ALONE, False)],
    ids=["role", "branch", "one role"],
)
def test_back_without_syncs(script, consumers):
    _, items, stmt = read(script, consumers)
    got = BodyWriter({}, lambda *_: [], {}).write(items)
    tvm.ir.assert_structural_equal(got, stmt, map_free_vars=True)


def test_back_with_a_mark_at_every_place():
    """Each path is written to once: in front of the node that it names, or at the end."""
    _, items, _ = read(in_branch(ROLES), consumers=True)
    paths = [
        (0,),
        (1,),
        (1, 0),
        (1, 2),
        (1, 2, 0, 0),
        (1, 2, 0, 1),
        (1, 2, 1, 0),
        (1, 4),
        (2,),
        (3,),
    ]

    def emit(path, _trips):
        return [ir.Evaluate(tirx.call_extern("int32", "mark", *path))]

    got = BodyWriter({path: [path] for path in paths}, emit, {}).write(items)
    found = [
        tuple(int(x) for x in call.args[1:])
        for call in ir.find_all(got, ir.Call)
        if getattr(call.args[0], "value", "") == "mark"
    ]
    assert sorted(found) == sorted(paths)  # also in the arm that the branch did not have


def test_syncs_know_the_trip_around_them():
    _, items, _ = read(ALONE)
    (bind,) = [x for x in ir.find_all(items[0].inner[0][1].stmt, tirx.Bind) if x.var.name == "trip"]
    seen = []

    def emit(_sync, trips):
        seen.append(dict(trips))
        return []

    BodyWriter({(0,): [0], (1, 2): [0], (2,): [0]}, emit, {bind.var: 0}).write(items)
    assert [list(trips) for trips in seen] == [[], [0], []]


def test_variables_are_listed_once():
    a, b = ir.Var("a", "int32"), ir.Var("a", "int32")
    assert [x.same_as(y) for x, y in zip(once([a, b, a]), [a, b], strict=True)] == [True, True]


def test_what_is_done_behind_an_address_may_be_a_write():
    """A call that is given the address of a tile counts as a store to it: others wait for it."""
    for argument in ("T.address_of(tile[tx])", "tile.data"):
        call = f'T.call_extern("int32", "f", {argument})'
        _, items, _ = read(changed(ALONE, front(ALONE, USE, call)))
        assert "w tile#1@0" in str(described(flatten(items))), argument


def test_a_pointer_with_a_mask_does_what_the_mask_says():
    for mask, want in (("r", ["r"]), ("w", ["w"]), ("rw", ["r", "w"])):
        call = f'T.call_extern("int32", "f", tile.access_ptr("{mask}"))'
        _, items, _ = read(changed(ALONE, front(ALONE, USE, call)))
        found = str(described(flatten(items)))
        assert [x for x in "rw" if f"{x} tile#1@0" in found] == want


def test_a_call_of_the_table_does_what_the_table_says():
    call = 'T.ptx_legacy.ldmatrix(T.bool(False), 4, ".b16", C.data, 0, T.address_of(tile[0]), tx)'
    _, items, _ = read(changed(ALONE, front(ALONE, USE, call)))
    found = str(described(flatten(items)))
    assert "r tile#1@0" in found
    assert "w tile#1@0" not in found


# -- plain stores to shared memory

STORES = """
def func(C: T.Buffer((256,), "float16"), n: T.int32):
    for tx in T.thread_binding(32, thread="threadIdx.x"):
        with T.sblock("kernel", reads=[], writes=[]):
            tile = T.sblock_alloc_buffer((1024,), "float16", scope="shared.dyn")
            own = T.sblock_alloc_buffer((4,), "int32", scope="local")
            for i, j in T.grid(4, 2):
                tile[i * 64 + tx * 2 + j] = T.float16(0)
"""
LOOPS = nest(STORES, "for i, j")


def number_of_steps(*changes):
    """Return how many nodes the engine sees of the loops: one, if nothing is placed in them."""
    _, items, _ = read(changed(STORES, *changes))
    return flatten(items)


@pytest.mark.parametrize(
    "changes",
    [
        (),
        [("i * 64 + tx * 2 + j", "tx * 8 + i * 2 + j")],
        [("T.grid(4, 2)", "T.grid(4, 1)"), ("tx * 2 + j", "tx")],
    ],
    ids=["rows", "columns", "one"],
)
def test_stores_that_are_apart_are_one_step(changes):
    (step,) = number_of_steps(*changes)
    assert not isinstance(step, (Loop, Branch))
    assert [(x.buffer.name[:4], x.is_write) for x in step.accesses] == [("tile", True)]


FROM_32 = ("tx * 2 + j", "(tx - 32) // 8 * 16 + (tx - 32) % 8 * 2 + j")


@pytest.mark.parametrize(("first", "is_one"), [(32, True), (0, False)])
def test_threads_of_another_role_do_not_count(first, is_one):
    """Numbered from the role's first thread, stores are apart; those in front of it would meet."""
    (kernel,) = ir.kernels(parse(changed(STORES, ("(32, thread=", "(64, thread="), FROM_32)))
    axis = ir.thread_axes(kernel)["threadIdx.x"]
    (node,) = flatten(BodyReader(kernel, axis.loop_var, True, first).sequence(axis.body))
    assert isinstance(node, Loop) is not is_one


@pytest.mark.parametrize(
    "changes",
    [
        [("i * 64 + tx * 2 + j", "i * 2 + tx * 2 + j")],
        [("i * 64 + tx * 2 + j", "i * 64 + tx + j")],
        [("i * 64 + tx * 2 + j", "i * 64 + tx")],
        [("i * 64 + tx * 2 + j", "own[0] + i * 64 + tx * 2 + j")],
        [("i * 64 + tx * 2 + j", "(i * 64 + tx * 2 + j) % n")],
        [("T.float16(0)", "tile[900 + j]")],
        [
            (
                "                tile[i * 64",
                "                tile[j] = T.float16(1)\n                tile[i * 64",
            )
        ],
        [("for i, j in T.grid(4, 2)", "for j in T.serial(1, 3)"), ("i * 64 + ", "")],
        [
            ("tile[i * 64 + tx * 2 + j] = T.float16(0)", "at: T.let[T.int32] = i * 64\n"
             "                tile[at + tx * 2 + j] = T.float16(0)"),
        ],
    ],
    ids=[
        "iterations meet", "threads meet", "an iteration repeats", "a place of a thread's own",
        "a place that nobody knows", "it is read", "two stores", "a loop from 1", "a bound place",
    ],
)  # fmt: skip
def test_stores_that_may_meet_are_looked_into(changes):
    (node,) = number_of_steps(*changes)
    assert isinstance(node, (Loop, Branch)) or node.issuer == "thread"


def test_a_store_under_a_predicate_of_its_block_is_a_branch():
    """A block's predicate was dropped with what it is looked through for."""
    store = """\
            for i in range(4):
                with T.sblock("fill", where=tx * 4 + i < n, reads=[], writes=[]):
                    tile[tx] = T.float16(0)
"""
    _, items, _ = read(changed(STORES, (LOOPS, store)))
    (loop,) = flatten(items)
    (branch,) = loop.body
    assert isinstance(branch, Branch)
    assert not branch.is_uniform
    reader, items, _ = read(changed(STORES, (LOOPS, store)))
    again = BodyWriter({}, lambda *_: [], reader.channel_of).write(items)
    (condition,) = [x.condition for x in ir.find_all(again, ir.IfThenElse)]
    assert "< n" in str(condition)
