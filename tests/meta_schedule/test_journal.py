"""The log of a work folder: whole lines, one writer, and nothing in it that is trusted."""

import json
import os
import re
import resource
import signal

import pytest

from tvm_hopper.errors import TuningError
from tvm_hopper.meta_schedule import journal as journals
from tvm_hopper.meta_schedule.journal import (
    FILE,
    LOCK,
    Journal,
    as_folder,
    check_versions,
    differing,
    read_lines,
)
from tvm_hopper.meta_schedule.versions import machine, part, versions

TRIAL = {
    "is": "trial",
    "workload": "k",
    "configuration": "matmul",
    "kernel": "x",
    "seconds": [1e-5],
    "error": None,
    "machine": 0,
    "predicted": 10.0,
}


def write(folder, *rows, end="\n"):
    header = {"is": "header", "format": 2, **versions()}
    texts = [x if isinstance(x, str) else json.dumps(x) for x in (header, *rows)]
    (folder / FILE).write_text("\n".join(texts) + end)


def test_what_is_appended_is_read_back(tmp_path):
    with Journal(tmp_path / "new" / "folder") as journal:
        journal.append(TRIAL)
    rows = read_lines(tmp_path / "new" / "folder")
    assert [x["is"] for x in rows] == ["header", "trial"]
    assert rows[1] == TRIAL
    assert not differing(rows[0])
    with Journal(tmp_path / "new" / "folder") as journal:
        assert journal.rows == rows


def test_a_folder_without_a_log_is_empty(tmp_path):
    assert read_lines(tmp_path) == []


def test_a_torn_line_is_dropped_with_a_note_and_nothing_else_is_lost(tmp_path):
    write(tmp_path, TRIAL, {**TRIAL, "kernel": "y"})
    text = (tmp_path / FILE).read_bytes()
    whole = text.count(b"\n", 0, text.index(b'"y"'))
    for cut in range(text.index(b'"y"'), len(text), 7):
        (tmp_path / FILE).write_bytes(text[:cut])
        with pytest.warns(UserWarning, match=rf"{FILE}:3: dropped a line"):
            assert len(read_lines(tmp_path)) == whole
        with pytest.warns(UserWarning, match="dropped a line"), Journal(tmp_path) as journal:
            journal.append({**TRIAL, "kernel": "z"})
        assert [x.get("kernel") for x in read_lines(tmp_path)] == [None, "x", "z"]


@pytest.mark.parametrize("text", ["a\nb", "a", "{}\n{", "\x00\n\x01"])
def test_of_a_file_that_is_none_of_ours_nothing_is_cut_off(text, tmp_path):
    (tmp_path / FILE).write_text(text)
    with pytest.raises(TuningError, match=f"{FILE}:1: found .*; need a"):
        Journal(tmp_path)
    assert (tmp_path / FILE).read_text() == text


def test_a_header_that_is_torn_is_written_again(tmp_path):
    (tmp_path / FILE).write_text('{"is": "hea')
    with pytest.warns(UserWarning, match=f"{FILE}:1: dropped"), Journal(tmp_path) as journal:
        assert [x["is"] for x in journal.rows] == ["header"]


