"""`hs.attention`: values in the simulator against float64, and what it refuses."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import tvm
from tvm import s_tir

from tests.schedule.attention.programs import Case, program, reference, shape, values
from tests.schedule.attention.test_online import CASES, masked
from tvm_hopper import explain, schedule as hs
from tvm_hopper.errors import ScheduleError
from tvm_hopper.schedule.attention.online import ONLINE
from tvm_hopper.simulation import simulate, verify
from tvm_hopper.testing import workloads

H200 = "nvidia/nvidia-h200"
SMALL = {"tile": (64, 32), "consumers": 1, "splits": 1}


def scheduled(case, **config):
    """Return the schedule of a case's kernel."""
    sch = s_tir.Schedule(hs.online(program(case)))
    hs.attention(sch, hs.AttentionConfig(**config))
    return sch


def poisoned(case):
    """Return outputs full of NaN, by name."""
    found = {"out": np.full(shape(case, case.h, case.n, case.v), np.nan, case.dtype)}
    if case.log_sum:
        found["lse"] = np.full((case.b, case.h, case.n), np.nan, "float32")
    return found


def check(case, **config):
    """Simulate a kernel, and compare its values with float64."""
    given = values(case)
    done = simulate(scheduled(case, **config).mod, {**given, **poisoned(case)}, target=H200)
    assert done.findings == ()
    out, lse = reference(case, given)
    tolerance = 1e-2 if case.dtype == "bfloat16" else 2e-3
    got = done.outputs["out"].astype("float64")
    np.testing.assert_allclose(got, out, atol=tolerance, rtol=tolerance)
    if case.log_sum:
        np.testing.assert_allclose(done.outputs["lse"], lse, atol=1e-4, rtol=1e-4)


ONE = Case(h=1, kv=1, d=64, v=64)
CAUSAL = masked(lambda i, j: j <= i)
LAST = masked(lambda i, j: j <= i - 379)
KERNELS = {
    "plain": (replace(ONE, n=128, m=96), {}),
    "no overlap": (replace(ONE, n=128, m=96), {"overlap": False, "tile": (128, 48)}),
    "one stage": (replace(ONE, m=96), {"stages": 1, **SMALL}),
    "three stages": (replace(ONE, m=160), {"stages": 3, **SMALL}),
    "three consumers": (replace(ONE, n=192), {"consumers": 3, "tile": (192, 32)}),
    "ragged": (replace(ONE, n=70, m=50), {}),
    "one row": (replace(ONE, n=1, m=40), SMALL),
    "in order": (replace(ONE, n=128, m=160), {"tile": (128, 32), "in_order": True, "splits": 1}),
    "in any order": (replace(ONE, n=128, m=64), {"tile": (128, 32), "in_order": False}),
    "parts of the keys": (replace(ONE, n=70, m=150, **CAUSAL), {**SMALL, "splits": 2}),
    "packed heads": (Case(h=4, kv=1, d=32, v=32, n=8, m=40), {"packs": True, **SMALL}),
    "packed heads, causal": (
        Case(h=4, kv=2, d=32, v=32, n=9, m=50, **masked(lambda i, j: j <= i + 41)),
        {**SMALL, "packs": True, "splits": 2},
    ),
    "one step": (replace(ONE, m=16), SMALL),
    "tiles in turn": (Case(h=3, kv=1, d=64, v=64, n=70, m=50), {**SMALL, "persistent": 2}),
    "pairs of tiles": (
        Case(h=3, kv=3, d=64, v=64, n=130, m=130, **CAUSAL),
        {**SMALL, "persistent": 2},
    ),
    "in order, over tiles": (
        Case(h=2, kv=1, d=32, v=32, n=200, m=200, **CAUSAL),
        {"tile": (128, 64), "in_order": True, "splits": 1, "persistent": 1},
    ),
    "causal": (replace(ONE, n=130, m=130, **CAUSAL), SMALL),
    "causal from the last": (
        replace(ONE, n=70, m=104, **masked(lambda i, j: j <= i + 34), log_sum=True),
        SMALL,
    ),
    "empty rows": (replace(ONE, n=100, m=40, **masked(lambda i, j: j <= i - 70, -1e9)), SMALL),
    "grouped, rows first": (
        Case(h=4, kv=2, d=32, v=32, layout="bshd", dtype="bfloat16"),
        {**SMALL, "tile": (64, 64)},
    ),
    "window": (replace(CASES["window"], h=1, kv=1, d=32, v=32, n=130, m=130), SMALL),
    "softcap": (replace(CASES["softcap"], h=1, kv=1, d=32, v=32), SMALL),
    "bias": (replace(CASES["bias"], d=32, v=32), SMALL),
    "mask": (replace(CASES["mask"], d=32, v=32), SMALL),
    "mask of keys": (replace(CASES["mask_of_keys"], d=32, v=32), {**SMALL, "tile": (64, 48)}),
    "sink": (replace(CASES["sink"], d=32, v=32), SMALL),
    "parts with a sink": (replace(CASES["sink"], d=32, v=32, m=70), {**SMALL, "splits": 2}),
    **{
        f"columns {d} and {v}": (replace(ONE, n=64, m=32, d=d, v=v), SMALL)
        for d, v in ((40, 40), (72, 104), (192, 128), (200, 248), (256, 256))
    },
}


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("name", KERNELS)
def test_values(name):
    case, config = KERNELS[name]
    check(case, **config)


