"""SelectCopyMechanisms: the tile behind a copy that threads share out, and what makes it."""

import pytest
import tvm

from tests.transforms.scripts import check, deeper, nest, notes_of, parse, run
from tvm_hopper import ir
from tvm_hopper.errors import LoweringError
from tvm_hopper.transforms import SelectCopyMechanisms
from tvm_hopper.transforms.common.explain_notes import FallbackNote, RemarkNote
from tvm_hopper.transforms.copies.thread_copy_pipelines import with_plain_stages

# 16 rows of 64 elements: four vectors of eight for each of 32 threads.
BY_THREADS = """
def func(A: T.Buffer((64, 256), "float16"), C: T.Buffer((64, 256), "float16")):
    for bx in T.thread_binding(4, thread="blockIdx.x"):
        for tx in T.thread_binding(32, thread="threadIdx.x"):
            with T.sblock("kernel", reads=[], writes=[]):
                tile = T.sblock_alloc_buffer((16, 64), "float16", scope="shared")
                for i in range(4):
                    for v in T.vectorized(8):
                        with T.sblock("copy", reads=[], writes=[], async_copy="auto"):
                            tile[
                                ((i * 32 + tx) * 8 + v) // 64, ((i * 32 + tx) * 8 + v) % 64
                            ] = A[
                                bx * 16 + ((i * 32 + tx) * 8 + v) // 64,
                                64 + ((i * 32 + tx) * 8 + v) % 64,
                            ]
                with T.sblock("use", reads=[], writes=[]):
                    C[tx, 0] = tile[tx % 16, tx]
"""
AUTO = 'async_copy="auto"'

# 8 rows of 13 elements, which start at multiples of 2 bytes alone; nobody says who copies them.
UNBOUND = """
def func(A: T.Buffer((16, 15), "float16"), C: T.Buffer((16, 64), "float16")):
    for bx in T.thread_binding(1, thread="blockIdx.x"):
        for tx in T.thread_binding(32, thread="threadIdx.x"):
            with T.sblock("kernel", reads=[], writes=[]):
                tile = T.sblock_alloc_buffer((8, 13), "float16", scope="shared.dyn")
                for k in range(2):
                    for i, j in T.grid(8, 13):
                        with T.sblock("copy", reads=[A[k * 8 + i, j]], writes=[tile[i, j]],
                            async_copy="auto"):
                            tile[i, j] = A[k * 8 + i, j]
                    with T.sblock("use", reads=[], writes=[]):
                        C[k, tx] = tile[tx % 8, 0]
"""

AFTER = """
def func(A: T.Buffer((64, 256), "float16"), C: T.Buffer((64, 256), "float16")):
    for bx in T.thread_binding(4, thread="blockIdx.x"):
        for tx in T.thread_binding(32, thread="threadIdx.x"):
            with T.sblock("kernel", reads=[], writes=[]):
                tile = T.sblock_alloc_buffer((16, 64), "float16", scope="shared.dyn")
                for i0 in range(16):
                    for i1 in range(64):
                        with T.sblock("copy", reads=[A[bx * 16 + i0, i1 + 64]],
                            writes=[tile[i0, i1]], async_copy="tma"):
                            tile[i0, i1] = A[bx * 16 + i0, i1 + 64]
                with T.sblock("use", reads=[], writes=[]):
                    C[tx, 0] = tile[tx % 16, tx]
"""


def asking(mechanism: str, *changes: tuple[str, str]):
    """Return the program with another request, and other changes."""
    return parse(BY_THREADS, (AUTO, f'async_copy="{mechanism}"'), *changes)


def copied(func) -> str:
    """Return the text of a function behind the pass."""
    return run(func, SelectCopyMechanisms()).script()


def test_threads_and_vectors_are_one_tile():
    check(run(parse(BY_THREADS), SelectCopyMechanisms()), parse(AFTER))


@pytest.mark.parametrize("mechanism", ["tma", "bulk", "cp_async"])
def test_a_mechanism_that_is_named_is_kept(mechanism):
    want = parse(AFTER, ('"tma"', f'"{mechanism}"'))
    check(run(asking(mechanism), SelectCopyMechanisms()), want)


def test_none_leaves_the_copy_to_the_threads():
    want = parse(
        BY_THREADS,
        (f", {AUTO}", ""),
        ('scope="shared"', 'scope="shared.dyn"'),
    )
    check(run(asking("none"), SelectCopyMechanisms()), want)


