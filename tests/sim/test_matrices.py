"""ldmatrix and stmatrix in all forms: which lane gets which element; rows that are wrong."""

import functools
import itertools

import numpy as np
import pytest
from tvm.script import tirx as T

from tests.sim.kernels import lower, rules
from tvm_hopper.simulation import simulate

BYTES = 2048
FORMS = [*itertools.product((1, 2, 4), (False, True), ("shared",)), (4, False, "shared::cta")]


@functools.cache
def kernel(store, number, transposed, space="shared", lanes=32, writer=0, meets=True):
    """Build a kernel that brings X to shared memory, loads (or stores W there), and writes Y.

    Row addresses are byte offsets in P. Y is what lanes loaded, or all of shared memory.
    """
    name = "stmatrix" if store else "ldmatrix"
    form = f"{name}.sync.aligned.m8n8.x{number}{'.trans' * transposed}.{space}.b16"
    words = BYTES // 4
    size = words if store else 32 * number

    @T.prim_func(s_tir=True)
    def main(
        X: T.Buffer((words,), "uint32"),
        P: T.Buffer((32,), "int32"),
        W: T.Buffer((32 * number,), "uint32"),
        Y: T.Buffer((size,), "uint32"),
    ):
        T.func_attr({"global_symbol": "main"})
        T.launch_thread("blockIdx.x", 1)
        tx = T.launch_thread("threadIdx.x", 64)
        with T.attr(T.int32(0), "hand_threaded", 1):
            smem = T.alloc_buffer((BYTES,), "uint8", scope="shared.dyn", align=128)
            tile = T.decl_buffer((words,), "uint32", data=smem.data, scope="shared.dyn")
            raw = T.decl_buffer((BYTES,), "uint8", data=smem.data, scope="shared.dyn")
            r = T.alloc_buffer((number,), "uint32", scope="local")
            if tx // 32 == writer:
                for i in T.serial(words // 32):
                    tile[i * 32 + tx % 32] = X[i * 32 + tx % 32]
            if meets:
                T.tvm_storage_sync("shared")
            if tx < lanes:
                if store:
                    for i in T.serial(number):
                        r[i] = W[tx * number + i]
                    T.ptx[form](T.address_of(raw[P[tx]]), *[r[i] for i in range(number)])
                else:
                    T.ptx[form](*[r[i] for i in range(number)], T.address_of(raw[P[tx]]))
                    for i in T.serial(number):
                        Y[tx * number + i] = r[i]
            if store:
                T.tvm_storage_sync("shared")
                for i in T.serial(words // 64):
                    Y[i * 64 + tx] = tile[i * 64 + tx]

    return main


@functools.cache
def program(*arguments, **named):
    return lower(kernel(*arguments, **named))


def inputs(number, seed=0):
    """Draw shared memory, distinct rows, and registers."""
    rng = np.random.default_rng(seed)
    return {
        "X": rng.integers(0, 2**32, BYTES // 4).astype(np.uint32),
        "P": (rng.permutation(BYTES // 16)[:32] * 16).astype(np.int32),
        "W": rng.integers(0, 2**32, 32 * number).astype(np.uint32),
    }


def element(lane, half, transposed):
    """Return row and column of an element: the manual's figures 104 and 105, lane by lane."""
    pair = (lane // 4, lane % 4 * 2 + half)
    return pair[::-1] if transposed else pair


@pytest.mark.parametrize(("number", "transposed", "space"), FORMS)
def test_each_lane_gets_two_elements_of_each_matrix(number, transposed, space):
    values = inputs(number)
    result = simulate(program(False, number, transposed, space), values).require_clean()
    halves = result.outputs["Y"].reshape(32, number).view(np.uint16).reshape(32, number, 2)
    memory = values["X"].view(np.uint16)
    for lane, matrix, half in itertools.product(range(32), range(number), range(2)):
        row, column = element(lane, half, transposed)
        place = values["P"][8 * matrix + row] // 2 + column
        assert halves[lane, matrix, half] == memory[place]


@pytest.mark.parametrize(("number", "transposed", "space"), FORMS)
def test_each_lane_stores_two_elements_of_each_matrix(number, transposed, space):
    values = inputs(number)
    result = simulate(program(True, number, transposed, space), values).require_clean()
    want = values["X"].view(np.uint16).copy()
    halves = values["W"].reshape(32, number).view(np.uint16).reshape(32, number, 2)
    for lane, matrix, half in itertools.product(range(32), range(number), range(2)):
        row, column = element(lane, half, transposed)
        want[values["P"][8 * matrix + row] // 2 + column] = halves[lane, matrix, half]
    np.testing.assert_array_equal(result.outputs["Y"].view(np.uint16), want)


@pytest.mark.parametrize("store", [False, True])
def test_rows_lie_in_shared_memory_at_multiples_of_16(store):
    values = inputs(2)
    for lane, place, found in (
        (15, BYTES - 16, set()),
        (15, BYTES, {"OOB_ACCESS"}),
        (3, -16, {"OOB_ACCESS"}),
        (15, 8, {"MISALIGNED"}),
        (16, 8, set()),  # x2 takes the addresses of lanes 0 to 15
    ):
        values["P"] = np.arange(32, dtype=np.int32) * 16
        values["P"][lane] = place
        assert simulate(program(store, 2, False), values).rules == found


@pytest.mark.parametrize("store", [False, True])
def test_all_lanes_take_part(store):
    found = simulate(program(store, 4, True, lanes=16), inputs(4)).rules
    assert "WARP_CONVERGENCE" in found


@pytest.mark.parametrize("store", [False, True])
def test_what_another_warp_brings_is_waited_for(store):
    values = inputs(4)
    assert rules(kernel(store, 4, False, writer=1), values) == set()
    found = rules(kernel(store, 4, False, writer=1, meets=False), values)
    assert found & {"RACE_READ_INFLIGHT", "RACE_OVERWRITE_BUSY", "RACE_WRITE_WRITE"}