def test_it_is_verified_against_its_plain_program():
    """With a mask at the edge, heads that share keys and lengths off tiles."""
    case = Case(kv=1, d=32, v=24, n=50, m=60, **masked(lambda i, j: j <= i))
    report = verify(scheduled(case, **SMALL).mod, against=program(case), target=H200)
    assert report.verdict == "clean"
    assert report.values.checked


# -- what is asked of the loop over keys


def stages_of(**config):
    sch = scheduled(ONE, **SMALL, **config)
    (keys,) = sch.get_loops(sch.get_sblock("step"))
    return [int(x) for x in sch.get(keys).annotations["software_pipeline_stage"]]


def test_the_second_product_is_one_stage_later_than_the_rest():
    late, together = stages_of(stages=3), stages_of(stages=3, overlap=False)
    assert late[:2] == together[:2] == [0, 0]
    assert set(together[2:]) == {2}
    assert (set(late[2:-1]), late[-1]) == ({1}, 2)


@pytest.mark.parametrize(
    ("stages", "late", "match"),
    [
        (
            1,
            ["O_o"],
            "loop j0: found late products and a last stage 0; need a known number of stag",
        ),
        (2, ["K_tile"], "loop j0: found late products K_tile; need statements of the loop itself"),
        (2, ["out"], "loop j0: found late products out; need statements of the loop itself"),
    ],
)
def test_late_products_that_a_loop_has_not(stages, late, match):
    sch = scheduled(ONE, **SMALL)
    (keys,) = sch.get_loops(sch.get_sblock("step"))
    for note in list(sch.get(keys).annotations):
        sch.unannotate(keys, note)
    with pytest.raises(ScheduleError, match=match):
        hs.pipeline(sch, keys, stages, late=late)
    with pytest.raises(ScheduleError, match="in_order=True without them; need late products of tw"):
        hs.pipeline(sch, keys, stages, hs.Roles(1), in_order=True)


# -- refusals


def plain_with_the_mark():
    return workloads.matmul(64, 64, 64)["main"].with_attr(ONLINE, [64, 32, 1, 1, 0])


def two_forms():
    func = hs.online(program(ONE))["main"]
    return tvm.IRModule({"main": func, "other": func.with_attr("global_symbol", "other")})