def test_what_was_chosen_is_told_and_why_not_the_others():
    assert notes_of(run(parse(BY_THREADS), SelectCopyMechanisms())) == (
        RemarkNote("copy copy: by tma"),
    )
    # rows of 250 elements are no multiple of 16 bytes
    narrow = run(
        parse(BY_THREADS, ("A: T.Buffer((64, 256)", "A: T.Buffer((64, 250)")),
        SelectCopyMechanisms(),
    )
    (note,) = notes_of(narrow)
    assert note.text.startswith(
        "copy copy: by cp_async\nnot tma: copy of A into tile: found stride"
    )
    assert "\nnot bulk: copy of A into tile: found runs of A that start at" in note.text


def test_on_an_earlier_chip_only_its_mechanisms_are_tried():
    target = tvm.target.Target({"kind": "cuda", "arch": "sm_80", "host": "llvm"})
    after = run(parse(BY_THREADS).with_attr("target", target), SelectCopyMechanisms())
    assert notes_of(after) == (RemarkNote("copy copy: by cp_async"),)


def test_what_no_hardware_can_copy_is_told():
    (note,) = notes_of(run(parse(UNBOUND), SelectCopyMechanisms()))
    assert isinstance(note, FallbackNote)
    assert note.text.startswith("copy copy: made by threads; faster with a copy that hardware can")
    assert "not tma: copy of A into tile: found stride" in note.text


def test_it_is_shared_out_between_all_axes():
    two = (
        'for tx in T.thread_binding(32, thread="threadIdx.x"):\n',
        'for ty in T.thread_binding(2, thread="threadIdx.y"):\n'
        '         for tx in T.thread_binding(32, thread="threadIdx.x"):\n',
    )
    text = copied(parse(UNBOUND, two))
    assert "for turn in range(2)" in text
    assert "(turn * 64 + ty * 32 + tx) // 13" in text


def test_none_of_it_is_shared_out_where_threads_or_iterations_are_not_counted():
    where = ("func(A:", "func(n: T.int32, A:"), ("T.thread_binding(32,", "T.thread_binding(n,")
    assert "for i, j in T.grid(8, 13)" in copied(parse(UNBOUND, *where))


def test_a_store_that_no_hardware_makes_keeps_no_slots():
    """Nor is a mechanism named that stores nothing."""
    store = (
        ("tile[i, j] = A[k * 8 + i, j]", "A[k * 8 + i, j] = tile[i, j]"),
        (AUTO, f"{AUTO}, store_slots=2"),
    )
    got = run(parse(UNBOUND, *store), SelectCopyMechanisms())
    assert "store_slots" not in got.script()
    (note,) = notes_of(got)
    assert "not bulk" in note.text
    assert "cp_async" not in note.text


def test_a_transposed_copy_is_a_tile_too():
    """Halves across rows of the tensor: no hardware moves them, and the threads do."""
    rows = (
        "bx * 16 + ((i * 32 + tx) * 8 + v) // 64,\n"
        "                                64 + ((i * 32 + tx) * 8 + v) % 64,"
    )
    columns = (
        "((i * 32 + tx) * 8 + v) % 64,\n"
        "                                bx * 16 + ((i * 32 + tx) * 8 + v) // 64,"
    )
    after = run(parse(BY_THREADS, (rows, columns)), SelectCopyMechanisms())
    (note,) = notes_of(after)
    assert isinstance(note, FallbackNote)
    text = "copy copy: made by threads; faster with a copy that hardware can make\nnot tma: "
    assert note.text.startswith(text)
    assert "T.vectorized(8)" in after.script()
    assert "i1, bx * 16 + i0" in copied(asking("tma", (rows, columns)))


def test_strict_refuses_to_leave_a_copy_to_threads():
    text = BY_THREADS.replace(
        "    for bx", '    T.func_attr({"tvm_hopper.strict": True})\n    for bx', 1
    ).replace("v) % 64,", "v) // 2 % 64,")
    with pytest.raises(LoweringError, match=r"copy copy, tvm_hopper\.strict: found made by"):
        run(parse(text), SelectCopyMechanisms())


