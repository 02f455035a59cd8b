"""Forms that mma.sync has not, and TVM's older calls: values, convergence, races, refusals.

The values of every form are those of `test_mma_forms.py`.
"""

import numpy as np
import pytest
from tvm.script import tirx as T

from tests.sim.kernels import lower, rules
from tvm_hopper.sim.ops.mma import find_product
from tvm_hopper.simulation import simulate


@pytest.mark.parametrize(
    ("shape", "layouts", "types"),
    [
        ("m8n8k4", ("row", "col"), ("bf16", "bf16", "f32")),
        ("m8n8k8", ("row", "col"), ("f16", "f16", "f32")),
        ("m16n8k16", ("col", "col"), ("f16", "f16", "f32")),
        ("m16n8k16", ("row", "col"), ("f16", "bf16", "f32")),
        ("m16n8k16", ("row", "col"), ("bf16", "bf16", "bf16")),
        ("m16n8k16", ("row", "col"), ("s8", "s8", "f32")),
        ("m16n8k32", ("row", "col"), ("f16", "f16", "f32")),
        ("m16n8k64", ("row", "col"), ("s8", "s8", "s32")),
        ("m16n8k128", ("row", "col"), ("s4", "s4", "s32")),
        ("m16n8k32", ("row", "col"), ("s8", "s4", "s32")),
        ("m16n8k8", ("row", "col"), ("tf32", "bf16", "f32")),
        ("m16n8k128", ("row", "col"), ("b1", "b1", "s32")),
        ("m16n8k4", ("row", "col"), ("f64", "f64", "f32")),
    ],
)
def test_forms_that_ptx_does_not_have(shape, layouts, types):
    assert find_product(shape, layouts, types, False) is None


@pytest.mark.parametrize(
    "more",
    [
        {"saturates": True},
        {"bit_operation": "xor"},
        {"rounding": "rz"},
        {"d_type": "f16"},
        {"sparse": True, "saturates": True},
    ],
)
def test_modifiers_that_floats_do_not_have(more):
    more = {"saturates": False, **more}
    assert find_product("m16n8k16", ("row", "col"), ("bf16", "bf16", "f32"), **more) is None


def test_modifiers_that_bits_do_not_have():
    form = ("m16n8k128", ("row", "col"), ("b1", "b1", "s32"))
    assert find_product(*form, False, bit_operation="xor") is not None
    assert find_product(*form, True, bit_operation="xor") is None
    assert find_product(*form, False, bit_operation="or") is None


# -- whole kernels: C = A B of 16 x 16 by TVM's older calls

LOAD_A, LOAD_B, MULTIPLY, FILL, STORE = "load_a", "load_b", "multiply", "fill", "store"


def product(
    lanes=(),
    writer=0,
    meets=True,
    shape="m16n8k16",
    b_type="fp16",
    offset=0,
    kind=".b16",
    rows=16,
    operator=None,
    saturates=False,
):
    """Build the kernel; a call named in `lanes` is made by half a warp."""

    def full(what, lane):
        return T.bool(True) if what not in lanes else lane < 16

    more = () if operator is None else (operator,)

    @T.prim_func(s_tir=True)
    def main(
        A: T.Buffer((256,), "float16"),
        B: T.Buffer((256,), "float16"),
        C: T.Buffer((256,), "float32"),
    ):
        T.func_attr({"global_symbol": "main"})
        tx = T.launch_thread("threadIdx.x", 64)
        with T.attr(T.int32(0), "hand_threaded", 1):
            tiles = T.alloc_buffer((512,), "float16", scope="shared.dyn", align=128)
            a = T.alloc_buffer((8,), "float16", scope="local")
            b = T.alloc_buffer((8,), "float16", scope="local")
            c = T.alloc_buffer((8,), "float32", scope="local")
            if tx // 32 == writer:
                for i in T.serial(8):
                    tiles[tx % 32 * 8 + i] = A[tx % 32 * 8 + i]
                    tiles[256 + tx % 32 * 8 + i] = B[tx % 32 * 8 + i]
            if meets:
                T.tvm_storage_sync("shared")
            if tx < 32:
                if full(FILL, tx):
                    T.cuda.mma_fill_legacy(8, c.data, 0, dtype="float32")
                row = T.meta_var(tx % 16 * 16 + tx // 16 * 8)
                if full(LOAD_A, tx):
                    T.ptx_legacy.ldmatrix(
                        False, 4, ".b16", a.data, 0, T.address_of(tiles[0]), row, dtype="float16"
                    )
                if full(LOAD_B, tx):
                    T.ptx_legacy.ldmatrix(
                        True, 4, kind, b.data, 0, T.address_of(tiles[256]), row, dtype="float16"
                    )
                for n in T.unroll(2):
                    if full(MULTIPLY, tx):
                        T.ptx_legacy.mma(
                            shape, "row", "col", "fp16", b_type, "fp32",
                            a.data, offset, b.data, n * 4, c.data, n * 4, saturates, *more,
                            dtype="float32",
                        )  # fmt: skip
                T.cuda.mma_store_legacy(
                    rows, 16, T.address_of(C[0]), c.data, 0, 16, dtype="float32"
                )

    return main


def inputs():
    rng = np.random.default_rng(0)
    return {x: rng.integers(-4, 5, 256).astype(np.float16) for x in "AB"}


def run(func):
    return simulate(lower(func), inputs())


def test_a_product_in_registers():
    result = run(product())
    assert result.findings == ()
    a, b = (x.reshape(16, 16).astype(np.float64) for x in inputs().values())
    np.testing.assert_array_equal(result.outputs["C"].reshape(16, 16), a @ b)


@pytest.mark.parametrize("what", [LOAD_A, LOAD_B, MULTIPLY])
def test_all_lanes_take_part(what):
    assert "WARP_CONVERGENCE" in rules(product(lanes=(what,)), inputs())


def test_registers_are_set_by_each_lane_for_itself():
    result = run(product(lanes=(FILL,)))
    got = result.outputs["C"].reshape(16, 16)
    assert np.isnan(got).any()
    assert not np.isnan(got).all()


def test_ldmatrix_reads_what_another_warp_may_still_write():
    assert rules(product(writer=1), inputs()) == set()
    found = rules(product(writer=1, meets=False), inputs())
    assert {"RACE_READ_INFLIGHT", "RACE_OVERWRITE_BUSY"} <= found


def test_registers_end():
    assert "OOB_ACCESS" in run(product(offset=4)).rules


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"b_type": "e2m1"}, "mma.sync m16n8k16 row.col fp16.e2m1.fp32"),
        ({"kind": ".b8"}, "ldmatrix .b8"),
        ({"rows": 8}, "mma_store of 8 x 16"),
    ],
)
def test_what_is_not_modelled_is_named(changes, name):
    result = run(product(**changes))
    assert result.verdict != "clean"
    assert any(x.rule == "INCOMPLETE" and name in str(x) for x in result.findings)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"shape": "m8n8k8"}, "mma.sync m8n8k8 row.col fp16.fp16.fp32"),
        ({"b_type": "bf16"}, "mma.sync m16n8k16 row.col fp16.bf16.fp32"),
        ({"operator": "xor"}, "mma.sync m16n8k16 row.col fp16.fp16.fp32 xor"),
        ({"saturates": True}, "mma.sync m16n8k16 row.col fp16.fp16.fp32 satfinite"),
    ],
)
def test_a_form_that_ptx_does_not_have_is_a_finding(changes, name):
    found = run(product(**changes)).findings
    text = f"{name}: need a form of the instruction that PTX has"
    assert {x.message for x in found if x.rule == "ILLEGAL_OPERAND"} == {text}
