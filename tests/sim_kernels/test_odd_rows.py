"""Rows that begin at any element, several rows of a thread, and few long rows, in the simulator."""

import pytest
from tvm import s_tir
from tvm.target import Target

from tvm_hopper import schedule as hs, verify
from tvm_hopper.testing import memory_bound

H200, A100 = "nvidia/nvidia-h200", "nvidia/nvidia-a100"
ODD = [
    ("softmax", (5, 151), "bfloat16", {}),
    ("rms_norm", (4, 451), "float16", {}),
    ("add_rms_norm", (3, 257), "bfloat16", {}),
    ("layer_norm", (3, 1001), "float16", {}),
    ("log_softmax", (3, 4571), "float32", {}),
    ("softmax", (3, 511), "float32", {}),  # a vector more than aligned rows would have
    ("row_max", (7, 33), "float16", {}),
    ("row_mean", (3, 3), "float16", {}),  # too short to shift
    ("softmax", (3, 4099), "bfloat16", {"cluster": 2, "threads": 64, "stage": False}),
    ("row_sum", (2, 9001), "float32", {"threads": 128, "chunks": 2, "cluster": 4}),  # in parts
    ("softmax", (2, 1003), "bfloat16", {"threads": 32, "chunks": 1}),
]
SEVERAL = [
    ("softmax", (70, 64), "float16", {"threads": 8, "rows": 16, "unroll": 4}),
    ("layer_norm", (37, 64), "bfloat16", {"threads": 8, "rows": 16, "unroll": 2}),
]


def check(name, shape, dtype, given, target):
    with Target(target):
        mod = getattr(memory_bound, name)(*shape, dtype)
        sch = s_tir.Schedule(mod)
        hs.row_reduction(sch, config=hs.RowReductionConfig(**given) if given else None)
        report = verify(sch, against=mod, target=target)
    assert report.verdict == "clean", report


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(("name", "shape", "dtype", "given"), [*ODD, *SEVERAL], ids=str)
def test_values(name, shape, dtype, given):
    check(name, shape, dtype, given, H200)


@pytest.mark.parametrize(("name", "shape", "dtype", "given"), [ODD[0], SEVERAL[0]], ids=str)
def test_values_of_a_chip_without_clusters(name, shape, dtype, given):
    check(name, shape, dtype, given, A100)
