"""Tensors that start one element behind a multiple of 16 bytes, in every kind of kernel.

The host names such a tensor before it launches anything, or the kernel accesses it by as little as
that allows: the simulator judges each access by the tensor's real address.
"""

import numpy as np
import pytest
import tvm
from tvm import s_tir, te

from tests.sim_kernels.test_bad_inputs import KINDS, scheduled as by_rows
from tvm_hopper import ir, schedule as hs
from tvm_hopper.simulation import load, simulate
from tvm_hopper.testing import gates, losses, mechanisms, memory_bound, pointwise, workloads

PAIR = ("float16", "float16")


def helped(mod, helper, *args):
    sch = s_tir.Schedule(mod)
    helper(sch, *args)
    return sch


def product(m=64, n=16, k=64, layout="NT", out="float16", **fields):
    config = hs.MatmulConfig(**fields)
    return helped(workloads.matmul(m, n, k, layout, "float16", out), hs.matmul, "C", config)


def elements(*shape):
    x = te.placeholder(shape, "float16", name="X")
    y = te.compute(shape, lambda *i: x(*i) + te.const(1, "float16"), name="Y")
    return helped(tvm.IRModule({"main": te.create_prim_func([x, y])}), hs.pointwise)


def split(mode, **more):
    fields = {"tile": (64, 16, 16), "split_k": hs.SplitK(2, mode), "stages": 2, **more}
    return product(64, 16, 64, out="float32", **fields)


PROGRAMS = {
    "vector": lambda: elements(1000),
    "matrix": lambda: elements(4, 4096),
    "tensor": lambda: elements(3, 5, 40),
    "odd rows": lambda: elements(7, 100),
    "single elements": lambda: elements(3, 5),
    "outer sum": lambda: helped(pointwise.add_row_bias(8, 64), hs.pointwise),
    "two outputs": lambda: helped(memory_bound.sum_and_difference(4, 64), hs.pointwise),
    "argmax": lambda: helped(losses.argmax(4, 256), hs.row_reduction),
    "kept end": lambda: helped(memory_bound.copy(64, 4096), hs.pointwise),
    "tensor cores": product,
    "columns first": lambda: product(layout="TN"),
    "odd columns": lambda: product(n=12),
    "one row": lambda: product(1, 16, 64),
    "few rows": lambda: product(8, 64, 64, form="direct"),
    "staged": lambda: product(tile=(64, 16, 64), store="tma"),
    "residual": lambda: helped(
        workloads.matmul(64, 16, 64, "NT", *PAIR, epilogue=("bias_col", "residual")), hs.matmul, "C"
    ),
    "gate": lambda: helped(gates.gated_product(64, 16, 64), hs.matmul, "C"),
    "cluster": lambda: split("cluster"),
    "workspace": lambda: split("workspace"),
    "caller": lambda: split("caller"),
    "serial": lambda: split("serial"),
    "atomic": lambda: split("atomic"),
    "stream": lambda: split("stream", split_k="stream", persistent=3),
    **{f"kind: {name}": (lambda name=name: by_rows(name)) for name in KINDS},
}
COPIES = {x: y for x, y in mechanisms.MECHANISMS.items() if "ring" not in x}


def given(func):
    """Draw a function's tensors, each at a multiple of 16 bytes."""
    rng, found = np.random.default_rng(3), {}
    for param in func.params:
        shape, dtype = [int(x) for x in param.shape], workloads.numpy_type(ir.dtype_of(param))
        found[param.name] = place(rng.integers(0, 3, shape).astype(dtype), 0)
    return found


def place(values, elements):
    """Copy an array to memory that starts so many elements behind a multiple of 16 bytes."""
    size = values.itemsize
    memory = np.zeros(values.size * size + 32, np.uint8)
    first = -memory.ctypes.data % 16 + elements * size
    moved = memory[first : first + values.size * size].view(values.dtype).reshape(values.shape)
    moved[...] = values
    return moved


def check_starts(module, target=None):
    func = module["main"]
    tensors = given(func)
    program = load(module, **({} if target is None else {"target": target}))
    for name, values in tensors.items():
        if values.itemsize % 16 == 0:
            continue
        try:
            result = simulate(program, {**tensors, name: place(values, 1)}, allocator=True)
        except ValueError as error:
            assert f"{name}: found a start address" in str(error)  # noqa: PT017
        else:
            assert not result.findings, (name, result.findings)


@pytest.mark.sampled(every=5)
@pytest.mark.parametrize("kind", PROGRAMS)
def test_a_start_in_a_vector_is_refused_by_name_or_served(kind):
    check_starts(PROGRAMS[kind]().mod)


@pytest.mark.parametrize("kind", COPIES)
def test_copies_from_and_to_such_a_start(kind):
    mechanism = COPIES[kind]
    check_starts(mechanisms.module(mechanism, 96, 256), mechanism.target)
