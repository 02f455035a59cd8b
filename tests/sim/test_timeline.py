"""What a timeline shows: roles, units, stages, waits with their barrier and phase, findings."""

import itertools
import json
import re

import numpy as np
import pytest

from tests.seeded.golden import g1_warp_specialized, g2_multicast, g3_tma_store, g5_cp_async
from tests.seeded.running import run
from tests.sim_kernels import pointwise_kernels
from tvm_hopper.sim import Result
from tvm_hopper.sim.timeline import Timeline, events
from tvm_hopper.sim.timeline.events import TimelineEvent
from tvm_hopper.sim.timeline.spans import STAGES, Mark, text_colour
from tvm_hopper.simulation import load, simulate, verify
from tvm_hopper.testing.pointwise import Tiling

from .hand_threaded import F32, hand_threaded
from .kernels import lower


@pytest.fixture(scope="module")
def clean():
    return run(g1_warp_specialized.build(), policy="on_wait")


@pytest.fixture(scope="module")
def broken():
    """Run with a slot that is released too early (M10)."""
    return run(g1_warp_specialized.build("M10"), policy="random", seed=1)


def lane(timeline, name):
    return next(lane for lane in timeline.lanes if lane.name.startswith(name))


def names(timeline):
    return [lane.name for lane in timeline.lanes]


# -- lanes ----------------------------------------------------------------------------------------


def test_a_warp_specialised_product_has_a_lane_per_role_and_unit(clean):
    timeline = clean.timeline()
    assert names(timeline) == [
        "producer (warp 0)",
        "TMA loads",
        "consumer 0 (warps 4-7)",
        "consumer 1 (warps 8-11)",
        "tensor core",
        "global memory",
    ]
    assert timeline.notes == ["not shown: warps 1-3 only meet the others, or end"]
    assert lane(timeline, "TMA loads").rows == ("stage 0", "stage 1")


def test_one_number_goes_through_all_lanes_with_the_data(clean):
    timeline = clean.timeline()  # five steps over two slots
    loads = {s.step: s for s in lane(timeline, "TMA loads").spans}
    assert sorted(loads) == [0, 1, 2, 3, 4]
    for name in ("TMA loads", "tensor core", "consumer 0", "consumer 1"):
        spans = [s for s in lane(timeline, name).spans if s.step >= 0]
        assert {s.step for s in spans} == set(range(5)), name
        assert all(s.stage == s.step % 2 for s in spans), name
    for span in lane(timeline, "tensor core").spans:
        assert span.start >= loads[span.step].end  # it reads what has landed


def test_waits_name_their_barrier_and_phase(clean):
    timeline = clean.timeline()
    waits = [s.label for s in lane(timeline, "producer").spans if s.kind == "wait"]
    assert waits == ["barrier 0", "empty[0] phase 0", "empty[1] phase 0", "empty[0] phase 1"]
    waits = [s.label for s in lane(timeline, "consumer 0").spans if s.kind == "wait"]
    assert [w for w in waits if w.startswith("full")] == [
        f"full[{k % 2}] phase {k // 2}" for k in range(5)
    ]
    assert "wgmma" in waits


def test_spans_of_a_role_do_not_overlap_and_leave_no_gap(clean):
    for name in ("producer", "consumer 0", "consumer 1"):
        spans = lane(clean.timeline(), name).spans
        assert all(a.end == b.start for a, b in itertools.pairwise(spans))
        kinds = [(s.kind, s.label) for s in spans]
        assert all(a != b for a, b in itertools.pairwise(kinds))


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("policy", ["eager", "lifo", "random", "starve:consumer"])
def test_the_lanes_are_the_same_under_every_policy(clean, policy):
    other = run(g1_warp_specialized.build(), policy=policy, seed=3).timeline()
    assert names(other) == names(clean.timeline())
    assert {s.step for s in lane(other, "TMA loads").spans} == set(range(5))


