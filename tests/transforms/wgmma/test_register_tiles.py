"""Local buffers that are computed with an accumulator: layout, registers, pipelined loops."""

from tvm import tirx

from tests.transforms.refusals.products import ACCUMULATOR, BLOCK, IN_REGISTERS, PRODUCT, STORE
from tests.transforms.scripts import check, deeper, nest, parse, run
from tvm_hopper import ir
from tvm_hopper.facts.arch import SM_90A
from tvm_hopper.transforms.wgmma.lower_wgmma import LowerWgmma
from tvm_hopper.transforms.wgmma.lower_wgmma_plan import plan_mma

LOAD_A = '"load_a", reads=[], writes=[], async_copy="tma", swizzle=0'
LOOPS = "                for i, j in T.grid(64, 8):\n"
FILL = LOOPS + nest(PRODUCT, '"init"')
TOTAL = ACCUMULATOR.replace("acc", "total")
ADD = (
    LOOPS
    + """                    with T.sblock("add"):
                        total[i, j] = total[i, j] + acc[i, j]
"""
)
STEPS = "                for q in T.serial(4, stage=[0, 0, 2, 2, 2], order=[0, 1, 2, 3, 4]):\n"
COPIES = "".join(
    f"                for p, r, s in T.grid(1, {n}, 16):\n" + nest(PRODUCT, f'"load_{x}"')
    for x, n in (("a", 64), ("b", 8))
)
# Each of four steps is a sum of its own, from zero; registers add them up.
PARTIAL_SUMS = (
    (ACCUMULATOR, TOTAL + ACCUMULATOR),
    (FILL, FILL.replace("acc", "total")),
    (COPIES + BLOCK, STEPS + deeper(COPIES + FILL + BLOCK + ADD)),
    (STORE, STORE.replace("acc", "total")),
)
ADDED = """
def added():
    with T.sblock("", reads=[], writes=[]):
        total = T.sblock_alloc_buffer((4,), scope="local")
        acc = T.sblock_alloc_buffer((4,), scope="local")
        with T.sblock("add", reads=[total[0:4], acc[0:4]], writes=[total[0:4]]):
            for h in T.serial(2, pragma_unroll=2):
                total[h * 2] = total[h * 2] + acc[h * 2]
                total[h * 2 + 1] = total[h * 2 + 1] + acc[h * 2 + 1]
"""


def test_what_rows_need_is_loaded_before_a_loop_that_loses_a_stage():
    """The left operand is computed with a value of its row, and partial sums are added up."""
    convert = """                for i, k in T.grid(64, 16):
                    with T.sblock("convert"):
                        f[i, k] = T.Cast("float16", a[0, i, k]) * S[i]
"""
    block = BLOCK.replace("a[0, i, k]", "f[i, k]")
    steps = STEPS.replace("[0, 0, 2, 2, 2]", "[0, 0, 2, 2, 2, 2]").replace("3, 4]", "3, 4, 5]")
    declared, _, narrow, *_ = IN_REGISTERS
    operand = ACCUMULATOR.replace("acc", "f").replace("8)", '16), "float16"')
    func = parse(
        PRODUCT,
        (FILL, FILL.replace("acc", "total")),
        (COPIES + BLOCK, steps + deeper(COPIES + FILL + convert + block + ADD)),
        (STORE, STORE.replace("acc", "total")),
        (ACCUMULATOR, TOTAL + ACCUMULATOR + operand),
        ('"load_a", reads=[], writes=[], async_copy="tma", swizzle=32', LOAD_A),
        ("a[p, r, s] = A[r, s]", "a[p, r, s] = W[r, s]"),
        declared,
        narrow,
    )
    got = run(func, LowerWgmma())
    (loop,) = ir.find_all(got.body, ir.For, lambda x: x.loop_var.name == "q")
    filled = [x for x in ir.find_all(got.body, ir.BufferStore) if x.buffer.name == "S_rows"]
    assert filled
    assert not ir.find_all(loop, ir.BufferStore, lambda x: x.buffer.name == "S_rows")


