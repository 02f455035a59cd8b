"""Several functions against one another, with a driver that is none: verdicts and times."""

import numpy as np
import pytest

from tests.meta_schedule.host_driver import HostDriver
from tvm_hopper import meta_schedule
from tvm_hopper.errors import HopperError
from tvm_hopper.meta_schedule.measurement import Contested
from tvm_hopper.meta_schedule.measuring import artifact, contest, library, measure
from tvm_hopper.meta_schedule.measuring.artifact import TensorArgument

ARGUMENTS = (
    TensorArgument("A", (64, 32), "float16", False),
    TensorArgument("C", (64, 32), "float16", True),
)


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.setattr(contest, "WARM_SECONDS", 0.0)
    return measure.GpuBench(HostDriver())


def kernel(bench, seconds, factor=1.0, rows=None):
    def run(a, c):
        bench.driver.now += seconds
        out = np.array(c.numpy())
        out[:rows] = (a.numpy() * np.float16(factor))[:rows]
        c.copyfrom(out)

    return run


def loaded(monkeypatch, functions):
    """Stand in for artifacts: the name of one is its function."""

    class Manifest:
        arguments = ARGUMENTS

    monkeypatch.setattr(artifact, "load_checked", lambda path: (functions[path], Manifest))


def test_each_is_judged_and_timed_in_turn(bench, monkeypatch):
    functions = {
        "good": kernel(bench, 1e-3),
        "fast": kernel(bench, 5e-4),
        "wrong": kernel(bench, 1e-4, factor=1.01),
        "part": kernel(bench, 1e-4, rows=40),
        "tvm": kernel(bench, 1e-1),
    }
    loaded(monkeypatch, functions)
    reply = contest.answer(
        bench, {"contest": ["good", "fast", "wrong", "part"], "reference": "tvm", "library": None}
    )
    assert [x for x, _ in reply["verdicts"]] == ["equal", "equal", "wrong", "wrong"]
    assert "elements differ, the first one" in reply["verdicts"][2][1]
    assert "elements that the function did not write" in reply["verdicts"][3][1]
    for way in ("sustained", "single"):
        good, fast, wrong, part = reply[way]
        assert wrong == part == []
        assert good == pytest.approx([1e-3] * len(good))
        assert fast == pytest.approx([5e-4] * len(fast))
        assert len(good) >= contest.FEWEST_ROUNDS
    assert reply["library"] == ""


def test_without_a_reference_nothing_is_said_of_results(bench, monkeypatch):
    loaded(monkeypatch, {"one": kernel(bench, 1e-3)})
    reply = contest.answer(bench, {"contest": ["one"]})
    assert reply["verdicts"] == [("unchecked", "there is no reference")]
    assert len(reply["sustained"]) == 1


def test_a_library_comes_last(bench, monkeypatch):
    loaded(monkeypatch, {"one": kernel(bench, 1e-3), "bad": kernel(bench, 1e-3, 2.0)})
    monkeypatch.setattr(library, "find", lambda *_: ("cuBLAS", kernel(bench, 3e-4)))
    request = {"contest": ["bad", "one"], "reference": "one", "library": {}}
    reply = contest.answer(bench, request)
    assert reply["library"] == "cuBLAS"
    assert [len(x) > 0 for x in reply["sustained"]] == [False, True, True]
    assert reply["sustained"][2] == pytest.approx([3e-4] * len(reply["sustained"][2]))


