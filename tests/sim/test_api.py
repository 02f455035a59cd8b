"""`simulate`, `verify`, `run_host`, `run_kernel` and the shell command: results and refusals."""

import json

import numpy as np
import pytest
import tvm
from tvm import s_tir, te
from tvm.script import tirx as T

import tvm_hopper
from tvm_hopper import schedule as hs
from tvm_hopper.cli import main
from tvm_hopper.errors import HopperError, VerifyError
from tvm_hopper.sim import TensorMapArg, run_host, run_kernel
from tvm_hopper.sim.launch.host import Launch
from tvm_hopper.sim.launch.signature import signature
from tvm_hopper.sim.tir import numpy_dtype
from tvm_hopper.simulation import load, simulate, verify
from tvm_hopper.testing import workloads

from .hand_threaded import F32, hand_threaded
from .kernels import lower, roundtrip

TARGET = {"kind": "cuda", "arch": "sm_90a"}


def matmul(m=128, n=128, k=128):
    a = te.placeholder((m, k), "float16", name="A")
    b = te.placeholder((n, k), "float16", name="B")
    axis = te.reduce_axis((0, k), name="k")
    c = te.compute(
        (m, n),
        lambda i, j: te.sum(a[i, axis].astype("float32") * b[j, axis].astype("float32"), axis=axis),
        name="C",
    )
    sch = s_tir.Schedule(te.create_prim_func([a, b, c]))
    hs.matmul(sch, "C", hs.MatmulConfig(tile=(128, 128, 64), stages=2, consumers=2))
    return sch.mod


def operands(m=128, n=128, k=128):
    rng = np.random.default_rng(0)
    return {
        "A": rng.integers(-2, 3, (m, k)).astype("float16"),
        "B": rng.integers(-2, 3, (n, k)).astype("float16"),
    }


def product(inputs):
    return inputs["A"].astype("float64") @ inputs["B"].astype("float64").T


@pytest.fixture(scope="module")
def program():
    return load(matmul())


