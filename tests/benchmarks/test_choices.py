"""What two trees choose is compared by program, without what came second in an estimate."""

import json

from tvm import s_tir

from benchmarks import choices
from tvm_hopper import schedule as hs
from tvm_hopper.testing import memory_bound


def test_a_kernel_is_told_from_another_one_by_its_text(tmp_path, capsys):
    rows = []
    for threads in (128, 256):
        sch = s_tir.Schedule(memory_bound.rms_norm(1 << 14, 4096))
        hs.row_reduction(sch, config=hs.RowReductionConfig(threads=threads))
        rows.append(choices.describe(sch.mod))
    assert rows[0]["hash"] != rows[1]["hash"]
    assert rows[0]["chosen"][0].startswith("128 threads a row")
    assert "; then" not in rows[0]["chosen"][0]
    before, after = tmp_path / "before.json", tmp_path / "after.json"
    before.write_text(json.dumps({"h200: a": rows[0], "h200: b": rows[0]}))
    after.write_text(json.dumps({"h200: a": rows[0], "h200: b": rows[1], "h200: c": rows[0]}))
    assert choices.main(["--compare", str(before), str(after)]) == 1
    printed = capsys.readouterr().out
    assert "2 programs in both, 1 differ" in printed
    assert "h200: b" in printed
    assert choices.main(["--compare", str(before), str(before)]) == 0


def test_named_kernels_are_memory_bound_programs_and_products():
    names = [name for name, _ in choices.named()]
    assert "rms_norm 1 x 4096" in names
    assert any(name.startswith("4096x4096x4096") for name in names)
