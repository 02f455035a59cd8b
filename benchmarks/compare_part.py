"""Build some named kernels with the package of one tree: `python compare_part.py TREE JOBS FOLDER`.

`benchmarks.compare` runs it, in processes of their own. JOBS is a file of [number, kind, fields].
For each there is `N.so` in FOLDER then, and `N.json` with a hash of what was built, or the error.
The tree's own `benchmarks` describe the programs, where it has them.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any


def identity(executable: Any) -> str:
    """Return a hash of the machine code and of the host half."""
    from tvm_hopper import capture

    record = capture.lookup(executable)
    return hashlib.sha256(record.compile().image + record.host.script().encode()).hexdigest()


def build(kind: str, fields: dict[str, Any]) -> Any:
    """Compile one named kernel."""
    from benchmarks import matmul_case, memory

    matmul_case.register()
    if kind == "memory":
        return memory.executable(memory.Case(**fields))
    return matmul_case.build(matmul_case.Case(**fields))


def main(tree: str, jobs: str, folder: str) -> None:
    """Build all jobs; one that fails does not keep the others."""
    spec = importlib.util.find_spec("tvm_hopper")
    where = Path(str(spec and spec.origin)).resolve()
    if not where.is_relative_to(Path(tree).resolve()):
        raise SystemExit(f"compare: found tvm_hopper in {where}; need that of {tree}")
    for number, kind, fields in json.loads(Path(jobs).read_text()):
        about = {}
        try:
            executable = build(kind, fields)
            executable.export_library(str(Path(folder, f"{number}.so")))
            about["identity"] = identity(executable)
        except Exception as error:
            about["error"] = f"{type(error).__name__}: {str(error).strip().splitlines()[-1][:300]}"
        Path(folder, f"{number}.json").write_text(json.dumps(about))


if __name__ == "__main__":
    sys.path[0] = sys.argv[1]  # in front of all else; the folder of this file must not be there
    sys.path.insert(1, str(Path(__file__).resolve().parents[1]))
    main(*sys.argv[1:])
