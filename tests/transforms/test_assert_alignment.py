"""RequireAlignment and AssertAlignment: wide accesses are found, and checked on the host."""

import tvm
from tvm import tirx
from tvm.script import tirx as T

from tests.transforms.scripts import check, parse, run
from tvm_hopper import ir
from tvm_hopper.transforms.assert_alignment import (
    AssertAlignment,
    RequireAlignment,
    plan_asserts,
    plan_requirements,
)

NOTE = "tvm_hopper.alignment"


@T.prim_func(private=True, s_tir=True)
def wide(
    A: T.Buffer((64, 64), "float16"),
    B: T.Buffer((64, 64), "float16"),
    C: T.Buffer((64, 64), "float16"),
    D: T.Buffer((64, 64), "float32"),
):
    A_map: T.let[T.handle("tensormap")] = T.tvm_stack_alloca("tensormap", 1)
    T.call_packed("runtime.cuTensorMapEncodeTiled", A_map, "float16", 2, A.data)
    for tx in T.thread_binding(64, thread="threadIdx.x"):
        for e in T.vectorized(8):
            C[tx, e] = B[tx, e]
        for e in T.vectorized(2):
            C[tx, 8 + e] = B[tx, e]
        for e in T.vectorized(2):
            D[tx, e] = T.float32(0)
        D[tx, 3] = T.float32(0)


def test_each_tensor_s_widest_access():
    """A through a tensor map, C by 8 x 2 and 2 x 2 bytes, D by 2 x 4; B is only read."""
    found = {need.tensor: need.num_bytes for need in plan_requirements(wide)}
    assert found == {"A": 16, "C": 16, "D": 8}
    got = run(wide, RequireAlignment())
    assert [x if isinstance(x, str) else int(x) for x in got.attrs[NOTE]] == [
        "A", 16, "C", 16, "D", 8,
    ]  # fmt: skip


def test_narrow_accesses_need_nothing():
    @T.prim_func(private=True, s_tir=True)
    def narrow(C: T.Buffer((64,), "float16")):
        for tx in T.thread_binding(64, thread="threadIdx.x"):
            C[tx] = T.float16(0)

    assert run(narrow, RequireAlignment()).same_as(narrow)


HOST = """
@T.prim_func(private=True, s_tir=True)
def func(args: T.handle):
    A = T.decl_buffer((64, 64), "float16", data=FIRST)
    A_1 = T.decl_buffer((4096,), "float16", data=A.data)
    D = T.decl_buffer((64, 64), "float32", data=SECOND)
    T.call_packed("use", A_1.data, D.data)
"""


def packed():
    return parse(
        HOST,
        ("FIRST", 'T.tvm_struct_get(args, 0, 1, T.handle("float16").ty)'),
        ("SECOND", 'T.tvm_struct_get(args, 1, 1, T.handle("float32").ty)'),
    )


def host(*needs):
    func = packed().with_attr("tirx.is_entry_func", True)
    return func.with_attr(NOTE, list(needs)) if needs else func


def test_a_check_stands_in_front_of_each_tensor_and_of_no_view():
    got = run(host("A", 16), AssertAlignment())
    statements = ir.statements(got.body)
    kinds = [type(x).__name__ for x in statements]
    assert kinds == ["AssertStmt", "DeclBuffer", "DeclBuffer", "DeclBuffer", "Evaluate"]
    check_, declared = statements[:2]
    pointer = tirx.reinterpret("uint64", declared.data)
    rest = tirx.bitwise_and(pointer, tirx.IntImm("uint64", 15))
    tvm.ir.assert_structural_equal(check_.condition, rest.equal(tirx.IntImm("uint64", 0)))
    assert "A: found a start address that is no multiple of 16 bytes" in str(check_)


def test_again_finds_nothing():
    got = run(host("A", 16, "D", 8), AssertAlignment())
    assert plan_asserts(got) == ()
    check(run(got, AssertAlignment()), got)


def test_other_functions_stay():
    plain = host()
    assert run(plain, AssertAlignment()).same_as(plain)
    device = packed().with_attr(NOTE, ["A", 16])  # not the entry that receives the tensors
    assert run(device, AssertAlignment()).same_as(device)
