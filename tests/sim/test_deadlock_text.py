"""What a deadlock says: slot and iteration, the suspect first, and a fix that fits."""

import pytest
from tvm import s_tir
from tvm.script import tirx as T

from tests.sim_kernels.mutate import change
from tvm_hopper import schedule as hs
from tvm_hopper.sim.findings import finding
from tvm_hopper.simulation import Report, load, verify
from tvm_hopper.testing import workloads
from tvm_hopper.verification.report import arranged

from . import ptx
from .hand_threaded import F32, U64, Shared, hand_threaded
from .kernels import lower

ONE_RUN = (("eager", 0),)


def product():
    sch = s_tir.Schedule(workloads.matmul(64, 16, 80))
    hs.matmul(sch, "C", hs.MatmulConfig((64, 16, 16), stages=2, consumers=1))
    return load(sch.mod)


def deadlock(program):
    report = verify(program, runs=ONE_RUN, against=False)
    (found,) = (one for one in report.findings if one.rule == "DEADLOCK")  # told once
    return found, str(report)


def test_bytes_that_nothing_expects():
    found, _ = deadlock(change(product(), "mbarrier_arrive_expect_tx", 0))
    first, *others = found.message.split("; ")
    assert "(consumer) (and 3 more) waits for full[0] (byte" in first
    assert "in iteration 0: phase 0 of it has 0 of 1 arrivals and 2560 bytes more than" in first
    assert any("(producer) waits for empty[0]" in text and "iteration 2" in text for text in others)
    assert found.hint.startswith("announce the bytes: mbarrier.arrive.expect_tx on full[0]")


def test_a_slot_that_is_never_released():
    found, _ = deadlock(change(product(), "mbarrier_arrive_nocount"))
    assert "(producer) waits for empty[0]" in found.message
    assert "missing: let the readers of the slot arrive on it" in found.hint


@pytest.mark.parametrize("count", [1, 2])
def test_each_thread_may_initialise_a_barrier(count):
    @hand_threaded(128)
    def main(A: F32[128], C: F32[128], tx, bar: Shared[U64]):
        if tx < 4:
            ptx.init_mbarrier(bar[100 + tx], 1)
            T.ptx.fence.mbarrier_init.release.cluster()
        T.tvm_storage_sync("shared")
        if tx == 0:
            for _ in T.serial(count):
                ptx.arrive(bar[100])
        if tx >= 32:
            ptx.wait(bar[100], 0)
        C[tx] = A[tx]

    report = verify(lower(main), runs=ONE_RUN)
    assert report.verdict == ("clean" if count == 1 else "error"), str(report)


def test_what_may_follow_is_a_line_each():
    wrong, out, stuck, explored = (
        finding(rule, f"the text of {rule}", policy=policy)
        for rule, policy in (
            ("WRONG_VALUE", "eager"),
            ("OOB_ACCESS", "eager"),
            ("DEADLOCK", "eager"),
            ("DEADLOCK", "skeleton"),
        )
    )
    found = arranged([explored, wrong, stuck, out])
    assert found == (out, stuck, wrong)
    text = str(Report(found, (), ()))
    first, _, rest = text.partition("what may follow from that:\n")
    assert "error: OOB_ACCESS: the text of OOB_ACCESS\n    fix: " in first
    assert rest.splitlines() == [
        "    error: DEADLOCK: the text of DEADLOCK",
        "    error: WRONG_VALUE: the text of WRONG_VALUE",
    ]
    assert "what may follow" not in str(Report((wrong,), (), ()))
