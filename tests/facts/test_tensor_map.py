"""Tensor maps: each rule of the driver broken once, all of them together once."""

import pytest

from tvm_hopper.facts.tensor_map import DTYPE_CODE, SWIZZLE_CODE, TensorMap


def make(**changes):
    fields = {
        "dtype": "float16",
        "dims": (4096, 1000),
        "strides_bytes": (8192,),
        "box": (64, 128),
        "swizzle_bytes": 128,
    }
    return TensorMap(**{**fields, **changes})


def test_a_good_map_breaks_no_rule():
    assert make().check() == ()
    assert make().element_strides == (1, 1)
    assert make().box_bytes == 64 * 128 * 2
    assert make(dims=(None, None), strides_bytes=(None,)).check() == ()


def test_a_box_holds_one_element_at_each_step():
    """128 rows at each third one: 43, the last one at row 126 of the box."""
    strided = make(element_strides=(1, 3))
    assert strided.check() == ()
    assert strided.loaded == (64, 43)
    assert strided.box_bytes == 64 * 43 * 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dims": (), "strides_bytes": (), "box": ()}, "found rank 0; need 1 to 5"),
        ({"dims": (8,) * 6, "strides_bytes": (16,) * 5, "box": (8,) * 6}, "found rank 6"),
        ({"strides_bytes": ()}, "found 0 strides, 2 box sizes and 2 element strides for rank 2"),
        ({"dtype": "int4"}, "found type int4; need one of float8_e4m3fn"),
        ({"dims": (4096, 0)}, "found dimension 1 of 0; need 1 to 4294967296"),
        ({"dims": ((1 << 32) + 1, 1)}, "found dimension 0 of 4294967297"),
        ({"strides_bytes": (200,)}, "found stride 1 of 200 bytes; need a multiple of 16 bytes"),
        ({"strides_bytes": (1 << 40,)}, "found stride 1 of 1099511627776 bytes; need 0 to 2"),
        ({"element_strides": (1, 9)}, "found element stride 1 of 9; need 1 to 8"),
        ({"element_strides": (2, 1)}, "found element stride 0 of 2, which is ignored; need 1"),
        ({"box": (64, 512)}, "found box dimension 1 of 512; need 1 to 256"),
        ({"box": (4, 128)}, "found an inner box of 8 bytes; need a multiple of 16 bytes"),
        (
            {"box": (128, 128)},
            "found an inner box of 256 bytes under a 128 B swizzle; need at most",
        ),
        ({"swizzle_bytes": 256}, "found a swizzle of 256 bytes; need 0, 32, 64 or 128"),
        ({"oob": "one"}, "found out-of-bounds fill 'one'; need 'zero' or 'nan'"),
        ({"dtype": "int32", "box": (32, 8), "oob": "nan"}, "fill 'nan' for int32; need a float"),
    ],
)
def test_each_rule(changes, message):
    (found,) = make(**changes).check()
    assert message in found


def test_all_violations_are_collected():
    found = make(dims=(0, 1000), strides_bytes=(200,), box=(64, 300), oob="x").check()
    assert len(found) == 4


def test_codes_are_the_drivers():
    # cuda.h: CU_TENSOR_MAP_DATA_TYPE_FLOAT16 = 6, _FLOAT32 = 7, _BFLOAT16 = 9; SWIZZLE_128B = 3
    assert (DTYPE_CODE["float16"], DTYPE_CODE["float32"], DTYPE_CODE["bfloat16"]) == (6, 7, 9)
    assert SWIZZLE_CODE[128] == 3