def scaled():
    @T.prim_func(s_tir=True)
    def kernel(a: T.handle, c: T.handle, alpha: T.float32):
        T.func_attr({"global_symbol": "main"})
        n = T.int64()
        A = T.match_buffer(a, (n,), "float32")
        C = T.match_buffer(c, (n,), "float32")
        bx = T.launch_thread("blockIdx.x", (n + T.int64(63)) // T.int64(64))
        tx = T.launch_thread("threadIdx.x", 64)
        if bx * T.int64(64) + T.Cast("int64", tx) < n:
            C[bx * T.int64(64) + T.Cast("int64", tx)] = (
                A[bx * T.int64(64) + T.Cast("int64", tx)] * alpha
            )

    return lower(kernel)


# -- results --------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["eager", "on_wait", "lifo", "random", "starve:consumer"])
def test_a_module_gives_the_product_under_every_policy(program, policy):
    inputs = operands()
    result = simulate(program, inputs, policy=policy).require_clean()
    assert np.array_equal(result.outputs["C"], product(inputs))
    assert result.rules == set()


def test_an_executable_built_here_is_found_by_its_source():
    executable = tvm.compile(matmul(), target="nvidia/nvidia-h200")
    inputs = operands()
    result = tvm_hopper.simulate(executable, inputs).require_clean()
    assert np.array_equal(result.outputs["C"], product(inputs))


def test_an_executable_of_others_is_refused_with_the_reason():
    plain = te.placeholder((8,), "float32", name="A")
    func = te.create_prim_func([plain, te.compute((8,), lambda i: plain[i] + 1, name="B")])
    executable = tvm.compile(func, target="llvm")
    with pytest.raises(HopperError, match="found no CUDA module"):
        simulate(executable, {})


def test_symbolic_sizes_come_from_the_inputs_and_scalars_are_passed():
    a = np.arange(100, dtype="float32")
    result = simulate(scaled(), {"A": a, "alpha": 3.0}).require_clean()
    assert np.array_equal(result.outputs["C"], a * 3)
    assert len(result.blocks) == 2


def test_chosen_blocks_run_alone(program):
    result = simulate(scaled(), {"A": np.ones(640, "float32"), "alpha": 1.0}, blocks=[(3,)])
    assert result.blocks == ((3, 0, 0),)
    assert np.count_nonzero(result.outputs["C"] == 1) == 64


def test_verify_explores_runs_and_reports(program):
    report = verify(program).require_clean()
    assert report.verdict == "clean"
    assert {policy for policy, _, _ in report.runs} >= {"eager", "on_wait", "lifo", "random"}
    text = str(report)
    assert "1 of 1 CTAs" in text
    assert "states" in text
    assert json.loads(json.dumps(report.to_json()))["verdict"] == "clean"


def test_a_spent_budget_is_incomplete_not_clean(program):
    report = verify(program, budget_s=0.0)
    assert report.verdict == "incomplete"
    assert {verdict for _, _, verdict in report.runs} == {"skipped"}


def test_the_timeline_has_a_lane_per_role_and_unit(program, tmp_path):
    timeline = simulate(program, operands()).timeline()
    names = [lane.name for lane in timeline.lanes]
    assert {"producer (warp 0)", "TMA loads", "tensor core"} <= set(names)
    assert "consumer 0 (warps 4-7)" in names
    trace = json.loads(timeline.save(tmp_path / "trace.json").read_text())
    assert {e["ph"] for e in trace["traceEvents"]} == {"M", "X"}
    assert len(timeline.figure().axes) == 1


# -- refusals -------------------------------------------------------------------------------------


def test_a_finding_is_marked_in_the_timeline_and_refused_by_require_clean():
    @hand_threaded(64, by_hand=False)
    def main(A: F32[64], C: F32[64], tx):
        C[0] = A[tx]

    result = simulate(lower(main), {"A": np.ones(64, "float32")})
    marks = [e for e in result.timeline().to_chrome()["traceEvents"] if e["ph"] == "i"]
    assert {m["name"] for m in marks} == {"RACE_WRITE_WRITE"}
    assert str(result).startswith("verdict: error (policy 'on_wait', seed 0, 1 CTAs")
    assert "RACE_WRITE_WRITE" in str(result)
    assert "array(" not in str(result)
    assert result.timeline().figure() is not None
    finding = result.findings[0]
    assert finding.buffer == "C"
    assert len(finding.statements) == 2
    with pytest.raises(VerifyError, match="RACE_WRITE_WRITE C"):
        result.require_clean()


def test_a_wrong_shape_is_refused_by_the_host_functions_own_check(program):
    with pytest.raises(ValueError, match=r"Invalid A\.shape"):
        simulate(program, {"A": np.zeros((64, 128), "float16"), "B": operands()["B"]})


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"nobody": 1}, r"inputs: found \['nobody'\]; need names among"),
        ({"A": np.ones(4, "float32")}, "no value for scalar alpha; need a number"),
        ({"alpha": 1.0}, "no value for A, whose shape has"),
    ],
)
def test_wrong_inputs_are_named(inputs, message):
    with pytest.raises(ValueError, match=message):
        simulate(scaled(), inputs)


@pytest.mark.parametrize("policy", ["fast", "starve", "eager:producer"])
def test_an_unknown_policy_is_refused(program, policy):
    with pytest.raises(ValueError, match=f"policy: found policy='{policy}'; need eager, on_wait"):
        simulate(program, operands(), policy=policy)


@pytest.mark.parametrize(
    "policy", ["starve:foo", "starve:warp12", "starve:wg3", "starve:3", "starve:warp-1"]
)
def test_a_role_that_no_warp_has_is_refused_with_those_there_are(program, policy):
    need = "the role is producer, consumer, warp<n>, or wg<n> or <n> for a warp group"
    with pytest.raises(
        ValueError, match=f"policy: found policy='{policy}'; need .* or starve:.*{need}"
    ):
        simulate(program, operands(), policy=policy)


@pytest.mark.parametrize("policy", ["starve:warp11", "starve:wg2", "starve:0"])
def test_roles_by_number_are_legal(program, policy):
    simulate(program, operands(), policy=policy).require_clean()


def test_nothing_to_run_is_no_verdict(program):
    with pytest.raises(ValueError, match=r"runs: found none; need at least one \(policy, seed\)"):
        verify(program, runs=())
    with pytest.raises(ValueError, match=r"policy: found policy='fast'; need eager"):
        verify(program, runs=[("fast", 0)])
    for judge in (
        lambda **more: simulate(program, operands(), **more),
        lambda **more: verify(program, **more),
    ):
        with pytest.raises(ValueError, match="blocks: found none; need at least one"):
            judge(blocks=[])
        with pytest.raises(ValueError, match=r"blocks: found 3; need a list of \(x, y, z\)"):
            judge(blocks=3)


