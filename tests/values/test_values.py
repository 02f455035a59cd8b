"""`verify` compares values: with what, how much, and what it says."""

import json
import re
from types import SimpleNamespace

import numpy as np
import pytest
import tvm
from tvm import s_tir, te, tirx
from tvm.script import tirx as T

from tests.values import kernels
from tests.values.kernels import ONE_RUN, TILE, judge, wrong
from tvm_hopper import schedule as hs
from tvm_hopper.reference.plain import PlainProgramError
from tvm_hopper.simulation import load, verify
from tvm_hopper.testing import columns, forms, tensor_cores, workloads
from tvm_hopper.testing.tensor_cores import WarpTiling
from tvm_hopper.verification import values, verifier
from tvm_hopper.verification.schedules import Schedules


def scheduled(mod, block="C", config=None):
    sch = s_tir.Schedule(mod)
    hs.matmul(sch, block, config)
    return sch


def finding_of(report):
    (found,) = [f for f in report.findings if f.rule == "WRONG_VALUE" and "integers" in f.message]
    return found


# -- right kernels are clean ----------------------------------------------------------------------


@pytest.mark.sampled(every=5)
@pytest.mark.parametrize("name", forms.FORMS)
def test_every_form_of_a_matmul(name):
    mod = forms.FORMS[name](128, 72, 128, "float16")
    # this one leaves a part of C as it was
    inputs = {"C": np.zeros((144, 104), "float32")} if name == "slices" else {}
    report = judge(scheduled(mod), None, inputs=inputs)
    assert report.verdict == "clean", str(report)
    assert report.values.checked
    assert "bit for bit" in report.values.text


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(
    ("shape", "more"),
    [
        ((200, 136, 96), {}),
        ((128, 128, 200), {"layout": "NN", "dtype": "bfloat16"}),
        ((128, 64, 64), {"epilogue": ("gelu", "bias_row"), "out_dtype": "float16"}),
        ((64, 128, 128), {"epilogue": ("silu",), "layout": "TN"}),
        ((64, 64, 128), {"epilogue": ("residual", "scale"), "out_dtype": "bfloat16"}),
    ],
)
def test_shapes_types_and_epilogues(shape, more):
    report = judge(scheduled(workloads.matmul(*shape, **more)), None)
    assert report.verdict == "clean", str(report)
    assert report.values.checked


def test_a_sum_in_a_wider_type_than_the_program_s():
    mod = workloads.matmul(
        64, 64, 128, acc_dtype="float16", out_dtype="float16", dtype="float16", cast="none"
    )
    report = judge(scheduled(mod, config=hs.MatmulConfig(accumulate="float32")), None)
    assert report.verdict == "clean", str(report)
    assert "on integers 4096 of 4096 elements of C bit for bit" in report.values.text


def test_a_symbolic_extent_is_told_by_the_inputs():
    mod = workloads.matmul("m", 128, 64)
    inputs = {"A": np.random.default_rng(0).standard_normal((100, 64)).astype("float16")}
    report = judge(scheduled(mod), mod, inputs=inputs)
    assert report.verdict == "clean", str(report)
    assert "of 12800 elements of C" in report.values.text


def test_integer_sums_agree_bit_for_bit_on_all_numbers():
    mod = tensor_cores.matmul(32, 64, 128, "int8", "int32", True)
    tiling = WarpTiling(tile=(32, 64, 64), stages=2, roles=hs.Roles(1))
    report = judge(load(tensor_cores.schedule(mod, tiling).mod), mod)
    assert report.verdict == "clean", str(report)
    assert "without" not in report.values.text
    assert report.values.text.count("2048 of 2048 elements of C bit for bit") == 2


def test_what_the_caller_gives_is_kept():
    plain, program = kernels.matmul()
    a = np.zeros((256, 192), "float16")
    mutant = kernels.with_load_coordinate(program, 1, 1, lambda x: x + tirx.IntImm("int32", 8))
    assert not wrong(mutant, plain, inputs={"A": a})  # zero times anything
    assert wrong(mutant, plain)


# -- what is found --------------------------------------------------------------------------------


def test_a_finding_names_the_element_and_who_wrote_it():
    plain, program = kernels.matmul()
    mutant = kernels.with_load_coordinate(program, 0, 1, lambda x: x + tirx.IntImm("int32", 1))
    found = finding_of(judge(mutant, plain))
    assert found.severity == "error"
    assert found.buffer == "C"
    assert found.message.startswith("on integers, C[0, 0] is ")
    assert ", where the plain program has " in found.message
    assert "(exactly); it was written by cta0,0,0/" in found.message
    assert " of 32768 elements that were compared are wrong" in found.message
    assert found.byte_range == (0, 4)
    (statement,) = found.statements
    assert "C[" in statement
    assert "cta0,0,0" in statement