def test_cp_async_has_stages_by_the_barrier_that_follows_it():
    timeline = run(g5_cp_async.build(), policy="on_wait").timeline()
    assert names(timeline)[:2] == ["producer (warps 0-3)", "cp.async"]
    copies = lane(timeline, "cp.async").spans
    assert [(s.label, s.stage) for s in copies] == [("0", 0), ("1", 1), ("2", 0)]
    assert {s.stage for s in lane(timeline, "tensor core").spans} == {0, 1}


def test_stores_that_overlap_share_a_span():
    timeline = run(g3_tma_store.build(), policy="on_wait").timeline()
    stores = lane(timeline, "TMA stores").spans
    assert [s.label for s in stores] == ["4 TMA stores", "4 TMA stores"]
    assert "TMA store" in stores[0].facts["what"]


def test_warps_without_roles_are_one_lane():
    _, sch = pointwise_kernels.scheduled("exp_add", (128, 128), Tiling(stages=3), "float32")
    inputs = {name: np.ones((128, 128), "float32") for name in "AB"}
    timeline = simulate(load(sch.mod), inputs).timeline()
    assert names(timeline) == ["TMA loads", "all 8 warps", "global memory"]
    assert lane(timeline, "TMA loads").rows == tuple(f"stage {n}" for n in range(3))
    assert {s.label for s in lane(timeline, "global memory").spans} == {"C"}


# -- CTAs -----------------------------------------------------------------------------------------


def test_a_multicast_is_drawn_where_it_lands():
    result = run(g2_multicast.build(), policy="on_wait")
    assert result.timeline().ctas == [(0, 0, 0)]
    second = result.timeline((1,))
    assert second.ctas == [(1, 0, 0)]
    copy = lane(second, "TMA loads").spans[0]
    assert copy.facts["issued by"] == "cta0,0,0/wg0/warp0 (producer)"
    assert copy.facts["bytes"] == 24576
    both = result.timeline("all")
    assert both.ctas == [(0, 0, 0), (1, 0, 0)]
    assert names(both)[0] == "cta 0,0,0: producer (warp 0)"
    assert len(both.lanes) == 2 * len(second.lanes)


@pytest.mark.parametrize("cta", [(9,), [], [(0, 0, 0), (7, 0, 0)], "every"])
def test_a_cta_that_did_not_run_is_refused(clean, cta):
    with pytest.raises(ValueError, match=r"cta: found .*; need block indices .*\(0, 0, 0\)"):
        clean.timeline(cta)


def test_a_run_without_events_is_refused():
    with pytest.raises(ValueError, match="timeline: found no events; need a run that keeps them"):
        Result({}).timeline()


# -- findings -------------------------------------------------------------------------------------


def test_findings_are_marked_in_the_lane_of_their_warp(broken):
    timeline = broken.timeline()
    assert len(timeline.marks) == len(broken.findings) > 0
    first = timeline.marks[0]
    assert first.rule == broken.findings[0].rule
    agent = re.search(r"warp(\d+)", broken.findings[0].agents[0])[1]
    assert re.search(rf"warps? {agent}\b|warps 4-7|warps 8-11", timeline.lanes[first.lane].name)


def test_the_cta_of_the_first_finding_is_shown():
    result = Result({}, events=[
        TimelineEvent("life", (0, 0, 0), 0, 1, 9),
        TimelineEvent("life", (5, 0, 0), 0, 1, 9),
        TimelineEvent("finding", (5, 0, 0), 0, 4, 4, "DEADLOCK", number=0),
    ])  # fmt: skip
    assert Timeline(result).ctas == [(5, 0, 0)]


def test_warps_that_wait_forever_from_the_start_are_told_apart():
    timeline = run(g1_warp_specialized.build("M01"), policy="on_wait").timeline()
    assert names(timeline) == ["warp 0", "warps 4-11"]
    for one, waits in zip(timeline.lanes, ("empty[0] phase 0", "full[0] phase 0"), strict=True):
        assert one.spans[-1].label == waits
        assert one.spans[-1].facts["end"] == "never"
    assert "DEADLOCK" in {mark.rule for mark in timeline.marks}


