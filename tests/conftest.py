"""Shared by all tests: which of them need a GPU, which are a sample, and golden texts.

`pytest --update-golden` rewrites the files that the `golden` fixture compares with.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import inspect
import os
import sys
from collections.abc import Generator
from pathlib import Path
from types import FrameType

import pytest

GOLDEN = Path(__file__).parent / "golden"

# Each of several workers has one core: threads of numpy's library would wait for one another.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# Tests count what is built, and leave nothing in a home.
os.environ.setdefault("TVM_HOPPER_CACHE", "0")

# At the end, so that an installed wheel comes first: for `benchmarks` and `tests`.
sys.path.append(str(Path(__file__).parents[1]))


def _outer_frames(frame: FrameType | None, context: int = 1) -> list[inspect.FrameInfo]:
    """Stand in for `inspect.getouterframes`: one source at the most.

    TVM's parser asks for all, and looks whether the third frame stands at a decorated class, in
    whose body a function is then. Below pytest there are sixty, and each kernel and macro that is
    written in a test would take 50 ms more.
    """
    found: list[inspect.FrameInfo] = []
    in_body = False
    while frame is not None:
        code = frame.f_code
        place = (code.co_filename, frame.f_lineno, code.co_name, None, None)
        info = inspect.getframeinfo(frame, context) if len(found) == 2 and in_body else place
        found.append(inspect.FrameInfo(frame, *info))
        in_body = not code.co_flags & inspect.CO_OPTIMIZED  # of a class, or of a module
        frame = frame.f_back
    return found


inspect.getouterframes = _outer_frames


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite the golden files")


def _has_hopper() -> bool:
    """Ask the driver alone: TVM's device queries would start a context in every worker."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    device, major = ctypes.c_int(), ctypes.c_int()
    if driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), 0):
        return False
    driver.cuDeviceGetAttribute(ctypes.byref(major), 75, device)  # COMPUTE_CAPABILITY_MAJOR
    return major.value == 9


def _leave_a_sample(items: list[pytest.Item]) -> None:
    """Of the cases of a test marked `sampled(every=n)`, all but one in n become slow.

    Those that are slow as it is are not counted.
    """
    from tests.sampling import spread  # found by the path above where the wheel is tested

    tests: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("sampled") and not item.get_closest_marker("slow"):
            tests.setdefault(item.nodeid.split("[", 1)[0], []).append(item)
    for cases in tests.values():
        every = cases[0].get_closest_marker("sampled").kwargs["every"]
        kept = spread([x.callspec.id.split("-") for x in cases], every)
        for number, item in enumerate(cases):
            if number not in kept:
                item.add_marker(pytest.mark.slow)


# First, so that `-m "not slow"` sees the marks.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    _leave_a_sample(items)
    if any("gpu" in item.keywords for item in items) and not _has_hopper():
        skip = pytest.mark.skip(reason="needs an NVIDIA GPU of compute capability 9.0")
        for item in items:
            if "gpu" in item.keywords:
                item.add_marker(skip)


def pytest_collection_finish() -> None:
    """Spare TVM's schedule what it does anew at each call: reading the annotations of its methods.

    That is 3% of the time of all tests.
    """
    _keep_from_collector()
    if checker := sys.modules.get("tvm.s_tir.schedule._type_checker"):
        checker._dispatcher = functools.lru_cache(checker._dispatcher)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, None, None]:
    """Behind a file of tests, what is alive outlives all of them, as caches and reports do."""
    yield
    if nextitem is None or nextitem.path != item.path:
        _keep_from_collector()


def _keep_from_collector() -> None:
    """Take what is alive from the collector: the tests themselves are half a million objects.

    `verify` collects after each run, which would look at all of them each time.
    """
    gc.collect()
    gc.freeze()


# Where kernels of the passes are judged; tests of the judge itself run all schedules.
OF_KERNELS = {"dlight", "relax", "schedule", "integration", "transforms"}
OF_KERNELS |= {"regression", "sim_kernels"}


@pytest.fixture(autouse=True)
def _half_of_the_schedules(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `verify` run every second schedule by default; `make test-all` runs them all."""
    folder = request.path.relative_to(Path(__file__).parent).parts[0]
    if folder not in OF_KERNELS or "not slow" not in request.config.getoption("markexpr"):
        return
    from tvm_hopper.verification import verifier

    defaults = tuple(x[::2] if x is verifier.RUNS else x for x in verifier.verify.__defaults__)
    monkeypatch.setattr(verifier.verify, "__defaults__", defaults)


@pytest.fixture
def golden(request: pytest.FixtureRequest):
    """Compare a text with `golden/<test file>/<test name>.txt`."""

    def check(text: str, suffix: str = "txt") -> None:
        __tracebackhide__ = True
        path = GOLDEN / request.path.stem / f"{request.node.name}.{suffix}"
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            return
        if not path.is_file():
            pytest.fail(f"no golden file {path}: run again with --update-golden and read it")
        assert text == path.read_text(), f"differs from {path}; if meant: --update-golden"

    return check