FINAL = {"is": "final", "workload": "k", "finalists": ["pointwise"], "winner": "pointwise"}
WORKLOAD = {
    **{"is": "workload", "key": "k", "name": "n", "form": "f", "extents": [1]},
    **{"arch": "a", "num_sms": 1, "target": "t", "module": '["1", "eA=="]'},
}
CHECK = {
    **{"is": "check", "workload": "k", "configuration": "pointwise", "verdict": "equal"},
    **{"by": "simulator", "record": "[[],[1.0],{},[]]"},
}
HOSTILE = {
    "a winner that was no finalist": {**FINAL, "winner": "matmul"},
    "finalists that are no texts": {**FINAL, "finalists": ["pointwise", ["x"]]},
    "times that are no list": {**FINAL, "sustained_us": 3},
    "a gain that is none": {**FINAL, "gain": "1"},
    "a library's time below": {**FINAL, "library_us": -1},
    "half a character": json.dumps(TRIAL).replace('"x"', '"\\ud800"'),
    "a number without end": json.dumps(TRIAL).replace("10.0", "1e999"),
    "an end without a reason": {"is": "end", "workload": "k", "trials": 3},
    "an end of no number": {"is": "end", "workload": "k", "trials": "3", "why": "w"},
    "no JSON": "\x00\x01",
    "a number": "3",
    "a list": '["trial"]',
    "nothing": "",
    "an unknown kind": '{"is": "pickle", "data": "gASV"}',
    "a kind of another type": '{"is": ["trial"]}',
    "deep": "[" * 100_000,
    "a missing field": {k: v for k, v in TRIAL.items() if k != "seconds"},
    "a wrong type": {**TRIAL, "machine": "0"},
    "a bool for a number": {**TRIAL, "machine": True},
    "no times": {**TRIAL, "seconds": []},
    "a time below": {**TRIAL, "seconds": [-1.0]},
    "a text for a time": {**TRIAL, "seconds": ["1"]},
    "NaN": json.dumps(TRIAL).replace("1e-05", "NaN"),
    "a number of 400 digits": json.dumps(TRIAL).replace("10.0", "1" + "0" * 400),
    "a header in between": {"is": "header", "format": 2, **versions()},
    "extents": {**WORKLOAD, "extents": [0]},
    "a bound that is no number": {**WORKLOAD, "bound_us": "x"},
    "a module of two lines": {**WORKLOAD, "module": '["1", "eA=="]\n'},
    "a module that is none": {**WORKLOAD, "module": "[]"},
    "a record that is none": {**CHECK, "record": "[[],[],[],[]]"},
    "a record of two lines": {**CHECK, "record": "[[],[1.0],\n{},[]]"},
    "a deep record": {**CHECK, "record": "[" * 100_000},
    "bytes below": {**WORKLOAD, "bytes": -1},
    "no weight": {**WORKLOAD, "weight": None},
    "bounds": {
        **{"is": "classes", "key": "k", "name": "n", "arch": "a", "num_sms": 1},
        "bounds": [[16]],
    },
}


def test_lines_that_hostile_ones_are_made_of_are_fine(tmp_path):
    write(tmp_path, TRIAL, WORKLOAD, CHECK, {**CHECK, "record": None}, {**FINAL, "gain": 1.5})
    assert len(read_lines(tmp_path)) == 6


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_line_is_one_error_that_names_file_and_line(name, tmp_path):
    write(tmp_path, TRIAL, HOSTILE[name], TRIAL)
    where = re.escape(str(tmp_path / FILE))
    with pytest.raises(TuningError, match=f"^{where}:3: found .*; need ") as error:
        read_lines(tmp_path)
    assert len(str(error.value)) < 1000


def test_a_line_that_is_too_long(tmp_path, monkeypatch):
    monkeypatch.setattr(journals, "MOST_LINE", 400)
    write(tmp_path, {**TRIAL, "error": "x" * 500})
    with pytest.raises(TuningError, match=r":2: found .* bytes; need a line of at most 400"):
        read_lines(tmp_path)


def test_another_format(tmp_path):
    (tmp_path / FILE).write_text(json.dumps({"is": "header", "format": 1, **versions()}) + "\n")
    with pytest.raises(TuningError, match=":1: found format 1; need a header of format 2"):
        Journal(tmp_path)
    (tmp_path / FILE).write_text(json.dumps(TRIAL) + "\n")
    with pytest.raises(TuningError, match=":1: found a trial first; need a header"):
        Journal(tmp_path)


@pytest.mark.parametrize("name", ["package", "passes", "tvm"])
def test_records_of_other_versions_are_not_gone_on_with(name, tmp_path):
    header = {"is": "header", "format": 2, **versions(), name: "other"}
    (tmp_path / FILE).write_text(json.dumps(header) + "\n")
    with pytest.raises(TuningError, match=f"found records of {name} other; need those of"):
        Journal(tmp_path)
    with pytest.raises(TuningError, match="begin with another work_dir"):
        check_versions(header, tmp_path)
    with pytest.raises(TuningError, match="found records of"):  # the lock was given back
        Journal(tmp_path)


