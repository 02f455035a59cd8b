"""What an epilogue reads in pairs is widened beside a tile's last products."""

import pytest
import tvm
from tvm import s_tir

import tvm_hopper
from tests.sim_kernels.mutate import change, instructions
from tests.transforms.scripts import check, parse, run
from tvm_hopper import ir, schedule as hs
from tvm_hopper.codegen_patches.hold import fence_code, hold
from tvm_hopper.simulation import load, simulate
from tvm_hopper.testing import workloads
from tvm_hopper.transforms import OverlapEpilogueLoads

START = """
def func(B: T.Buffer((64,), "bfloat16"), Z: T.Buffer((32,), "float32")):
    for bx in T.thread_binding(1, thread="blockIdx.x"):
        with T.sblock("kernel", reads=[], writes=[]):
            acc = T.sblock_alloc_buffer((128,), scope="local")
            ahead = T.sblock_alloc_buffer((32,), "bfloat16", scope="local")
"""
REST = """\
            T.ptx.setmaxnreg.inc.sync.aligned.u32(208)
"""
LOAD = """\
            for g in T.serial(16):
                for e in T.vectorized(2):
                    ahead[g * 2 + e] = B[g * 2 + e]
"""
TURN = """\
            for k in T.serial(8):
                T.ptx.wgmma.fence.sync.aligned()
                at: T.let[T.int32] = k * 2
                Z[at] = acc[at]
                T.ptx.wgmma.commit_group.sync.aligned()
                T.ptx.wgmma.wait_group.sync.aligned(0)
                Z[at + 1] = acc[at + 1]
"""
READ = """\
            with T.sblock("epilogue", reads=[acc[0:128]], writes=[Z[0:32]]):
                words = T.decl_buffer((16,), "uint32", data=ahead.data, scope="local")
                for i in T.serial(16, pragma_unroll=16):
                    T.evaluate(words[i])
                for g in T.serial(16, pragma_unroll=16):
                    Z[g * 2] = acc[g * 2] + VALUE0
                    Z[g * 2 + 1] = acc[g * 2 + 1] * VALUE1
"""
PLAIN = ('T.Cast("float32", ahead[g * 2])', 'T.Cast("float32", ahead[g * 2 + 1])')
HALVED = tuple(f"(T.float32(0.5) * {x})" for x in PLAIN)
WIDE = """\
            wide = T.sblock_alloc_buffer((32,), scope="local")
"""
LAST = (
    TURN.replace("serial(8)", "serial(6)")
    + """\
LOAD            T.ptx.wgmma.fence.sync.aligned()
            at_0: T.let[T.int32] = T.Mul(6, 2)
            Z[at_0] = acc[at_0]
            T.ptx.wgmma.commit_group.sync.aligned()
            T.ptx.wgmma.wait_group.sync.aligned(0)
            Z[at_0 + 1] = acc[at_0 + 1]
            T.ptx.wgmma.fence.sync.aligned()
            at_1: T.let[T.int32] = T.Mul(7, 2)
            Z[at_1] = acc[at_1]
            T.ptx.wgmma.commit_group.sync.aligned()
            words = T.decl_buffer((16,), "uint32", data=ahead.data, scope="local")
            for i in T.serial(16, pragma_unroll=16):
                T.evaluate(words[i])
            for i in T.serial(16, pragma_unroll=16):
                wide[i * 2] = VALUE0
                T.evaluate(wide[i * 2])
                wide[i * 2 + 1] = VALUE1
                T.evaluate(wide[i * 2 + 1])
            T.ptx.wgmma.wait_group.sync.aligned(0)
            T.evaluate(T.float32(77))
            Z[at_1 + 1] = acc[at_1 + 1]
            with T.sblock("epilogue", reads=[acc[0:128]], writes=[Z[0:32]]):
                for g in T.serial(16, pragma_unroll=16):
                    Z[g * 2] = acc[g * 2] + wide[g * 2]
                    Z[g * 2 + 1] = acc[g * 2 + 1] * wide[g * 2 + 1]
"""
)


def with_values(text: str, values: tuple[str, str]) -> str:
    return text.replace("VALUE0", values[0]).replace("VALUE1", values[1])


