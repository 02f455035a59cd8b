"""Warm build workers: what they make, what a death or a deadline costs, what they leave behind."""

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import tvm
from tvm import s_tir
from tvm.s_tir import meta_schedule as ms

from tvm_hopper import meta_schedule, schedule as hs
from tvm_hopper.meta_schedule import builder as builders
from tvm_hopper.meta_schedule.measuring import artifact
from tvm_hopper.meta_schedule.workers.pool import NOT_TRIED
from tvm_hopper.meta_schedule.workers.process import remove_stale
from tvm_hopper.testing import faulty, workloads

TARGET = "nvidia/nvidia-h200"


@pytest.fixture(scope="module")
def builder():
    made = meta_schedule.ArtifactBuilder(workers=1)
    yield made
    folder = made.folder
    made.close()
    assert not folder.exists()


def scheduled(tile=(64, 64, 64)):
    sch = s_tir.Schedule(workloads.matmul(2048, 2048, 1024))
    hs.matmul(sch, "C", hs.MatmulConfig(tile))
    return sch.mod


def build(builder, *mods):
    target = tvm.target.Target(TARGET)
    return builder.build([ms.builder.BuilderInput(mod, target) for mod in mods])


def test_a_kernel_becomes_machine_code_and_a_manifest(builder):
    fast, slow, foreign = build(
        builder, scheduled((128, 128, 64)), scheduled((64, 64, 64)), faulty.silent()
    )
    manifests = []
    for result in (fast, slow, foreign):
        assert result.error_msg is None
        files = artifact.read_files(str(result.artifact_path))
        assert files[artifact.DEVICE].startswith(b"\x7fELF")
        manifests.append(artifact.check("here", files))
    known = manifests[0]
    assert [(x.name, x.shape, x.is_written) for x in known.arguments] == [
        ("A", (2048, 1024), False),
        ("B", (2048, 1024), False),
        ("C", (2048, 2048), True),
    ]
    assert list(known.kernels) == ["main_kernel"]
    assert known.kernels["main_kernel"]["arg_extra_tags"][:3] == [1, 1, 0]  # two tensor maps
    assert known.target["arch"] == "sm_90a"
    assert {"tvm_hopper", "apache-tvm", "apache-tvm-ffi"} <= set(known.versions)
    assert known.predicted_seconds < manifests[1].predicted_seconds  # by the written model
    assert manifests[2].predicted_seconds < 1e-5  # of no product: its bytes
    assert known.digests != manifests[1].digests


def test_a_trial_that_cannot_be_built_fails_alone(builder):
    symbolic = workloads.matmul("m", 1024, 512)
    refused, good = build(builder, symbolic, scheduled())
    assert refused.artifact_path is None
    assert "need static extents" in str(refused.error_msg)
    assert good.error_msg is None


def test_a_worker_that_dies_or_is_late_is_replaced(builder, monkeypatch):
    (place,) = builder._pool._places
    os.kill(place.station.pid, signal.SIGSTOP)
    monkeypatch.setattr(builder._pool, "seconds", 1.0)
    (late,) = build(builder, scheduled())
    monkeypatch.setattr(builder._pool, "seconds", 60.0)
    assert "build worker 0: no answer after 1 s; the process was killed" in str(late.error_msg)
    (good,) = build(builder, scheduled())
    assert good.error_msg is None


def test_a_full_disk_says_nothing_of_a_kernel(builder):
    (place,) = builder._pool._places
    before = set(builder.folder.iterdir())
    resource.prlimit(place.station.pid, resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
    (late,) = build(builder, scheduled())
    assert str(late.error_msg).startswith(f"{NOT_TRIED}[Errno 27] File too large")
    assert "need room for temporary files" in str(late.error_msg)
    assert set(builder.folder.iterdir()) == before
    free = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    resource.prlimit(place.station.pid, resource.RLIMIT_FSIZE, free)
    (good,) = build(builder, scheduled())
    assert good.error_msg is None


def test_folders_of_measured_trials_go_in_time(builder, monkeypatch):
    monkeypatch.setattr(builders, "KEPT", 0)
    first, second = build(builder, scheduled(), scheduled())
    for result in (first, second):
        artifact.remove(str(result.artifact_path))
        assert Path(str(result.artifact_path)).parent.is_dir()  # TVM's callback expects it
    build(builder, scheduled())
    assert not Path(str(first.artifact_path)).parent.exists()


def test_what_killed_builders_left_is_removed(tmp_path):
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    names = {pid: tmp_path / f"{builders.PREFIX}{pid}_x" for pid in (done.pid, os.getpid())}
    for path in (*names.values(), tmp_path / f"{builders.PREFIX}mine"):
        path.mkdir()
    remove_stale(tmp_path, builders.PREFIX)
    assert not names[done.pid].exists()
    assert names[os.getpid()].exists()
    assert (tmp_path / f"{builders.PREFIX}mine").exists()


def test_a_folder_of_the_users_stays(tmp_path):
    made = meta_schedule.ArtifactBuilder(workers=1, folder=tmp_path / "trials")
    made.close()
    assert (tmp_path / "trials").is_dir()
