"""Stores of an accumulator's registers into a shared tile: matrices, pairs, parts."""

import pytest
import tvm
from tvm.ir import Call

from tests.transforms.scripts import notes_of, parse, run
from tvm_hopper import ir
from tvm_hopper.requests.keys import DISJOINT_WRITES
from tvm_hopper.transforms import LowerWgmma
from tvm_hopper.transforms.common.explain_notes import StoreNote

SCRIPT = """
def func(A: T.Buffer((64, 16), "float16"), C: T.Buffer((64, 32), "DTYPE")):
    for bx in T.thread_binding(1, thread="blockIdx.x"):
        with T.sblock(""):
            acc = T.sblock_alloc_buffer((64, 32), scope="local")
            a = T.sblock_alloc_buffer((1, 64, 16), "float16", scope="shared.dyn", align=256)
            b = T.sblock_alloc_buffer((1, 32, 16), "float16", scope="shared.dyn", align=256)
            tile = T.sblock_alloc_buffer((1, 64, WIDTH), "DTYPE", scope="shared.dyn", align=128)
            for p, r, s in T.grid(1, 64, 16):
                with T.sblock("load_a", async_copy="tma", swizzle=32):
                    a[p, r, s] = A[r, s]
            for p, r, s in T.grid(1, 32, 16):
                with T.sblock("load_b", async_copy="tma", swizzle=32):
                    b[p, r, s] = A[r, s]
            with T.sblock("update", reads=[acc[0:64, 0:32], a[0, 0:64, 0:16], b[0, 0:32, 0:16]],
                writes=[acc[0:64, 0:32]], wgmma=1):
                for i, j, k in T.grid(64, 32, 16):
                    acc[i, j] = acc[i, j] + T.Cast("float32", a[0, i, k] * b[0, j, k])
            for part in range(PARTS):
                for i, j in T.grid(64, WIDTH):
                    with T.sblock("stage"):
                        tile[0, i, j] = T.Cast("DTYPE", acc[i, part * WIDTH + j])
                for p, r, s in T.grid(1, 64, WIDTH):
                    with T.sblock("store", async_copy="tma", swizzle=0):
                        C[r, part * WIDTH + s] = tile[p, r, s]
"""


