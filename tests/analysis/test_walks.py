"""Walks of statements say what TVM's own do, and end where the answer is known."""

import tvm_ffi
from tvm import tirx
from tvm.script import tirx as T

from tvm_hopper import ir
from tvm_hopper.analysis.launches import conditions_around


@T.prim_func(private=True, s_tir=True)
def sums(A: T.Buffer((8, 8), "float32"), B: T.Buffer((8,), "float32"), n: T.int32):
    for i in T.serial(8):
        B[i] = T.float32(0)
        for j in range(8):
            if j < n:
                B[i] = B[i] + A[i, j]


KINDS = (ir.For, ir.Stmt, ir.BufferStore, ir.TensorLoad, ir.Var, ir.IfThenElse, ir.SBlock)


def test_walks_find_what_those_of_tvm_find():
    for kind in KINDS:
        wanted = []
        tvm_ffi.structural_walk(sums.body, [(kind, wanted.append)], order="pre")
        found = ir.find_all(sums.body, kind)
        assert len(found) == len(wanted)
        assert all(a.same_as(b) for a, b in zip(found, wanted, strict=True))


def test_a_walk_ends_where_the_answer_is_known():
    seen = []
    assert ir.has_any(sums.body, ir.For, lambda loop: not seen.append(loop))
    assert len(seen) == 1
    assert not ir.has_any(sums.body, tirx.While, lambda _: True)


def test_a_walk_leaves_out_what_a_callback_skips():
    seen = []
    skip = tvm_ffi.WalkResult.SKIP
    ir.visit(sums.body, [(ir.For, lambda loop: (seen.append(loop), skip)[1])])
    assert [loop.loop_var.name for loop in seen] == ["i"]


def test_conditions_of_what_stands_in_a_condition_are_those_around_it():
    (branch,) = ir.find_all(sums.body, ir.IfThenElse)
    assert conditions_around(sums.body, branch) == ()
    assert conditions_around(sums.body, branch.condition) == ()
    (around,) = conditions_around(sums.body, branch.then_case)
    assert around.holds
    assert around.condition.same_as(branch.condition)
    assert conditions_around(sums.body, tirx.Evaluate(0)) == ()