def test_a_deadlock_ends_with_what_each_waits_for():
    timeline = run(g1_warp_specialized.build("M12"), policy="on_wait").timeline()
    ends = [one.spans[-1].label for one in timeline.lanes if "warp" in one.name]
    assert ends == ["empty[0] phase 0", "full[0] phase 1", "full[0] phase 1"]


def test_what_was_too_much_is_counted(clean, monkeypatch):
    monkeypatch.setattr(events, "MAX_EVENTS", 50)
    result = run(g1_warp_specialized.build(), policy="on_wait")
    assert len(result.events) == 50
    assert result.timeline().notes[-1] == f"{result.events_left_out} later events were not kept"
    assert result.events_left_out == len(clean.events) - 50


# -- zoom -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def long():
    return run(g1_warp_specialized.build(trips=24), policy="on_wait")


def test_a_long_run_shows_its_prologue_some_steps_and_its_end(long):
    timeline = long.timeline()
    parts = timeline.windows()
    assert [name for name, *_ in parts] == ["prologue", "steady state", "end"]
    assert parts[0][1] == 0
    assert parts[-1][2] == len(timeline.steps) - 1
    shown = sum(high - low for _, low, high in parts)
    assert shown < len(timeline.steps) / 2
    assert [x[0] for x in timeline.windows(first=2, last=2)] == ["begin", "end"]
    assert len(timeline.figure().axes) == 3
    whole = timeline.windows(window=(0, timeline.last))
    assert whole == [("", 0, len(timeline.steps) - 1)]


def test_the_middle_is_around_the_first_finding(long):
    timeline = long.timeline()
    timeline.marks = [Mark(0, "TRAP", 0, len(timeline.steps) // 3)]
    begin, middle, end = timeline.windows()
    assert middle[0] == "around finding 1"
    assert begin[2] < middle[1] < timeline.marks[0].at < middle[2] < end[1]


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"window": (9, 3)}, r"window: found \(9, 3\); need scheduler steps from 0 to"),
        ({"first": -1}, "first, last: found first=-1, last=None of a run with 5 steps"),
    ],
)
def test_wrong_windows_are_refused(clean, asked, message):
    with pytest.raises(ValueError, match=message):
        clean.timeline().windows(**asked)


# -- figure, page, trace --------------------------------------------------------------------------


def texts(figure):
    return {text.get_text() for axes in figure.axes for text in axes.texts}


def test_the_figure_says_who_waits_for_what_and_which_step(clean):
    figure = clean.timeline().figure()
    shown = texts(figure)
    assert {"0", "1", "2", "3", "4"} <= shown
    assert any(re.fullmatch(r"empty\[0\](:| phase )0", text) for text in shown)
    rows = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert rows[0] == "producer (warp 0)"
    assert "TMA loads, stage 0" in rows
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend == ["stage 0", "stage 1", "no stage", "waits for"]


def test_the_figure_marks_findings_and_lists_them(broken):
    figure = broken.timeline().figure()
    assert "finding" in [text.get_text() for text in figure.legends[0].get_texts()]
    assert broken.findings[0].rule in figure.get_supxlabel()
    assert any(re.fullmatch(r"\d+(-\d+)?", text) for text in texts(figure))


def test_numbers_on_a_colour_can_be_read():
    greys = []
    for colour in STAGES:
        red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
        grey = 0.299 * red + 0.587 * green + 0.114 * blue
        assert abs(grey - (0 if text_colour(colour) == "#000000" else 255)) > 90
        greys.append(grey)
    assert min(abs(a - b) for a, b in itertools.pairwise(greys)) > 10