def halved(rows):
    """Return a program that halves some rows of a tensor in place, one thread block a row."""

    @T.prim_func(s_tir=True)
    def func(X: T.Buffer((8, 32), "float32")):
        bx = T.launch_thread("blockIdx.x", rows)
        tx = T.launch_thread("threadIdx.x", 32)
        X[bx, tx] = X[bx, tx] * T.float32(0.5)

    return func


def test_a_store_that_is_left_out_where_old_values_stay():
    found = wrong(halved(5), halved(7))[0]
    assert "X[5, " in found.message
    assert "; no statement wrote it; " in found.message
    assert " of 256 elements that were compared are wrong" in found.message
    report = judge(halved(5), halved(5))
    assert report.verdict == "clean", str(report)
    assert "256 of 256 elements of X" in report.values.text


def test_an_output_that_keeps_a_part_of_what_the_caller_gives():
    @T.prim_func(s_tir=True)
    def kernel(X: T.Buffer((64,), "float32"), Y: T.Buffer((128,), "float32")):
        tx = T.launch_thread("threadIdx.x", 64)
        Y[tx + 64] = X[tx]

    @T.prim_func(s_tir=True)
    def more(X: T.Buffer((64,), "float32"), Y: T.Buffer((128,), "float32")):
        for i in range(65):
            Y[127 - i] = X[T.max(63 - i, 0)]

    given = {"Y": np.full(128, 7, "float32")}
    assert judge(kernel, kernel, inputs=given).verdict == "clean"
    assert "Y[63] is 7.0" in wrong(kernel, more, inputs=given)[0].message
    (hole,) = judge(kernel, kernel).findings
    assert hole.rule == "OUTPUT_COVERAGE"
    assert "give the tensor" in str(judge(kernel, kernel))


def test_an_argument_that_nobody_uses():
    @T.prim_func(s_tir=True)
    def kernel(W: T.Buffer((8,), "float32"), X: T.Buffer((64,), "float32"), Y: T.Buffer((64,))):
        tx = T.launch_thread("threadIdx.x", 64)
        Y[tx] = X[tx]

    @T.prim_func(s_tir=True)
    def more(W: T.Buffer((8,), "float32"), X: T.Buffer((64,), "float32"), Y: T.Buffer((64,))):
        for i in range(64):
            Y[i] = X[i]
            W[i // 8] = X[i]

    assert judge(kernel, kernel).verdict == "clean"
    assert "OUTPUT_COVERAGE" in {one.rule for one in judge(kernel, more).findings}
    (hole,) = judge(kernel, False).findings  # nobody knows that it is no output
    assert hole.message == "W: no statement stores to it, or loads from it"


def test_two_arguments_of_one_name():
    x = te.placeholder((64,), "float32", name="X")
    left = te.compute((32,), lambda i: x[i], name="part")
    right = te.compute((32,), lambda i: x[i + 32], name="part")
    sch = s_tir.Schedule(te.create_prim_func([x, left, right]))
    hs.pointwise(sch)
    with pytest.raises(ValueError, match="found several of the name part; need a name for each"):
        verify(sch)


def test_a_tensor_that_the_plain_program_leaves_alone():
    @T.prim_func(s_tir=True)
    def kernel(X: T.Buffer((64,), "float32"), Y: T.Buffer((64,), "float32")):
        tx = T.launch_thread("threadIdx.x", 64)
        Y[tx] = X[tx]
        X[tx] = T.float32(0)

    @T.prim_func(s_tir=True)
    def plain(X: T.Buffer((64,), "float32"), Y: T.Buffer((64,), "float32")):
        for i in range(64):
            Y[i] = X[i]

    found = wrong(kernel, plain)
    assert {f.buffer for f in found} == {"X"}


@pytest.mark.parametrize("order", ["add", "set"])
def test_atomic_sums_of_several_blocks_run_whole(order):
    @T.prim_func(s_tir=True)
    def kernel(X: T.Buffer((2048,), "float32"), Y: T.Buffer((32,), "float32")):
        bx = T.launch_thread("blockIdx.x", 64)
        tx = T.launch_thread("threadIdx.x", 32)
        T.evaluate(T.cuda.atomic_add(T.address_of(Y[tx]), X[bx * 32 + tx]))

    @T.prim_func(s_tir=True)
    def added(X: T.Buffer((2048,), "float32"), Y: T.Buffer((32,), "float32")):
        for i, j in T.grid(32, 64):
            Y[i] = Y[i] + X[j * 32 + i]

    @T.prim_func(s_tir=True)
    def last(X: T.Buffer((2048,), "float32"), Y: T.Buffer((32,), "float32")):
        for i, j in T.grid(32, 64):
            Y[i] = X[j * 32 + i]

    report = judge(kernel, added if order == "add" else last)
    assert report.values.checked, str(report)
    assert report.verdict == ("clean" if order == "add" else "error"), str(report)


# -- what is said where nothing is compared -------------------------------------------------------


def test_without_a_plain_program_the_report_says_so():
    report = verify(kernels.matmul()[1], runs=ONE_RUN).require_clean()
    assert not report.values.checked
    assert "values not checked: no plain program is known" in str(report)
    assert json.loads(json.dumps(report.to_json()))["values"]["checked"] is False


def test_values_may_be_left_out():
    sch = scheduled(workloads.matmul(128, 64, 64))
    report = verify(sch, runs=ONE_RUN, against=False)
    assert report.values == values.ValueReport(False, "not checked: against=False")


def test_a_launch_that_is_refused_is_not_compared():
    @T.prim_func(s_tir=True)
    def kernel(X: T.Buffer((4096,), "float32")):
        tx = T.launch_thread("threadIdx.x", 2048)
        X[tx] = T.float32(0)

    report = verify(kernel, runs=ONE_RUN)
    assert not report.values.checked
    assert "nothing was launched" in report.values.text


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((256, 128, 100), "found A, float16 of 256x100, in main, where the kernel has float16"),
        ((256, 128, 192, "NT", "bfloat16"), "found A, bfloat16 of 256x192, in main"),
    ],
)
def test_another_program_is_refused(shape, message):
    with pytest.raises(ValueError, match=message):
        judge(kernels.matmul()[1], workloads.matmul(*shape))


