"""One executable on any device, from any thread, on any stream: the same bits everywhere."""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tvm
from tvm.script import tirx as T

import tvm_hopper
from benchmarks.matmul_case import Case, build
from tvm_hopper.facts.devices import balanced_blocks
from tvm_hopper.schedule import BY_DEVICE

pytestmark = pytest.mark.gpu

torch = pytest.importorskip("torch")
tvm_ffi = pytest.importorskip("tvm_ffi")

# Persistent on every part, ragged along m and k; alone, or blocks come in clusters of two.
CASE = Case(2100, 3080, 520, config={"cluster": (1, 1)})
OTHER = Case(None, 2056, 264, "NN", "bfloat16", "bfloat16")
ROWS = 3000  # of OTHER
REPEATS = 20


@pytest.fixture(scope="module", autouse=True)
def _gpu():
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("no GPU of compute capability 9.0")


@pytest.fixture(scope="module")
def executable():
    return build(CASE)


@pytest.fixture(scope="module")
def other():
    return build(OTHER)


def tensors(case: Case, seed: int, device: str = "cuda:0"):
    """Return A, B and an output of NaN; the same values on every device."""
    generator = torch.Generator().manual_seed(seed)
    m, dtype = case.m or ROWS, getattr(torch, case.dtype)
    shapes = (m, case.k), ((case.n, case.k) if case.layout == "NT" else (case.k, case.n))
    a, b = (torch.randn(s, generator=generator).to(dtype).to(device) for s in shapes)
    out_dtype = getattr(torch, case.out_dtype)
    out = torch.full((m, case.n), float("nan"), dtype=out_dtype, device=device)
    torch.cuda.synchronize(device)
    return a, b, out


def serial(run, case: Case, seed: int, device: str = "cuda:0"):
    """Return the result of a run with nothing beside it, on the CPU, and judge it roughly."""
    a, b, out = tensors(case, seed, device)
    run(a, b, out)
    torch.cuda.synchronize(device)
    left, right = a.double(), b.double()
    want = left @ (right.T if case.layout == "NT" else right)
    assert float((out.double() - want).norm() / want.norm()) < 4e-3
    return out.cpu()


def same(got, want) -> bool:
    """Tell whether two results have the same bits."""
    integer = torch.int32 if got.element_size() == 4 else torch.int16
    return torch.equal(got.cpu().view(integer), want.view(integer))


# -- which device


def test_the_runtime_counts_the_sms_that_torch_counts(capsys):
    ask = tvm_ffi.get_global_func("runtime.GetDeviceAttr")
    for index in range(torch.cuda.device_count()):
        found = torch.cuda.get_device_properties(index)
        assert ask(2, index, 7) == found.multi_processor_count
        with capsys.disabled():
            print(f"\ncuda:{index}: {found.name}, {found.multi_processor_count} SMs")


def test_the_grid_balances_on_this_device(executable, tmp_path):
    (kernel,) = tvm_hopper.explain(executable).kernels
    assert kernel.persistent == BY_DEVICE
    a, b, out = tensors(CASE, 0)
    executable["main"](a, b, out)  # loads the kernel
    torch.cuda.synchronize()
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities, acc_events=True) as profile:
        executable["main"](a, b, out)
        torch.cuda.synchronize()
    profile.export_chrome_trace(str(tmp_path / "trace.json"))
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    grids = [e["args"]["grid"] for e in events if e.get("name") == kernel.name and "args" in e]
    if not grids:
        pytest.skip("the profiler sees no kernels here")
    num_sms = torch.cuda.get_device_properties(0).multi_processor_count
    assert grids == [[balanced_blocks(int(kernel.order.tiles), num_sms), 1, 1]]


def test_asking_the_device_costs_next_to_nothing(capsys):
    @T.prim_func(s_tir=True)
    def ask(count: T.int32, total: T.Buffer((1,), "int32")):
        for _ in range(count):
            total[0] = total[0] + T.call_packed("runtime.GetDeviceAttr", 2, 0, 7)

    func = tvm.compile(tvm.IRModule({"ask": ask}), target="llvm")["ask"]
    total = tvm.runtime.tensor(np.zeros(1, "int32"))
    func(1000, total)
    start = time.perf_counter()
    func(10000, total)
    microseconds = (time.perf_counter() - start) * 100
    with capsys.disabled():
        print(f"\nthe number of SMs: {microseconds:.3f} us a call")
    assert microseconds < 2


