"""What the worker of a GPU does, with a driver that is none; and the whole road on the CPU."""

from dataclasses import replace

import numpy as np
import pytest
import tvm
from tvm import te

from tests.meta_schedule.host_driver import FULL, NOW, HostDriver
from tvm_hopper.cuda_build import runtime
from tvm_hopper.errors import HopperError
from tvm_hopper.meta_schedule.measuring import artifact, measure, tensors
from tvm_hopper.meta_schedule.measuring.artifact import TensorArgument
from tvm_hopper.meta_schedule.measuring.compile import arguments_of, build_artifact
from tvm_hopper.meta_schedule.workers.messages import CannotGoOn

ARGUMENTS = (
    TensorArgument("A", (64, 32), "float16", False),
    TensorArgument("C", (64, 32), "float16", True),
)


def kernel(driver, seconds=1e-4, rows=None):
    """Return a function that copies A to C, and takes so long."""

    def run(a, c):
        driver.queue.append("call")
        driver.now += seconds
        out = np.array(c.numpy())
        out[:rows] = a.numpy()[:rows]
        c.copyfrom(out)

    return run


def test_a_repeat_reads_the_clock_flushes_and_times_the_function_alone():
    driver = HostDriver()
    bench = measure.GpuBench(driver)
    found = bench.run(kernel(driver), ARGUMENTS, 4)
    assert found["seconds"] == pytest.approx([1e-4] * 4)
    assert found["corrected"] == pytest.approx([1e-4 * NOW / FULL] * 4)
    assert found["megahertz"] == NOW
    assert driver.queue[-21:] == ["clock", "fill", "event", "call", "event"] * 4 + ["synchronize"]


def test_what_the_memory_takes_does_not_go_with_the_clock():
    driver = HostDriver()
    about = driver.facts()
    for rate, fixed in ((1e8, (2 * 64 * 32 * 2 - about.l2_bytes) / 1e8), (1e6, 1e-4)):
        driver.facts = lambda rate=rate: replace(about, memory_rate=rate)
        found = measure.GpuBench(driver).run(kernel(driver), ARGUMENTS, 4)
        assert found["corrected"] == pytest.approx([fixed + (1e-4 - fixed) * NOW / FULL] * 4)


@pytest.mark.parametrize(
    ("seconds", "count"), [(1e-6, measure.MOST), (2e-3, 15), (1.0, measure.FEWEST)]
)
def test_short_kernels_are_repeated_more_often(seconds, count):
    driver = HostDriver()
    bench = measure.GpuBench(driver)
    assert len(bench.run(kernel(driver, seconds), ARGUMENTS, None)["seconds"]) == count


def test_an_output_that_is_not_written_is_an_error():
    driver = HostDriver()
    bench = measure.GpuBench(driver)
    match = r"output C: found .* elements that the function did not write, at byte .*; need all"
    with pytest.raises(HopperError, match=match):
        bench.run(kernel(driver, rows=63), ARGUMENTS, 1)
    assert bench.run(kernel(driver), ARGUMENTS, 1)["seconds"]


def test_integers_may_be_the_poison():
    driver = HostDriver()
    arguments = tuple(TensorArgument(x.name, x.shape, "int32", x.is_written) for x in ARGUMENTS)
    assert measure.GpuBench(driver).run(kernel(driver, rows=1), arguments, 1)["seconds"]


def test_tensors_are_kept_and_outputs_are_never_taken_for_inputs():
    driver = HostDriver()
    bench = measure.GpuBench(driver)
    bench.run(kernel(driver), ARGUMENTS, 1)
    first = bench.tensors(ARGUMENTS)
    assert [x.data_ptr() for x in bench.tensors(ARGUMENTS)] == [x.data_ptr() for x in first]
    swapped = tuple(TensorArgument(x.name, x.shape, x.dtype, not x.is_written) for x in ARGUMENTS)
    fresh = bench.tensors(swapped)
    assert fresh[1].data_ptr() != first[1].data_ptr()
    want = tensors.random_values((64, 32), "float16", 1)
    assert np.array_equal(fresh[1].numpy(), want)


def test_too_many_kept_tensors_go_oldest_first(monkeypatch):
    monkeypatch.setattr(measure, "KEPT_BYTES", 3 * 64 * 32 * 2)
    bench = measure.GpuBench(HostDriver())
    for name in "ABC":
        bench.tensors((TensorArgument(name, (64, 32), "float16", False),) * 2)
    assert [key[2].name for key in bench._kept] == ["B", "C", "C"]


def test_an_error_of_the_runtime_is_the_devices_last_word_if_that_is_lost(monkeypatch):
    driver = HostDriver()
    bench = measure.GpuBench(driver)

    def raises(*_):
        raise RuntimeError("CUDALaunch Error: CUDA_ERROR_INVALID_VALUE")

    with pytest.raises(RuntimeError, match="INVALID_VALUE"):  # it answers: an error of this kernel
        bench.run(raises, ARGUMENTS, 1)

    def lost():
        raise CannotGoOn("cuCtxSynchronize: the driver says CUDA_ERROR_ILLEGAL_ADDRESS")

    monkeypatch.setattr(driver, "synchronize", lost)
    with pytest.raises(CannotGoOn, match="ILLEGAL_ADDRESS"):
        bench.run(raises, ARGUMENTS, 1)