def lower(dtype="float16", width=32):
    """Return the block that fills the tile, and the function."""
    script = SCRIPT.replace("DTYPE", dtype).replace("WIDTH", str(width))
    func = run(parse(script.replace("PARTS", str(32 // width))), LowerWgmma())
    (block,) = ir.find_blocks(func.body, DISJOINT_WRITES)
    return block, func


def calls(block):
    return ir.find_all(block, Call, lambda x: x.op.name == "tirx.ptx.stmatrix")


def evaluate(expr, **values):
    values = {"subtile": 0, "part": 0, **values}
    named = {var: values[var.name] for var in ir.find_all(expr, ir.Var) if var.name in values}
    return int(ir.simplify(ir.substitute(expr, named)))


def test_a_lane_points_to_its_row_of_a_matrix():
    block, func = lower()
    (call,) = calls(block)
    (address,) = ir.find_all(call, Call, lambda x: x.op.name == "tirx.address_of")
    _, row, column = address.args[0].indices
    # Lanes 0 to 15: rows of the first eight columns; 16 to 31: the same rows, eight columns on.
    for thread, g, want in ((0, 0, (0, 0)), (9, 0, (9, 0)), (16, 0, (0, 8)), (63, 1, (31, 24))):
        at = tuple(evaluate(x, threadIdx_x=thread, g=g) for x in (row, column))
        assert at == want
    (note,) = (x for x in notes_of(func) if isinstance(x, StoreNote))
    assert (note.tensor, note.num_bytes) == ("tile", 16)


def test_words_hold_the_registers_of_one_matrix_each():
    block, _ = lower()
    stores = ir.find_all(block, ir.BufferStore)
    read = [evaluate(x.value.value.indices[0], g=1) for x in stores]
    assert read == [8, 9, 10, 11, 12, 13, 14, 15]
    assert [int(x.indices[0]) for x in stores] == [0, 1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("width", [8, 16])
def test_a_part_begins_in_the_middle_of_an_instruction(width):
    block, func = lower(width=width)
    (loop,) = ir.find_all(func.body, ir.For, lambda x: x.loop_var.name == "part")
    assert int(loop.annotations["pragma_unroll"]) == 32 // width
    first = ir.find_all(block, ir.BufferStore)[0].value.value.indices[0]
    assert evaluate(first, part=1, g=0) == width // 2  # four registers for each eight columns
    (call,) = calls(block)
    num = {8: "x2", 16: "x4"}[width]
    assert num in [str(getattr(x, "value", "")) for x in call.args]


def test_other_types_are_stored_as_pairs():
    block, _ = lower("float32")
    assert not calls(block)
    vectors = ir.find_all(block, ir.For, lambda x: x.kind == ir.ForKind.VECTORIZED)
    assert [int(x.extent) for x in vectors] == [2]


def test_nothing_is_left_to_plan():
    _, func = lower()
    tvm.ir.assert_structural_equal(run(func, LowerWgmma()).body, func.body)


def test_functions_are_computed_in_front_of_the_stores_that_they_are_for():
    plain, _ = lower()
    script = SCRIPT.replace("DTYPE", "float16").replace("WIDTH", "32").replace("PARTS", "1")
    script = script.replace("acc[i, part * 32 + j])", "T.exp(acc[i, part * 32 + j]))")
    (block,) = ir.find_blocks(run(parse(script), LowerWgmma()).body, DISJOINT_WRITES)
    fences = [
        ir.find_all(x, Call, lambda x: x.op.name == "tirx.tvm_hopper_code_fence")
        for x in (plain, block)
    ]
    assert [len(x) for x in fences] == [0, 1]
    (branch,) = ir.find_all(block, ir.IfThenElse)
    assert [evaluate(branch.condition, g=g) for g in range(5)] == [1, 0, 0, 0, 1]


READS = (
    ("            for p, r, s in T.grid(1, 32, 16):",
     "            x = T.sblock_alloc_buffer((PANELS, 64, COLUMNS), \"float16\", "
     "scope=\"shared.dyn\")\n"
     "            for p, r, s in T.grid(1, 32, 16):"),
    ("acc[i, part * 32 + j])", "acc[i, part * 32 + j] + T.Cast(\"float32\", x[PLACE]))"),
)  # fmt: skip


@pytest.mark.parametrize(
    ("panels", "columns", "place", "pairs"),
    [
        (1, 32, "0, i, j", 2),
        (2, 16, "j // 16, i, j % 16", 2),  # panels: which one depends on the column
        (1, 36, "0, i, j + 4", 2),
        (1, 34, "0, i, j + 1", 0),
        (1, 64, "0, i, j * 2", 0),
        (2, 18, "j // 17, i, j % 17", 0),
    ],
)
def test_neighbours_of_a_shared_tile_are_loaded_together(panels, columns, place, pairs):
    script = SCRIPT.replace("DTYPE", "float16").replace("WIDTH", "32").replace("PARTS", "1")
    for old, new in READS:
        assert old in script
        script = script.replace(old, new, 1)
    script = script.replace("PANELS", str(panels)).replace("COLUMNS", str(columns))
    (block,) = ir.find_blocks(
        run(parse(script.replace("PLACE", place)), LowerWgmma()).body, DISJOINT_WRITES
    )
    loads = ir.find_all(block, ir.For, lambda x: x.kind == ir.ForKind.VECTORIZED)
    found = [x.body.value for x in loads]
    assert len(found) == 2 * pairs  # of sixteen rows and sixteen columns
    assert all(x.source.name == "x" for x in found)
