"""AssertAlignment: the widest access of each argument is found, and checked on the host."""

import pytest
import tvm
from tvm import s_tir
from tvm.script import tirx as T

from tests.transforms.scripts import check, parse
from tvm_hopper import ir, pipeline, schedule as hs
from tvm_hopper.analysis.access_widths import access_widths
from tvm_hopper.errors import LoweringError
from tvm_hopper.testing import workloads
from tvm_hopper.transforms.launch.assert_alignment import AssertAlignment

H200 = "nvidia/nvidia-h200"
PASS = "tvm_hopper.AssertAlignment"


def lowered(func):
    """Lower a function of threads, as one of ours."""
    mark = {"tvm_hopper.memory_bound": "pointwise"}
    func = ir.map_kernels(func, lambda x: ir.with_body(x, x.body, annotations=mark))
    mod = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    return pipeline.lower(mod, H200, before=PASS)


def widths(func):
    mod = lowered(func)
    (kernel,) = [f for gv, f in mod.functions.items() if gv.name_hint == "main_kernel"]
    names = [str(p.name).removesuffix("_ptr") for p in kernel.params]
    return {names[i]: num_bytes for i, num_bytes in access_widths(kernel).items()}


def test_each_tensor_s_widest_access():
    """What TVM prints: aligned runs as vectors, stores always, other loads one by one."""

    @T.prim_func(s_tir=True)
    def func(
        A: T.Buffer((64, 64), "float16"),
        B: T.Buffer((64, 64), "float16"),
        C: T.Buffer((64, 64), "float16"),
        D: T.Buffer((64, 64), "float32"),
        E: T.Buffer((64, 64), "int8"),
        n: T.int32,
    ):
        for _bx in T.thread_binding(1, thread="blockIdx.x"):
            for tx in T.thread_binding(64, thread="threadIdx.x"):
                for e in T.vectorized(8):
                    C[tx, e] = B[tx, e] + A[tx, n + e]
                for e in T.vectorized(2):
                    D[tx, e] = T.float32(0)
                D[tx, 3] = T.float32(0)
                E[tx, 3] = T.int8(0)

    assert widths(func) == {"A": 2, "B": 16, "C": 16, "D": 8, "E": 1}


def test_vectors_across_rows_of_a_flat_index():
    """Only flat buffers and TVM's simplifier show that these are runs."""

    @T.prim_func(s_tir=True)
    def func(A: T.Buffer((4, 4096), "float32"), B: T.Buffer((4, 4096), "float32")):
        for bx in T.thread_binding(128, thread="blockIdx.x"):
            for tx in T.thread_binding(32, thread="threadIdx.x"):
                for e in T.vectorized(4):
                    with T.sblock("B"):
                        v = T.axis.spatial(16384, bx * 128 + tx * 4 + e)
                        B[v // 4096, v % 4096] = A[v // 4096, v % 4096]

    assert widths(func) == {"A": 16, "B": 16}


def test_vectors_of_parts_of_bytes_are_refused():
    kernel = parse("""
    def kernel(A_ptr: T.handle("int4", "global")):
        A = T.decl_buffer((512,), "int4", data=A_ptr)
        with T.launch_thread("threadIdx.x", 64) as tx:
            A[T.Ramp(tx * 8, 1, 8)] = A[T.Ramp(tx * 8, 1, 8)]
    """)

    need = "need elements of whole bytes, one of bool, .*; let a separate kernel unpack them"
    with pytest.raises(LoweringError, match=f"tensor A: found vectors of int4; {need}"):
        access_widths(kernel)


def asserts(func):
    return [
        x
        for x in ir.find_all(func.body, tvm.tirx.AssertStmt)
        if "found a start address" in str(x.message_parts[0])
    ]


def test_one_check_in_front_of_each_tensor_and_none_the_second_time():
    """Every entry of a module is checked, and no view of an argument."""
    functions = {}
    for name in ("one", "two"):
        sch = s_tir.Schedule(workloads.matmul(128, 128, 128))
        hs.matmul(sch, "C")
        functions[name] = sch.mod["main"].with_attr("global_symbol", name)
    after = pipeline.lower(tvm.IRModule(functions), H200, until=PASS)
    for name in functions:
        func = after[name]
        found = asserts(func)
        assert len(found) == 3
        statements = [x for s in ir.find_all(func.body, ir.SeqStmt) for x in ir.statements(s)]
        for one in found:
            at = next(i for i, x in enumerate(statements) if x.same_as(one))
            declared = statements[at + 1]
            assert ir.uses_node(one.condition, declared.data)
            assert str(one.message_parts[0]).strip('"').startswith(f"{declared.buffer.name}: found")
        check(AssertAlignment()(after)[name], func)