def test_what_is_added_up_has_the_layout_of_the_product():
    (plan,) = plan_mma(ir.kernels(parse(PRODUCT, *PARTIAL_SUMS))[0], SM_90A)
    assert [x.buffer.name for x in plan.computed] == ["total"]
    assert [x.realize.block.name_hint for x in plan.nests] == ["init", "init", "add", "store"]


def test_a_step_begins_from_zero_and_registers_are_added():
    """The fill of the partial sum is gone, and its stage; that of the whole sum stays."""
    got = run(parse(PRODUCT, *PARTIAL_SUMS), LowerWgmma())
    (loop,) = ir.find_all(got.body, ir.For, lambda x: x.loop_var.name == "q")
    assert list(loop.annotations["software_pipeline_stage"]) == [0, 0, 2, 2]
    assert list(loop.annotations["software_pipeline_order"]) == [0, 1, 2, 3]
    check(*(the_block(x, "add") for x in (got, parse(ADDED))))
    text = got.script()
    assert text.count("T.float32(0") == 1
    assert "T.bool(False), 1, 1, 0, 0" in text


ROW = ACCUMULATOR.replace("acc", "row").replace("(64, 8)", "(64,)")
ROWS = """                for i in range(64):
                    with T.sblock("{}"):
                        {}
"""
ROW_SUMS = (
    (ACCUMULATOR, ACCUMULATOR + ROW),
    (FILL, FILL + ROWS.format("zero", "row[i] = T.float32(0)")),
    (STORE, STORE.replace("C[i, j] = acc[i, j]", "row[i] = row[i] + acc[i, j] * acc[i, j]\n")),
)
LEFT = ROWS.format("left", "C[i, 0] = T.sqrt(row[i])")
SUMMED = """
def summed():
    with T.sblock("", reads=[], writes=[]):
        acc = T.sblock_alloc_buffer((4,), scope="local")
        row = T.sblock_alloc_buffer((2,), scope="local")
        with T.sblock("store", reads=[row[0:2], acc[0:4]], writes=[row[0:2]]):
            row_partial = T.sblock_alloc_buffer((2,), scope="local")
            for h in T.serial(2, pragma_unroll=2):
                row_partial[h] = T.float32(0)
            for h in T.serial(2, pragma_unroll=2):
                row_partial[h] = row_partial[h] + acc[h * 2] * acc[h * 2]
                row_partial[h] = row_partial[h] + acc[h * 2 + 1] * acc[h * 2 + 1]
            for h in T.serial(2, pragma_unroll=2):
                row_partial[h] = row_partial[h] + T.tvm_warp_shuffle_xor(T.uint32(4294967295),
                    row_partial[h], 1, 32, 32)
                row_partial[h] = row_partial[h] + T.tvm_warp_shuffle_xor(T.uint32(4294967295),
                    row_partial[h], 2, 32, 32)
                row[h] = row[h] + row_partial[h]
"""


def test_rows_are_added_up_in_the_thread_and_by_shuffles():
    """One of the four threads of a row stores what all of them have."""
    changes = (*ROW_SUMS[:2], (STORE, ROW_SUMS[2][1].rstrip("\n") + "\n" + LEFT))
    got = run(parse(PRODUCT, *changes), LowerWgmma())
    check(*(the_block(x, "store") for x in (got, parse(SUMMED))))
    (left,) = ir.find_all(got.body, ir.SBlock, lambda x: x.name_hint == "left")
    (guard,) = ir.find_all(left.body, ir.IfThenElse)
    assert str(guard.condition).endswith("% 4 == 0")


def the_block(func, name):
    (found,) = ir.find_all(func.body, ir.SBlockRealize, lambda x: x.block.name_hint == name)
    return tirx.PrimFunc([], found)
