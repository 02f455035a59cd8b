"""What compute-sanitizer says of each copy mechanism: `python -m benchmarks.sanitize`.

One process for each tool runs a small copy by each mechanism, ragged in both dimensions. Kernels
with a fault each say what a verdict means: what a tool does not find there it does not understand.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks import machine
from tvm_hopper.testing.mechanisms import MECHANISMS, build

RESULTS = Path(__file__).parent / "results"
ROWS, COLUMNS = 61, 272
TOOLS = ("memcheck", "racecheck", "synccheck")
PREFIX = "checked_"  # of the functions whose kernels the tools look at
NAMES = {f"{PREFIX}{i}": name for i, name in enumerate(MECHANISMS)}
FAULTS = {
    f"{PREFIX}beyond": "fault: reads behind a tensor",
    f"{PREFIX}unordered": "fault: no barrier in between",
    f"{PREFIX}group": "fault: cp.async, read before the wait",
    f"{PREFIX}phase": "fault: bulk copy, read before the wait",
}
TILE = "__shared__ __align__(128) int tile[64]; const int t = threadIdx.x;"
ADDRESS = "(unsigned)__cvta_generic_to_shared"
FAULTY = {
    f"{PREFIX}beyond": "out[threadIdx.x] = in[threadIdx.x + 4096];",
    f"{PREFIX}unordered": f"{TILE} tile[t] = in[t]; out[t] = tile[63 - t];",
    f"{PREFIX}group": f"""{TILE}
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4; cp.async.commit_group;"
                     :: "r"({ADDRESS}(tile + t)), "l"(in + t) : "memory");
        __syncthreads();
        out[t] = tile[63 - t];
        asm volatile("cp.async.wait_group 0;" ::: "memory");""",
    f"{PREFIX}phase": f"""{TILE}
        __shared__ __align__(8) unsigned long long full;
        unsigned barrier = {ADDRESS}(&full);
        if (t == 0) asm volatile(
            "mbarrier.init.shared.b64 [%0], 1;"
            "fence.mbarrier_init.release.cluster;" :: "r"(barrier) : "memory");
        __syncthreads();
        if (t == 0) asm volatile(
            "mbarrier.arrive.expect_tx.shared.b64 _, [%0], 256;"
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
            " [%1], [%2], 256, [%0];"
            :: "r"(barrier), "r"({ADDRESS}(tile)), "l"(in) : "memory");
        out[t] = tile[63 - t];
        asm volatile("{{.reg .pred p; again: mbarrier.try_wait.parity.shared.b64 p, [%0], 0;"
                     "@!p bra again;}}" :: "r"(barrier) : "memory");""",
}
EVERY = {**FAULTS, **NAMES}
TIMEOUT_SECONDS = 240


def run_kernels(names: list[str], done: Path) -> None:
    """Run kernels one after another; note behind each whether it was right."""
    import torch

    for name in names:
        if name in FAULTY:
            given = torch.zeros(64, dtype=torch.int32, device="cuda")
            text = (
                f'extern "C" __global__ void {name}(const int* in, int* out) {{ {FAULTY[name]} }}'
            )
            kernel = torch.cuda._compile_kernel(text, name)
            kernel((1, 1, 1), (64, 1, 1), (given, torch.zeros_like(given)))
            right = None
        else:
            x = torch.randint(-128, 127, (ROWS, COLUMNS), dtype=torch.int8).cuda()
            y = torch.full_like(x, 77)
            build(MECHANISMS[NAMES[name]], ROWS, COLUMNS, name)[name](x, y)
            right = torch.equal(x.cpu(), y.cpu())
        torch.cuda.synchronize()
        with done.open("a") as file:
            file.write(f"{name} {right}\n")


def sanitize(tool: str, names: list[str]) -> tuple[dict[str, str], dict[str, list[str]]]:
    """Run kernels under a tool; return which were right, and what the tool says of each."""
    with tempfile.TemporaryDirectory() as folder:
        done = Path(folder, "done")
        done.touch()
        command = ["compute-sanitizer", "--tool", tool, "--report-api-errors", "no"]
        command += ["--kernel-regex", f"kns={PREFIX}", sys.executable, "-m", "benchmarks.sanitize"]
        command += ["--run", str(done), *names]
        # Each tensor is an allocation of its own, or what lies behind it is not seen as such.
        environment = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
        try:
            ran = subprocess.run(
                command,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
                timeout=TIMEOUT_SECONDS,
            )
            text = ran.stdout + ran.stderr
        except subprocess.TimeoutExpired as error:
            text = str(error.stdout or b"", "utf-8", "replace")
        print(text[-4000:])
        right = dict(line.split() for line in done.read_text().splitlines())
    return right, findings(text)


def findings(text: str) -> dict[str, list[str]]:
    """Return a tool's messages, by the function in whose kernel they are."""
    found: dict[str, list[str]] = defaultdict(list)
    for block in re.split(r"^========= (?=\S)", text, flags=re.MULTILINE)[1:]:
        if inside := re.search(rf"\b({PREFIX}[a-z0-9]+?)(?:_kernel)?\b", block):
            title = re.sub(r"0x[0-9a-f]+|\b\d+\b", "N", block.splitlines()[0])
            found[inside[1]].append(title[:80])
    return found


def judge(tool: str) -> tuple[dict[str, str], dict[str, str]]:
    """Return which kernels were right under a tool, and its verdicts.

    Where the tool or a fault ends the process, what is left over runs in the next.
    """
    right: dict[str, str] = {}
    verdicts: dict[str, str] = {}
    parts = [list(FAULTS), list(NAMES)]
    while parts:
        names = parts.pop(0)
        ran, found = sanitize(tool, names)
        right |= ran
        for name in names[: max(len(ran), 1)]:
            said = [f"{found[name].count(x)} x {x}" for x in dict.fromkeys(found[name])]
            ended = "clean" if name in ran else "stopped"
            verdicts[name] = "; ".join(said) or ended
        if rest := names[max(len(ran), 1) :]:
            parts.insert(0, rest)
    return right, verdicts


def run(tools: tuple[str, ...]) -> list[dict[str, Any]]:
    """Return a row for each kernel."""
    with ThreadPoolExecutor(len(tools)) as pool:  # each runs in processes of its own
        judged = dict(zip(tools, pool.map(judge, tools), strict=True))
    right = {tool: judged[tool][0] for tool in tools}
    verdicts = {tool: judged[tool][1] for tool in tools}
    return [
        {
            "kernel": label,
            "right": ""
            if name in FAULTS
            else {right[tool][name] for tool in tools if name in right[tool]} == {"True"},
            **{tool: verdicts[tool].get(name, "not run") for tool in tools},
        }
        for name, label in EVERY.items()
    ]


def main(argv: list[str]) -> int:
    """Print the table and write it to `results/`; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sanitize", description=__doc__)
    parser.add_argument("--tools", nargs="+", default=TOOLS)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--run", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("names", nargs="*", help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.run is not None:
        run_kernels(arguments.names, arguments.run)
        return 0
    table = run(tuple(arguments.tools))
    columns = ["copy", "right", *arguments.tools]
    title = "Copies by each mechanism under compute-sanitizer"
    print(machine.save(arguments.out, "sanitize", title, columns, table))
    ours = [row for row in table if row["kernel"] not in FAULTS.values()]
    return 0 if all(row["right"] for row in ours) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