def test_a_predicate_that_bounds_the_iterations_goes():
    """100 elements by 32 threads in four turns, the last of which some leave out."""
    text = """
def func(A: T.Buffer((10, 10), "float32")):
    for tx in T.thread_binding(32, thread="threadIdx.x"):
        with T.sblock("kernel"):
            tile = T.sblock_alloc_buffer((10, 10), "float32", scope="shared.dyn")
            for i in range(4):
                with T.sblock("copy", where=i * 32 + tx < 100, reads=[], writes=[],
                    async_copy="cp_async"):
                    tile[(i * 32 + tx) // 10, (i * 32 + tx) % 10] = A[(i * 32 + tx) // 10,
                        (i * 32 + tx) % 10]
"""
    after = copied(parse(text))
    assert "T.where" not in after
    assert "tile[i0, i1] = A[i0, i1]" in after


def test_a_pad_keeps_its_bounds():
    padded = ("] = A[\n", "] = T.if_then_else(bx * 16 + ((i * 32 + tx) * 8 + v) // 64 < 61, A[\n")
    closed = (
        "% 64,\n                            ]\n",
        "% 64,\n                            ], T.float16(0))\n",
    )
    after = copied(parse(BY_THREADS, padded, closed))
    assert "T.if_then_else(bx * 16 + i0 < 61, A[bx * 16 + i0, i1 + 64], T.float16(0.0))" in after


# A tile of 8 x 100 that leaves by plain loops: rows of 200 bytes, which no hardware stores.
STORED = """
def func(A: T.Buffer((800,), "float16"), C: T.Buffer((32, 101), "float16")):
    for bx in T.thread_binding(4, thread="blockIdx.x"):
        for tx in T.thread_binding(128, thread="threadIdx.x"):
            with T.sblock("kernel", reads=[], writes=[]):
                tile = T.sblock_alloc_buffer((8, 100), "float16", scope="shared.dyn")
                with T.sblock("fill", reads=[], writes=[]):
                    tile[tx // 16, tx % 16] = A[tx]
                for i, j in T.grid(8, 100):
                    with T.sblock("copy", reads=[tile[i, j]], writes=[C[bx * 8 + i, j]],
                        async_copy="auto"):
                        C[bx * 8 + i, j] = tile[i, j]
"""
DEALT = """
                with T.sblock("copy", reads=[tile[0:8, 0:100]], writes=[C[0:32, 0:101]],
                    disjoint_writes=1):
                    for turn in range(7):
                        if turn * 128 + tx < 800:
                            with T.sblock("copy", reads=[tile[(turn * 128 + tx) // 100,
                                (turn * 128 + tx) % 100]],
                                writes=[C[bx * 8 + (turn * 128 + tx) // 100,
                                (turn * 128 + tx) % 100]]):
                                C[bx * 8 + (turn * 128 + tx) // 100,
                                    (turn * 128 + tx) % 100] = tile[(turn * 128 + tx) // 100,
                                    (turn * 128 + tx) % 100]
"""
LOOPS = STORED[STORED.index("                for i, j") :]


def test_threads_share_out_what_no_thread_is_bound_to():
    want = parse(STORED.replace(LOOPS, DEALT.lstrip("\n")))
    check(run(parse(STORED, ('"auto"', '"none"')), SelectCopyMechanisms()), want)
    chosen = run(parse(STORED), SelectCopyMechanisms())
    assert isinstance(notes_of(chosen)[0], FallbackNote)
    check(chosen.without_attr("tvm_hopper.plan"), want)


def test_a_store_is_told_of_the_mechanisms_that_store_alone():
    (note,) = notes_of(run(parse(STORED), SelectCopyMechanisms()))
    assert [line.split(":")[0] for line in note.text.splitlines()] == [
        "copy copy",
        "not tma",
        "not bulk",
    ]


@pytest.mark.parametrize(
    "changes",
    [
        [('for tx in T.thread_binding(128, thread="threadIdx.x")', "for tx in range(128)")],
        [("T.grid(8, 100)", "T.grid(8, tx + 1)")],
        [("for i, j in T.grid(8, 100)", "for i in T.serial(2, 8)"), (", j]", ", i]")],
        [("C[bx * 8 + i, j] = tile", "C[bx * 8 + i // 2, j] = tile")],
    ],
    ids=["no threads", "a share already", "not from 0", "not once each"],
)
def test_other_loops_stay(changes):
    text = STORED.replace('"auto"', '"none"')
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    after = run(parse(text), SelectCopyMechanisms()).script()
    assert "turn" not in after
    assert "tvm_hopper.disjoint_writes" not in after


