import numpy as np
import pytest

from tvm_hopper.errors import HopperError
from tvm_hopper.meta_schedule.measuring import tensors


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float8_e4m3fn"])
def test_floats_are_normal(dtype):
    values = tensors.random_values((300, 400), dtype, 1).astype(np.float64)
    assert values.shape == (300, 400)
    assert abs(values.mean()) < 0.02
    assert 0.95 < values.std() < 1.05


@pytest.mark.parametrize(
    ("dtype", "low", "high"),
    [("int8", -128, 127), ("uint8", 0, 255), ("int32", -3, 3), ("int64", -3, 3), ("uint32", 0, 3)],
)
def test_integers_are_in_range(dtype, low, high):
    values = tensors.random_values((2000,), dtype, 1)
    assert str(values.dtype) == dtype
    assert (int(values.min()), int(values.max())) == (low, high)


def test_bools_are_both():
    assert set(tensors.random_values((100,), "bool", 1).tolist()) == {False, True}


def test_a_seed_fixes_values_and_large_tensors_repeat():
    first = tensors.random_values((3, 1 << 19), "float16", 5)
    assert np.array_equal(first, tensors.random_values((3, 1 << 19), "float16", 5))
    assert not np.array_equal(first, tensors.random_values((3, 1 << 19), "float16", 6))
    flat = first.reshape(-1)
    assert flat[0] == flat[tensors.PERIOD]
    assert not np.array_equal(first[0], first[1])


def test_a_type_that_numpy_lacks_is_refused():
    with pytest.raises(HopperError, match="argument of type int3: found no numpy type; need one"):
        tensors.random_values((4,), "int3", 0)


def test_poison_is_counted_by_element():
    poisoned = bytes([tensors.POISON]) * 8
    assert tensors.unwritten(poisoned, 2) == 4
    assert tensors.unwritten(b"\xff\xff\xff\x00" + b"\x00" * 4, 2) == 1
    assert tensors.unwritten(b"\xff\xff\xff\x00" + b"\x00" * 4, 4) == 0
