"""Of launches that need each other, and of CTAs that add up what they store, a part is compared."""

import re

import numpy as np
import pytest
from tvm import s_tir, tirx
from tvm.script import tirx as T

from tests.values import kernels
from tests.values.kernels import judge
from tvm_hopper import schedule as hs
from tvm_hopper.sim.coverage.points import UndecidedError
from tvm_hopper.simulation import load
from tvm_hopper.testing import workloads
from tvm_hopper.verification import launches, related, values


def parts_of(report) -> list[tuple[int, int]]:
    """Return of each run on integers how many elements were compared, and of how many."""
    found = re.findall(r"on integers (\d+) of (\d+) elements", report.values.text)
    return [(int(some), int(every)) for some, every in found]


def split(mode: str, parts: int = 4, size: int = 256):
    mod = workloads.matmul(size, size, 512)
    sch = s_tir.Schedule(mod)
    tile = {"tile": (64, 64, 64), "stages": 2, "consumers": 1}
    hs.matmul(sch, "C", hs.MatmulConfig(**tile, split_k=hs.SplitK(parts, mode)))
    return mod, sch


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("mode", ["workspace", "serial", "atomic"])
def test_parts_of_long_sums_are_compared_in_part(monkeypatch, mode):
    monkeypatch.setattr(values, "WORK", {"integers": 2e6, "normal": 1e6})
    mod, sch = split(mode)
    report = judge(sch, mod)
    assert report.verdict == "clean", str(report)
    some, every = parts_of(report)[-1]
    assert every // 16 <= some <= every // 4, str(report)  # a tile or more, and never all
    if mode == "serial":  # one kernel for either way to call it
        return
    step = tirx.IntImm("int32", 1)
    mutant = kernels.with_load_coordinate(load(sch.mod), 0, 1, lambda x: x + step)
    assert "WRONG_VALUE" in {one.rule for one in judge(mutant, mod).findings}


def needed(func, chosen, **arrays):
    """Return which CTAs run with the chosen ones, launch by launch."""
    program = load(func)
    found = related.Related.of(launches.bound_launches(program, arrays, num_sms=132), arrays)
    return found.last, found.with_needed(chosen)


@T.prim_func(s_tir=True)
def backwards(X: T.Buffer((64,), "float32"), W: T.Buffer((64,), "float32"),
              Y: T.Buffer((32,), "float32")):  # fmt: skip
    with T.launch_thread("blockIdx.x", 8) as a:
        tx = T.launch_thread("threadIdx.x", 8)
        W[a * 8 + tx] = X[a * 8 + tx]
    with T.launch_thread("blockIdx.x", 4) as b:
        ty = T.launch_thread("threadIdx.x", 8)
        Y[b * 8 + ty] = W[63 - b * 16 - ty] + W[55 - b * 16 - ty]


@T.prim_func(s_tir=True)
def added(X: T.Buffer((64,), "float32"), Y: T.Buffer((16,), "float32")):
    with T.launch_thread("blockIdx.x", 2) as a:
        tx = T.launch_thread("threadIdx.x", 8)
        Y[a * 8 + tx] = T.float32(0)
    with T.launch_thread("blockIdx.x", 8) as b:
        ty = T.launch_thread("threadIdx.x", 8)
        T.evaluate(T.cuda.atomic_add(T.address_of(Y[b % 2 * 8 + ty]), X[b * 8 + ty]))


@T.prim_func(s_tir=True)
def by_data(X: T.Buffer((8,), "int32"), W: T.Buffer((64,), "float32"),
            Y: T.Buffer((64,), "float32")):  # fmt: skip
    with T.launch_thread("blockIdx.x", 8) as a:
        tx = T.launch_thread("threadIdx.x", 8)
        W[X[a] * 8 + tx] = T.float32(1)
    with T.launch_thread("blockIdx.x", 8) as b:
        ty = T.launch_thread("threadIdx.x", 8)
        Y[b * 8 + ty] = W[b * 8 + ty]


def zeros(**sizes):
    return {name: np.zeros(size, "float32") for name, size in sizes.items()}


def test_those_run_that_store_what_others_load():
    last, found = needed(backwards, {1: [(1, 0, 0)]}, **zeros(X=64, W=64, Y=32))
    assert last == (0, 1)  # W is the caller's, too
    assert found == [[(4, 0, 0), (5, 0, 0)], [(1, 0, 0)]]
    _, found = needed(backwards, {0: [(2, 0, 0)]}, **zeros(X=64, W=64, Y=32))
    assert found == [[(2, 0, 0)], [(0, 0, 0)]]  # of each launch something runs
    _, found = needed(backwards, {0: [(2, 0, 0), (3, 0, 0)]}, **zeros(X=64, W=64, Y=32))
    assert found == [[(2, 0, 0), (3, 0, 0)], [(2, 0, 0)]]  # which has all that it loads


def test_those_run_that_add_to_the_same_elements():
    last, found = needed(added, {1: [(3, 0, 0)]}, **zeros(X=64, Y=16))
    assert last == (1,)
    assert found == [[(1, 0, 0)], [(1, 0, 0), (3, 0, 0), (5, 0, 0), (7, 0, 0)]]
    _, found = needed(added, {1: [(2, 0, 0), (3, 0, 0)]}, **zeros(X=64, Y=16))
    assert found == [None, None]


def test_stores_that_depend_on_data_are_not_told():
    with pytest.raises(UndecidedError):
        needed(by_data, {1: [(1, 0, 0)]}, X=np.zeros(8, "int32"), **zeros(W=64, Y=64))
