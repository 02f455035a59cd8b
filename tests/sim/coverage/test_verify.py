"""`verify` speaks of every CTA, also of those that are not simulated."""

import numpy as np
import tvm
from tvm.script import tirx as T

from tests.sim.hand_threaded import F32, hand_threaded
from tests.sim.kernels import lower
from tvm_hopper.simulation import simulate, verify

ONE_RUN = (("eager", 0), ("on_wait", 0), ("lifo", 0))
INPUTS = {"X": np.zeros(8192, "float32")}


def rules(func: tvm.tirx.PrimFunc, **options: object) -> set[str]:
    report = verify(lower(func), INPUTS, ONE_RUN, **options)  # type: ignore[arg-type]
    return {found.rule for found in report.findings}


@hand_threaded(128, grid=64, by_hand=False)
def copies(X: F32[8192], Z: F32[8192], bx, tx):
    Z[bx * 128 + tx] = X[bx * 128 + tx]


@hand_threaded(128, grid=64, by_hand=False)
def some_do_nothing(X: F32[8192], Z: F32[8192], bx, tx):
    if bx < 20 or bx > 24:
        Z[bx * 128 + tx] = X[bx * 128 + tx]


@hand_threaded(128, grid=64, by_hand=False)
def some_read_beyond(X: F32[8192], Z: F32[8192], bx, tx):
    Z[bx * 128 + tx] = X[T.if_then_else(bx >= 20 and bx <= 24, bx * 128 + tx + 8192, bx * 128 + tx)]


@hand_threaded(128, grid=65, by_hand=False)
def two_share_a_tile(X: F32[8192], Z: F32[8192], bx, tx):
    Z[T.if_then_else(bx > 40, bx - 1, bx) * 128 + tx] = X[tx]


@T.prim_func(s_tir=True)
def in_two_launches(X: T.Buffer((8192,), "float32"), Z: T.Buffer((8192,), "float32")):
    T.func_attr({"global_symbol": "main"})
    with T.launch_thread("blockIdx.x", 32) as bx:
        tx = T.launch_thread("threadIdx.x", 128)
        Z[bx * 128 + tx] = X[bx * 128 + tx]
    with T.launch_thread("blockIdx.x", 32) as by:
        ty = T.launch_thread("threadIdx.x", 128)
        Z[4096 + by * 128 + ty] = X[by * 128 + ty]


def test_a_clean_report_says_what_was_proven() -> None:
    report = verify(lower(copies), INPUTS, ONE_RUN).require_clean()
    assert len(report.choices[0].blocks) < 64
    text = (
        "covers main_kernel: 64 CTAs: indices of 1 statement in bounds and aligned, "
        "stores to Z disjoint"
    )
    assert text in str(report)
    assert "covers every element of Z is stored to" in str(report)
    assert report.to_json()["covers"] == list(report.proven)


def test_what_chosen_ctas_do_not_show_is_found() -> None:
    assert rules(some_do_nothing) == {"OUTPUT_COVERAGE"}
    assert rules(some_read_beyond) == {"OOB_ACCESS"}
    assert rules(two_share_a_tile) == {"RACE_WRITE_WRITE"}


def test_the_same_rule_is_not_reported_twice_where_all_ctas_run() -> None:
    report = verify(lower(some_read_beyond), INPUTS, ONE_RUN, max_ctas=64)
    found = [one for one in report.findings if one.rule == "OOB_ACCESS"]
    assert {one.buffer for one in found} == {"X"}
    assert not any("CTA (20, 0, 0) reads" in one.message for one in found)  # a run has met it
    alone = simulate(lower(some_read_beyond), INPUTS)
    assert alone.rules == {"OOB_ACCESS"}


def test_launches_cover_an_output_together() -> None:
    report = verify(lower(in_two_launches), INPUTS, ONE_RUN).require_clean()
    assert report.proven[-1] == "every element of Z is stored to"
    assert len(report.proven) == 3
