"""The cache on disk: shared, bounded, and never in the way."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import tvm
import tvm_ffi
from tvm import relax
from tvm.relax.frontend import nn

import tvm_hopper
from tvm_hopper import CompileError, capture, disk_cache, errors, pipeline
from tvm_hopper.cuda_build import compilers
from tvm_hopper.facts.arch import SM_80
from tvm_hopper.reports import doctor

H200 = "nvidia/nvidia-h200"
KERNEL = 'extern "C" __global__ void __launch_bounds__(32) f(float* x) {{ x[0] = {}.0f; }}\n'


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    """Turn the cache on, in a folder of the test's own."""
    monkeypatch.setenv(disk_cache.SWITCH, "1")
    monkeypatch.setenv(disk_cache.FOLDER, str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def compiler(monkeypatch) -> list[str]:
    """List the texts that NVRTC gets."""
    texts: list[str] = []

    def compile_text(source: str, *rest: object) -> compilers.Output:
        texts.append(source)
        return compilers.with_nvrtc(source, *rest)

    monkeypatch.setitem(compilers._COMPILERS, "nvrtc", compile_text)
    return texts


def compiled(value: int, **options: object) -> compilers.Compiled:
    """Compile a kernel as a process does that has compiled nothing yet."""
    compilers._results.clear()
    return compilers.compile_source(KERNEL.format(value), **options)


def test_a_kernel_is_compiled_once(cache, compiler, monkeypatch) -> None:
    first = compiled(1)
    assert compiled(1) == first
    assert compiled(1).image is not None
    assert len(compiler) == 1
    for other in ({"fast_math": True}, {"arch": SM_80}):
        compiled(1, **other)
    assert compiled(2).cubin != first.cubin
    monkeypatch.setattr(disk_cache, "versions", lambda: "of another version")
    compiled(1)
    monkeypatch.setattr(compilers.nvrtc, "version", lambda: (13, 7))
    compiled(1)
    assert len(compiler) == 6
    assert oct(cache.stat().st_mode)[-3:] == "700"
    assert all(oct(x.stat().st_mode)[-3:] == "600" for x in cache.iterdir())


def test_machine_code_and_ptx_survive() -> None:
    for arch in (compilers.DEFAULT_ARCH, SM_80):
        result = compiled(3, arch=arch)
        assert compilers.from_bytes(compilers.to_bytes(result)) == result
        assert (result.image == result.cubin) == arch.is_specific


def test_what_a_log_refuses_is_refused_each_time(cache, compiler) -> None:
    text = KERNEL.replace(
        "x[0] = ",
        "float a[64]; for (int i = 0; i < 64; ++i) a[(int)x[i]] = i; x[0] = a[(int)x[1]] + ",
    )
    tries = []
    for _ in "ab":
        compilers._results.clear()
        with pytest.raises(CompileError, match="found a stack frame of"):
            compilers.compile_source(text.format(1))
        tries.append(len(compiler))
    assert tries[0] == tries[1]


def test_switched_off_there_is_no_folder(cache, compiler, monkeypatch) -> None:
    monkeypatch.setenv(disk_cache.SWITCH, "0")
    compiled(1), compiled(1)
    assert len(compiler) == 2
    assert not cache.exists()
    assert doctor.check_cache() == doctor.Row(
        "cache of builds", "ok", "off (TVM_HOPPER_CACHE=0, or no home)"
    )


@pytest.mark.parametrize("place", ["head", "data", "cut", "empty"])
def test_a_damaged_entry_counts_as_absent(cache, compiler, place) -> None:
    first = compiled(1)
    (entry,) = cache.iterdir()
    data = entry.read_bytes()
    at = {"head": 3, "data": len(data) - 5}.get(place, 0)
    broken = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
    entry.write_bytes({"cut": data[:-9], "empty": b""}.get(place, broken))
    again = compiled(1)
    assert again.cubin == first.cubin
    assert compiled(1) == again
    assert len(compiler) == 2


def full(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("step", ["mkdir", "mkstemp", "replace"])
def test_a_disk_that_refuses_is_no_error(cache, compiler, monkeypatch, step) -> None:
    owner = {"mkdir": Path, "mkstemp": tempfile, "replace": os}[step]
    with monkeypatch.context() as patch:
        patch.setattr(owner, step, full)
        assert compiled(1).cubin
    assert not cache.exists() or not list(cache.iterdir())
    compiled(1)
    assert len(compiler) == 2


def test_a_folder_that_cannot_be_written(cache, compiler, monkeypatch) -> None:
    """It is below a file here, since tests may run as root, who writes to any folder."""
    cache.write_text("")
    monkeypatch.setenv(disk_cache.FOLDER, str(cache / "below"))
    assert compiled(1).cubin == compiled(1).cubin
    assert len(compiler) == 2
    row = doctor.check_cache()
    assert row.state == "optional"
    assert "TVM_HOPPER_CACHE_DIR" in row.remedy


def test_an_entry_of_a_read_only_folder_is_used(cache, compiler, monkeypatch) -> None:
    first = compiled(1)
    monkeypatch.setattr(os, "utime", full)
    monkeypatch.setattr(tempfile, "mkstemp", full)
    assert compiled(1) == first
    assert len(compiler) == 1


def test_the_oldest_entries_go_and_the_used_ones_stay(cache, monkeypatch) -> None:
    monkeypatch.setenv(disk_cache.LIMIT, "20000")
    monkeypatch.setattr(disk_cache, "WRITES_BETWEEN_SWEEPS", 1)
    for number in range(10):
        disk_cache.put(f"x-{number}", bytes(1960))
        os.utime(cache / f"x-{number}", (number, number))
    disk_cache.get("x-0")
    disk_cache.put("x-10", bytes(1960))
    left = {path.name for path in cache.iterdir()}
    assert left == {"x-0", *(f"x-{number}" for number in range(3, 11))}
    disk_cache.put("too-large", bytes(6000))
    assert {path.name for path in cache.iterdir()} == left


WRITER = """
import os, signal, sys
from tvm_hopper import disk_cache
if sys.argv[1] == "die":
    os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    disk_cache.put("x-0", bytes(5000))
for turn in range(40):
    for key in range(12):
        data = bytes([key]) * 5000
        disk_cache.put(f"x-{key}", data)
        found = disk_cache.get(f"x-{(key + int(sys.argv[1])) % 12}")
        assert found is None or (len(found) == 5000 and len(set(found)) == 1), "mixed"
"""


def writer(argument: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, argument],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


def test_eight_processes_at_once(cache, monkeypatch) -> None:
    monkeypatch.setenv(disk_cache.LIMIT, "30000")  # entries are removed all the time, too
    writers = [writer(str(number)) for number in range(8)]
    assert [process.wait() for process in writers] == [0] * 8
    left = list(cache.iterdir())
    assert left
    assert not [path for path in left if path.name.startswith(".")]


def test_a_killed_writer_leaves_nothing_for_long(cache, monkeypatch) -> None:
    assert writer("die").wait() == -signal.SIGKILL
    (unfinished,) = cache.iterdir()
    assert unfinished.name.startswith(".")
    assert disk_cache.get("x-0") is None
    monkeypatch.setattr(disk_cache, "WRITES_BETWEEN_SWEEPS", 1)
    disk_cache.put("x-1", b"data")
    assert unfinished.exists()  # its writer may be at work
    old = time.time() - 2 * disk_cache.STALE_SECONDS
    os.utime(unfinished, (old, old))
    disk_cache.put("x-2", b"data")
    assert {path.name for path in cache.iterdir()} == {"x-1", "x-2"}


class Gated(nn.Module):
    """Two products, a norm and an activation."""

    def __init__(self) -> None:
        self.up = nn.Linear(128, 256, bias=False, dtype="float16")
        self.down = nn.Linear(256, 128, bias=False, dtype="float16")
        self.norm = nn.RMSNorm(128, -1, 1e-5, bias=False, dtype="float16")

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        return self.down(nn.op.silu(self.up(self.norm(x))))


def model() -> tvm.IRModule:
    spec = {"forward": {"x": nn.spec.Tensor(["n", 128], "float16")}}
    return Gated().export_tvm(spec)[0]


def build(mod: tvm.IRModule) -> relax.VMExecutable:
    return relax.build(mod, target=H200, relax_pipeline="tvm_hopper")


@pytest.fixture
def lowerings(monkeypatch) -> list[str]:
    """List what is computed: runs of the pass list, and static checks of kernels."""
    from tvm_hopper.pipeline import passes

    run = sys.modules["tvm_hopper.pipeline.run"]
    done: list[str] = []
    run_passes, checks = run.run_passes, passes.final_checks
    monkeypatch.setattr(
        run, "run_passes", lambda *given: done.append("lowered") or run_passes(*given)
    )
    monkeypatch.setattr(passes, "final_checks", lambda: done.append("checked") or checks())
    return done


def test_a_model_is_lowered_once_and_can_be_explained(cache, lowerings) -> None:
    mod = model()
    first = build(mod)
    assert {"lowered", "checked"} <= set(lowerings)
    lowerings.clear()
    second = build(mod)
    assert lowerings == []
    texts = [sorted(capture.cuda_sources(x)) for x in (first, second)]
    assert texts[0] == texts[1]
    assert str(tvm_hopper.explain(first)) == str(tvm_hopper.explain(second))
    assert str(tvm_hopper.relax.report(first)) == str(tvm_hopper.relax.report(second))
    with tvm.transform.PassContext(config={"tvm_hopper.strict": True}):
        build(mod)
    assert "lowered" in lowerings


def test_a_fresh_process_knows_the_operators_of_a_kept_module(cache, fresh) -> None:
    """`ex2.approx` and the like are operators that this package registers as kernels need them."""
    import inspect

    program = (
        "import tvm, tvm_hopper\nfrom tvm import relax\nfrom tvm.relax.frontend import nn\n"
        f"{inspect.getsource(Gated)}\n{inspect.getsource(model)}\n"
        "from tvm_hopper import capture\n"
        f"ex = relax.build(model(), target={H200!r}, relax_pipeline='tvm_hopper')\n"
        "print(*sorted(capture.cuda_sources(ex)))"
    )
    given = {disk_cache.SWITCH: "1", disk_cache.FOLDER: str(cache)}
    first, second = (fresh("-c", program, **given).stdout for _ in "ab")
    assert first == second
    assert "tvm_hopper_" in first


def three_kernels() -> tvm.IRModule:
    from tvm import s_tir

    from tvm_hopper import schedule as hs
    from tvm_hopper.testing import workloads

    sch = s_tir.Schedule(workloads.matmul(64, 64, 64))
    hs.matmul(sch, "C")
    func = sch.mod["main"]
    return tvm.IRModule({x: func.with_attr("global_symbol", x) for x in "abcd"})


def test_a_half_that_somebody_changed_is_not_taken_from_the_disk(cache, lowerings) -> None:
    """The finalisers get what is there, whatever the key of the whole module says."""
    whole = pipeline.remember("test", three_kernels(), lambda: three_kernels())
    assert whole.key is not None
    assert whole.holds(whole.module)
    changed = tvm.IRModule(dict(whole.module.functions.items()))
    gv = changed.get_global_var("a")
    changed.update_func(gv, changed[gv].with_attr("changed", 1))
    assert not whole.holds(changed)
    done = []
    finalize = tvm.transform.module_pass(lambda mod, _: done.append(1) or mod, opt_level=0)
    for mod, expected in ((whole.module, 1), (whole.module, 1), (changed, 2), (changed, 3)):
        half = pipeline.remember_half("half", mod, whole, finalize)
        assert len(done) == expected
        assert tvm_ffi.structural_equal(half.module, mod)


def test_a_warning_comes_each_time(cache) -> None:
    done = []

    def lower() -> tvm.IRModule:
        done.append(1)
        errors.warn("slow")
        return three_kernels()

    for _ in "ab":
        with pytest.warns(tvm_hopper.HopperWarning, match="slow"):
            assert pipeline.remember("test", three_kernels(), lower).key is None
    assert len(done) == 2


def test_what_watches_passes_sees_them(cache, monkeypatch) -> None:
    from tvm.ir.instrument import PassTimingInstrument

    mod, done = three_kernels(), []

    def lower() -> tvm.IRModule:
        done.append(1)
        return mod

    pipeline.remember("test", mod, lower)
    with tvm.transform.PassContext(instruments=[PassTimingInstrument()]):
        pipeline.remember("test", mod, lower)
    monkeypatch.setenv("TVM_HOPPER_VERIFY", "1")
    pipeline.remember("test", mod, lower)
    assert len(done) == 3
    monkeypatch.setenv("TVM_HOPPER_VERIFY", "0")
    pipeline.remember("test", mod, lower)
    assert len(done) == 3
