"""What is asked of the CUDA driver, of one that is none; its clock kernel assembles."""

import shutil
import subprocess
from enum import Enum
from types import SimpleNamespace

import numpy as np
import pytest

from tvm_hopper.meta_schedule.measuring import driver as drivers
from tvm_hopper.meta_schedule.workers.messages import CannotGoOn


class CUresult(Enum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_ILLEGAL_ADDRESS = 700


def made(**functions):
    """Return a Driver over functions, without a device."""
    driver = object.__new__(drivers.Driver)
    driver._cuda = SimpleNamespace(CUresult=CUresult, **functions)
    driver.device, driver._clock_kernel = 0, None
    return driver


def test_an_error_of_the_device_is_the_last_word():
    driver = made(cuCtxSynchronize=lambda: (CUresult.CUDA_ERROR_ILLEGAL_ADDRESS,))
    match = "cuCtxSynchronize: the driver says CUDA_ERROR_ILLEGAL_ADDRESS"
    with pytest.raises(CannotGoOn, match=match):
        driver.synchronize()


def test_results_come_without_their_status():
    driver = made(
        one=lambda x: (CUresult.CUDA_SUCCESS, x),
        two=lambda: (CUresult.CUDA_SUCCESS, 1, 2),
        cuEventElapsedTime=lambda a, b: (CUresult.CUDA_SUCCESS, b - a),
    )
    assert driver.call("one", 5) == 5
    assert driver.call("two") == (1, 2)
    assert driver.seconds_between(1.0, 3.0) == pytest.approx(2e-3)  # it says milliseconds


def test_clocks_are_cycles_over_nanoseconds():
    results = np.array([100_000, 50_000, 150_000, 100_000], np.uint64).tobytes()
    driver = made()
    driver.download = lambda address, count: results[:count]
    assert driver.read_clocks(0, 2) == [2000.0, 1500.0]


def test_the_rate_of_the_memory_is_told_by_its_clock_and_width():
    known = {"MEMORY_CLOCK_RATE": 3_201_000, "GLOBAL_MEMORY_BUS_WIDTH": 6144}
    names = {f"CU_DEVICE_ATTRIBUTE_{x}": x for x in known}
    driver = made(
        CUdevice_attribute=SimpleNamespace(**names),
        cuDeviceGetAttribute=lambda which, _: (CUresult.CUDA_SUCCESS, known[which]),
    )
    assert driver._memory_rate() == pytest.approx(4.917e12, rel=1e-3)
    driver._cuda.CUdevice_attribute = SimpleNamespace()  # which a later driver does not tell
    assert driver._memory_rate() == 0


def test_what_smi_says_is_found_by_uuid(monkeypatch):
    lines = "GPU-aa-bb, 580.1, 350.00\nGPU-cc-dd, 580.1, 700.00\nGPU-ee-ff, 580.1, [N/A]\n"
    monkeypatch.setattr(drivers.subprocess, "run", lambda *_, **__: SimpleNamespace(stdout=lines))
    assert drivers._from_smi("ccdd") == ("580.1", 700.0)
    assert drivers._from_smi("eeff") == ("580.1", None)
    assert drivers._from_smi("0000") == ("", None)

    def missing(*_, **__):
        raise OSError("no nvidia-smi")

    monkeypatch.setattr(drivers.subprocess, "run", missing)
    assert drivers._from_smi("ccdd") == ("", None)


@pytest.mark.skipif(shutil.which("ptxas") is None, reason="needs ptxas")
def test_the_clock_kernel_assembles(tmp_path):
    (tmp_path / "clock.ptx").write_bytes(drivers._CLOCK_PTX.rstrip(b"\0"))
    command = ["ptxas", "-arch=sm_90", "clock.ptx", "-o", "clock.cubin"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
