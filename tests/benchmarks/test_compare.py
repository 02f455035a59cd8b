"""Two trees against one another: what is built, timed and timed again, and the verdict."""

from __future__ import annotations

import dataclasses
import json
import math
import subprocess
import sys
import types
from pathlib import Path

import pytest

from benchmarks import compare, compare_part, timing

ROOT = Path(__file__).resolve().parents[2]
KERNELS = compare.named_kernels(2.0, [])
OLD, NEW = ({"library": x, "identity": x} for x in ("old", "new"))


def run(ratios, old=OLD, new=NEW, until=math.inf):
    """Compare one kernel for each list of ratios, in the order in which they are measured."""
    kernels = KERNELS[: len(ratios)]
    left = {kernel.name: list(found) for kernel, found in zip(kernels, ratios, strict=True)}
    count = len(kernels)
    return compare.compare(
        kernels,
        [old] * count,
        [new] * count,
        lambda kernel, paths: (100 * left[kernel.name].pop(0), 100.0),
        until,
    )


def test_products_and_memory_bound_programs_are_named() -> None:
    names = [kernel.name for kernel in KERNELS]
    assert len(names) == len(set(names))
    assert {kernel.kind for kernel in KERNELS} == {"product", "memory"}
    assert [k.kind for k in compare.named_kernels(2.0, ["softmax 10007"])] == ["memory"]


def test_what_falls_below_is_timed_five_times_more() -> None:
    slow = run([[0.97, 0.99, 0.5, 1.0, 0.991, 0.995], [1.01]])
    assert [round(row["ratio"], 4) for row in slow] == [0.991, 1.01]
    assert slow[0]["first"] == 0.97
    assert "first" not in slow[1]
    assert compare.exit_code(slow) == 0


@pytest.mark.parametrize(
    ("ratios", "code"),
    [([1.0, 0.995], 0), ([0.996, 0.997], 1), ([2.0, 0.979], 1), ([9.0, 0.99, 0.99], 0)],
)
def test_the_verdict(ratios, code) -> None:
    rows = run([[x] * 6 for x in ratios])
    assert compare.exit_code(rows) == code


def test_outliers_and_short_times_do_not_carry_the_mean() -> None:
    assert compare.geometric_mean([{"ratio": 9.0}, {"ratio": 1 / 1.5}]) == pytest.approx(1)
    assert compare.ratio((2.0, 2.9)) == 1
    assert compare.ratio((2.0, 4.0)) == 0.75


def test_the_same_code_is_not_timed() -> None:
    rows = run([[], []], new=OLD)
    assert [(row["ratio"], row["same"]) for row in rows] == [(1.0, True)] * 2
    assert "0 of 2 timed, 2 are the same code" in compare.page(rows, {"chip": "none"})


def test_what_is_not_built_or_not_timed_is_said() -> None:
    broken = {"library": "x", "error": "LoweringError: no"}
    assert compare.exit_code(run([[]], new=broken)) == 1
    rows = run([[]], old=broken) + run([[1.0] * 6])
    assert compare.exit_code(rows) == 0
    rows += run([[]], until=0.0)
    assert compare.exit_code(rows) == 2
    text = "\n".join(compare.summary(rows))
    assert "not built before: " in text
    assert "LoweringError: no" in text
    assert "out of time before 1 cases" in text
    assert compare.exit_code([]) == 2


def test_the_ten_worst_come_by_name() -> None:
    text = compare.page(run([[1 + i / 100] for i in range(12)]), {"chip": "H200", "SMs": "132"})
    assert KERNELS[0].name in text
    assert KERNELS[9].name in text
    assert KERNELS[10].name not in text
    assert "- SMs: 132" in text


def test_contenders_swap_at_each_repeat(monkeypatch) -> None:
    order: list[str] = []
    event = types.SimpleNamespace(record=lambda: None, elapsed_time=lambda end: 1.0)
    cuda = types.SimpleNamespace(Event=lambda **_: event, synchronize=lambda: None)
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=cuda))
    found = timing.by_events([lambda _: order.append("a"), lambda _: order.append("b")], 3)
    assert "".join(order) == "abbaab"
    assert [len(times) for times in found] == [3, 3]


def test_a_tree_builds_with_its_own_package_alone(tmp_path: Path) -> None:
    """A package that lies elsewhere is not taken for the tree's."""
    tree = tmp_path / "tree" / "tvm_hopper"
    tree.parent.mkdir()
    tree.symlink_to(ROOT / "tvm_hopper")
    (kernel,) = compare.named_kernels(2.0, ["softmax 10007"])
    running = compare.start_builds(tree.parent, tmp_path / "built", [kernel], 1)
    (found,) = compare.built(running, tmp_path / "built", 1)
    assert found["error"] == "the process that builds it died"


def test_kernels_are_built_and_those_refused_are_told(tmp_path: Path) -> None:
    (kernel,) = compare.named_kernels(2.0, ["rms_norm 1 x 4096"])
    jobs = tmp_path / "jobs.json"
    good = (0, kernel.kind, dataclasses.asdict(kernel.case))
    jobs.write_text(json.dumps([good, (1, "memory", {**good[2], "program": "no\nprogram"})]))
    compare_part.main(str(ROOT), str(jobs), str(tmp_path))
    found, refused = (json.loads((tmp_path / f"{i}.json").read_text()) for i in (0, 1))
    assert len(found["identity"]) == 64
    assert (tmp_path / "0.so").is_file()
    assert refused["error"].startswith("AttributeError: ")
    with pytest.raises(SystemExit, match=r"found tvm_hopper in .*; need that of"):
        compare_part.main(str(tmp_path), str(jobs), str(tmp_path))


def test_a_commit_is_extracted_without_links(tmp_path: Path) -> None:
    if subprocess.run(["git", "-C", ROOT, "rev-parse", "HEAD"], capture_output=True).returncode:
        pytest.skip("no history here")
    folder = compare.extract("HEAD", tmp_path / "before")
    assert not any(path.is_symlink() for path in folder.rglob("*"))
    assert (folder / "tvm_hopper" / "transforms" / "__init__.py").is_file()
    assert (folder / "benchmarks" / "memory.py").is_file()
    assert compare.tree_of(str(folder), tmp_path / "other") == folder


def test_a_folder_without_a_package_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="need a whole package; make the folder by"):
        compare.tree_of(str(tmp_path), tmp_path / "other")


@pytest.mark.parametrize("words", [["x", "--repeats", "14"], ["HEAD", "--extract"]])
def test_options_that_make_no_sense_are_refused(words, capsys) -> None:
    with pytest.raises(SystemExit):
        compare.parse(words)
    assert "error: --" in capsys.readouterr().err
