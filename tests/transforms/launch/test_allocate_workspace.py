"""AllocateWorkspace: memory between two kernels is the caller's, of the stream of the call."""

from __future__ import annotations

import pytest
from tvm import s_tir

from tests.transforms.scripts import parse, run
from tvm_hopper import pipeline, schedule as hs
from tvm_hopper.testing import columns
from tvm_hopper.transforms.launch.allocate_workspace import AllocateWorkspace

HOST = """
def func(args: T.handle):
    T.func_attr({"calling_conv": 1})
    device: T.let[T.int32] = T.tvm_struct_get(args, 0, 9, "int32")
    partial = T.alloc_buffer((1000,), "float32")
    T.call_packed("first", partial.data, device)
    T.call_packed("second", partial.data, device)
"""


def lines(func) -> list[str]:
    return [x.strip() for x in str(func.script()).splitlines()]


def test_the_caller_is_asked_first():
    got = lines(run(parse(HOST), AllocateWorkspace()))
    order = [
        "if from_caller:",
        "T.tvm_struct_set(shape, 0, 17, T.int64(4000))",
        "T.tvm_struct_set(wanted, 0, 9, device)",
        "partial = T.decl_buffer((1000,), data=memory)",
        'T.call_packed("first", partial.data, device)',
        'T.call_packed("second", partial.data, device)',
        'T.call_extern("int32", "TVMFFIObjectDecRef", given)',
        "T.TVMBackendFreeWorkspace(2, device, memory)",
    ]
    places = [got.index(x) for x in order]
    assert places == sorted(places)
    assert sum("TVMFFIEnvTensorAlloc" in x for x in got) == 1
    assert sum("TVMBackendAllocWorkspace" in x for x in got) == 1
    assert not any("alloc_buffer" in x for x in got)


def test_two_arrays_are_two_tensors():
    twice = HOST.replace(
        "    T.call_packed", '    more = T.alloc_buffer((8,), "float32")\n    T.call_packed', 1
    )
    got = lines(run(parse(twice), AllocateWorkspace()))
    assert sum("TVMFFIEnvTensorAlloc" in x for x in got) == 2
    assert sum("TVMFFIObjectDecRef" in x for x in got) == 2


BRANCHES = HOST.replace(
    """    T.call_packed("first", partial.data, device)
    T.call_packed("second", partial.data, device)
""",
    """    if device > 3:
        if device > 5:
            T.call_packed("first", partial.data, device)
            T.call_packed("second", partial.data, device)
        else:
            T.call_packed("third", device)
    else:
        T.call_packed("fourth", device)
""",
)


def test_memory_is_taken_in_the_branch_that_uses_it():
    got = lines(run(parse(BRANCHES), AllocateWorkspace()))
    order = [
        "if device > 5:",
        "partial = T.decl_buffer((1000,), data=memory)",
        'T.call_packed("first", partial.data, device)',
        "T.TVMBackendFreeWorkspace(2, device, memory)",
        'T.call_packed("third", device)',
    ]
    places = [got.index(x) for x in order]
    assert places == sorted(places)
    both = parse(BRANCHES, ('"fourth", device', '"fourth", partial.data, device'))
    got = lines(run(both, AllocateWorkspace()))
    assert got.index("partial = T.decl_buffer((1000,), data=memory)") < got.index("if device > 3:")


@pytest.mark.parametrize(
    "change",
    [
        ('"calling_conv": 1', '"calling_conv": 0'),
        ("T.tvm_struct_get(args, 0, 9", "T.tvm_struct_get(args, 0, 4"),  # no device is known
        ('"float32")\n', '"float32", scope="local")\n'),
    ],
    ids=range(3),
)
def test_what_stays(change):
    func = parse(HOST, change)
    assert run(func, AllocateWorkspace()).same_as(func)


def test_a_built_function_asks():
    sch = s_tir.Schedule(columns.column_sum(64, 64))
    hs.column_reduction(sch, config=hs.ColumnReductionConfig(blocks=2))
    host = pipeline.lower_final(sch.mod, "nvidia/nvidia-h200").host["main"]
    assert "TVMFFIEnvTensorAlloc" in str(host.script())


def test_an_array_of_vectors_is_as_long_as_its_elements():
    """As TVM's own lowering writes an array that vectors fill."""
    vectors = HOST.replace('(1000,), "float32"', '(125,), "float16x8"')
    assert "T.tvm_struct_set(shape, 0, 17, T.int64(2000))" in lines(
        run(parse(vectors), AllocateWorkspace())
    )