def test_one_writer(tmp_path):
    with Journal(tmp_path), pytest.raises(TuningError, match="another process that tunes into it"):
        Journal(tmp_path)
    Journal(tmp_path).__exit__(None, None, None)


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(TuningError, match="found a file; need a folder"):
        Journal(tmp_path / "file")


def test_a_place_where_nothing_can_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(TuningError, match=r"found no place to write at .Not a directory.; need a"):
        Journal(tmp_path / "file" / "below")
    (tmp_path / FILE).mkdir()
    with pytest.raises(TuningError, match=f"{FILE}: found a log that cannot be read .Is a direct"):
        Journal(tmp_path)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_full_disk_is_one_error_and_leaves_whole_lines(tmp_path):
    reader, writer = os.pipe()
    child = os.fork()
    if not child:  # a process keeps its limit to the end
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        try:
            with Journal(tmp_path) as journal:
                for number in range(99):
                    journal.append({"is": "machine", "number": number, "name": "x" * 20})
        except TuningError as error:
            os.write(writer, str(error).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    error = os.read(reader, 1000).decode()
    os.close(reader)
    os.close(writer)
    assert re.search(rf"{FILE}: found no way to write on .File too large.; need .*make room", error)
    text = (tmp_path / FILE).read_text()
    assert 900 < len(text) <= 1000
    assert text.endswith("}\n")
    with Journal(tmp_path) as journal:
        journal.append(TRIAL)
    assert [x["is"] for x in read_lines(tmp_path)][-2:] == ["machine", "trial"]


def test_what_stands_in_place_of_a_file_of_the_folder(tmp_path):
    other = tmp_path / "other"
    other.write_text("of somebody")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / LOCK).symlink_to(other)
    with pytest.raises(TuningError, match=r"no place to write at .Too many levels of symbolic"):
        Journal(tmp_path / "a")
    assert other.read_text() == "of somebody"
    (tmp_path / "b").mkdir()
    os.mkfifo(tmp_path / "b" / FILE)
    with pytest.raises(TuningError, match=f"{FILE}: found something else than a file"):
        Journal(tmp_path / "b")


@pytest.mark.parametrize("value", ["x" * 300, "a\0b"])
def test_a_path_that_nobody_can_open(value):
    with pytest.raises(TuningError, match=r"found '.*' .*; need a path that can be opened"):
        as_folder(value, "merge")


@pytest.mark.parametrize("value", [None, 3, ""])
def test_what_is_no_folder(value):
    with pytest.raises(TuningError, match=r"^merge: found .*, of type .*; need the work_dir of a"):
        as_folder(value, "merge")


def test_versions_are_those_of_the_package():
    import tvm_hopper

    assert versions()["package"] == tvm_hopper.__version__
    assert re.fullmatch("[0-9a-f]{16}", versions()["passes"])


def test_parts_are_told_apart():
    from tvm.target import Target

    assert part(Target("nvidia/nvidia-h200")) == {"arch": "sm_90a", "num_sms": 132}
    other = {"arch": "sm_90a", "num_sms": 132, "part": "h100-sxm"}  # as many, and less bandwidth
    assert part(Target("nvidia/nvidia-h100-sxm")) == other


def test_machines_are_what_the_driver_says(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert machine() == {"gpus": []}
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'NVIDIA H200, 580.1, 700.00 W, 1980 MHz'\n")
    program.chmod(0o755)
    (gpu,) = machine()["gpus"]
    assert gpu == {
        "gpu": "NVIDIA H200",
        "driver": "580.1",
        "power_limit": "700.00 W",
        "max_clock": "1980 MHz",
    }
    program.write_text("#!/bin/sh\nexit 9\n")
    assert machine() == {"gpus": []}
    program.write_text("no program\n")
    program.chmod(0o755)
    assert machine()["gpus"] == []