def test_the_trace_has_a_process_per_cta_and_threads_by_role(clean, tmp_path):
    trace = json.loads(clean.timeline().save(tmp_path / "trace.json").read_text())
    assert set(trace) == {"traceEvents", "otherData"}
    found = trace["traceEvents"]
    named = {e["args"]["name"] for e in found if e["ph"] == "M" and e["name"] == "process_name"}
    assert named == {"CTA 0,0,0"}
    threads = {e["tid"]: e["args"]["name"] for e in found if e["name"] == "thread_name"}
    assert threads[0] == "producer (warp 0)"
    assert {"TMA loads, stage 1", "tensor core, of consumer 0"} <= set(threads.values())
    bars = [e for e in found if e["ph"] == "X"]
    assert all(e["dur"] > 0 and e["ts"] >= 0 and e["tid"] in threads for e in bars)
    copy = next(e for e in bars if threads[e["tid"]] == "TMA loads, stage 1")
    assert copy["args"]["stage"] == 1
    assert copy["args"]["mbarrier"] == "full[1] phase 0"
    assert "cp.async.bulk.tensor" in copy["args"]["statement"]
    wait = next(e for e in bars if e["cat"] == "wait" and "full" in e["name"])
    assert wait["name"].startswith("waits for full[0] phase 0")
    for tid in threads:  # bars of one thread follow each other
        mine = sorted((e["ts"], e["dur"]) for e in bars if e["tid"] == tid)
        assert all(a + d <= b for (a, d), (b, _) in itertools.pairwise(mine))


def test_findings_are_instants_of_the_trace(broken):
    marks = [e for e in broken.timeline().to_chrome()["traceEvents"] if e["ph"] == "i"]
    assert [m["name"] for m in marks] == [f.rule for f in broken.findings]
    assert all(m["args"]["fix"] for m in marks)


def test_the_page_needs_no_network(broken, tmp_path):
    pytest.importorskip("bokeh")
    text = broken.timeline().html(tmp_path / "page.html").read_text()
    assert not re.search(r"<(script|link|img)[^>]+(src|href)=", text)
    assert "producer (warp 0)" in text
    assert broken.findings[0].rule in text
    assert len(text) < 3_000_000


EVIL = "</script><img src=x onerror=alert(1)>"


def strange():
    """Return a run with names as a module may give them."""
    life = TimelineEvent("life", (0, 0, 0), 0, 1, 9)
    copy = TimelineEvent("TMA load", (0, 0, 0), 0, 2, 5, statement=EVIL, barrier=EVIL, slot=0,
                         phase=0, place=EVIL, addresses=(0,), num_bytes=16)  # fmt: skip
    stored = TimelineEvent("global store", (0, 0, 0), 0, 6, 6, name=f"$$x$$ {EVIL}", statement=EVIL)
    return Result({}, events=[copy, stored, life])


def test_names_of_a_module_do_not_become_html(tmp_path):
    pytest.importorskip("bokeh")
    timeline = strange().timeline()
    assert EVIL not in timeline.html(tmp_path / "page.html").read_text()
    assert EVIL not in timeline._repr_html_()
    assert timeline.figure() is not None  # nor mathematics of matplotlib
    timeline.figure().savefig(tmp_path / "figure.png")


# -- of a report ----------------------------------------------------------------------------------


def racing():
    @hand_threaded(64, by_hand=False)
    def main(A: F32[64], C: F32[64], tx):
        C[0] = A[tx]

    return lower(main)


def test_a_report_shows_the_run_that_found_something():
    report = verify(racing(), against=False)
    timeline = report.timeline()
    first = next(one for one in report.findings if one.policy)
    assert (timeline.policy, timeline.seed) == (first.policy, first.seed)
    assert first.rule in {mark.rule for mark in timeline.marks}


def test_a_clean_report_shows_its_first_run():
    _, sch = pointwise_kernels.scheduled("exp_add", (128, 128), Tiling(stages=3), "float32")
    report = verify(sch, runs=(("lifo", 0), ("eager", 0), ("on_wait", 0)))
    timeline = report.timeline((0, 0, 0))
    assert report.verdict == timeline.verdict == "clean"
    assert timeline.policy == "lifo"
    assert "TMA loads" in names(timeline)


def test_a_report_without_runs_has_no_timeline():
    from tvm_hopper.simulation import Report

    with pytest.raises(ValueError, match="timeline: found no schedule that ran"):
        Report((), (), ()).timeline()
