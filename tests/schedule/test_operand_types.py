"""Products of float8, of 8-bit integers and of float32 as tf32: values, sums, outputs, refusals."""

import numpy as np
import pytest
import tvm
from tvm import s_tir, te

from tests.schedule.refuse import refuse
from tvm_hopper import explain, schedule as hs
from tvm_hopper.facts.dtypes import may_multiply
from tvm_hopper.simulation import simulate, verify
from tvm_hopper.testing.contractions import contraction, reference
from tvm_hopper.testing.gates import products_of_one_operand
from tvm_hopper.testing.workloads import make_inputs

E4, E5, I8, U8 = "float8_e4m3fn", "float8_e5m2", "int8", "uint8"
SPLIT_MODES = ("cluster", "serial", "workspace", "atomic")
SIZES = {"m": 72, "n": 40, "k": 96}
SMALL = {"tile": (64, 64, 64), "stages": 2, "consumers": 1}
TF32 = SMALL | {"tile": (64, 64, 32), "operands": "tf32"}


def const(value):
    return te.const(value, "float32")


def scaled(dtype):
    """Scale the sum by rows and columns, and store it in a type that saturates or is rounded to."""

    def epilogue(total, i, j):
        value = total(i, j).astype("float32") * const(0.25)
        if dtype != I8:
            return value.astype(dtype)
        bounded = te.max(te.min(te.round(value), const(127.0)), const(-128.0))
        return bounded.astype(I8)

    return epilogue


def product(types, sums, epilogue=None, formula="mk,nk->mn"):
    return contraction(formula, SIZES, types, sums, epilogue)


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(
    ("types", "sums", "options"),
    [
        ((E4, E4), "float32", SMALL),
        ((E4, E5), "float32", SMALL),
        ((E4, E5), "float16", SMALL | {"accumulate": "float32"}),  # of operands as 16 bits
        ((I8, U8), "int32", SMALL),
        ((I8, I8), "int32", SMALL | {"persistent": 1}),
        *(((I8, I8), "int32", SMALL | {"split_k": hs.SplitK(2, mode)}) for mode in SPLIT_MODES),
        ((I8, I8), "int32", SMALL | {"split_k": "stream", "persistent": 3}),
        (("float32", "float32"), "float32", TF32),
    ],
    ids=str,
)
def test_values(types, sums, options):
    mod = product(types, sums)
    sch = s_tir.Schedule(mod)
    hs.matmul(sch, "C", hs.MatmulConfig(**options))
    a, b = make_inputs(mod)
    result = simulate(sch, {"A": a, "B": b})
    result.require_clean()
    np.testing.assert_array_equal(result.outputs["C"], reference("mk,nk->mn", a, b))


@pytest.mark.parametrize("types", [(I8, I8), (U8, U8)])
def test_integer_sums_start_from_a_number_in_registers(types):
    """CUDA's text of a reinterpreted constant takes an address of it, which nothing compiles."""
    sch = s_tir.Schedule(contraction("mk,nk->mn", SIZES, types, "int32"))
    hs.matmul(sch, "C", hs.MatmulConfig(**SMALL))
    text = tvm.compile(sch.mod, target="nvidia/nvidia-h200").mod.imports[0].inspect_source()
    assert "_local_ptr[i] = (uint)0;" in text


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(
    ("types", "sums", "out", "options"),
    [
        ((E4, E4), "float32", E4, SMALL),
        ((I8, I8), "int32", I8, SMALL),
        (("float32", "float32"), "float32", "bfloat16", TF32),
    ],
    ids=str,
)
def test_outputs_are_verified(types, sums, out, options):
    """On normal numbers a tf32 product is within what its operands leave out."""
    mod = product(types, sums, scaled(out))
    sch = s_tir.Schedule(mod)
    hs.matmul(sch, "C", hs.MatmulConfig(**options))
    verify(sch, against=mod).require_clean()


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("out", [E4, "bfloat16"])
def test_scales_of_a_tensor_of_rows_and_of_columns(out):
    def scale(total, i, j, S, R, W):
        return (total(i, j) * S[0] * R[i] * W[j]).astype(out)

    scales = {"S": "1", "R": "m", "W": "n"}
    mod = contraction("mk,nk->mn", SIZES, (E4, E4), "float32", scale, scales)
    sch = s_tir.Schedule(mod)
    hs.matmul(sch, "C", hs.MatmulConfig(**SMALL))
    verify(sch, against=mod).require_clean()