def test_inputs_of_another_kind_are_named(program):
    with pytest.raises(ValueError, match=r"inputs: found a list; need a dict .*\['A', 'B', 'C'\]"):
        simulate(program, [1, 2])
    tensor = tvm.runtime.tensor(np.zeros((128, 128), "float16"))
    with pytest.raises(ValueError, match="found A of type Tensor; need a numpy array, for example"):
        simulate(program, {"A": tensor, "B": operands()["B"]})
    with pytest.raises(ValueError, match=r"found A of type int; need a numpy array$"):
        simulate(program, {"A": 1, "B": operands()["B"]})


def test_blocks_outside_of_the_grid_are_refused(program):
    with pytest.raises(ValueError, match=r"blocks: found \(7, 0\); need indices inside the grid"):
        simulate(program, operands(), blocks=[(7, 0)])


def test_plain_loops_are_no_kernel():
    with pytest.raises(HopperError, match=r"found no kernel: .* need a scheduled module; schedule"):
        load(workloads.matmul(64, 64, 64))


def test_an_unknown_entry_is_refused():
    with pytest.raises(ValueError, match="entry: found entry='other'; need one of main"):
        load(matmul(), entry="other")


def test_a_missing_parameter_and_a_map_without_tensor_are_refused(program):
    func = next(iter(program.kernels.values()))
    with pytest.raises(ValueError, match="need a value for parameter"):
        run_kernel(func, {}, (1,), (384,))
    names = [p.name for p in func.params]
    maps = {name: TensorMapArg("Z", "float16", (1,), (), (1,)) for name in names}
    with pytest.raises(ValueError, match="found no array named 'Z'"):
        run_kernel(func, maps, (1,), (384,))


def test_a_launch_of_an_unknown_kernel_is_refused(program):
    empty = type(program)(program.host, {})
    with pytest.raises(VerifyError, match=r"found kernels \[\]; need its TIR"):
        simulate(empty, operands())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: T.call_packed("runtime.unknown", 1), "call of runtime.unknown"),
        (lambda: T.call_extern("int32", "other", 1), "found call other"),
    ],
)
def test_a_host_function_beyond_the_model_is_refused(call, message):
    body = tvm.tirx.Evaluate(call())
    func = tvm.tirx.PrimFunc([], body)
    with pytest.raises(VerifyError, match=message):
        run_host(func, {})


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (tvm.tirx.Evaluate(tvm.tirx.Var("x", "int32") + 1), "found unbound x; need its value"),
        (
            tvm.tirx.Evaluate(tvm.tirx.Ramp(0, 1, 4)),
            "found expression Ramp; need one that is modelled",
        ),
        (
            tvm.tirx.While(tvm.tirx.IntImm("bool", 1), tvm.tirx.Evaluate(0)),
            "found statement While; need one that is modelled",
        ),
        (
            tvm.tirx.Evaluate(
                T.call_packed(
                    "runtime.cuTensorMapEncodeTiled", 0, "float16", 1, 5, 8, 8, 1, 0, 0, 0, 0
                )
            ),
            "tensor map: found address 5; need a tensor's data",
        ),
    ],
)
def test_a_host_statement_beyond_the_model_is_refused(body, message):
    with pytest.raises(VerifyError, match=message):
        run_host(tvm.tirx.PrimFunc([], body), {})


def test_a_host_assertion_without_text_shows_its_condition():
    check = tvm.tirx.AssertStmt(
        tvm.tirx.IntImm("bool", 0), tvm.ir.StringImm("ValueError"), [tvm.ir.StringImm("too small")]
    )
    with pytest.raises(ValueError, match="too small"):
        run_host(tvm.tirx.PrimFunc([], check), {})


def test_a_type_without_whole_bytes_is_refused():
    with pytest.raises(KeyError, match="type custom: found no numpy counterpart"):
        numpy_dtype("custom")


def test_the_signature_is_read_from_the_host_function(program):
    found = signature(program.host)
    assert [(a.name, a.shape) for a in found] == [
        ("A", (128, 128)), ("B", (128, 128)), ("C", (128, 128))
    ]  # fmt: skip


