"""approximate_functions: activations whose results are rounded to 16 bits."""

import pytest
import tvm
import tvm_ffi
from tvm import s_tir, te, tirx

import tvm_hopper
from tests.transforms.scripts import check, parse, run
from tvm_hopper import ir, pipeline, schedule as hs
from tvm_hopper.codegen_patches.approximations import IN_TURNS
from tvm_hopper.requests.keys import FUNCTIONS
from tvm_hopper.testing.tiling import product_of
from tvm_hopper.transforms.common.explain_notes import RemarkNote, read_notes
from tvm_hopper.transforms.math.approximate_functions import approximate_functions

KERNEL = """
def func(A: T.Buffer((64, 128), "float32"), D: T.Buffer((64, 128), "float16")):
    for bx in T.thread_binding(2, thread="blockIdx.x"):
        with T.sblock("outer", reads=[A[0:64, bx * 64:bx * 64 + 64]],
            writes=[D[0:64, bx * 64:bx * 64 + 64]]):
            tile = T.sblock_alloc_buffer((64, 64), scope="shared.dyn")
            for i, j in T.grid(64, 64):
                with T.sblock("copy", async_copy="tma"):
                    tile[i, j] = A[i, bx * 64 + j]
            for i in range(64):
                for j in LOOP(64):
                    with T.sblock("store", reads=[tile[i, j]], writes=[D[i, bx * 64 + j]]):
                        D[i, bx * 64 + j] = T.Cast("float16", VALUE)
"""
TANH = "T.float32(0.5) * tile[i, j] * (T.float32(1) + T.tanh(tile[i, j]))"


def kernel(value=TANH, loop="range"):
    """Return a kernel that stores a value."""
    return parse(KERNEL.replace("VALUE", value).replace("LOOP", loop))


def short(func):
    """Return the value that is stored, as text."""
    (store,) = [x for x in ir.find_all(func.body, ir.BufferStore) if x.buffer.name == "D"]
    return store.value.script()


def test_one_plus_tanh():
    text = short(run(kernel(), approximate_functions))
    assert "tanh" not in text
    assert text.count("tvm_hopper_ex2_ftz") == text.count("tvm_hopper_rcp_in_turns") == 1
    assert "0.5" not in text  # it meets the 2 of the sum
    assert "-2.885" in text


@pytest.mark.parametrize(
    ("value", "names"),
    [
        ("T.sigmoid(tile[i, j])", ["exp", "rcp_in_turns"]),
        ("T.float32(1) - T.erf(tile[i, j])", ["ex2_ftz", "rcp_ftz", "fabs"]),
        ("T.tanh(tile[i, j]) * T.tanh(A[i, j])", ["ex2_ftz", "rcp_in_turns", "fabs"]),
    ],
    ids=["sigmoid", "erf", "two of them"],
)
def test_other_forms(value, names):
    text = short(run(kernel(value), approximate_functions))
    assert "erf(" not in text
    assert "T.tanh(" not in text
    assert all(name in text for name in names)


@pytest.mark.parametrize(
    ("value", "loop"),
    [("tile[i, j] * T.exp(tile[i, j])", "range"), (TANH, "T.vectorized")],
    ids=["no form", "vectorized"],
)
def test_what_stays_as_it_is(value, loop):
    func = kernel(value, loop)
    check(run(func, approximate_functions), func)


def test_kernels_without_copies_stay_as_they_are():
    text = KERNEL.replace("VALUE", TANH).replace("LOOP", "range")
    func = parse(text.replace(', async_copy="tma"', ""))
    check(run(func, approximate_functions), func)


@pytest.mark.parametrize("value", ["T.exp2(tile[i, j])", "tile[i, j] + T.exp2(tile[i, j])"])
def test_powers_of_two_in_kernels_of_products_are_the_chips(value):
    """Also where they stay float32; those of kernels that are bound by memory are CUDA's."""
    wide = ('D: T.Buffer((64, 128), "float16")', 'D: T.Buffer((64, 128), "float32")')
    text = KERNEL.replace("LOOP", "range").replace('T.Cast("float16", VALUE)', value)
    got = short(run(parse(text, wide), approximate_functions))
    assert ("exp2" in got, "tvm_hopper_ex2_ftz" in got) == (False, True)
    mark = ('thread="blockIdx.x"', 'thread="blockIdx.x", memory_bound="pointwise"')
    assert "exp2" in short(run(parse(text, wide, mark), approximate_functions))


def test_columns_take_turns_at_the_chips_reciprocal():
    (store,) = ir.find_all(run(kernel(), approximate_functions).body, ir.BufferStore, _is_output)
    (call,) = ir.find_all(store.value, ir.Call, lambda x: str(x.op.name) == f"tirx.{IN_TURNS}")
    (let,) = ir.find_all(store.value, tirx.Let, lambda x: x.var.same_as(call.args[1]))
    assert tvm_ffi.structural_equal(let.value, (store.indices[-1] % 2).equal(1))


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("form", ["untransposed", "transposed"])
def test_indices_stand_in_front_of_names_in_a_value(form):
    # TVM's CommonSubexprElim used them behind such a name before they were there
    a, b, total = product_of(64, 64, 64)
    half = te.const(0.5, "float32")
    out = te.compute((64, 64), lambda i, j: te.tanh(half * total[i, j]).astype("float16"), name="D")
    plain = te.create_prim_func([a, b, out])
    sch = s_tir.Schedule(plain)
    hs.matmul(sch, "C", hs.MatmulConfig(tile=(64, 64, 64), form=form))
    built = tvm.compile(sch.mod, "nvidia/nvidia-h200")
    assert tvm_hopper.verify(built, against=plain).verdict == "clean"
    tvm_hopper.cubin(built)


