"""What a compiled function says to wrong arguments, before anything runs; no GPU is needed.

Tensors of nothing claim to be on a GPU.  A right call gets as far as the CUDA runtime, which is
not there.
"""

import re

import pytest
import tvm
from tvm import s_tir

from tests.codegen.fake_cuda import tensor
from tvm_hopper import schedule as hs
from tvm_hopper.testing import workloads

ADDRESS = 1 << 20
SIGNATURE = r"`main\(A: Tensor\(\[64, 32\], float16\), B: Tensor\(\[16, 32\], float16\), C: "


def build(**problem):
    sch = s_tir.Schedule(workloads.matmul(**problem))
    hs.matmul(sch, "C", hs.MatmulConfig((64, 16, 16), stages=2, consumers=1))
    return tvm.compile(sch.mod, target="nvidia/nvidia-h200")["main"]


@pytest.fixture(scope="module")
def small():
    return build(m=64, n=16, k=32)


@pytest.fixture(scope="module")
def symbolic():
    return build(m="m", n=16, k=32, index="int64")


def call(func, **changed):
    """Call with right tensors but for the changed ones."""
    right = {"A": ((64, 32), "float16"), "B": ((16, 32), "float16"), "C": ((64, 16), "float32")}
    args = [tensor(*right[name]) if name not in changed else changed[name] for name in right]
    func(*args)


def needs_runtime(function):
    with pytest.raises(Exception, match=r"(?i)cuda") as caught:
        function()
    assert "argument #" not in str(caught.value)
    assert "start address" not in str(caught.value)


def test_right_arguments_pass(small):
    needs_runtime(lambda: call(small))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"A": tensor((63, 32))}, r"Invalid A.shape\[0\] on argument #0 .*expected 64"),
        ({"B": tensor((16, 32, 1))}, r"Mismatched B.ndim on argument #1 .*expected 2"),
        (
            {"A": tensor((64, 32), strides=(64, 1))},
            r"Mismatched A.strides on argument #0 .*expected to be compact array",
        ),
        ({"A": tensor((64, 32), "float32")}, r"Mismatched A.dtype on .*expected float16"),
        ({"C": tensor((64, 16), "float16")}, r"Mismatched C.dtype on .*expected float32"),
        ({"A": tensor((64, 32), device=1)}, r"Mismatched A.device_type on .*expected cuda"),
        ({"A": None}, r"Mismatched type on argument #0 .*expected Tensor"),
        ({"A": tensor((64, 32), address=0)}, r"A data pointer is NULL on argument #0"),
    ],
)
def test_wrong_argument_is_named(small, changed, message):
    """TVM's own host checks: name, place, the whole signature, and what is expected."""
    with pytest.raises((TypeError, ValueError)) as caught:
        call(small, **changed)
    text = str(caught.value).replace("\n", " ")
    assert re.search(message, text)
    assert re.search(SIGNATURE, text)


def test_number_of_arguments(small):
    with pytest.raises(TypeError, match=r"Expected 3 arguments when calling"):
        small(tensor((64, 32)))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"A": tensor((64, 32), address=ADDRESS + 8)},
            r"A: found a start address that is no multiple of 16 bytes; need one that is; pass a "
            r"copy, or a tensor that does not start inside another",
        ),
        ({"B": tensor((16, 32), address=ADDRESS + 2)}, r"B: .* no multiple of 16 bytes"),
        # pairs of float32 are stored as one vector
        ({"C": tensor((64, 16), "float32", ADDRESS + 4)}, r"C: .* no multiple of 8 bytes"),
    ],
)
def test_misaligned_tensor_is_named(small, changed, message):
    """LLVM takes every pointer to be aligned: the check has to come before it is told so."""
    with pytest.raises(ValueError, match=message):
        call(small, **changed)


def test_output_aligned_to_its_vectors_passes(small):
    needs_runtime(lambda: call(small, C=tensor((64, 16), "float32", ADDRESS + 8)))


def test_no_rows_launch_nothing(symbolic):
    """An empty tensor has no address, and no tensor map could describe it."""
    empty = {"A": tensor((0, 32), address=0), "C": tensor((0, 16), "float32", address=0)}
    needs_runtime(lambda: call(symbolic, **empty))


def test_rows_have_to_agree(symbolic):
    with pytest.raises(ValueError, match=r"C.shape\[0\] on argument #2"):
        call(symbolic, A=tensor((64, 32)), C=tensor((65, 16), "float32"))
