"""The benchmark of build times: what is counted as ours, and what is printed."""

import sys

from benchmarks import compile_time


def test_the_table_has_a_figure_for_each_part(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["compile_time", "--size", "128x128x128", "--rounds", "1"])
    monkeypatch.setattr(compile_time, "seconds", lambda step, rounds: step() and 1.5)
    compile_time.main()
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.startswith("128x128x128, tvm_hopper ")
    assert [row.rsplit(maxsplit=2)[0] for row in rows] == [
        "our passes",
        "schedule",
        "schedule to cubin",
    ]
    ours = float(rows[0].split()[-2])
    assert 0 < ours < 10


def test_a_population(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["compile_time", "--population", "3", "1"])
    compile_time.main()
    said = capsys.readouterr().out
    assert "1 kernels" in said or "2 kernels" in said
    assert "schedule to cubin: median" in said


def test_memory_bound_kernels_have_a_process_each(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["compile_time", "--memory", "rms_norm 65536 x 8192"])
    compile_time.main()
    one, work, clock = capsys.readouterr().out.splitlines()
    assert one.startswith("rms_norm 65536 x 8192: ")
    assert work.startswith("of a core: median ")
    assert clock.startswith("schedule to cubin: median ")