def test_one_executable_on_two_devices():
    """Built here, so that each device loads it for the first time."""
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU")
    run = build(CASE)["main"]
    before = torch.cuda.current_device()
    try:
        second = serial(run, CASE, 1, "cuda:1")  # the second device first
        assert same(second, serial(run, CASE, 1, "cuda:0"))
        results = []
        for turn in range(REPEATS):  # in turns, both at work at once
            device = f"cuda:{turn % 2}"
            a, b, out = tensors(CASE, turn // 2, device)
            run(a, b, out)
            results.append(out)
        for device in (0, 1):
            torch.cuda.synchronize(device)
        for one, two in zip(results[::2], results[1::2], strict=True):
            assert same(one, two.cpu())
    finally:
        torch.cuda.set_device(before)  # TVM leaves the device of the last call current


def test_tensors_of_two_devices_are_refused(executable):
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU")
    a, b, _ = tensors(CASE, 0)
    _, _, out = tensors(CASE, 0, "cuda:1")
    with pytest.raises(ValueError, match=r"device_id on argument #2"):
        executable["main"](a, b, out)


# -- threads and streams


def in_threads(*works) -> list:
    """Run functions at once, each in a thread with a stream of its own; return their results."""
    start = threading.Barrier(len(works))

    def one(work):
        stream = torch.cuda.Stream()
        start.wait()
        with tvm_ffi.use_torch_stream(torch.cuda.stream(stream)):
            results = work()
        stream.synchronize()
        return results

    with ThreadPoolExecutor(len(works)) as pool:
        return [future.result() for future in [pool.submit(one, work) for work in works]]


def repeated(run, case: Case, first: int):
    """Return a function that runs a case on several inputs; they are made beforehand."""
    made = [tensors(case, first + i) for i in range(REPEATS)]

    def work():
        for a, b, out in made:
            run(a, b, out)
        return [out for _, _, out in made]

    return work


@pytest.mark.parametrize("loaded", [True, False], ids=["loaded", "loaded by both at once"])
def test_two_threads_with_one_executable(executable, loaded):
    want = [serial(executable["main"], CASE, seed) for seed in range(2 * REPEATS)]
    run = executable["main"] if loaded else build(CASE)["main"]
    works = [repeated(run, CASE, first) for first in (0, REPEATS)]
    results = [out for part in in_threads(*works) for out in part]
    assert all(map(same, results, want))


def test_two_threads_with_an_executable_each(executable, other):
    pairs = [(executable["main"], CASE), (other["main"], OTHER)]
    want = [[serial(run, case, seed) for seed in range(REPEATS)] for run, case in pairs]
    results = in_threads(*(repeated(run, case, 0) for run, case in pairs))
    for got, expected in zip(results, want, strict=True):
        assert all(map(same, got, expected))


def test_one_executable_on_two_streams_in_turns(executable):
    run = executable["main"]
    want = [serial(run, CASE, seed) for seed in range(REPEATS)]
    made = [tensors(CASE, seed) for seed in range(REPEATS)]
    streams = [torch.cuda.Stream() for _ in range(2)]
    for turn, (a, b, out) in enumerate(made):
        with tvm_ffi.use_torch_stream(torch.cuda.stream(streams[turn % 2])):
            run(a, b, out)
    torch.cuda.synchronize()
    assert all(same(out, expected) for (_, _, out), expected in zip(made, want, strict=True))


@pytest.mark.parametrize("case", [CASE, OTHER], ids=["static", "symbolic"])
def test_a_captured_launch_replays_for_new_inputs(case):
    """Asking for the SMs is no work on the stream: it may stand in a capture."""
    run = build(case)["main"]
    want = [serial(run, case, seed) for seed in (1, 2)]  # loads the kernel: a capture must not
    a, b, out = tensors(case, 0)
    graph = torch.cuda.CUDAGraph()
    with tvm_ffi.use_torch_stream(torch.cuda.graph(graph)):
        run(a, b, out)
    for seed, expected in zip((1, 2), want, strict=True):
        fresh_a, fresh_b, _ = tensors(case, seed)
        a.copy_(fresh_a)
        b.copy_(fresh_b)
        out.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        assert same(out, expected)
