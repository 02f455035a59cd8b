"""TVM's older call `ptx_legacy.mma` in the forms that it may spell, beside m16n8k16 of halves."""

import numpy as np
import pytest
from tvm.script import tirx as T

from tests.sim import mma_kernels
from tests.sim.mma_operands import Operands
from tvm_hopper.simulation import simulate

from .hand_threaded import Elements, Local, hand_threaded
from .kernels import lower

# (row, types of A, B and C in the older call, type of their registers, operator)
FORMS = [
    ("mma", "m8n8k4", ("fp16", "fp16", "fp32"), ("float16", "float32"), None),
    ("mma", "m16n8k4", ("tf32", "tf32", "fp32"), ("float32", "float32"), None),
    ("mma", "m16n8k8", ("tf32", "tf32", "float32"), ("float32", "float32"), None),
    ("mma_f64", "m8n8k4", ("fp64", "fp64", "fp64"), ("float64", "float64"), None),
    ("mma_int", "m8n8k16", ("int8", "int8", "int32"), ("int8", "int32"), None),
    ("mma_int", "m16n8k64", ("int4", "uint4", "int32"), ("uint32", "int32"), None),
    ("mma_int", "m16n8k128", ("int1", "int1", "int32"), ("uint32", "int32"), "xor"),
]
PTX = {"fp16": "f16", "fp64": "f64", "int8": "s8", "int4": "s4", "uint4": "u4", "int1": "b1"}


def program(shape, layouts, types, registers, counts, operator):
    """Build a kernel that adds one product to C."""
    inputs, sums = registers
    num_a, num_b, num_c = counts
    more = () if operator is None else (operator,)

    @hand_threaded(32, grid=None)
    def main(
        A: Elements(inputs)[32 * num_a], B: Elements(inputs)[32 * num_b],
        C: Elements(sums)[32 * num_c], D: Elements(sums)[32 * num_c],
        tx, a: Local[Elements(inputs), num_a], b: Local[Elements(inputs), num_b],
        c: Local[Elements(sums), num_c],
    ):  # fmt: skip
        for i in T.serial(num_a):
            a[i] = A[tx * num_a + i]
        for i in T.serial(num_b):
            b[i] = B[tx * num_b + i]
        for i in T.serial(num_c):
            c[i] = C[tx * num_c + i]
        T.ptx_legacy.mma(
            shape, *layouts, *types, a.data, 0, b.data, 0, c.data, 0, False, *more, dtype=sums
        )
        for i in T.serial(num_c):
            D[tx * num_c + i] = c[i]

    return lower(main)


@pytest.mark.parametrize(
    ("row", "shape", "types", "registers", "operator"),
    FORMS,
    ids=[f"{f[1]}-{f[2][0]}" for f in FORMS],
)
def test_one_product(row, shape, types, registers, operator):
    wanted = {"shape": shape, "atype": PTX.get(types[0], types[0]), "satfinite": "", "rnd": "",
              "btype": PTX.get(types[1], types[1]), "bitop": operator or ""}  # fmt: skip
    form = next(
        form
        for form in mma_kernels.forms()
        if form[0] == row
        and all(mma_kernels.modifiers(*form).get(k, v) == v for k, v in wanted.items())
    )
    operands = Operands(form)
    layouts = (operands.mods["alayout"], operands.mods["blayout"])
    kinds = (registers[0], registers[0], registers[1])
    held = [raw.view(kind) for raw, kind in zip(operands.raw, kinds, strict=True)]
    counts = tuple(x.shape[1] for x in held)
    inputs = dict(zip("ABC", (x.ravel() for x in held), strict=True))
    kernel = program(shape, layouts, types, registers, counts, operator)
    result = simulate(kernel, inputs).require_clean()
    raw = result.outputs["D"].view(np.uint8).reshape(32, -1)
    np.testing.assert_array_equal(operands.matrix_of(raw), operands.expected())
