"""Findings as tables: what each row says, and that nothing of a module becomes markup."""

import numpy as np
import pytest

from tvm_hopper.cli import main
from tvm_hopper.sim import Result
from tvm_hopper.sim.findings import MAX_LISTED_BLOCKS, Finding, finding
from tvm_hopper.sim.tables import findings_html, findings_text
from tvm_hopper.simulation import Report, simulate

from .hand_threaded import F32, hand_threaded
from .kernels import lower

EVIL = "<b onmouseover=alert(1)>[red]x[/]\x1b[2J"
ONE = finding(
    "RACE_OVERWRITE_BUSY",
    "TMA load of warp 0 writes bytes that are read by wgmma",
    buffer="A_shared",
    byte_range=(0, 8192),
    statements=("warp 0: copy A", "warp 4: multiply"),
    missing="end of the read -> this overwrite",
    policy="random",
    seed=3,
)
STRANGE = Finding("OOB_ACCESS", "error", EVIL, EVIL, (0, 4), (), (EVIL,), EVIL, EVIL)


def test_a_row_says_all_that_is_known():
    text = findings_text([ONE])
    for part in (
        "RACE_OVERWRITE_BUSY",
        "error",
        ONE.message,
        "A_shared[0:8192)",
        "warp 0: copy A",
        "warp 4: multiply",
        "end of the read -> this overwrite",
        "release the slot after its reads are complete",
        "8.9.1.1 asynchronous operations",
        "simulate(ex, inputs, policy='random', seed=3)",
    ):
        assert part in text
    assert len({len(line) for line in text.splitlines()}) == 1  # well aligned


@pytest.mark.parametrize("width", [80, 118, 160])
def test_no_line_is_wider_than_asked_and_no_call_is_cut(width):
    lines = findings_text([ONE], width).splitlines()
    assert max(map(len, lines)) <= width
    assert "…" not in "".join(lines)


def test_no_findings_make_no_table():
    assert findings_text([]) == findings_html([]) == ""


def test_colours_are_for_terminals_alone():
    assert "\x1b[" not in findings_text([ONE])
    assert "\x1b[31m" in findings_text([ONE], ink=True)


def test_names_of_a_module_are_no_markup():
    text = findings_text([STRANGE])
    assert "[red]x[/]?[2J" in text
    assert "\x1b" not in text
    html = findings_html([STRANGE])
    assert "<b onmouseover" not in html
    assert "&lt;b onmouseover=alert(1)&gt;" in html
    for shown in (
        Result({}, (STRANGE,))._repr_html_(),
        Report((STRANGE,), (), (), skeletons=(EVIL,), cuts=(EVIL,), proven=(EVIL,))._repr_html_(),
    ):
        assert "<b onmouseover" not in shown
        assert "OOB_ACCESS" in shown


def test_a_notebook_shows_what_the_terminal_shows():
    html = findings_html([ONE])
    for part in ("error", "RACE_OVERWRITE_BUSY", "A_shared[0:8192)", "warp 4: multiply"):
        assert part in html
    assert "policy=&#x27;random&#x27;, seed=3" in html
    assert Report((ONE,), (("random", 3, "error"),), ()).table().startswith("verdict: error")


@pytest.mark.parametrize(
    ("policy", "call"),
    [
        ("", "verify(ex)"),
        ("static", "verify(ex)  # its static check"),
        ("skeleton", "verify(ex)  # its exploration of interleavings"),
        ("lifo", "simulate(ex, inputs, policy='lifo', seed=2)"),
    ],
)
def test_the_call_that_replays_a_finding(policy, call):
    assert Finding("TRAP", "error", "x", policy=policy, seed=2).replay == call
    assert f"replay: {call}" in str(Finding("TRAP", "error", "x", policy=policy, seed=2))


def test_many_ctas_are_named_by_the_finding():
    few = Finding("TRAP", "error", "x", policy="lifo", blocks=((1, 0, 0), (2, 0, 0)))
    assert few.replay.endswith("seed=0, blocks=[(1, 0, 0), (2, 0, 0)])")
    many = Finding("TRAP", "error", "x", policy="lifo", blocks=((0, 0, 0),) * 17)
    assert len(many.blocks) > MAX_LISTED_BLOCKS
    assert many.replay.endswith("blocks=finding.blocks)")


def test_the_call_as_printed_finds_it_again():
    @hand_threaded(64, grid=4, by_hand=False)
    def main(A: F32[256], C: F32[256], bx, tx):
        C[bx * 64] = A[bx * 64 + tx]

    ex, inputs = lower(main), {"A": np.arange(256, dtype="float32")}
    found = simulate(ex, inputs, policy="random", seed=2, blocks=[(2, 0, 0), (1, 0, 0)]).findings
    call = found[0].replay
    assert "blocks=[(" in call
    again = eval(call, {"simulate": simulate, "ex": ex, "inputs": inputs})
    assert again.findings == found


def test_the_command_prints_the_table(tmp_path, capsys):
    (tmp_path / "kernel.py").write_text(
        "from tvm.script import tirx as T\n"
        "@T.prim_func(s_tir=True)\n"
        "def main(A: T.Buffer((64,), 'float32'), C: T.Buffer((64,), 'float32')):\n"
        "    T.func_attr({'global_symbol': 'main'})\n"
        "    T.launch_thread('blockIdx.x', 1)\n"
        "    tx = T.launch_thread('threadIdx.x', 64)\n"
        "    C[0] = A[tx]\n"
    )
    assert main(["verify", f"{tmp_path / 'kernel.py'}:main"]) == 5
    text = capsys.readouterr().out
    assert "| RACE_WRITE_WRITE" in text
    assert "simulate(ex, inputs, policy=" in text
