"""What a memory-bound schedule chooses, as data: given back it makes the same kernel."""

import pytest
import tvm
from tvm import s_tir, te

from tvm_hopper import schedule as hs
from tvm_hopper.errors import ScheduleError
from tvm_hopper.meta_schedule.schedulers import kernel_name
from tvm_hopper.schedule.column_reduction.apply import chosen_columns
from tvm_hopper.schedule.pointwise.apply import chosen_elements
from tvm_hopper.schedule.row_reduction.apply import chosen_rows
from tvm_hopper.testing import backward, columns, memory_bound


def transposed(rows, cols):
    x = te.placeholder((cols, rows), "bfloat16", name="X")
    y = te.compute((rows, cols), lambda i, j: x[j, i], name="Y")
    return tvm.IRModule({"main": te.create_prim_func([x, y])})


ROWS = (hs.row_reduction, chosen_rows)
ELEMENTS = (hs.pointwise, chosen_elements)
COLUMNS = (hs.column_reduction, chosen_columns)
PROGRAMS = {
    "rms_norm": (*ROWS, memory_bound.rms_norm(512, 4096)),
    "softmax": (*ROWS, memory_bound.softmax(64, 4096)),
    "layer_norm of long rows": (*ROWS, memory_bound.layer_norm(2048, 32768)),
    "rows in parts": (*ROWS, memory_bound.softmax(16, 300000)),
    "rows known at run time": (*ROWS, memory_bound.add_rms_norm("n", 1024)),
    "gradient": (*ROWS, backward.rms_norm_backward(512, 1024)),
    "silu_mul": (*ELEMENTS, memory_bound.silu_mul(512, 1000)),
    "scale": (*ELEMENTS, memory_bound.scale_shift(8192, 8192)),
    "transposition": (*ELEMENTS, transposed(256, 512)),
    "sums of columns": (*COLUMNS, columns.column_sum(4096, 1024)),
}


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_choice_given_back_makes_the_same_kernel(name):
    schedule, chosen, mod = PROGRAMS[name]
    sch = s_tir.Schedule(mod)
    config = chosen(sch)
    assert sch.mod.same_as(mod)
    assert not sch.trace.insts
    by_itself = s_tir.Schedule(mod)
    schedule(by_itself)
    schedule(sch, config=config)
    assert kernel_name(sch) == kernel_name(by_itself)
    assert chosen(s_tir.Schedule(mod), config) == config
    assert config.threads is not None


def test_what_is_given_stays():
    config = chosen_rows(
        s_tir.Schedule(memory_bound.rms_norm(512, 4096)), hs.RowReductionConfig(threads=256)
    )
    assert config.threads == 256
    assert config.rows == 1


def test_what_is_refused_has_no_choice():
    with pytest.raises(ScheduleError, match="found no block with a reduction axis"):
        chosen_rows(s_tir.Schedule(memory_bound.copy(64, 64)))
