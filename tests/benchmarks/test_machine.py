"""Result files: dated, with the figures beside the page, and never written over."""

import json

from benchmarks import machine


def test_results_of_one_minute_are_kept_apart(tmp_path, monkeypatch):
    class Frozen(machine.datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return cls(2026, 1, 2, 3, 4, tzinfo=tz)

    monkeypatch.setattr(machine.datetime, "datetime", Frozen)
    paths = [machine.write(tmp_path, "copies", f"page {i}", {"run": i}) for i in range(3)]
    assert [path.name for path in paths] == [
        "copies_2026-01-02_0304.md",
        "copies_2026-01-02_0304_2.md",
        "copies_2026-01-02_0304_3.md",
    ]
    for i, path in enumerate(paths):
        assert path.read_text() == f"page {i}"
        assert json.loads(path.with_suffix(".json").read_text()) == {"run": i}


def test_a_command_names_no_folder_of_its_machine():
    given = ["benchmarks/copies.py", "--only", "row of", "--out", "/a/b", "--repeats", "20"]
    assert machine.command(given) == "python -m benchmarks.copies --only 'row of' --repeats 20"
    assert machine.command(["x/gemm.py"]) == "python -m benchmarks.gemm"