def test_a_machine_without_a_gpu_says_so(monkeypatch):
    monkeypatch.setattr(runtime, "ensure", lambda: False)
    with pytest.raises(HopperError, match="measuring: found no CUDA driver or no CUDA 13 runtime"):
        measure.open_gpu()


# -- on the CPU: host code through LLVM, no device code


def plus_one(n):
    a = te.placeholder((n, 8), "float32", name="A")
    c = te.compute((n, 8), lambda i, j: a[i, j] + te.const(1, "float32"), name="C")
    return tvm.IRModule({"main": te.create_prim_func([a, c])})


@pytest.fixture(scope="module")
def on_host(tmp_path_factory):
    folder = tmp_path_factory.mktemp("host")
    return build_artifact(plus_one(16), tvm.target.Target("llvm"), folder, [])


def test_an_artifact_without_kernels_runs_without_a_compiler(on_host):
    files = artifact.read_files(on_host)
    manifest = artifact.check("here", files)
    assert manifest.arguments == (
        TensorArgument("A", (16, 8), "float32", False),
        TensorArgument("C", (16, 8), "float32", True),
    )
    function = artifact.load(on_host.parent, manifest)
    a = tvm.runtime.tensor(np.ones((16, 8), "float32"))
    c = tvm.runtime.empty((16, 8), "float32")
    function(a, c)
    assert (c.numpy() == 2).all()


@pytest.fixture
def answerer(monkeypatch):
    monkeypatch.setattr(measure, "open_gpu", lambda: measure.GpuBench(HostDriver()))
    return measure.answerer({})


def test_a_request_is_measured_from_the_artifact_alone(on_host, answerer):
    given = [["TENSOR", "float32", [16, 8]]] * 2
    request = {"artifact": str(on_host), "arguments": given, "repeats": 3}
    answer, about = answerer
    assert about["name"] == "none"
    assert len(answer(request)["seconds"]) == len(answer(request)["corrected"]) == 3
    assert answer({**request, "arguments": None})["seconds"]


def test_a_request_may_come_in_two_steps(on_host, answerer):
    """What is loaded is measured once, when its turn has come."""
    answer, _ = answerer
    request = {"artifact": str(on_host), "arguments": None, "repeats": 2}
    assert answer({**request, "step": "load"}) == {}
    found = answer({"step": "run"})
    assert len(found["seconds"]) == 2
    assert found["worker_seconds"] > 0
    with pytest.raises(CannotGoOn, match="found nothing loaded; need a load first"):
        answer({"step": "run"})


@pytest.mark.parametrize(
    "given", [[["TENSOR", "float32", [16, 8]]], [["TENSOR", "float16", [16, 8]]] * 2, [["OTHER"]]]
)
def test_other_arguments_than_were_built_for_are_refused(on_host, given):
    request = {"artifact": str(on_host), "arguments": given}
    with pytest.raises(HopperError, match=r"arguments: found .*; need those that were built for"):
        measure.load(request)


def test_kernels_need_a_runtime(on_host, monkeypatch):
    monkeypatch.setattr(runtime, "ensure", lambda: False)
    files = artifact.read_files(on_host)
    manifest = artifact.check("here", files)
    manifest.digests[artifact.DEVICE] = ""
    with pytest.raises(HopperError, match="artifact with kernels: found no CUDA driver"):
        artifact.load(on_host.parent, manifest)


def test_functions_that_cannot_be_measured_are_refused():
    n = te.var("n", "int64")
    with pytest.raises(HopperError, match=r"A: found the shape .*; need static extents"):
        arguments_of(plus_one(n)["main"])
    a = te.placeholder((4,), "float32", name="A")
    x = te.var("x", "float32")
    c = te.compute((4,), lambda i: a[i] * x, name="C")
    with pytest.raises(HopperError, match="x: found no tensor; need tensors as all arguments"):
        arguments_of(te.create_prim_func([a, x, c]))


def test_a_module_needs_one_function_or_a_main(tmp_path):
    func = plus_one(4)["main"]
    two = tvm.IRModule({x: func.with_attr("global_symbol", x) for x in ("f", "g")})
    with pytest.raises(HopperError, match=r"module: found functions \['f', 'g'\]; need one"):
        build_artifact(two, tvm.target.Target("llvm"), tmp_path, [])
    one = tvm.IRModule({"f": func.with_attr("global_symbol", "f")})
    path = build_artifact(one, tvm.target.Target("llvm"), tmp_path, [])
    assert artifact.parse(path.read_bytes()).entry == "f"
