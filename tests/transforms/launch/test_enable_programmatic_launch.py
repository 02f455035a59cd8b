"""EnableProgrammaticLaunch: what is loaded before earlier launches have ended."""

import pytest
import tvm
from tvm import s_tir, te, tirx

from tests.sim_kernels.mutate import instructions
from tests.transforms.scripts import check, parse, run
from tvm_hopper import ir, schedule as hs
from tvm_hopper.pipeline.run import lower_final
from tvm_hopper.simulation import Program, load, simulate, verify
from tvm_hopper.testing import workloads
from tvm_hopper.transforms import EnableProgrammaticLaunch
from tvm_hopper.transforms.launch.enable_programmatic_launch import (
    LAUNCH_PARAMS,
    PROGRAMMATIC,
    PROMISED,
)

BEFORE = """
def func(X: T.Buffer((8, 512), "float16"), W: T.Buffer((8, 512), "float16"),
    Y: T.Buffer((8, 512), "float16")):
    for bx in T.thread_binding(8, thread="blockIdx.x"):
        for tx in T.thread_binding(32, thread="threadIdx.x"):
            with T.sblock("work", reads=[X[bx, 0:512]], writes=[Y[bx, 0:512]]):
                kept = T.sblock_alloc_buffer((2, 8), "float16", scope="local")
                for c in range(2):
                    for v in T.vectorized(8):
                        with T.sblock("load", reads=[W[bx, c * 256 + tx * 8 + v]],
                            writes=[kept[c, v]], early_loads=1):
                            kept[c, v] = W[bx, c * 256 + tx * 8 + v]
                    for v in T.vectorized(8):
                        Y[bx, c * 256 + tx * 8 + v] = kept[c, v] + X[0, 0]
"""
AFTER = BEFORE.replace(
    ", early_loads=1", ""
).replace(
    "                    for v in T.vectorized(8):\n                        Y",
    "                    if c == 0:\n                        T.ptx.griddepcontrol.wait()\n"
    "                    for v in T.vectorized(8):\n                        Y",
).replace(
    "                for c in range(2):",
    "                T.ptx.griddepcontrol.launch_dependents()\n                for c in range(2):",
)  # fmt: skip
ONE = hs.MatmulConfig(form=hs.DirectShape(2, 16, 64), early_launch="weights")


def test_a_kernel_waits_in_the_first_turn_behind_its_early_loads():
    got = run(parse(BEFORE), EnableProgrammaticLaunch())
    check(got.without_attr(LAUNCH_PARAMS).without_attr(PROMISED), parse(AFTER))
    assert [str(x) for x in got.attrs[LAUNCH_PARAMS]] == [PROGRAMMATIC]
    assert list(got.attrs[PROMISED]) == [1]  # W alone


def test_without_early_loads_nothing_is_begun_early():
    func = parse(BEFORE, (", early_loads=1", ""))
    assert run(func, EnableProgrammaticLaunch()).same_as(func)


START = """
def func(X: T.Buffer((8, 512), "float16"), Y: T.Buffer((8, 512), "float16"),
    Z: T.Buffer((8, 512), "float16")):
    for bx in T.thread_binding(8, thread="blockIdx.x", early_launch=1):
        for tx in T.thread_binding(32, thread="threadIdx.x"):
            with T.sblock("work", reads=[X[bx, 0:512]], writes=[Y[bx, 0:512]]):
                row = T.sblock_alloc_buffer((32,), "float16", scope="shared")
                row[tx] = T.float16(0)
                T.tvm_storage_sync("shared")
                if tx < 16:
                    Y[bx, tx] = X[bx, tx] + row[31 - tx]
    for bx in T.thread_binding(8, thread="blockIdx.x"):
        for tx in T.thread_binding(32, thread="threadIdx.x"):
            with T.sblock("next", reads=[Y[bx, 0:512]], writes=[Z[bx, 0:512]]):
                Z[bx, tx] = Y[bx, tx]
"""
STARTED = START.replace(", early_launch=1", "").replace(
    "                if tx < 16:",
    "                T.ptx.griddepcontrol.wait()\n"
    "                T.ptx.griddepcontrol.launch_dependents()\n                if tx < 16:",
)  # fmt: skip


def test_what_begins_early_waits_in_front_of_memory_and_what_is_beside_it_does_not():
    got = run(parse(START), EnableProgrammaticLaunch())
    check(got.without_attr(LAUNCH_PARAMS), parse(STARTED))
    assert [str(x) for x in got.attrs[LAUNCH_PARAMS]] == [PROGRAMMATIC]


ASKED = """
def func(X: T.Buffer((256,), "float32"), A: T.Buffer((256,), "float32"),
    Y: T.Buffer((256,), "float32")):
    for bx in T.thread_binding(8, thread="blockIdx.x"):
        for tx in T.thread_binding(32, thread="threadIdx.x"):
            with T.sblock("first"):
                A[bx * 32 + tx] = X[bx * 32 + tx] + T.float32(1)
    for bx in T.thread_binding(8, thread="blockIdx.x", early_launch=1,
        memory_bound="row_reduction"):
        for tx in T.thread_binding(32, thread="threadIdx.x"):
            with T.sblock("second"):
                Y[bx * 32 + tx] = A[255 - (bx * 32 + tx)] * T.float32(2)
"""
WAIT, GO = "T.ptx.griddepcontrol.wait()", "T.ptx.griddepcontrol.launch_dependents()"