def test_a_program_with_other_arguments_is_refused():
    plain = workloads.matmul(256, 128, 192, epilogue=("bias_col",))
    with pytest.raises(ValueError, match="found 4 parameters of main, and 3 arguments"):
        judge(kernels.matmul()[1], plain)


def test_an_opaque_call_is_refused_by_the_block_s_name():
    @T.prim_func(s_tir=True)
    def plain(
        A: T.Buffer((256, 192), "float16"),
        B: T.Buffer((128, 192), "float16"),
        C: T.Buffer((256, 128), "float32"),
    ):
        for i in range(256):
            with T.sblock("library"):
                vi = T.axis.spatial(256, i)
                T.reads(A[vi, 0:192], B[0:128, 0:192])
                T.writes(C[vi, 0:128])
                T.evaluate(T.call_extern("int32", "gemv", A.data, B.data, C.data, vi))

    with pytest.raises(PlainProgramError, match="block library: found the opaque call call_extern"):
        judge(kernels.matmul()[1], plain)


def test_a_plain_program_that_cannot_be_read_is_no_error_if_nobody_gave_it():
    mod = tensor_cores.matmul(64, 32, 80)
    sch = s_tir.Schedule(mod)
    tiling = WarpTiling(stages=3, tile=(32, 32, 16), warps=(2, 2))
    program = load(tensor_cores.schedule(mod, tiling).mod)
    del sch
    assert verify(program, runs=ONE_RUN).verdict == "clean"


# -- how much runs --------------------------------------------------------------------------------


def test_long_sums_are_compared_in_part(monkeypatch):
    monkeypatch.setattr(values, "WORK", {"integers": 3e5, "normal": 3e5})
    mod = workloads.matmul(1024, 512, 64)
    config = hs.MatmulConfig((128, 64, 64), stages=2, consumers=1, persistent=4)
    sch = scheduled(mod, config=config)
    report = judge(sch, mod)
    assert report.verdict == "clean", str(report)
    compared = int(report.values.text.partition("on integers ")[2].split()[0])
    assert 0 < compared < 524288 // 2  # less than the share of two blocks
    mutant = kernels.with_load_coordinate(
        load(sch.mod), 0, 1, lambda x: x + tirx.IntImm("int32", 1)
    )
    assert finding_of(judge(mutant, mod))


def test_all_of_a_small_grid_run_on_integers():
    """The one that is wrong is of a kind of its own, too; on normal numbers these kinds run."""

    @T.prim_func(s_tir=True)
    def kernel(X: T.Buffer((64, 32), "float32"), Y: T.Buffer((64, 32), "float32")):
        bx = T.launch_thread("blockIdx.x", 64)
        tx = T.launch_thread("threadIdx.x", 32)
        Y[bx, tx] = X[T.Select(bx == 41, 40, bx), tx]

    @T.prim_func(s_tir=True)
    def plain(X: T.Buffer((64, 32), "float32"), Y: T.Buffer((64, 32), "float32")):
        for i, j in T.grid(64, 32):
            Y[i, j] = X[i, j]

    report = judge(kernel, plain)
    assert "on integers 2048 of 2048 elements" in report.values.text
    assert "on integers, Y[41, 0]" in finding_of(report).message


