"""Affine accesses: steps, starts and strides of what a nest touches."""

from tests.transforms.scripts import parse
from tvm_hopper import ir
from tvm_hopper.analysis.access import AffineAccess, step_of, strides_bytes

NEST = """
@T.prim_func(private=True, s_tir=True)
def func(a: T.handle, n: T.int32, m: T.int32):
    A = T.match_buffer(a, (64, 4, 128), "float16")
    for bx in T.thread_binding(4, thread="blockIdx.x"):
        for i, p, j in T.grid(8, 2, 64):
            A[bx * 8 + i, n, p * 64 + j] = T.float16(0)
"""


def access(*changes: tuple[str, str]) -> AffineAccess:
    (kernel,) = ir.kernels(parse(NEST, *changes))
    loops, store = ir.loop_nest(kernel.body)
    return AffineAccess(store.buffer, tuple(store.indices), tuple(loops))


def test_loops_move_along_dimensions_by_steps():
    found = access()
    i, p, j = found.loops
    assert [found.steps(loop) for loop in (i, p, j)] == [[1, 0, 0], [0, 0, 64], [0, 0, 1]]
    assert [found.axes([loop]) for loop in (i, p, j)] == [[0], [2], [2]]
    assert found.axes([i, j]) == [0, 2]


def test_a_step_that_changes_is_none():
    found = access(("p * 64 + j", "(j * j + p) % 128"))
    assert found.steps(found.loops[2])[2] is None


def test_a_start_keeps_what_other_loops_add():
    found = access()
    i, _, j = found.loops
    assert [str(x) for x in found.start([i, j])] == ["bx * 8", "n", "p * 64"]


def test_a_loop_is_over_a_dimension_if_its_variable_is_the_index():
    found = access(("bx * 8 + i", "i"))
    assert found.loop_of(0).same_as(found.loops[0])
    assert found.loop_of(1) is None
    assert found.loop_of(2) is None


def test_strides_are_bytes():
    assert [int(x) for x in access().strides_bytes] == [4 * 128 * 2, 128 * 2, 2]
    assert access().element_bytes == 2
    strided = access(('(64, 4, 128), "float16"', '(64, 4, 128), "float16", strides=(m, 200, 1)'))
    first, *rest = strides_bytes(strided.buffer)
    assert "m" in str(first)
    assert [int(x) for x in rest] == [400, 2]


def test_steps_of_expressions():
    found = access()
    i = found.loops[0].loop_var
    assert step_of(i * 3 + 1, i) == 3
    assert step_of(i * i, i) is None