def test_scales_that_are_zero_huge_or_no_number_give_what_float32_gives():
    def scale(total, i, j, S, R):
        return total(i, j) * S[0] * R[i]

    mod = contraction("mk,nk->mn", SIZES, (E4, E4), "float32", scale, {"S": "1", "R": "m"})
    sch = s_tir.Schedule(mod)
    hs.matmul(sch, "C", hs.MatmulConfig(**SMALL))
    a, b, *_ = make_inputs(mod)
    rows = np.ones(SIZES["m"], np.float32)
    rows[:6] = 0.0, -0.0, np.inf, np.nan, 3e38, 1e-45
    sums = reference("mk,nk->mn", a, b).astype(np.float32)
    for whole in (0.0, 2.0**126):
        given = {"A": a, "B": b, "S": np.float32([whole]), "R": rows}
        result = simulate(sch, given)
        result.require_clean()
        with np.errstate(all="ignore"):
            want = sums * np.float32(whole) * rows[:, None]
        np.testing.assert_array_equal(result.outputs["D"], want)


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("columns", [128, 80, 97])
def test_bytes_are_stored_by_vectors(columns):
    """By 16 of them, also where a tile is cut, and in rows that begin anywhere."""
    mod = contraction("mk,nk->mn", SIZES | {"n": columns}, (I8, I8), "int32", scaled(I8))
    sch = s_tir.Schedule(mod)
    hs.matmul(sch, "C", hs.MatmulConfig(**SMALL | {"tile": (64, 128, 64)}))
    kernels = explain(sch, "nvidia/nvidia-h200").kernels
    assert [x.num_bytes for kernel in kernels for x in kernel.stores] == [16]
    verify(sch, against=mod).require_clean()


def test_float32_that_is_not_multiplied_as_tf32_is_told_apart(monkeypatch):
    """Against the program as it is written, without what tf32 leaves out, the values are wrong."""
    from tvm_hopper.verification.program import Program

    mod = product(("float32", "float32"), "float32")
    sch = s_tir.Schedule(mod)
    hs.matmul(sch, "C", hs.MatmulConfig(**TF32))
    monkeypatch.setattr(Program, "multiplies", lambda *_: False)
    assert "WRONG_VALUE" in {x.rule for x in verify(sch, against=mod).findings}


@pytest.mark.parametrize("mutant", ["fewer bits", "another bound"])
def test_sums_of_float8_just_outside_of_the_bound_are_told_apart(monkeypatch, mutant):
    """Two bits fewer are four times the error; and float32's bound alone refuses what Hopper keeps.

    The bound allows what the tensor core cuts (`tests/reference/test_float8_sums.py`).
    """
    from tvm_hopper.sim.arithmetic import elements
    from tvm_hopper.verification.program import Program

    mod = product((E4, E4), "float32")
    sch = s_tir.Schedule(mod)
    hs.matmul(sch, "C", hs.MatmulConfig(**SMALL))
    if mutant == "fewer bits":
        monkeypatch.setattr(elements, "FLOAT8_SUM_BITS", 11)
    else:
        monkeypatch.setattr(Program, "multiplies", lambda *_: False)
    assert "WRONG_VALUE" in {x.rule for x in verify(sch, against=mod).findings}


@pytest.mark.parametrize(
    ("types", "sums", "formula", "match"),
    [
        ((E4, E4), "float32", "mk,kn->mn", r"tensor B: found float8_e4m3fn whose neighbours in me"),
        ((I8, I8), "int32", "km,nk->mn", r"tensor A: .* store A as \[m, k\] \(A transposed\)"),
        (("float32",) * 2, "float32", "mk,nk->mn", r"found float32; .*give operands=\"tf32\""),
        ((I8, I8), "float32", "mk,nk->mn", r"found a sum in float32; need a sum in int32 of prod"),
        ((E4, "float16"), "float32", "mk,nk->mn", r"found A float8_e4m3fn, B float16; need oper"),
        (("int4",) * 2, "int32", "mk,nk->mn", r"A: found elements of type int4; .* store several"),
        (("float4_e2m1fn",) * 2, "float32", "mk,nk->mn", r"A: found elements of type float4_e2m1"),
    ],
)
def test_refusals(types, sums, formula, match):
    refuse(product(types, sums, formula=formula), match)


def test_integers_are_not_summed_in_floats():
    config = hs.MatmulConfig(accumulate="float32")
    refuse(product((U8, U8), "int32"), "int32, accumulate='float32'; need accumulate left", config)


def test_types_that_one_instruction_multiplies():
    assert may_multiply(E4, E5)
    assert may_multiply(U8, I8)
    assert not may_multiply(E4, I8)
    assert not may_multiply("float16", "bfloat16")


@pytest.mark.parametrize(("dtype", "depth"), [(E4, 128), (I8, 128), ("float32", 32)])
def test_choices_count_bytes(dtype, depth):
    """A tile is as deep as rows of the swizzle, whatever the elements are."""
    config = hs.choose_config(4096, 4096, 4096, dtype, out_dtype="float32")
    assert config.tile[2] % depth == 0


