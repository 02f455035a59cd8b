"""RestoreAxisAnnotations: annotations of a bound loop return to its thread axis."""

from tests.transforms.scripts import check, parse, run
from tvm_hopper import ir
from tvm_hopper.transforms.prepare.restore_axis_annotations import RestoreAxisAnnotations

before = parse("""
def before(A: T.Buffer((4, 8), "float32"), B: T.Buffer((4, 8), "float32")):
    for by in T.thread_binding(4, thread="blockIdx.y"):
        for bx in T.thread_binding(8, thread="blockIdx.x"):
            for unit in T.serial(1, raster_group=2):
                B[by, bx] = A[by, bx + unit]
""")


after = parse("""
def after(A: T.Buffer((4, 8), "float32"), B: T.Buffer((4, 8), "float32")):
    for by in T.thread_binding(4, thread="blockIdx.y"):
        for bx in T.thread_binding(8, thread="blockIdx.x", raster_group=2):
            B[by, bx] = A[by, T.Add(bx, 0)]  # the loop's variable is 0 now
""")


def test_note_moves_to_the_axis_that_it_is_about():
    check(run(before, RestoreAxisAnnotations()), after)


def test_other_unit_loops_and_real_loops_stay():
    func = parse("""
    def func(A: T.Buffer((8,), "float32"), B: T.Buffer((8,), "float32")):
        for bx in T.thread_binding(8, thread="blockIdx.x"):
            for unit in T.serial(1, pragma_auto_unroll_max_step=1):
                for other in T.serial(2, raster_group=2):
                    B[bx] = A[bx + unit] + T.Cast("float32", other)
    """)

    assert run(func, RestoreAxisAnnotations()).same_as(func)


def test_each_kernel_gets_its_own_note():
    two = parse("""
    def two(A: T.Buffer((8,), "float32"), B: T.Buffer((8,), "float32")):
        for bx in T.thread_binding(8, thread="blockIdx.x"):
            for unit in T.serial(1, raster_group=2):
                B[bx] = A[bx + unit]
        for bx in T.thread_binding(8, thread="blockIdx.x"):
            A[bx] = B[bx]
    """)

    want = parse("""
    def want(A: T.Buffer((8,), "float32"), B: T.Buffer((8,), "float32")):
        for bx in T.thread_binding(8, thread="blockIdx.x", raster_group=2):
            B[bx] = A[T.Add(bx, 0)]
        for bx in T.thread_binding(8, thread="blockIdx.x"):
            A[bx] = B[bx]
    """)

    got = run(two, RestoreAxisAnnotations())
    check(got, want)
    assert ir.kernels(got)[1].same_as(ir.kernels(two)[1])
