"""Times of a model's kernels on the device, by the report, and the benchmark of whole models."""

import subprocess
import sys

import pytest
import tvm
from tvm import relax

from benchmarks.models.rows import EAGER, OURS, read
from tests.relax import models
from tests.relax.test_report import SIZES
from tvm_hopper.relax import report
from tvm_hopper.testing.llama import SMALL, llama

pytestmark = pytest.mark.gpu


def on_device(value, device):
    if isinstance(value, list):
        return [on_device(x, device) for x in value]
    return tvm.runtime.tensor(value, device)


@pytest.fixture(autouse=True)
def _needs_a_gpu():
    if not tvm.cuda(0).exist or tvm.cuda(0).compute_version != "9.0":
        pytest.skip("no GPU of compute capability 9.0")


def test_measured_times():
    mod, device = llama(SMALL, attention="none"), tvm.cuda(0)
    pipeline = relax.get_pipeline("tvm_hopper", classes=models.CLASSES)
    ex = relax.build(mod, target=models.H200, relax_pipeline=pipeline)
    machine = relax.VirtualMachine(ex, device)
    given = [on_device(x, device) for x in models.inputs_of(mod, "prefill", SIZES)]
    want = machine["prefill"](*given).numpy()
    said = report(ex, sizes=SIZES).measure(machine, given, "prefill")
    section = said.section("prefill")
    assert {x.time_is for x in section.rows} == {"measured"}
    assert all(0.5 * x.calls < x.cost.microseconds < 100 * x.calls for x in section.rows)
    assert (machine["prefill"](*given).numpy() == want).all()


@pytest.mark.parametrize("name", ["linear", "paged_decode_16"])
def test_the_benchmark_of_models(name, tmp_path):
    """One model of each way at tiny sizes, with all its parts."""
    pytest.importorskip("torch")
    out = tmp_path / "rows.jsonl"
    command = [sys.executable, "-m", "benchmarks.models", "--tiny", "--only", name]
    subprocess.run([*command, "--out", str(out), "--jobs", "1"], check=True)
    row = read([out])[name]
    assert row.failures == {}
    assert row.errors[OURS] < max(2 * row.errors[EAGER], 4e-3)
    assert row.ratio(EAGER) is not None
    assert row.kernels