def program(text: str, *changes: tuple[str, str]):
    """Parse a script whose holds are written as plain reads, and whose code fence is 77."""

    def held(node: ir.Evaluate, mutator) -> ir.Stmt:
        if isinstance(node.value, ir.TensorLoad):
            return ir.Evaluate(hold(node.value))
        if ir.dtype_of(node.value) == "float32":
            return ir.Evaluate(fence_code())
        return mutator.default_mutate(node)

    func = parse(text, *changes)
    return func.with_body(ir.mutate(func.body, [(ir.Evaluate, held)]))


def before(values: tuple[str, str] = PLAIN, *changes: tuple[str, str]):
    return program(START + REST + LOAD + TURN + with_values(READ, values), *changes)


@pytest.mark.parametrize("values", [PLAIN, HALVED])
def test_the_last_turn_stands_by_itself_with_the_work_in_front_of_its_wait(values):
    inner = tuple(x.replace("g *", "i *") for x in values)
    want = program(START + WIDE + REST + with_values(LAST, inner).replace("LOAD", LOAD))
    check(run(before(values), OverlapEpilogueLoads()), want)


@pytest.mark.parametrize(
    "changes",
    {
        "three turns": [("T.serial(8):", "T.serial(3):")],
        "turns that are counted at run time": [
            ("T.serial(8):", "T.serial(n):"),
            ("def func(", "def func(n: T.int32, "),
        ],
        "products still under way": [("wait_group.sync.aligned(0)", "wait_group.sync.aligned(1)")],
        "no wait of its own": [("                T.ptx.wgmma.wait_group.sync.aligned(0)\n", "")],
        "too few registers": [("u32(208)", "u32(64)")],
        "registers that nobody gave": [
            ("            T.ptx.setmaxnreg.inc.sync.aligned.u32(208)\n", "")],
        "read as it is": [("acc[g * 2] + T.Cast(\"float32\", ahead[g * 2])",
                           "acc[g * 2] + T.Cast(\"float32\", ahead[g * 2] + ahead[g * 2])")],
        "set again": [("                Z[at] = acc[at]\n",
                       "                Z[at] = acc[at]\n                ahead[at] = B[at]\n")],
        "float32": [('ahead = T.sblock_alloc_buffer((32,), "bfloat16"',
                     'ahead = T.sblock_alloc_buffer((32,), "float32"'),
                    ("(16,), \"uint32\"", "(32,), \"uint32\"")],
        "not held": [
            ("                    T.evaluate(words[i])\n", "                    T.evaluate(0)\n")],
        "loops that are not of products": [
            ("                T.ptx.wgmma.commit_group.sync.aligned()\n", "")],
    }.values(),
)  # fmt: skip
def test_what_stays_as_it_is(changes):
    func = before(PLAIN, *changes)
    check(run(func, OverlapEpilogueLoads()), func)


SMALL = {"m": 256, "n": 128, "k": 128, "epilogue": ("bias_col", "gelu"), "out_dtype": "bfloat16"}


@pytest.fixture(scope="module")
def product():
    """Return a product with its plain program, its kernel and inputs."""
    mod = workloads.matmul(**SMALL, dtype="bfloat16")
    sch = s_tir.Schedule(mod)
    config = {"stages": 2, "consumers": 2, "persistent": 1, "store": "tma"}
    hs.matmul(sch, "C", hs.MatmulConfig((128, 128, 32), **config))
    names = [p.name for p in mod["main"].params]
    inputs = dict(zip(names, workloads.make_inputs(mod, seed=1), strict=False))
    return mod, sch, load(sch.mod), inputs


def test_values_and_every_interleaving(product):
    mod, sch, _, _ = product
    tvm_hopper.verify(sch, against=mod).require_clean()
    text = tvm.compile(sch.mod, target="nvidia/nvidia-h200").mod.imports[0].inspect_source()
    assert "_ahead_wide" in text


def test_the_waits_of_the_last_turn_are_needed(product):
    """Those that the copy has of its own: for the slot, and for the products."""
    _, _, program, inputs = product
    assert not simulate(program, inputs, "random", 3).findings
    (kernel,) = program.kernels.values()
    for name in ("mbarrier_wait", "wgmma_wait_group", "wgmma_fence", "wgmma_commit_group"):
        found = instructions(kernel, name)
        assert len(found) > 1, name
        without = change(program, name, len(found) - 1)
        assert simulate(without, inputs, "random", 3).findings, name