def test_what_is_bound_by_memory_leaves_it_to_the_chip():
    text = run(parse(ROWS), approximate_functions).body.script()
    assert ("in_turns" in text, text.count("tvm_hopper_rcp_ftz")) == (False, 1)


def _is_output(store):
    return store.buffer.name == "D"


ROWS = """
def func(A: T.Buffer((64, 128), "float16"), D: T.Buffer((64, 128), "float16")):
    for bx in T.thread_binding(64, thread="blockIdx.x", memory_bound="row_reduction"):
        for j in T.thread_binding(128, thread="threadIdx.x"):
            with T.sblock("work", reads=[A[bx, j]], writes=[D[bx, j]]):
                E = T.sblock_alloc_buffer((1,), scope="local")
                E[0] = T.exp(T.Cast("float32", A[bx, j]))
                D[bx, j] = T.Cast("float16", E[0] / (T.float32(1) + T.exp(E[0])))
"""


def test_exponentials_and_quotients_of_kernels_bound_by_memory():
    text = run(parse(ROWS), approximate_functions).body.script()
    assert "T.exp(" not in text
    assert " / " not in text
    assert text.count("tvm_hopper_ex2_ftz") == 2


def test_the_exponential_of_a_sigmoid_is_one_of_them():
    sigmoid = ("E[0] / (T.float32(1) + T.exp(E[0]))", "E[0] * T.sigmoid(E[0])")
    text = run(parse(ROWS, sigmoid), approximate_functions).body.script()
    assert "T.exp(" not in text
    assert "sigmoid" not in text
    assert text.count("tvm_hopper_ex2_ftz") == 2


def test_quotients_that_stay_float32_in_kernels_bound_by_memory():
    """Their exponential is CUDA's; without the mark of such a kernel the quotient is, too."""
    value = "E[0] / (T.float32(1) + T.exp(E[0]))"
    wide = (f'T.Cast("float16", {value})', value), ('128), "float16")):', '128), "float32")):')
    text = run(parse(ROWS, *wide), approximate_functions).body.script()
    assert text.count("tvm_hopper_rcp_approx") == 1
    assert "T.exp(E[0])" in text
    plain = parse(ROWS, *wide, (', memory_bound="row_reduction"', ""))
    check(run(plain, approximate_functions), plain)


GELU = (
    'T.Cast("float16", E[0] / (T.float32(1) + T.exp(E[0])))',
    'T.Cast("float16", T.float32(0.5) * E[0] * (T.float32(1) + T.erf(E[0] * T.float32(0.5**0.5))))',
)


def test_gelu_is_one_operator_there_and_explain_says_how_far_it_is_off():
    func = parse(ROWS, GELU).with_attr("target", tvm.target.Target("nvidia/nvidia-h200"))
    after = run(func, approximate_functions)
    assert "tvm_hopper_gelu_erf" in after.body.script()
    ((note,),) = read_notes(after).kernels.values()
    assert "1.2e-04 relative and 2.4e-07 absolute error" in note.text


def test_what_waits_for_a_result_of_float32_stays():
    wide = [('D: T.Buffer((64, 128), "float16")', 'D: T.Buffer((64, 128), "float32")')]
    wide.append(('T.Cast("float16", E[0] / (T.float32(1) + T.exp(E[0])))', "E[0]"))
    func = parse(ROWS, *wide)
    check(run(func, approximate_functions), func)


def test_the_library_by_the_option_and_the_chip_by_fast_math():
    func = kernel()
    asked = func.with_attr(FUNCTIONS, "library")
    check(run(asked, approximate_functions), asked)
    with tvm.transform.PassContext(config={"tirx.enable_fast_math": True}):
        check(run(func, approximate_functions), func)


def test_the_chips_tanh_by_the_option():
    text = short(run(kernel().with_attr(FUNCTIONS, "approximate"), approximate_functions))
    assert "tvm_hopper_tanh_approx" in text
    assert "ex2" not in text


def test_what_is_noted():
    func = run(kernel().with_attr("target", tvm.target.Target("nvidia/nvidia-h200")))
    func = run(func, approximate_functions)
    ((note,),) = read_notes(func).kernels.values()
    assert isinstance(note, RemarkNote)
    assert "1 + tanh(u)" in note.text
    assert '"library"' in note.text


def test_it_stands_in_front_of_the_registers():
    names = pipeline.passes.names(pipeline.passes.hook_passes())
    assert names.index("tvm_hopper.LowerFloatMath") < names.index("tvm_hopper.LowerWgmma")
