"""TMA loads land where the tensor map says: ranks 1 to 5, every swizzle, out-of-bounds fill."""

import numpy as np
import pytest

from tvm_hopper.sim.launch.runtime_calls import TensorMapError
from tvm_hopper.sim.launch.tma import TensorMapArg
from tvm_hopper.simulation import simulate

from .kernels import roundtrip


def expected(array, dims, box, coords, steps=None):
    """Return the box as a flat array, innermost fastest, zero outside; one element at a time."""
    out = []
    steps = steps or (1,) * len(box)
    for position in np.ndindex(*reversed(box)):
        at = [c + p * s for c, p, s in zip(coords, reversed(position), steps, strict=True)]
        inside = all(0 <= a < d for a, d in zip(at, dims, strict=True))
        flat = 0
        for a, d in zip(reversed(at), reversed(dims), strict=True):
            flat = flat * d + a
        out.append(array[flat] if inside else 0)
    return np.array(out, array.dtype)


def swizzled(flat, swizzle_bytes):
    """Write 16-byte chunks in rows of `swizzle_bytes`, each moved by the row's XOR pattern."""
    if not swizzle_bytes:
        return flat
    raw, out = flat.view(np.uint8), np.zeros(flat.nbytes, np.uint8)
    for chunk in range(flat.nbytes // 16):
        row = chunk // 8  # rows of 128 bytes: the pattern repeats over 8, 4 or 2 of them
        mask = swizzle_bytes // 16 - 1
        moved = chunk ^ (row & mask)
        out[moved * 16 : moved * 16 + 16] = raw[chunk * 16 : chunk * 16 + 16]
    return out.view(flat.dtype)


@pytest.mark.parametrize("policy", ["eager", "on_wait", "random"])
@pytest.mark.parametrize(
    ("rank", "dims", "box", "coords"),
    [
        (1, (256,), (64,), (32,)),
        (2, (64, 40), (64, 16), (0, 8)),
        (3, (32, 12, 6), (32, 4, 3), (0, 4, 2)),
        (4, (16, 6, 5, 4), (16, 2, 2, 2), (0, 2, 1, 1)),
        (5, (16, 4, 3, 3, 3), (16, 2, 2, 2, 2), (0, 1, 1, 0, 1)),
        (2, (64, 40), (64, 16), (0, 32)),
        (2, (64, 40), (64, 16), (-16, -4)),
    ],
)
def test_a_box_of_every_rank_arrives(rank, dims, box, coords, policy):
    array = np.arange(1, np.prod(dims) + 1).astype("float16")
    program = roundtrip(0, rank, "float16", box, dims, coords)
    result = simulate(program, {"A": array}, policy=policy).require_clean()
    assert np.array_equal(result.outputs["C"], expected(array, dims, box, coords))


@pytest.mark.parametrize(
    ("dims", "box", "coords", "steps", "swizzle"),
    [
        ((64, 40), (64, 16), (0, 1), (1, 2), 0),
        ((64, 40), (64, 16), (0, 8), (1, 3), 3),  # the last rows lie behind the tensor
        ((32, 12, 30), (32, 4, 3), (0, -2, 5), (1, 2, 8), 0),  # and the first one before it
        ((16, 4, 9, 3, 20), (16, 2, 2, 2, 3), (0, 1, 1, 0, 1), (1, 1, 5, 2, 8), 0),
    ],
)
def test_a_box_steps_over_rows(dims, box, coords, steps, swizzle):
    """CUDA driver API: TMA loads ceil(boxDim[i] / elementStrides[i]) elements."""
    array = np.arange(1, np.prod(dims) + 1).astype("float32" if swizzle == 0 else "float16")
    program = roundtrip(swizzle, len(dims), str(array.dtype), box, dims, coords, steps)
    result = simulate(program, {"A": array}).require_clean()
    flat = expected(array, dims, box, coords, steps)
    assert np.array_equal(result.outputs["C"], swizzled(flat, {0: 0, 3: 128}[swizzle]))


def test_the_innermost_dimension_has_no_steps():
    """Their number is ignored there; TVM's runtime refuses one."""
    array = np.arange(64 * 40).astype("float16")
    program = roundtrip(0, 2, "float16", (32, 16), (64, 40), (0, 0), (2, 1))
    with pytest.raises(TensorMapError, match="found element stride 0 of 2, which is ignored"):
        simulate(program, {"A": array})
    assert TensorMapArg("A", "float16", (64, 40), (128,), (64, 16), (2, 4)).counts == (64, 4)


@pytest.mark.parametrize(("start", "found"), [(8, 0), (4, 1), (3, 1), (-4, 1), (-8, 0)])
def test_a_box_begins_at_a_multiple_of_16_bytes(start, found):
    """The chip ends with an illegal instruction otherwise (tests/gpu/test_coordinates.py)."""
    array = np.arange(64 * 40).astype("float16")
    program = roundtrip(0, 2, "float16", (32, 16), (64, 40), (start, 8))
    result = simulate(program, {"A": array})
    assert [f.rule for f in result.findings].count("MISALIGNED") == found


@pytest.mark.parametrize(("code", "swizzle_bytes"), [(0, 0), (1, 32), (2, 64), (3, 128)])
@pytest.mark.parametrize("dtype", ["float16", "float32", "int8"])
def test_every_swizzle_moves_16_byte_chunks_by_its_pattern(code, swizzle_bytes, dtype):
    inner = (swizzle_bytes or 128) // np.dtype(dtype).itemsize
    dims, box = (inner, 32), (inner, 16)
    array = np.arange(1, inner * 32 + 1).astype(dtype)
    program = roundtrip(code, 2, dtype, box, dims, (0, 8))
    result = simulate(program, {"A": array}).require_clean()
    assert np.array_equal(
        result.outputs["C"], swizzled(expected(array, dims, box, (0, 8)), swizzle_bytes)
    )
