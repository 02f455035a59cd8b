"""The rows of the table of types, against hand-written figures and the simulator's own table."""

import pytest

from tvm_hopper.facts import dtypes
from tvm_hopper.facts.dtypes import DTYPES, dtype_bytes
from tvm_hopper.sim.tir import DTYPE_OF, numpy_dtype


@pytest.mark.parametrize(
    ("dtype", "size"),
    [("float8_e4m3fn", 1), ("int8", 1), ("float16", 2), ("bfloat16", 2), ("float32", 4)],
)
def test_dtype_bytes(dtype, size):
    assert dtype_bytes(dtype) == size


def test_dtype_bytes_refuses_a_type_without_whole_bytes():
    with pytest.raises(ValueError, match="dtype int4: found no size for it; need one of bool"):
        dtype_bytes("int4")


@pytest.mark.parametrize("row", DTYPES.values(), ids=DTYPES)
def test_numpy_stores_as_many_bytes(row):
    assert row.numpy.itemsize == row.num_bytes
    assert row.numpy == numpy_dtype(row.name)


@pytest.mark.parametrize("row", DTYPES.values(), ids=DTYPES)
def test_the_simulator_reads_back_what_an_instruction_names(row):
    for name in (row.wgmma_operand, row.wgmma_accumulator):
        assert not name or DTYPE_OF[name] == row.name


def test_accumulators_can_accumulate():
    sums = {name for row in DTYPES.values() for name in row.accumulators}
    assert sums == {row.name for row in DTYPES.values() if row.wgmma_accumulator}


def test_only_multipliers_have_accumulators():
    assert [x.name for x in DTYPES.values() if x.wgmma_operand] == [
        x.name for x in DTYPES.values() if x.accumulators
    ]


def test_registers_of_inline_assembly_have_32_bits():
    for row in DTYPES.values():
        assert bool(row.asm_letter) == bool(row.c_type)
        assert not row.asm_letter or row.num_bytes == 4


def test_what_is_lowered_the_hardware_has():
    for name in dtypes.OPERAND_DTYPES:
        assert DTYPES[name].wgmma_operand
        assert DTYPES[name].tensor_map_code is not None
        assert DTYPES[name].accumulators[0] == dtypes.sum_dtype(name)
    assert {row.name for row in DTYPES.values() if row.wgmma_operand} == {*dtypes.OPERAND_DTYPES}
    assert {row.name for row in DTYPES.values() if row.mn_major} == {*dtypes.HALF_DTYPES}
