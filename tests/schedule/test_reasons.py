"""TVM's reasons reach a user in whole sentences, with the names of the program, or not at all."""

import pytest
from tvm import s_tir, te

from tests.schedule.programs import module, product, tensor
from tvm_hopper import schedule as hs
from tvm_hopper.errors import ScheduleError
from tvm_hopper.schedule.reasons import TVM_ERRORS, formula_of, in_words, tvm_reason
from tvm_hopper.testing import workloads


def error_of(primitive, **options):
    sch = s_tir.Schedule(workloads.matmul(64, 64, 64, epilogue=("relu",)), **options)
    with pytest.raises(TVM_ERRORS) as error:
        primitive(sch)
    return error.value


def test_names_of_blocks_and_loops():
    def decompose(sch):
        i, j, k = sch.get_loops("C")
        sch.reorder(k, i, j)
        sch.decompose_reduction("C", j)

    text = tvm_reason(error_of(decompose))
    assert "to be higher than all the loops related to reduce block var of block C" in text
    assert "loop i1" in text
    assert "#" not in text


def test_a_program_is_never_quoted():
    text = tvm_reason(error_of(lambda sch: sch.compute_inline("C")))
    assert text == "The block has init statement: block C"


@pytest.mark.parametrize("level", ["none", "fast", "detail"])
def test_every_level_of_tvm_s_own_errors(level):
    error = error_of(lambda sch: sch.compute_inline("C"), error_render_level=level)
    assert tvm_reason(error) in ("", "The block has init statement", tvm_reason(error))
    assert "\n" not in tvm_reason(error)
    assert in_words(error) == (f" ({tvm_reason(error)})" if level != "none" else "")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("Check failed: (node.defined()) is false: Cannot dispatch a null expression", ""),
        ("Error message: ScheduleError: One.\nTwo is not said.", "One"),
        ("Error message: in form of `A[f(i, ...)] ...`, and\n  no more. Not this", "in form of "),
        ("Error message: the block s_tir.SBlock#3 is odd", "it is odd"),
        (
            '# s_tir.SBlock#3\nwith T.sblock("D"):\nError message: the block s_tir.SBlock#3 is odd',
            "block D is odd",
        ),
        ("Error message: The scope s_tir.SBlock#0 is not a stage pipeline.", "a block next to it"),
        ("Error message: The body of the inlined block should be in form of\n `B", "it reads a t"),
        ("", ""),
    ],
)
def test_texts(text, reason):
    found = tvm_reason(RuntimeError(text))
    assert found.startswith(reason)
    assert bool(found) == bool(reason)
    assert "#" not in found


def test_a_whole_sentence_with_dots_in_it():
    text = "Error message: in form of `A[f(i, ...)] ...`, and\n  no more. Not this"
    assert tvm_reason(RuntimeError(text)) == "in form of `A[f(i, ...)] ...`, and no more"


def test_formula_of_a_block():
    sch = s_tir.Schedule(workloads.matmul(64, 64, 64))
    node = sch.get(sch.get_sblock("C"))
    want = "C[v_i0, v_i1] computed from C[v_i0, v_i1], A[v_i0, v_k], B[v_i1, v_k]"
    assert formula_of(node) == want
    outer = sch.get(sch.blockize(sch.get_loops("C")[1]))
    assert formula_of(outer).startswith("a loop, computed from C[")
    xs = [te.placeholder((8,), "float32", name=f"X{i}") for i in range(6)]
    total = te.compute((8,), lambda i: sum((x[i] for x in xs[1:]), xs[0][i]), name="sum")
    constant = te.compute((8,), lambda i: te.const(1, "float32"), name="one")
    sch = s_tir.Schedule(module(*xs, total, constant))
    texts = {name: formula_of(sch.get(sch.get_sblock(name))) for name in ("sum", "one")}
    assert texts["sum"].endswith("X0[v_i], X1[v_i], X2[v_i], X3[v_i], ...")
    assert texts["one"] == "one[v_i] computed from no tensor"


# -- prologues: what to do is not what the program does already


def test_a_cast_that_is_no_part_of_the_product():
    a = tensor(64, 64, dtype="int16", name="Aq")
    wide = te.compute(a.shape, lambda *i: a(*i).astype("float16"), name="Aw")
    b = tensor(64, 64, dtype="float16", name="B")
    sch = s_tir.Schedule(module(a, b, product(wide, b)))
    match = (
        r"block Aw: found a cast of Aq from int16 to float16 before the matmul C; need float16 or "
        r".* in memory, casts to float32 or float64 alone, .*; bind the rest to threads first"
    )
    with pytest.raises(ScheduleError, match=match):
        hs.matmul(sch, "C")


@pytest.mark.parametrize("relu", [False, True])
def test_a_product_that_is_to_be_scheduled_first(relu):
    a, b, e = (tensor(64, 64, dtype="float16", name=name) for name in "ABE")
    c = product(a, b)
    if relu:
        c = te.compute(c.shape, lambda *i: te.max(c(*i), te.const(0, "float32")), name="R")
    h = te.compute(c.shape, lambda *i: c(*i).astype("float16"), name="H")
    sch = s_tir.Schedule(module(a, b, e, product(h, e, "G")))
    found = "a cast of . from float32 to float16"
    match = rf"block H: found {found} before the matmul G; .*; schedule block C first, whose store"
    with pytest.raises(ScheduleError, match=match):
        hs.matmul(sch, "G")