def of_unknown_origin():
    return hs.online(program(ONE))["main"].with_attr("other", 1)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (
            lambda: program(ONE),
            "found no running form; need one function that hs.online made; make",
        ),
        (two_forms, "attention: found main, other; need one function that hs.online made"),
        (plain_with_the_mark, "found 0 of them; need one block P of the running form; schedule"),
        (
            of_unknown_origin,
            r"found a form of .*\(128, 128\).*; need that of hs.online\(mod, tile=\(64, 32\)",
        ),
        (
            lambda: hs.online(program(CASES["unrounded"])),
            "block P of main: found weights of float32, as the program multiplies them; need float1"
            '6 or bfloat16; allow this rounding: hs.online.mod, probabilities="float16"',
        ),
        (
            lambda: hs.online(program(replace(ONE, v=512))),
            "attention: found head dimensions 64 and 512; need a sum, scores and weights",
        ),
    ],
)
def test_refused_programs(make, match):
    sch = s_tir.Schedule(make())
    before = sch.mod
    with pytest.raises(ScheduleError, match=match):
        hs.attention(sch, hs.AttentionConfig(tile=(64, 32)) if "a form of" in match else None)
    assert sch.mod.same_as(before)


@pytest.mark.parametrize("tile", [(64, 32), (128, 32)])
def test_a_form_that_is_scheduled_already(tile):
    sch = scheduled(ONE, **SMALL)
    with pytest.raises(
        ScheduleError, match=r"found main, scheduled already; need loops as hs\.onli"
    ):
        hs.attention(sch, hs.AttentionConfig(tile=tile))


@pytest.mark.parametrize(
    ("config", "match"),
    [
        (
            {"tile": (128,)},
            r"found tile=\(128,\); need query rows of a thread block and keys of a s",
        ),
        ({"tile": (100, 32)}, r"tile=\(100, 32\); need rows, a multiple of 64, and keys, a multi"),
        (
            {"tile": (64, 24)},
            r"tile=\(64, 24\); need rows, a multiple of 64, and keys, a multiple of 16",
        ),
        ({"tile": (64, 32), "consumers": 2}, "need rows, a multiple of 128, and keys"),
        (
            {"stages": 1, "overlap": True},
            "found overlap=True with stages=1; need two slots or more",
        ),
        ({"stages": 0}, "attention config: found stages=0; need 1 or more"),
        ({"consumers": 4}, "attention config: found consumers=4; need at most 3"),
        ({"overlap": 2}, "attention config: found overlap=2; need a bool or None"),
        ({"packs": 2}, "attention config: found packs=2; need a bool or None"),
        ({"splits": 0}, "attention config: found splits=0; need 1 or more"),
        ({"registers": (24, 128)}, "found consumer registers 128; need at least the 168"),
        (
            {"tile": (128, 512)},
            r"tile=\(128, 512\) and 2 stages of head dimensions 64 and 64: 279552 bytes of shared "
            "memory; need at most 232448; choose fewer keys, rows or stages",
        ),
        ({"tile": (128, 256)}, "and P_local of 64x256: 2.. registers a thread; need at most"),
    ],
)
def test_refused_configurations(config, match):
    with pytest.raises(ScheduleError, match=match):
        scheduled(ONE, **config)


def test_refused_calls():
    sch = s_tir.Schedule(hs.online(program(ONE)))
    with pytest.raises(ScheduleError, match="attention: found config=3; need an"):
        hs.attention(sch, 3)


@pytest.mark.parametrize(
    ("case", "config"),
    [
        (Case(h=4, kv=2, d=80, v=80, n=384, m=5, dtype="bfloat16", **LAST), {}),
        (Case(h=1, kv=1, d=184, v=184, n=80, m=384, **CAUSAL), {"splits": 2}),
    ],
    ids=["one step", "parts without steps"],
)
def test_the_assembler_serialises_no_product_of_few_steps(case, config):
    """A loop that may run no iteration: the sum's zeros stay before the first product."""
    built = tvm.compile(scheduled(case, **config).mod, target=H200)
    assert "0 bytes spilled" in str(explain(built))