def test_calls_go_through_tensors_of_six_times_the_cache(bench):
    each = sum(contest.num_bytes(x) for x in ARGUMENTS)
    for flush, sets in ((each, 3), (2 * each, 6), (each // 2, 2), (each // 8, 1), (99 * each, 16)):
        bench.flush_bytes = flush
        assert len(contest.Contest(bench, ARGUMENTS)._sets) == sets


def test_contenders_take_turns():
    orders = [contest._order(3, number) for number in range(6)]
    assert orders[:3] == [[0, 1, 2], [1, 2, 0], [2, 0, 1]]
    assert orders[3:] == [x[::-1] for x in orders[:3]]
    assert all(sorted(x) == [0, 1, 2] for x in orders)


def test_other_arguments_are_refused(bench, monkeypatch):
    class Other:
        arguments = (ARGUMENTS[0],)

    manifests = {"a": type("M", (), {"arguments": ARGUMENTS}), "b": Other}
    monkeypatch.setattr(artifact, "load_checked", lambda path: (None, manifests[path]))
    with pytest.raises(HopperError, match="contest: found other arguments in b; need the same"):
        contest.answer(bench, {"contest": ["a", "b"]})


@pytest.mark.parametrize(
    ("found", "wanted", "dtype", "wrong"),
    [
        ([1.0, 2.0], [1.0, 2.004], "bfloat16", False),
        ([1.0, 2.0], [1.0, 2.5], "bfloat16", True),
        ([1.0, 2.0], [1.0, 2.5], "float32", True),
        ([1.0, np.inf], [1.0, np.inf], "float32", False),
        ([1.0, np.nan], [1.0, 2.0], "float32", True),
        ([np.inf], [np.inf], "float32", False),
    ],
)
def test_roundings_are_no_difference(found, wanted, dtype, wrong):
    a, b = (np.array(x, dtype="float32") for x in (found, wanted))
    assert contest.differ("C", a, b, dtype)[0] is wrong


def test_large_results_are_compared_piece_by_piece(monkeypatch):
    monkeypatch.setattr(contest, "PIECE", 8)
    wanted = np.linspace(1, 2, 30, dtype="float32")
    wanted[3] = np.inf
    found = wanted.copy()
    assert contest.differ("C", found, wanted, "float32") == (
        False,
        "C: within roundings of the program as TVM schedules it, 0.0e+00",
    )
    found[[20, 29]] += 1
    is_wrong, text = contest.differ("C", found, wanted, "float32")
    assert is_wrong
    assert text.startswith("C: 2 of 29 elements differ, the first one 19: 2.68966, of the ref")
    found[[9, 25]] = np.nan
    assert contest.differ("C", found, wanted, "float32") == (
        True,
        "C: 2 elements are not finite",
    )


def test_integers_are_the_same_or_not():
    one, two = np.array([1, 2], "int32"), np.array([1, 3], "int32")
    assert contest.differ("C", one, one, "int32") == (False, "C: the same bytes")
    assert contest.differ("C", one, two, "int32") == (True, "C: 1 bytes differ")


def test_no_library_for_what_is_no_product(monkeypatch):
    assert library.find(None, ARGUMENTS) == ("", None)
    mixed = (*ARGUMENTS, TensorArgument("D", (64, 32), "float32", True))
    assert library.find({"majors": ["k", "k"]}, mixed) == ("", None)
    monkeypatch.setattr(library.importlib.util, "find_spec", lambda _name: None)
    assert library.find({"majors": ["k", "k"]}, ARGUMENTS) == ("", None)


def test_fake_gpus_compare_too_and_say_so(make_artifact):
    paths = [make_artifact("a", 2e-4), make_artifact("b", 1e-4)]
    runner = meta_schedule.fake_gpus(2, {0: ("segfault", 1)}, keep_artifacts=True)
    found = runner.contest(paths)()
    runner.close()
    assert isinstance(found, Contested)
    assert found.is_fake
    assert [x for x, _ in found.verdicts] == ["unchecked"] * 2
    assert np.median(found.sustained[0]) > 1.5 * np.median(found.sustained[1])
    alone = meta_schedule.FakeRunner(keep_artifacts=True).contest(paths)()
    assert alone.sustained == found.sustained
    assert "need one that our builder wrote" in meta_schedule.FakeRunner().contest(["/no"])()


def test_what_breaks_every_gpu_is_an_error_in_words(make_artifact):
    runner = meta_schedule.fake_gpus(2, {0: ("exit", 1), 1: ("exit", 1)})
    found = runner.contest([make_artifact("a")])()
    runner.close()
    assert "the process ended by exit code 7" in found