PLACES = """
def func(A: T.Buffer((64, 64), "float16"), C: T.Buffer((64, 64), "float16"), n: T.int32):
    for bx in T.thread_binding(4, thread="blockIdx.x"):
        for tx in T.thread_binding(32, thread="threadIdx.x"):
            for k in T.serial(4):
                with T.sblock("iteration", reads=[], writes=[]):
                    tile = T.sblock_alloc_buffer((4, 64), "float16", scope="shared.dyn")
                    for i, j in T.grid(4, 64):
                        with T.sblock("copy", reads=[], writes=[], async_copy="auto"):
                            tile[i, j] = A[bx * 16 + k * 4 + i, j]
                    with T.sblock("use", reads=[], writes=[]):
                        C[bx * 16 + k, tx] = tile[k, tx]
"""
COPY = nest(PLACES, "for i, j in")
CONDITION = "                    if k < n:\n" + deeper(COPY)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (((COPY, CONDITION),), "the condition k < n around it in loop k"),
        (((COPY, COPY + COPY.replace('"copy"', '"again"')),), "several copies fill its tile"),
    ],
    ids=["a condition", "one tile"],
)
def test_auto_looks_at_where_a_copy_stands(changes, reason):
    got = run(parse(PLACES, *changes), SelectCopyMechanisms())
    notes = [x for x in notes_of(got) if isinstance(x, FallbackNote)]
    assert notes
    assert all(reason in x.text and "made by threads" in x.text for x in notes)
    assert "async_copy" not in got.body.script()
    assert "async_copy" in run(parse(PLACES), SelectCopyMechanisms()).body.script()


@pytest.mark.parametrize(("stages", "asynchronous"), [("[1, 3]", "[1]"), ("[0, 2]", "[2]")])
def test_stages_of_what_threads_copy_are_plain_and_count_from_zero(stages, asynchronous):
    """TVM would commit groups of nothing, and wait for a number of them that is no constant."""
    head = f"""
            for k in T.serial(4, stage={stages}, async_stages={asynchronous}, order=[0, 1]):
"""
    body = '                with T.sblock("a"):\n                    T.evaluate(0)\n'
    body += body.replace('"a"', '"b"')
    (kernel,) = ir.kernels(parse(BY_THREADS + head[1:] + body))
    bare = with_plain_stages(ir.replace(kernel, ir.SBlock, without_request))
    (loop,) = ir.find_all(bare, ir.For, lambda x: "software_pipeline_stage" in x.annotations)
    assert [int(x) for x in loop.annotations["software_pipeline_stage"]] == [0, 2]
    assert "software_pipeline_async_stages" not in loop.annotations
    assert with_plain_stages(bare).same_as(bare)


def pipelines_of(func):
    (kernel,) = ir.kernels(func)
    kernel = with_plain_stages(ir.replace(kernel, ir.SBlock, without_request))
    loops = ir.find_all(kernel, ir.For, lambda x: "software_pipeline_stage" in x.annotations)
    assert with_plain_stages(kernel).same_as(kernel)
    return [
        [[int(x) for x in loop.annotations[f"software_pipeline_{what}"]] for loop in loops]
        for what in ("stage", "order")
    ]


@pytest.mark.parametrize(
    ("stage", "order", "stages", "orders"),
    [
        ("[0, 1, 1]", "[0, 1, 2]", [0, 1, 1, 1, 1], [0, 1, 2, 3, 4]),
        ("[0, 1, 1]", "[1, 2, 0]", [0, 1, 1, 1, 1], [1, 2, 3, 4, 0]),
        ("[0, 1, 1, 1, 1]", "[0, 1, 2, 3, 4]", [0, 1, 1, 1, 1], [0, 1, 2, 3, 4]),
    ],
)
def test_a_pipeline_of_threads_in_one_may_be_named_once(stage, order, stages, orders):
    """TVM's pass expands it first, and counts what comes of it."""
    text = f"""
            for k in T.serial(4, stage={stage}, order={order}):
                with T.sblock("a"):
                    T.evaluate(0)
                for n in T.serial(4, stage=[0, 1], order=[0, 1]):
                    with T.sblock("b"):
                        T.evaluate(1)
                    with T.sblock("c"):
                        T.evaluate(2)
                with T.sblock("d"):
                    T.evaluate(3)
"""
    found = pipelines_of(parse(BY_THREADS + text[1:]))
    assert found == [[stages, [0, 1]], [orders, [0, 1]]]


def without_request(block):
    return ir.with_block(block, annotations={})