def test_a_last_launch_runs_in_part_and_those_before_it_whole(monkeypatch):
    monkeypatch.setattr(values, "LITTLE", 0)  # else all of it is little work
    mod = columns.column_sum(64, 16384, "float32")
    sch = s_tir.Schedule(mod)
    config = hs.ColumnReductionConfig(threads=128, rows=1, flight=1, blocks=2)
    hs.column_reduction(sch, config=config)
    report = judge(sch, mod)
    assert report.verdict == "clean", str(report)
    assert re.search(
        r"on integers [1-9]\d{0,3} of 16384 elements of Y bit for bit", report.values.text
    )
    assert finding_of(judge(sch, columns.column_max(64, 16384, "float32")))


def test_sums_that_are_too_long_are_incomplete(monkeypatch):
    monkeypatch.setattr(values, "WORK", {"integers": 1.0, "normal": 1.0})

    @T.prim_func(s_tir=True)
    def kernel(X: T.Buffer((64,), "float32"), Y: T.Buffer((32,), "float32")):
        bx = T.launch_thread("blockIdx.x", 2)
        tx = T.launch_thread("threadIdx.x", 32)
        T.evaluate(T.cuda.atomic_add(T.address_of(Y[tx]), X[bx * 32 + tx]))

    @T.prim_func(s_tir=True)
    def plain(X: T.Buffer((64,), "float32"), Y: T.Buffer((32,), "float32")):
        for i, j in T.grid(32, 2):
            Y[i] = Y[i] + X[j * 32 + i]

    report = judge(kernel, plain)
    assert report.verdict == "incomplete"
    assert "values: CTAs that need each other compute about" in str(report)
    assert not report.values.checked


def test_a_budget_that_is_spent_is_incomplete():
    plain, program = kernels.matmul()
    report = judge(program, plain, budget_s=1e-3)
    assert report.verdict == "incomplete"
    assert "not checked: no time was left" in report.values.text


def test_values_are_compared_before_more_schedules_run_than_a_verdict_needs(monkeypatch):
    now, run = [1000.0], Schedules.run

    def slow(self, *args):
        result = run(self, *args)
        now[0] += 10
        return result

    clock = SimpleNamespace(monotonic=lambda: now[0])
    monkeypatch.setattr(Schedules, "run", slow)
    for module in (verifier, values):
        monkeypatch.setattr(module, "time", clock)
    plain, program = kernels.matmul()
    report = verify(program, against=plain, progress=False, budget_s=60.0)
    ran = [verdict for _, _, verdict in report.runs if verdict != "skipped"]
    assert report.verdict == "clean"
    assert report.values.checked
    assert len(ran) == 5  # six would leave nothing


def test_a_kernel_that_hangs_is_not_compared():
    from tests.sim_kernels.mutate import change

    plain, program = kernels.matmul()
    report = judge(change(program, "mbarrier_arrive_nocount"), plain)
    assert report.verdict == "error"
    assert "not checked: the run did not come to its end" in report.values.text


# -- where the plain program lives ----------------------------------------------------------------


def test_a_schedule_knows_what_it_was():
    report = verify(scheduled(workloads.matmul(128, 64, 64), config=TILE), runs=ONE_RUN)
    assert report.values.checked
    assert report.verdict == "clean"


def test_the_file_of_the_shell_command(tmp_path, capsys):
    from tvm_hopper.cli import main

    file = tmp_path / "values_kernel.py"
    file.write_text(
        """
from tvm import s_tir
from tvm_hopper import schedule as hs
from tvm_hopper.testing import workloads

def plain():
    return workloads.matmul(128, 64, 64)

def other():
    return workloads.matmul(128, 64, 64, epilogue=("scale",))

def kernel():
    sch = s_tir.Schedule(plain())
    hs.matmul(sch, "C")
    return sch
"""
    )
    assert main(["verify", f"{file}:kernel"]) == 0
    assert "values compared with main" in capsys.readouterr().out
    assert main(["verify", f"{file}:kernel", "--against", f"{file}:plain", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["values"]["checked"] is True
    assert main(["verify", f"{file}:kernel", "--against", f"{file}:other"]) == 5
    assert "WRONG_VALUE" in capsys.readouterr().out


def test_against_takes_a_module_with_one_function_or_main():
    plain, program = kernels.matmul()
    with pytest.raises(ValueError, match="against: found a int; need the plain program"):
        judge(program, 3)
    two = tvm.IRModule({"first": plain["main"], "second": plain["main"]})
    with pytest.raises(ValueError, match=r"against: found functions \['first', 'second'\]"):
        judge(program, two)
