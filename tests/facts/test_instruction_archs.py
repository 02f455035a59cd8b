"""Which arch an instruction needs: the table's own rules, and what ptxas says of its examples."""

import shutil
import subprocess

import pytest
from tvm.backend.cuda.ptx.table import TABLE

from tvm_hopper.facts.arch import SM_80, SM_90A
from tvm_hopper.facts.instruction_archs import RULES, has_instructions, needed_arch

KERNEL = """.version 8.7
.target {arch}
.address_size 64
.visible .entry k(.param .u64 pg) {{
.reg .b64 d, g; .reg .b32 r, s; .reg .b16 h; .reg .f32 f; .reg .pred p;
ld.param.u64 g, [pg]; mov.u32 s, 0; mov.u32 r, 1; mov.u16 h, 0; mov.f32 f, 0f00000000;
mov.b64 d, 0; setp.eq.u32 p, r, 0;
{{ {text} }}
ret; }}
"""
BEFORE = {"sm_89": "sm_80", "sm_90": "sm_89", "sm_90a": "sm_90"}


@pytest.mark.parametrize(
    ("row", "modifiers", "arch"),
    [
        ("wgmma_f16_ss", ("mma_async",), "sm_90a"),
        ("cp_async_bulk_commit_group", (), "sm_90"),
        ("cp_async_cg_src_size", ("cg", "shared", "global"), ""),
        ("cp_async_commit_group", (), ""),
        ("cp_async_mbarrier_arrive", ("noinc",), ""),
        ("ldmatrix", ("x4", "b16"), ""),
        ("mma", ("f32", "f16", "f16", "f32"), ""),
        ("mma", ("f32", "e4m3", "e5m2", "f32"), "sm_89"),
        ("mbarrier_arrive_nocount", ("shared", "b64"), ""),
        ("mbarrier_arrive", ("shared", "b64"), "sm_90"),
        ("mbarrier_arrive_nocount", ("release", "cluster", "shared::cluster"), "sm_90"),
        ("mbarrier_test_wait_parity", ("shared",), ""),
        ("fence_proxy", ("alias",), ""),
        ("cvt", ("rn", "bf16", "f32"), ""),
        ("cvt", ("rn", "bf16", "s32"), "sm_90"),
        ("max", ("bf16",), ""),
    ],
)
def test_what_some_instructions_need(row, modifiers, arch):
    assert row in TABLE
    assert needed_arch(row, modifiers) == arch


def test_each_rule_names_rows_of_the_table_and_modifiers_of_theirs():
    for rule in RULES:
        for name in rule.rows:
            rows = [r for r in TABLE if r == name or (name[-1] == "*" and r.startswith(name[:-1]))]
            assert rows, name
            tokens = {t for row in rows for s in TABLE[row].slots for t in s.choices}
            assert all(some & tokens for some in rule.tokens), name


def test_an_arch_has_what_came_before_and_its_own():
    assert [has_instructions(SM_80, x) for x in ("", "sm_89", "sm_90", "sm_90a")] == [
        True, False, False, False
    ]  # fmt: skip
    assert all(has_instructions(SM_90A, x) for x in ("", "sm_89", "sm_90", "sm_90a"))
    assert not has_instructions(SM_90A, "sm_100")


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.example.split(" ")[0])
def test_ptxas_takes_each_example_from_its_arch_on(rule, tmp_path):
    if shutil.which("ptxas") is None:
        pytest.skip("needs ptxas")
    for arch, taken in ((rule.arch, True), (BEFORE[rule.arch], False)):
        file = tmp_path / "kernel.ptx"
        file.write_text(KERNEL.format(arch=arch, text=rule.example))
        done = subprocess.run(
            ["ptxas", "-arch", arch, file, "-o", "/dev/null"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert (done.returncode == 0) == taken, done.stderr
