"""The runner on a GPU: right times, and kernels that end badly."""

import statistics

import pytest

pytestmark = pytest.mark.gpu

TARGET = "nvidia/nvidia-h200"


@pytest.fixture(scope="module")
def bench():
    import tvm
    from tvm import s_tir
    from tvm.s_tir import meta_schedule as ms

    from tvm_hopper import schedule as hs
    from tvm_hopper.integration import autoload
    from tvm_hopper.meta_schedule import ArtifactBuilder, GpuRunner
    from tvm_hopper.meta_schedule.runner import visible_gpus
    from tvm_hopper.testing import workloads

    autoload.register()
    builder = ArtifactBuilder(workers=2)
    runner = GpuRunner(visible_gpus()[:1], seconds=8.0, keep_artifacts=True)
    plain = workloads.matmul(2048, 2048, 2048, out_dtype="float16")
    sch = s_tir.Schedule(plain)
    hs.matmul(sch, "C")

    def measure(mod=sch.mod):
        (built,) = builder.build([ms.builder.BuilderInput(mod, tvm.target.Target(TARGET))])
        assert built.error_msg is None
        arguments = ms.arg_info.ArgInfo.from_entry_func(mod if mod is not sch.mod else plain, True)
        path = str(built.artifact_path)
        (future,) = runner.run([ms.runner.RunnerInput(path, "cuda", arguments)])
        result = future.result()
        return runner.take(path) if result.error_msg is None else str(result.error_msg)

    yield measure
    runner.close()
    builder.close()


def test_a_product_is_measured_the_same_again_and_again(bench):
    found = [bench() for _ in range(5)]
    medians = [statistics.median(x.corrected) for x in found]
    assert 15e-6 < statistics.median(medians) < 100e-6  # 17 GFLOP
    assert max(medians) / min(medians) < 1.02
    about = found[0]
    assert about.device["num_sms"] > 70
    assert 500 < about.megahertz <= about.device["megahertz"] * 1.01
    assert not about.is_fake


@pytest.mark.parametrize(
    ("make", "match"),
    [
        ("illegal_address", ": cuCtxSynchronize: the driver says CUDA_ERROR_ILLEGAL_ADDRESS"),
        ("endless", ": no answer after 8 s; the process was killed"),
        ("silent", ": output C: found 16 elements that the function did not write"),
    ],
)
def test_a_kernel_that_ends_badly_ends_nothing_else(bench, make, match):
    from tvm_hopper.meta_schedule.runner import visible_gpus
    from tvm_hopper.testing import faulty

    assert f"GPU {visible_gpus()[0]}{match}" in bench(getattr(faulty, make)())
    assert not isinstance(bench(), str)


def test_a_library_is_loaded_where_tvm_alone_was_imported(tmp_path):
    """The loader of CUDA modules brings TVM's CUDA runtime, also where pip alone has CUDA."""
    import subprocess
    import sys

    import tvm
    from tvm import s_tir

    from tvm_hopper import schedule as hs
    from tvm_hopper.testing import workloads

    sch = s_tir.Schedule(workloads.matmul(256, 256, 256))
    hs.matmul(sch, "C")
    path = str(tmp_path / "lib.so")
    tvm.compile(sch.mod, target=TARGET).export_library(path)
    code = (
        "import tvm; from tvm_hopper.integration import autoload; autoload.register();"
        f"tvm.runtime.load_module({path!r}); print('loaded')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "loaded\n", done.stderr
