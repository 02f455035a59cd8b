"""PartitionRegisterArrays: a register array has no dimension of threads."""

from __future__ import annotations

from tests.transforms.scripts import check, check_other_kernel_stays, parse, run
from tvm_hopper import ir
from tvm_hopper.transforms.memory_bound.partition_register_arrays import (
    PartitionRegisterArrays,
    plan_parts,
)

BEFORE = """
@T.prim_func(private=True, s_tir=True)
def func(X: T.Buffer((8, 4096), "float16"), Y: T.Buffer((8, 4096), "float16")):
    for bx in T.thread_binding(
        8, thread="blockIdx.x", annotations={"tvm_hopper.memory_bound": "pointwise"}
    ):
        for tx in T.thread_binding(256, thread="threadIdx.x"):
            with T.sblock("kernel"):
                part = T.sblock_alloc_buffer((2, 256, 8), "float16", scope="local")
                for c in T.unroll(2):
                    for v in T.vectorized(8):
                        with T.sblock("load"):
                            T.reads(X[bx, c * 2048 + tx * 8 + v])
                            T.writes(part[c, tx, v])
                            part[c, tx, v] = X[bx, c * 2048 + tx * 8 + v]
                for c in T.unroll(2):
                    for v in T.vectorized(8):
                        with T.sblock("store"):
                            T.reads(part[c, tx, v])
                            T.writes(Y[bx, c * 2048 + tx * 8 + v])
                            Y[bx, c * 2048 + tx * 8 + v] = part[c, tx, v]
"""
AFTER = BEFORE.replace("(2, 256, 8)", "(2, 1, 8)").replace("part[c, tx, v]", "part[c, 0, v]")
MARK = 'annotations={"tvm_hopper.memory_bound": "pointwise"}'


def test_each_thread_has_its_part():
    check(run(parse(BEFORE), PartitionRegisterArrays()), parse(AFTER))


def test_again_finds_nothing():
    got = run(parse(AFTER), PartitionRegisterArrays())
    (kernel,) = ir.kernels(got)
    assert plan_parts(kernel) == ()
    check(got, parse(AFTER))


def test_other_kernels_stay():
    ours = parse(BEFORE)
    check_other_kernel_stays(ours, run(ours, PartitionRegisterArrays()), PartitionRegisterArrays())
    plain = parse(BEFORE, (MARK, "annotations={}"))
    check(run(plain, PartitionRegisterArrays()), plain)


def test_an_array_that_a_thread_reads_elsewhere_stays():
    crossed = parse(BEFORE, ("v] = part[c, tx, v]", "v] = part[c, 255 - tx, v]"))
    check(run(crossed, PartitionRegisterArrays()), crossed)


def test_shared_memory_stays():
    shared = parse(BEFORE, ('scope="local"', 'scope="shared"'))
    check(run(shared, PartitionRegisterArrays()), shared)


def test_an_array_whose_pointer_is_handed_on_keeps_its_order():
    text = BEFORE.replace(
        "                            Y[bx, c * 2048 + tx * 8 + v] = part[c, tx, v]",
        '                            T.evaluate(T.call_extern("int32", "f", part.data))',
    )
    check(run(parse(text), PartitionRegisterArrays()), parse(text))


def test_a_length_known_at_run_time_is_the_most_it_can_be():
    text = BEFORE.replace("X: T.Buffer", "n: T.int32, X: T.Buffer")
    symbolic = parse(text, ("(2, 256, 8)", "(T.min(n, 2), 256, 8)"))
    after = AFTER.replace("X: T.Buffer", "n: T.int32, X: T.Buffer")
    check(run(symbolic, PartitionRegisterArrays()), parse(after))


def test_a_length_without_a_bound_stays():
    text = BEFORE.replace("X: T.Buffer", "n: T.int32, X: T.Buffer")
    free = parse(text, ("(2, 256, 8)", "(n, 1, 8)"), ("part[c, tx, v]", "part[c, 0, v]"))
    check(run(free, PartitionRegisterArrays()), free)
