"""Shared by the tests of measuring: artifacts that nobody has to build."""

import hashlib
from pathlib import Path

import pytest

from tvm_hopper.meta_schedule import tuning
from tvm_hopper.meta_schedule.measuring import artifact


@pytest.fixture(scope="package", autouse=True)
def schedule_in_this_process():
    """Start no scheduler processes on machines with many CPUs: each one imports TVM."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tuning, "spare_processes", lambda _cpus: 0)
        yield


@pytest.fixture
def make_artifact(tmp_path):
    """Write artifacts that fake devices take: a name and the seconds that the model says."""

    def make(name: str, seconds: float = 1e-4) -> str:
        files = {artifact.HOST: name.encode(), artifact.DEVICE: b"cubin " + name.encode()}
        manifest = artifact.Manifest(
            entry="main",
            arguments=(artifact.TensorArgument("A", (4, 8), "float16", False),),
            kernels={},
            target={"kind": "cuda"},
            versions={},
            digests={key: hashlib.sha256(data).hexdigest() for key, data in files.items()},
            predicted_seconds=seconds,
        )
        return str(artifact.write(Path(tmp_path, "artifacts", name), manifest, files))

    return make
