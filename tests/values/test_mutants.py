"""Kernels that synchronise well and compute something else: each is found, by its values alone."""

import pytest
from tvm import ir as tvm_ir, s_tir, tirx

from tests.sim_kernels.mutate import change
from tests.values import kernels
from tests.values.kernels import judge, wrong
from tvm_hopper import schedule as hs
from tvm_hopper.simulation import load
from tvm_hopper.testing import workloads


def int32(value):
    return tirx.IntImm("int32", value)


@pytest.fixture(scope="module")
def product():
    return kernels.matmul()


@pytest.fixture(scope="module")
def epilogue():
    return kernels.matmul(epilogue=("relu", "bias_col"), out_dtype="float16")


@pytest.mark.parametrize("make", ["matmul", "mma", "elementwise"])
def test_right_kernels_are_clean(make):
    plain, program = getattr(kernels, make)()
    report = judge(program, plain)
    assert report.verdict == "clean", str(report)
    assert report.values.checked


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(("which", "operand"), [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_a_wrong_coordinate_of_a_box(product, which, operand):
    plain, program = product
    mutant = kernels.with_load_coordinate(program, which, operand, lambda x: x + int32(8))
    assert wrong(mutant, plain)


def test_a_coordinate_that_is_wrong_in_one_step(product):
    plain, program = product

    def late(k):
        return tirx.Select(tirx.EQ(k, int32(128)), int32(64), k)

    mutant = kernels.with_load_coordinate(program, 1, 0, late)
    assert wrong(mutant, plain)


def test_rows_and_columns_of_output_tiles_exchanged(product):
    plain, program = product
    mutant = kernels.with_load_coordinate(program, 0, 1, lambda x: int32(128) - x)
    (found, *_) = wrong(mutant, plain)
    assert "on integers" in found.message


def test_fragments_in_another_order(product):
    plain, program = product

    def swap(call):
        args = list(call.args)
        args[2], args[4] = args[4], args[2]
        return tvm_ir.Call(call.op, args, ret_ty=call.ty, attrs=call.attrs)

    mutant = change(program, "wgmma_f16_ss", 0, swap)
    assert wrong(mutant, plain)


def test_a_descriptor_with_another_step(product):
    plain, program = product

    def next_rows(call):
        args = list(call.args)
        args[33] = args[33] + tirx.const(64, "uint64")  # 1024 bytes: eight rows
        return tvm_ir.Call(call.op, args, ret_ty=call.ty, attrs=call.attrs)

    mutant = change(program, "wgmma_f16_ss", 0, next_rows)
    assert judge(mutant, plain).verdict == "error"


def test_a_wrong_stride_of_the_output(product):
    plain, program = product

    def narrow(store):
        (index,) = store.indices
        base = tirx.floordiv(index.base, 128) * 127 + tirx.floormod(index.base, 128)
        return tirx.BufferStore(store.buffer, store.value, [tirx.Ramp(base, 1, index.lanes)])

    assert judge(kernels.with_store(program, narrow), plain).verdict == "error"


def test_two_columns_of_the_output_exchanged(product):
    plain, program = product

    def exchange(store):
        (index,) = store.indices
        base = tirx.bitwise_xor(index.base, int32(8))
        return tirx.BufferStore(store.buffer, store.value, [tirx.Ramp(base, 1, index.lanes)])

    found = wrong(kernels.with_store(program, exchange), plain)
    assert found


def test_one_element_off_by_one(product):
    plain, program = product

    def more(store):
        (index,) = store.indices
        one = tirx.Broadcast(tirx.const(1, "float32"), index.lanes)
        none = tirx.Broadcast(tirx.const(0, "float32"), index.lanes)
        here = tirx.Select(tirx.EQ(index.base, int32(130)), one, none)
        return tirx.BufferStore(store.buffer, store.value + here, [index])

    found = wrong(kernels.with_store(program, more), plain)
    assert "C[1, 2] is" in found[0].message
    assert " 2 of " in found[0].message


def test_an_epilogue_that_is_applied_twice(epilogue):
    _, program = epilogue
    once = workloads.matmul(256, 128, 192, epilogue=("relu", "bias_col"), out_dtype="float16")
    twice = workloads.matmul(
        256, 128, 192, epilogue=("relu", "bias_col", "relu"), out_dtype="float16"
    )
    assert judge(program, once).verdict == "clean"
    assert wrong(program, twice)  # a negative bias shows it


def test_another_constant_in_an_epilogue():
    right = workloads.matmul(128, 64, 64, epilogue=("scale",))
    sch = s_tir.Schedule(right)
    hs.matmul(sch, "C", kernels.TILE)
    program = load(sch.mod)

    def larger(value):
        return tirx.const(0.126, "float32") if float(value.value) == 0.125 else value

    mutant = kernels.with_nodes(program, tirx.FloatImm, larger)
    assert judge(program, right).verdict == "clean"
    assert wrong(mutant, right)


@pytest.mark.parametrize("make", ["mma", "elementwise"])
def test_other_kernels_with_a_wrong_coordinate(make):
    plain, program = getattr(kernels, make)()
    mutant = kernels.with_load_coordinate(program, 0, 1, lambda x: x + int32(4))
    assert wrong(mutant, plain)


def test_a_sum_in_a_narrower_type_is_found_on_normal_numbers(product):
    """The integers are exact in float16 as well where sums are small; the bound knows better."""
    _, program = product
    plain = workloads.matmul(256, 128, 192)

    def halves(store):
        (index,) = store.indices
        half = tirx.Cast(f"float16x{index.lanes}", store.value)
        return tirx.BufferStore(store.buffer, tirx.Cast(f"float32x{index.lanes}", half), [index])

    found = wrong(kernels.with_store(program, halves), plain)
    assert ["on normal numbers" in one.message for one in found] == [True]
