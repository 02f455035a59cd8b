"""RequireAlignment and AssertAlignment: wide accesses are found, and checked on the host."""

import tvm
from tvm import s_tir, tirx
from tvm.script import tirx as T

from tests.transforms.scripts import check, parse, run
from tvm_hopper import ir, pipeline
from tvm_hopper import schedule as hs
from tvm_hopper.testing import workloads
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
    """A through a tensor map, C by 8 x 2 and 2 x 2 bytes, D by 2 x 4; B is read by 8 x 2."""
    found = {need.argument: need.num_bytes for need in plan_requirements(wide)}
    assert found == {0: 16, 1: 16, 2: 16, 3: 8}
    got = run(wide, RequireAlignment())
    assert [int(x) for x in got.attrs[NOTE]] == [0, 16, 1, 16, 2, 16, 3, 8]


def test_what_copies_by_pointers_is_as_aligned_as_they_need():
    """A in bulk, B by chunks of 8 bytes; a tile is this package's own."""

    @T.prim_func(private=True, s_tir=True)
    def func(A: T.Buffer((64, 64), "float16"), B: T.Buffer((64, 64), "float16")):
        tile = T.alloc_buffer((64,), "float16", scope="shared.dyn")
        for tx in T.thread_binding(64, thread="threadIdx.x"):
            T.ptx["cp.async.bulk.global.shared::cta.bulk_group"](
                T.address_of(A[tx, 0]), T.address_of(tile[0]), T.uint32(128)
            )
            T.ptx["cp.async.ca.shared.global"](T.address_of(tile[0]), T.address_of(B[tx, 0]), 8)

    found = {need.argument: need.num_bytes for need in plan_requirements(func)}
    assert found == {0: 16, 1: 8}


def test_tensors_of_one_name_are_told_apart():
    @T.prim_func(private=True, s_tir=True)
    def func(A: T.Buffer((64, 64), "float16"), A_1: T.Buffer((64, 64), "float16"), n: T.int32):
        for tx in T.thread_binding(64, thread="threadIdx.x"):
            for e in T.vectorized(8):
                A_1[tx, e] = T.float16(0)
            A[tx, 0] = T.float16(0)

    named = ir.new_buffer("A", (64, 64), "float16", "global")
    _, second, n = func.params
    body = ir.reindex(func.body, second, named, list, list)
    twins = tirx.PrimFunc([func.params[0], named, n], body)
    assert [p.name for p in twins.params] == ["A", "A", "n"]
    assert [(x.argument, x.num_bytes) for x in plan_requirements(twins)] == [(1, 16)]


def test_loads_that_are_no_run_need_nothing():
    """TVM prints them one by one: a start that is unknown, and another dimension."""

    @T.prim_func(private=True, s_tir=True)
    def func(A: T.Buffer((64, 64), "float16"), B: T.Buffer((64, 63), "float16"), n: T.int32):
        for tx in T.thread_binding(8, thread="threadIdx.x"):
            out = T.alloc_buffer((8,), "float16", scope="local")
            for e in T.vectorized(8):
                out[e] = A[tx, n + e] + A[e, tx] + B[tx, e]

    assert plan_requirements(func) == ()


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
    func = packed().with_attr("calling_conv", 1)
    return func.with_attr(NOTE, list(needs)) if needs else func


def test_a_check_stands_in_front_of_each_tensor_and_of_no_view():
    got = run(host(0, 16), AssertAlignment())
    statements = ir.statements(got.body)
    kinds = [type(x).__name__ for x in statements]
    assert kinds == ["AssertStmt", "DeclBuffer", "DeclBuffer", "DeclBuffer", "Evaluate"]
    check_, declared = statements[:2]
    pointer = tirx.reinterpret("uint64", declared.data)
    rest = tirx.bitwise_and(pointer, tirx.IntImm("uint64", 15))
    tvm.ir.assert_structural_equal(check_.condition, rest.equal(tirx.IntImm("uint64", 0)))
    assert "A: found a start address that is no multiple of 16 bytes" in str(check_)


def test_again_finds_nothing():
    got = run(host(0, 16, 1, 8), AssertAlignment())
    assert plan_asserts(got) == ()
    check(run(got, AssertAlignment()), got)


def test_the_argument_is_found_behind_what_the_call_convention_binds():
    text = HOST.replace("    A = T", "    handle: T.let[T.handle] = HANDLE\n    A = T", 1)
    func = parse(
        text,
        ("HANDLE", "T.tvm_struct_get(args, 1, 15, T.handle().ty)"),
        ("FIRST", 'T.tvm_struct_get(handle, 0, 1, T.handle("float16").ty)'),
        ("SECOND", 'T.tvm_struct_get(args, 0, 1, T.handle("float32").ty)'),
    ).with_attr("calling_conv", 1)
    got = run(func.with_attr(NOTE, [0, 8]), AssertAlignment())
    assert "D: found a start address that is no multiple of 8" in str(got)
    assert "A: found" not in str(got)


def test_other_functions_stay():
    plain = host()
    assert run(plain, AssertAlignment()).same_as(plain)
    device = packed().with_attr(NOTE, [0, 16])  # not the entry that receives the tensors
    assert run(device, AssertAlignment()).same_as(device)


def test_every_entry_of_a_module_is_checked():
    """TVM marks an entry where there is one function alone; each one takes tensors."""
    functions = {}
    for name in ("one", "two"):
        sch = s_tir.Schedule(workloads.matmul(128, 128, 128))
        hs.matmul(sch, "C")
        functions[name] = sch.mod["main"].with_attr("global_symbol", name)
    host = pipeline.lower_final(tvm.IRModule(functions), "nvidia/nvidia-h200").host
    for func in host.functions.values():
        assert str(func).count("found a start address that is no multiple of") == 3
