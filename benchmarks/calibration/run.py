"""Run golden kernels and harmless mutations on a GPU: `python -m benchmarks.calibration.run`.

Every case runs in a process of its own with a time limit, so that a fault or a hang ends that case
alone.  A golden kernel must be right each time; for a mutation the share of wrong runs is recorded,
and none wrong proves nothing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

REPEATS = 2000
LIMIT_S = 60
AT_ONCE = 4  # processes that share the GPU; a case takes seconds to build and little to run
ROOT = Path(__file__).resolve().parents[2]


def measure(name: str, repeats: int = REPEATS) -> dict[str, object]:
    """Run one case `repeats` times on the GPU; count the runs with a wrong output."""
    import torch
    import tvm

    from benchmarks.calibration.cases import ALL

    kernel = ALL[name].make()
    target = tvm.target.Target({"kind": "cuda", "arch": "sm_90a"}, host={"kind": "llvm"})
    with tvm.transform.PassContext(disabled_pass=["tirx.StorageRewrite"]):
        built = tvm.compile(
            tvm.IRModule({"main": kernel.func}), target=target, tir_pipeline="s_tir"
        )
    arrays = {}
    for buffer in kernel.func.params:
        dtype = getattr(torch, str(buffer.ty.dtype.dtype))
        value = kernel.inputs.get(buffer.name)
        if value is None:
            shape = [int(extent) for extent in buffer.ty.shape]
            arrays[buffer.name] = torch.empty(shape, dtype=dtype, device="cuda")
        else:
            arrays[buffer.name] = torch.from_numpy(value.copy()).cuda()
    start = {
        name: arrays[name].clone() if name in kernel.inputs else None
        for name in kernel.inputs | kernel.expected
    }
    expected = {
        name: torch.from_numpy(value).to(arrays[name].dtype).cuda()
        for name, value in kernel.expected.items()
    }
    wrong = 0
    for run in range(repeats):
        for tensor, value in start.items():
            if value is None:
                arrays[tensor].view(torch.uint8).fill_(0xFF)
            else:
                arrays[tensor].copy_(value)
        built["main"](*arrays.values())
        if not _ends(torch.cuda):
            print(json.dumps({"case": name, "outcome": f"run {run} does not end"}), flush=True)
            os._exit(0)  # the kernel goes with its process
        wrong += any(
            not torch.allclose(arrays[n].double(), value.double(), rtol=kernel.tolerance, atol=0)
            for n, value in expected.items()
        )
    return {"case": name, "runs": repeats, "wrong": wrong}


def _ends(cuda) -> bool:
    """Wait for the kernel up to two seconds; tell whether it ended."""
    event = cuda.Event()
    event.record()
    begin = time.monotonic()
    while not event.query():
        if time.monotonic() - begin > 2:
            return False
    return True


def in_a_process(name: str) -> dict[str, object]:
    """Run `measure` in a fresh process."""
    command = [sys.executable, "-m", "benchmarks.calibration.run", "--case", name]
    try:
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return {"case": name, "outcome": f"no end within {LIMIT_S} s"}
    if done.returncode:
        errors = [text for text in done.stderr.splitlines() if "rror" in text] or ["no message"]
        return {"case": name, "outcome": f"exit code {done.returncode}: {errors[0][:200]}"}
    return json.loads(done.stdout.strip().splitlines()[-1])


def main(argv: list[str]) -> int:
    """Run the cases; print a table and JSON; fail if a golden kernel was ever wrong."""
    if argv[:1] == ["--case"]:
        result = measure(argv[1])
        result["case"] = argv[1]
        print(json.dumps(result))
        return 0
    from benchmarks.calibration.cases import ALL, RIGHT

    right = {case.name for case in RIGHT}
    chosen = [name for name in ALL if not argv or any(word in name for word in argv)]
    results, failed = [], False
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for name, result in zip(chosen, pool.map(in_a_process, chosen), strict=True):
            question = ALL[name].question
            results.append(result | {"question": question})
            failed |= name in right and result.get("wrong") != 0
            outcome = result.get("outcome") or f"{result['wrong']} of {result['runs']} runs wrong"
            print(f"{name:22} {outcome:30} {question}", flush=True)
    print(json.dumps(results))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
