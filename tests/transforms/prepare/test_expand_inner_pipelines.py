"""ExpandInnerPipelines: a pipeline inside of one with copies comes apart to statements of that."""

import pytest

from tests.transforms.scripts import check, parse, run
from tvm_hopper.transforms.prepare.expand_inner_pipelines import ExpandInnerPipelines

BEFORE = """
def func(A: T.Buffer((8, 4), "float32"), C: T.Buffer((8, 4), "float32")):
    for tx in T.thread_binding(1, thread="threadIdx.x"):
        for k in T.serial(8, stage=[0, 1, 1, 1], order=[0, 1, 2, 3], async_stages=[0]):
            with T.sblock("iteration", reads=[], writes=[]):
                a = T.sblock_alloc_buffer((4,), scope="shared.dyn")
                for i in range(4):
                    with T.sblock("copy", async_copy="auto"):
                        a[i] = A[k, i]
                for j in T.serial(4, stage=[0, 1], order=[0, 1]):
                    with T.sblock("step"):
                        r = T.sblock_alloc_buffer((1,), scope="local")
                        with T.sblock("read"):
                            r[0] = a[j]
                        with T.sblock("write"):
                            C[k, j] = r[0]
"""

AFTER = """
def func(A: T.Buffer((8, 4), "float32"), C: T.Buffer((8, 4), "float32")):
    for tx in T.thread_binding(1, thread="threadIdx.x"):
        for k in T.serial(8, stage=[0, 1, 1, 1], order=[0, 1, 2, 3], async_stages=[0]):
            with T.sblock("iteration", reads=[], writes=[]):
                a = T.sblock_alloc_buffer((4,), scope="shared.dyn")
                r = T.sblock_alloc_buffer((2, 1), scope="local")
                for i in range(4):
                    with T.sblock("copy", async_copy="auto"):
                        a[i] = A[k, i]
                with T.sblock("read"):
                    r[0, 0] = a[0]
                with T.sblock(""):
                    for j in range(3):
                        with T.sblock("read"):
                            r[(j + 1) % 2, 0] = a[j + 1]
                        with T.sblock("write"):
                            C[k, j] = r[j % 2, 0]
                with T.sblock("write"):
                    C[k, 3] = r[1, 0]
"""


def test_the_inner_pipeline_is_expanded_and_the_outer_one_stays():
    check(run(parse(BEFORE), ExpandInnerPipelines()), parse(AFTER))


@pytest.mark.parametrize(
    ("what", "by"),
    [
        (', async_copy="auto"', ""),  # nothing of ours in the function
        (", stage=[0, 1], order=[0, 1]", ""),
    ],
)
def test_other_loops_stay(what, by):
    func = parse(BEFORE, (what, by))
    assert run(func, ExpandInnerPipelines()).same_as(func)


@pytest.mark.parametrize(
    ("order", "expanded"), [("[0, 1]", "[0, 1, 2, 3]"), ("[1, 0]", "[3, 0, 1, 2]")]
)
def test_one_entry_for_an_inner_pipeline_is_that_of_each_part(order, expanded):
    """As `hs.pipeline` writes it, whether the inner one is asked for before or after."""
    whole, parts = "order=", "order=[0, 1, 2, 3]"
    before = parse(BEFORE, ("[0, 1, 1, 1]", "[0, 1]"), (parts, whole + order))
    check(run(before, ExpandInnerPipelines()), parse(AFTER, (parts, whole + expanded)))