def test_promoted_sums_of_float8_lose_little():
    """Of one sign: a step of 128 products loses what its own sum says, and not what the whole does.

    The partial sums themselves are added in float32.
    """
    sizes = SIZES | {"k": 2048}
    mod = contraction("mk,nk->mn", sizes, (E4, E4), "float32")
    rng = np.random.default_rng(0)
    sides = {"A": sizes["m"], "B": sizes["n"]}
    values = {x: rng.uniform(0.5, 2, (n, 2048)).astype(E4) for x, n in sides.items()}
    exact = values["A"].astype("float64") @ values["B"].astype("float64").T
    lost = {}
    for accumulate in (None, "promoted"):
        sch = s_tir.Schedule(mod)
        config = hs.MatmulConfig((64, 64, 128), 2, consumers=1, accumulate=accumulate)
        hs.matmul(sch, "C", config)
        got = simulate(sch, values).require_clean().outputs["C"]
        lost[accumulate] = np.abs(got / exact - 1).max()
    assert lost[None] > 10 * lost["promoted"]
    assert lost["promoted"] < 0.002


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(
    "options",
    [
        {"tile": (64, 64, 64), "form": "transposed"},
        {"tile": (64, 64, 64), "consumers": 2, "schedule": "pingpong", "persistent": 1},
        {"tile": (64, 24, 64), "cluster": (1, 2)},
    ],
    ids=str,
)
def test_promoted_sums_are_verified(options):
    mod = contraction("bmk,bnk->bmn", SIZES | {"b": 2, "k": 160}, (E4, E5), "float32")
    sch = s_tir.Schedule(mod)
    hs.matmul(sch, "C", hs.MatmulConfig(accumulate="promoted", **options))
    report = verify(sch, against=mod)
    assert report.verdict == "clean", report.table()


@pytest.mark.parametrize(
    ("types", "tile", "match"),
    [
        (("float16",) * 2, None, "accumulate='promoted': found operands of float16; need float8"),
        ((E4, E4), (64, 64, 256), "found tile_k 256 with accumulate='promoted'; need at most 128"),
        (
            (E4, E4),
            (128, 256, 128),
            r"found 256 accumulators a thread \(a sum and a partial sum of 128x256 over 2 consumer",
        ),
    ],
)
def test_what_is_not_promoted(types, tile, match):
    config = hs.MatmulConfig(tile, accumulate="promoted")
    refuse(product(types, "float32"), match, config)


def test_a_sum_of_16_bits_is_not_promoted():
    a, b = (te.placeholder((64, 128), E4, x) for x in "AB")
    k = te.reduce_axis((0, 128), "k")
    narrow = lambda x: x.astype("float16")  # noqa: E731
    wide = lambda x: x.astype("float32")  # noqa: E731
    term = lambda i, j: narrow(wide(a[i, k]) * wide(b[j, k]))  # noqa: E731
    c = te.compute((64, 64), lambda i, j: te.sum(term(i, j), axis=k), name="C")
    mod = tvm.IRModule({"main": te.create_prim_func([a, b, c])})
    match = "accumulate='promoted': found a sum in float16; need float32, in which partial sums"
    refuse(mod, match, hs.MatmulConfig(accumulate="promoted"))


def test_a_sum_that_starts_from_a_number_is_not_promoted():
    a, b = (te.placeholder((64, 128), E4, x) for x in "AB")
    k, add = te.reduce_axis((0, 128), "k"), te.comm_reducer(lambda x, y: x + y, lambda _: const(1))
    wide = lambda x: x.astype("float32")  # noqa: E731
    c = te.compute((64, 64), lambda i, j: add(wide(a[i, k]) * wide(b[j, k]), axis=k), name="C")
    mod = tvm.IRModule({"main": te.create_prim_func([a, b, c])})
    match = "accumulate='promoted': found a sum that does not start from zero; need one that does"
    refuse(mod, match, hs.MatmulConfig(accumulate="promoted"))


def test_two_products_are_not_promoted():
    mod = products_of_one_operand(64, 64, 128, dtype=E4)
    match = "blocks C0 and C1: found accumulate='promoted'; need accumulators of all products in"
    refuse(mod, match, hs.MatmulConfig(accumulate="promoted"), ("C0", "C1"))


def test_promoted_tiles_leave_registers_for_both_sums():
    config = hs.choose_config(8192, 8192, 8192, E4, hs.MatmulConfig(accumulate="promoted"))
    assert config.tile[0] * config.tile[1] // (128 * config.consumers) <= 92
    assert (config.tile[2], config.wgmma_pending, config.split_k) == (128, 0, 1)
