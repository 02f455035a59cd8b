"""A kernel in the short form is the one that TVMScript's own lines say."""

import pytest
import tvm

from tests.transforms.scripts import deeper, given, nest, parse

SHORT = """
def func(A: T.Buffer((64,), "float32"), C: T.Buffer((64,), "float32")):
    for tx in T.thread_binding(8, thread="threadIdx.x", persistent=2):
        for k in range(8, stage=[0, 1], order=[0, 1], async_stages=[0], pragma_unroll=8):
            with T.sblock("copy", where=k < n, reads=[A[0:8]], writes=[], async_copy="tma"):
                C[k * 8 + tx] = A[k * 8 + tx]
"""
LONG = """
@T.prim_func(private=True, s_tir=True)
def func(A: T.Buffer((64,), "float32"), C: T.Buffer((64,), "float32")):
    for tx in T.thread_binding(8, thread="threadIdx.x", annotations={"tvm_hopper.persistent": 2}):
        for k in T.serial(8, annotations={
            "software_pipeline_stage": [0, 1], "software_pipeline_order": [0, 1],
            "software_pipeline_async_stages": [0], "pragma_unroll": 8}):
            with T.sblock("copy"):
                T.where(k < n)
                T.reads(A[0:8])
                T.writes()
                T.sblock_attr({"tvm_hopper.async_copy": "tma"})
                C[k * 8 + tx] = A[k * 8 + tx]
"""


def test_annotations_and_regions_on_their_own_line():
    script = given(n=5)
    tvm.ir.assert_structural_equal(script(SHORT), script(deeper(LONG)))


def test_a_change_that_fits_nowhere_is_named():
    with pytest.raises(AssertionError, match="the script has no 'range\\(9'"):
        parse(SHORT, ("range(9", "range(8"))


def test_a_nest_ends_where_its_lines_do():
    assert nest(SHORT + "    C[0] = A[0]\n", "for k").count("\n") == 3
