"""WidenIndices: tensors that 32 bits may not reach are indexed by 64."""

import pytest
import tvm
from tvm import tirx

from tests.transforms.scripts import check, parse, run
from tvm_hopper import ir
from tvm_hopper.transforms.launch.widen_indices import WidenIndices, is_large

# 2**31 elements: the last one is at 2**31 - 1, which an int32 holds, but not the end of a row
KERNEL = """
def func(C: T.Buffer((65536, 32768), "float16"), S: T.Buffer((65536,), "float16")):
    for bx in T.thread_binding(65536, thread="blockIdx.x"):
        with T.sblock("kernel", reads=[], writes=[]):
            own = T.sblock_alloc_buffer((2,), "float16", scope="local")
            T.attr("tvm_hopper", "hand_threaded", 1)
            own[0] = C[bx, 7]
            C[bx, own_index(bx)] = own[0] + S[bx]
""".replace("own_index(bx)", "bx // 2")

WIDE = (
    ("C[bx, 7]", 'C[T.Cast("int64", bx), T.Cast("int64", 7)]'),
    ("C[bx, bx // 2]", 'C[T.Cast("int64", bx), T.Cast("int64", bx // 2)]'),
)
SMALL = ("(65536, 32768)", "(65535, 32768)")


def test_large_tensors_and_no_others():
    check(run(parse(KERNEL), WidenIndices()), parse(KERNEL, *WIDE))


def test_tensors_that_32_bits_reach_stay():
    small = parse(KERNEL, SMALL)
    check(run(small, WidenIndices()), small)


def test_symbolic_tensors_are_taken_to_be_large():
    m = ir.Var("m", "int32")
    assert is_large(tirx.decl_buffer((m, 8), "float16", layout=None))
    assert not is_large(tirx.decl_buffer((m, 8), "float16", scope="local", layout=None))


SYMBOLIC = """
def func(X: T.handle):
    m = T.int32()
    C = T.match_buffer(X, (m, 32768), "float16")
    if m <= 65535:
        for bx in T.thread_binding(m, thread="blockIdx.x"):
            T.attr("tvm_hopper", "hand_threaded", 1)
            C[bx, 7] = T.float16(0)
"""


@pytest.mark.parametrize(
    ("condition", "large"),
    [
        ("m <= 65535", False),
        ("m <= 65536", True),
        ("m < 65536", False),
        ("m > 65535", True),
        ("m >= 4", True),
    ],
)
def test_the_host_s_condition_says_how_large_a_symbolic_tensor_is(condition, large):
    before = parse(SYMBOLIC, ("m <= 65535", condition))
    wide = ("C[bx, 7]", 'C[T.Cast("int64", bx), T.Cast("int64", 7)]')
    after = parse(SYMBOLIC, ("m <= 65535", condition), wide) if large else before
    check(run(before, WidenIndices()), after)


def test_the_other_branch_knows_the_opposite():
    branches = ("    if m <= 65535:\n", "    if m > 65535:\n        C[0, 0]\n    else:\n")
    before = parse(SYMBOLIC, branches)
    check(run(before, WidenIndices()), before)


@pytest.mark.parametrize(
    ("shape", "large"),
    [((2**31 - 1,), False), ((2**31,), True), ((65536, 32768), True), ((65536, 32767), False)],
)
def test_limit(shape, large):
    wide = tuple(tirx.IntImm("int64", extent) for extent in shape)
    assert is_large(tirx.decl_buffer(wide, "float16", layout=None)) is large


def test_other_kernel_stays():
    other = parse("""
    def other(X: T.Buffer((65536, 65536), "float16")):
        for bx in T.thread_binding(64, thread="blockIdx.x"):
            with T.sblock("fill"):
                X[bx, bx] = T.float16(0)
    """)

    ours = parse(KERNEL)
    both = ours.with_body(ir.seq(other.body.block.body, ours.body.block.body))
    got = run(both, WidenIndices())
    first, second = ir.kernels(got)
    assert first.same_as(ir.kernels(both)[0])
    want = ir.kernels(parse(KERNEL, *WIDE))[0]
    tvm.ir.assert_structural_equal(second, want, map_free_vars=True)


def test_offsets_of_pointers():
    def call(buffer, offset):
        pointer = f'T.tvm_access_ptr(T.type_annotation("float16"), {buffer}.data, {offset}, 8, 2)'
        return f'T.call_extern("int32", "f", {pointer})'

    narrow = "bx % 4 * 32768 + T.call_extern('int32', 'g', bx)"
    wide = (
        'T.Cast("int64", bx) % T.int64(4) * T.int64(32768) '
        "+ T.Cast('int64', T.call_extern('int32', 'g', bx))"
    )
    first = ("own[0] = C[bx, 7]", call("C", narrow))
    second = ("C[bx, bx // 2] = own[0] + S[bx]", call("S", narrow))
    got = run(parse(KERNEL, first, second), WidenIndices())
    check(got, parse(KERNEL, (first[0], call("C", wide)), second))
    check(run(got, WidenIndices()), got)


def test_kernels_bound_by_memory_are_ours_too():
    text = """
def func(X: T.Buffer((65536, 65536), "float16")):
    for bx in T.thread_binding(65536, thread="blockIdx.x", annotations=NOTES):
        with T.sblock("init"):
            X[bx, 0] = T.float16(0)
"""
    marked = parse(text, ("NOTES", '{"tvm_hopper.memory_bound": "pointwise"}'))
    (store,) = ir.find_all(run(marked, WidenIndices()).body, ir.BufferStore)
    assert {ir.dtype_of(x) for x in store.indices} == {"int64"}
    plain = parse(text, ("NOTES", "{}"))
    check(run(plain, WidenIndices()), plain)
