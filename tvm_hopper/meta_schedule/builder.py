"""Builder: compile trials in warm processes to machine code and a manifest."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import tvm
from tvm.ir.utils import derived_object
from tvm.s_tir.meta_schedule.builder import BuilderInput, BuilderResult, PyBuilder

from .arguments import MOST_PROCESSES, check_number, check_seconds
from .workers.pool import WorkerPool, close_at_exit
from .workers.process import WorkerProcess, remove_stale, usable_cpus

PREFIX = "tvm_hopper_build_"
SECONDS = 60.0
BATCH, MOST_BATCHES = 8, 8  # trials of one, and how many of these keep the workers busy
KEPT = 256  # folders of trials; older ones go when they are empty


@derived_object
class ArtifactBuilder(PyBuilder):
    """Compiles trials in processes that stay, into artifacts that any runner of ours can take.

    A process that dies or passes the deadline is replaced; its trial fails with a message. Results
    are the paths of manifests, each in a separate folder.

    - `workers`: processes; None: one for each CPU that this process may use.
    - `seconds`: deadline of one build.
    - `folder`: where artifacts are made; None: a new folder of the system's, removed by `close()`
      and at exit. Those of builders that were killed are removed by the next.
    - raises TuningError: `workers` is no number from 1 on, or `seconds` none above 0.
    """

    def __init__(
        self, workers: int | None = None, seconds: float = SECONDS, folder: str | Path | None = None
    ) -> None:
        super().__init__()
        if workers is not None:
            check_number("ArtifactBuilder", "workers", workers, MOST_PROCESSES)
        check_seconds("ArtifactBuilder", seconds)
        count = workers or usable_cpus()
        # That are built at once. The last of a batch take longest: another one fills in for them.
        self.batches = min(MOST_BATCHES, -(-count // BATCH) + (count > BATCH))
        self._is_mine = folder is None
        self._made: list[Path] = []
        if folder is None:
            remove_stale(Path(tempfile.gettempdir()), PREFIX)
            folder = tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}_")
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        # The user's processors are ours while we build: one thread a process.
        threads = {"OMP_NUM_THREADS": "1", "TVM_NUM_THREADS": "1"}
        self._pool = WorkerPool(
            [
                WorkerProcess(f"build worker {i}", "build", environment=threads)
                for i in range(count)
            ],
            seconds=seconds,
            attempts=1,
            retire_after=8,
        )
        close_at_exit(self)

    def build(self, build_inputs: list[BuilderInput]) -> list[BuilderResult]:
        """Build trials; return the path of each one's manifest, or what went wrong."""
        tasks = [
            self._pool.submit(
                {
                    "mod": tvm.ir.save_json(item.mod),
                    "target": str(item.target),
                    "folder": str(self.folder),
                }
            )
            for item in build_inputs
        ]
        results = []
        for task in tasks:
            task.wait()
            path, error = task.reply.get("artifact"), task.reply.get("error")
            results.append(BuilderResult(path, error))
            if path is not None:
                self._made.append(Path(path).parent)
        if len(self._made) > KEPT:
            self._made = [folder for folder in self._made if not _remove_if_empty(folder)]
        return results

    def start(self) -> None:
        """Let the workers start, which takes seconds; without it the first builds wait for them."""
        self._pool.start()

    def close(self) -> None:
        """Stop the workers and remove the artifacts that are left."""
        self._pool.close()
        if self._is_mine:
            shutil.rmtree(self.folder, ignore_errors=True)


def _remove_if_empty(folder: Path) -> bool:
    """Remove the folder of a trial that was measured; tell whether it is gone."""
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
