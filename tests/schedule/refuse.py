"""Assert a refusal: one error, and a schedule that is as it was."""

import pytest
from tvm import s_tir

from tvm_hopper import schedule as hs
from tvm_hopper.errors import ScheduleError


def refuse(mod, match, config=None, block=None, helper=hs.matmul):
    sch = s_tir.Schedule(mod)
    before, length = sch.mod, len(sch.trace.insts)
    block = "C" if block is None and helper is hs.matmul else block
    with pytest.raises(ScheduleError, match=match):
        helper(sch, block, config)
    assert sch.mod.same_as(before)
    assert len(sch.trace.insts) == length
