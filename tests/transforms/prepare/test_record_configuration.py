"""RecordConfiguration: what a kernel was chosen for is noted, and the annotation is gone."""

from tests.transforms.scripts import check, notes_of, parse, run
from tvm_hopper.transforms.common.explain_notes import ConfigurationNote, RowsNote
from tvm_hopper.transforms.prepare.record_configuration import RecordConfiguration

KERNEL = """
def func(A: T.Buffer((4, 8), "float32")):
    for by in T.thread_binding(4, thread="blockIdx.y"):
        for bx in T.thread_binding(8, thread="blockIdx.x", chosen_for=[64, 203], raster_group=2):
            with T.sblock("fill"):
                A[by, bx] = T.float32(0)
"""
WITHOUT = (", chosen_for=[64, 203]", "")


def test_rows_and_time_are_noted():
    got = run(parse(KERNEL), RecordConfiguration())
    check(got, parse(KERNEL, WITHOUT))
    assert notes_of(got) == (RowsNote(64, 203),)


def test_a_configuration_is_noted():
    with_one = ("chosen_for=[64, 203]", 'configuration="matmul"')
    got = run(parse(KERNEL, with_one), RecordConfiguration())
    check(got, parse(KERNEL, WITHOUT))
    assert notes_of(got) == (ConfigurationNote("matmul"),)