def test_a_launch_splits_into_parameters_and_geometry(program):
    (launch,) = run_host(program.host, {**operands(), "C": np.zeros((128, 128), "float32")})
    assert isinstance(launch, Launch)
    bound = launch.bind(next(iter(program.kernels.values())))
    assert bound["block"] == (384, 1, 1)
    assert bound["dyn_smem_bytes"] > 2 * 2 * 128 * 64 * 2
    maps = [v for v in bound["params"].values() if isinstance(v, TensorMapArg)]
    assert {m.tensor for m in maps} == {"A", "B"}


# -- shell ----------------------------------------------------------------------------------------

FILE = """
from tvm.script import tirx as T

@T.prim_func(s_tir=True)
def racy(A: T.Buffer((64,), "float32"), C: T.Buffer((64,), "float32")):
    T.func_attr({"global_symbol": "main"})
    T.launch_thread("blockIdx.x", 1)
    tx = T.launch_thread("threadIdx.x", 64)
    C[0] = A[tx]

def make():
    return racy

def broken():
    return {}["x"]

number = 3

def refused():
    from tvm_hopper.errors import ScheduleError
    raise ScheduleError("found none; need one")

@T.prim_func(s_tir=True)
def symbolic(a: T.handle):
    T.func_attr({"global_symbol": "main"})
    n = T.int64()
    A = T.match_buffer(a, (n,), "float32")
    bx = T.launch_thread("blockIdx.x", n)
    A[bx] = T.float32(1)
"""


def test_the_command_judges_a_file(tmp_path, capsys):
    file = tmp_path / "kernel_file.py"
    file.write_text(FILE)
    assert main(["verify", f"{file}:make", "--json"]) == 5
    out = json.loads(capsys.readouterr().out)
    assert out["verdict"] == "error"
    assert main(["verify", f"{file}:racy"]) == 5
    assert "verdict: error" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "usage"),
        (["a.py:f", "--loud"], "usage"),
        (["nowhere.py:make"], "found no file nowhere.py; need the FILE.py:NAME of a kernel"),
        (["{file}:number"], "found int as 'number' in kernel_file2.py; need a module"),
        (["{file}:other"], "found no 'other'"),
        (["{file}:symbolic"], "no value for A, whose shape has"),
        (["{file}:broken"], "found KeyError in broken, at kernel_file2.py:"),
        (["{file}:refused"], "found none; need one"),
    ],
)
def test_the_command_explains_its_mistakes(tmp_path, capsys, words, message):
    file = tmp_path / "kernel_file2.py"
    file.write_text(FILE)
    assert main(["verify", *(w.replace("{file}", str(file)) for w in words)]) == 2
    assert message in capsys.readouterr().err


def test_verify_runs_the_blocks_that_are_asked_for_and_no_others():
    sch = s_tir.Schedule(workloads.matmul(128, 128, 64))
    hs.matmul(sch, "C", hs.MatmulConfig((64, 64, 64), stages=1, consumers=1))
    runs = (("eager", 0), ("lifo", 0), ("random", 1))
    report = verify(sch.mod, runs=runs, blocks=[(1, 0, 0)])
    (choice,) = report.choices
    assert (choice.blocks, choice.total) == (((1, 0, 0),), 4)
    assert report.verdict == "incomplete"
    assert [f.rule for f in report.findings] == ["INCOMPLETE"]
    assert "1 of 4 CTAs ran: as requested" in report.findings[0].message


@pytest.mark.parametrize("max_ctas", ["2", 0, 1.5, True])
def test_verify_takes_a_number_of_ctas(max_ctas):
    program = roundtrip(0, 1, "float16", (64,), (256,), (32,))
    with pytest.raises(ValueError, match=r"max_ctas: found max_ctas=.*; need an int from 1"):
        verify(program, max_ctas=max_ctas)


@pytest.mark.parametrize("blocks", ["C", 3, [None]])
def test_blocks_are_a_list_of_indices(blocks):
    program = roundtrip(0, 1, "float16", (64,), (256,), (32,))
    with pytest.raises(ValueError, match=r"blocks: found .*; need a list of \(x, y, z\)"):
        simulate(program, {"A": np.ones(256, "float16")}, blocks=blocks)


def test_a_name_that_the_simulator_lacks():
    with pytest.raises(AttributeError, match=r"tvm_hopper.sim' has no attribute 'nobody'"):
        tvm_hopper.sim.nobody  # noqa: B018