def test_a_kernel_that_asks_waits_first_and_lets_the_next_launch_begin():
    got = run(parse(ASKED), EnableProgrammaticLaunch())
    after = ASKED.replace(" early_launch=1,", "")
    store = "Y[bx * 32 + tx] ="
    after = after.replace(store, f"{WAIT}\n                {GO}\n                {store}")
    check(got.without_attr(LAUNCH_PARAMS), parse(after))
    assert [str(x) for x in got.attrs[LAUNCH_PARAMS]] == [PROGRAMMATIC]


def test_a_chip_without_the_instruction_is_launched_as_ever():
    plain = parse(ASKED.replace(" early_launch=1,", ""))
    target = tvm.target.Target({"kind": "cuda", "arch": "sm_80"})
    got = run(parse(ASKED).with_attr("target", target), EnableProgrammaticLaunch())
    check(got.without_attr("target"), plain)


def test_the_simulator_misses_the_wait_of_a_kernel_that_asks():
    program = load(tvm.IRModule({"main": parse(ASKED).with_attr("global_symbol", "main")}))
    assert verify(program).verdict == "clean"
    assert "GRID_DEPENDENCY" in {x.rule for x in simulate(_without_last_wait(program), {}).findings}


def two_kernels():
    """Compute A by a kernel of its own, and C = A B^T by one that begins early."""
    x = te.placeholder((4, 256), "float16", name="X")
    b = te.placeholder((32, 256), "float16", name="B")
    a = te.compute((4, 256), lambda i, j: x[i, j] + tvm.tirx.const(1, "float16"), name="A")
    k = te.reduce_axis((0, 256), "k")

    def term(i, j):
        return te.sum(a[i, k].astype("float32") * b[j, k].astype("float32"), axis=k)

    mod = tvm.IRModule({"main": te.create_prim_func([x, b, te.compute((4, 32), term, name="C")])})
    sch = s_tir.Schedule(mod)
    i, j = sch.get_loops("A")
    sch.bind(i, "blockIdx.x")
    sch.bind(sch.split(j, [None, 64])[1], "threadIdx.x")
    hs.matmul(sch, "C", ONE)
    return mod, sch


def test_what_an_earlier_launch_has_written_is_waited_for():
    mod, sch = two_kernels()
    assert verify(sch, against=mod).verdict == "clean"
    found = simulate(_without_last_wait(load(sch)), {}).findings
    assert "GRID_DEPENDENCY" in {x.rule for x in found}, found


def _without_last_wait(program):
    _, last = sorted(program.kernels)
    func = program.kernels[last]
    waits = [x for x in instructions(func, "griddepcontrol") if "wait" in str(x)]
    body = ir.replace_nodes(func.body, tirx.Evaluate, {x: ir.seq() for x in waits})
    return Program(program.host, {**program.kernels, last: func.with_body(body)})


def two_products():
    """Compute E = A B^T and D = E C^T, each by a kernel that begins early."""
    a, b, c = (te.placeholder((64, 64), "float16", name=x) for x in "ABC")

    def product(name, left, right):
        k = te.reduce_axis((0, 64), f"k{name}")

        def term(i, j):
            return te.sum(left[i, k].astype("float32") * right[j, k].astype("float32"), axis=k)

        total = te.compute((64, 64), term, name=f"{name}_sum")
        return te.compute((64, 64), lambda i, j: total[i, j].astype("float16"), name=name)

    e = product("E", a, b)
    mod = tvm.IRModule({"main": te.create_prim_func([a, b, c, e, product("D", e, c)])})
    sch = s_tir.Schedule(mod)
    for name in ("E_sum", "D_sum"):
        hs.matmul(sch, name)
    return mod, sch


def test_a_product_by_tiles_waits_for_the_one_in_front():
    mod, sch = two_products()
    assert verify(sch, against=mod).verdict == "clean"
    program = load(sch)
    kernels = {}
    for name, func in program.kernels.items():
        assert PROGRAMMATIC in [str(x) for x in func.attrs[LAUNCH_PARAMS]]
        waits = [x for x in instructions(func, "griddepcontrol") if "wait" in str(x)]
        assert len(waits) == 1
        body = ir.replace_nodes(func.body, tirx.Evaluate, {x: ir.seq() for x in waits})
        kernels[name] = func.with_body(body)
    found = simulate(Program(program.host, kernels), {}).findings
    assert "GRID_DEPENDENCY" in {x.rule for x in found}, found


@pytest.mark.parametrize(
    ("epilogue", "config", "early"),
    [
        ((), {}, True),
        (("relu",), {"split_k": 2}, True),
        (("residual",), {}, True),  # which TMA loads
        (("bias_col",), {}, False),
        (("residual",), {"form": "transposed"}, False),
        (("bias_col",), {"early_launch": True}, True),
        ((), {"early_launch": False}, False),
    ],
)
def test_products_begin_early_unless_threads_load_for_the_epilogue(epilogue, config, early):
    mod = workloads.matmul(64, 128, 128, "NT", "float16", "float16", epilogue=epilogue)
    sch = s_tir.Schedule(mod)
    hs.matmul(sch, "C", hs.MatmulConfig(**config))
    (kernel,) = lower_final(sch.mod, "nvidia/nvidia-h200").device.functions.values()
    assert (PROGRAMMATIC in [str(x) for x in kernel.attrs[LAUNCH_PARAMS]]) == early


def test_every_kernel_of_the_function_waits():
    _, sch = two_kernels()
    for kernel in lower_final(sch.mod, "nvidia/nvidia-h200").device.functions.values():
        names = [str(x.op.name) for x in ir.find_all(kernel.body, ir.Call)]
        assert sum("griddepcontrol" in x for x in names) == 2
