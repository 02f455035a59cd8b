"""One executable of each mechanism: two streams, two threads, replayed graphs, large tensors."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tvm_hopper.testing.mechanisms import MECHANISMS, build

pytestmark = pytest.mark.gpu

torch = pytest.importorskip("torch")
tvm_ffi = pytest.importorskip("tvm_ffi")

ROWS, COLUMNS = 4093, 2048
REPEATS = 16
LARGE_ROWS = 2**31 // COLUMNS + 40
POISON = 77
EACH = pytest.mark.parametrize("name", MECHANISMS)


@pytest.fixture(scope="module", autouse=True)
def _gpu():
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("no GPU of compute capability 9.0")


@pytest.fixture(scope="module")
def executables():
    """Return executables by name, of any number of rows; each is built when it is asked for."""
    return Executables()


class Executables(dict):
    """Builds what is missing."""

    def __missing__(self, name: str):
        self[name] = build(MECHANISMS[name], "n", COLUMNS)
        return self[name]


def random_bytes(rows: int):
    return torch.randint(-128, 127, (rows, COLUMNS), dtype=torch.int8, device="cuda")


def pairs(count: int = REPEATS) -> list:
    """Return inputs of different contents and numbers of rows, each with a poisoned output."""
    made = [random_bytes(ROWS - i) for i in range(count)]
    found = [(x, torch.full_like(x, POISON)) for x in made]
    torch.cuda.synchronize()
    return found


def all_copied(made: list) -> bool:
    torch.cuda.synchronize()
    return all(torch.equal(x, y) for x, y in made)


@EACH
def test_two_streams_in_turns(executables, name):
    run, made = executables[name]["main"], pairs()
    streams = [torch.cuda.Stream() for _ in range(2)]
    for turn, (x, y) in enumerate(made):
        with tvm_ffi.use_torch_stream(torch.cuda.stream(streams[turn % 2])):
            run(x, y)
    assert all_copied(made)


@EACH
def test_two_threads(name):
    """Each with a stream of its own; a kernel is loaded by its first call, here by both at once."""
    run, made = build(MECHANISMS[name], "n", COLUMNS)["main"], [pairs(), pairs()]
    start = threading.Barrier(len(made))

    def work(mine: list) -> None:
        stream = torch.cuda.Stream()
        start.wait()
        with tvm_ffi.use_torch_stream(torch.cuda.stream(stream)):
            for x, y in mine:
                run(x, y)
        stream.synchronize()

    with ThreadPoolExecutor(len(made)) as pool:
        for future in [pool.submit(work, mine) for mine in made]:
            future.result()
    assert all_copied(made[0] + made[1])


@EACH
def test_a_captured_graph_replays_for_new_inputs(executables, name):
    run, made = executables[name]["main"], pairs(3)
    run(*made[0])  # loads the kernel: a capture must not
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with tvm_ffi.use_torch_stream(torch.cuda.graph(graph)):
        for x, y in made:
            run(x, y)
    for _ in range(3):
        for x, y in made:
            x.copy_(random_bytes(len(x)))
            y.fill_(POISON)
        graph.replay()
        assert all_copied(made)


@EACH
def test_tensors_of_more_than_2_to_the_31_elements(name):
    x = random_bytes(LARGE_ROWS)
    y = torch.full_like(x, POISON)
    build(MECHANISMS[name], LARGE_ROWS, COLUMNS)["main"](x, y)
    torch.cuda.synchronize()
    assert x.numel() > 2**31
    assert torch.equal(x, y)


@EACH
def test_large_tensors_of_any_number_of_rows(executables, name):
    x = random_bytes(LARGE_ROWS)
    y = torch.full_like(x, POISON)
    executables[name]["main"](x, y)
    torch.cuda.synchronize()
    assert torch.equal(x, y)
