"""Time the named kernels of two trees against one another: `python -m benchmarks.compare BEFORE`.

    python -m benchmarks.compare HEAD~3                      another commit
    python -m benchmarks.compare --extract HEAD~3 before     a commit's package, as a folder
    python -m benchmarks.compare before --only softmax       on a machine without the history

The named kernels are the products of `benchmarks.gemm` and the programs of `benchmarks.memory`.
Each tree builds its own in processes of its own; this process loads both libraries and times them
in turn, cold: rotating sets of tensors of more than 120 MB, a replayed graph, the order swapped at
each repeat, medians. Kernels whose machine code and host half are the same count as 1 and are not
timed. A case below 0.98 is timed five times more, and the median counts.

Exit code 0: geometric mean at least 0.997 and no case below 0.98; 1: slower, or not built any more;
2: out of time before all were timed.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from . import machine, memory, timing
from .cold import COLD_BYTES, tensor_sets as product_sets
from .gemm import RESULTS, SIZES
from .matmul_case import Case, register

LEAST, LEAST_MEAN = 0.98, 0.997
CLIP = 1.5  # of a ratio in the geometric mean: a few outliers must not carry it
SHORTEST_US = 3.0  # shorter times count as this
RETIMINGS = 5
SHORT_CALLS = 20  # of a graph at least
HERE = Path(__file__).resolve().parents[1]
PARTS = ("tvm_hopper", "transforms", "codegen_patches", "benchmarks")  # what a tree needs
Pair = tuple[float, float]  # microseconds before and after


@dataclass(frozen=True)
class Named:
    """A named kernel: a product or a memory-bound program."""

    kind: str
    case: Any

    @property
    def name(self) -> str:
        """Name in the table."""
        return str(self.case.name)


def named_kernels(gib: float, only: list[str]) -> list[Named]:
    """List the named kernels whose name contains one of some words; all, if there are none."""
    products = [
        Case(*map(int, size.split("x")), "NT", dtype, dtype)
        for size in SIZES
        for dtype in ("float16", "bfloat16")
    ]
    found = [Named("product", x) for x in products]
    found += [Named("memory", x) for x in memory.cases(gib, [])]
    return [x for x in found if not only or any(word in x.name for word in only)]


# -- the other tree, and libraries of both ---------------------------------------------------------


def extract(revision: str, folder: Path) -> Path:
    """Write the package of a commit to a folder, without links: so it travels as plain files."""
    folder.mkdir(parents=True)
    with tempfile.TemporaryFile() as archive:
        command = ["git", "-C", str(HERE), "archive", revision, *PARTS[:-1], "benchmarks/*.py"]
        subprocess.run(command, check=True, stdout=archive)
        archive.seek(0)
        with tarfile.open(fileobj=archive) as files:
            files.extractall(folder)
    for name in PARTS[1:3]:
        link = folder / "tvm_hopper" / name
        if link.is_symlink():
            link.unlink()
            (folder / name).rename(link)
    return folder


def tree_of(before: str, folder: Path) -> Path:
    """Return the folder of the other tree: one that is there, or a commit's."""
    path = Path(before)
    if not path.is_dir():
        return extract(before, folder)
    if not (path / "tvm_hopper" / "transforms" / "__init__.py").is_file():
        raise SystemExit(
            f"compare: found no tvm_hopper/transforms in {path}; need a whole package; "
            f"make the folder by `python -m benchmarks.compare --extract COMMIT {path}`"
        )
    return path.resolve()


def start_builds(
    tree: Path, folder: Path, kernels: list[Named], workers: int
) -> list[subprocess.Popen]:
    """Start building every kernel with the package of one tree; returns the processes."""
    folder.mkdir()
    running = []
    for part in range(min(workers, len(kernels))):
        jobs = [
            (i, kernels[i].kind, dataclasses.asdict(kernels[i].case))
            for i in range(part, len(kernels), workers)
        ]
        path = folder / f"jobs{part}.json"
        path.write_text(json.dumps(jobs))
        script = str(Path(__file__).with_name("compare_part.py"))
        command = [sys.executable, "-W", "ignore", script, str(tree), str(path), str(folder)]
        running.append(subprocess.Popen(command, cwd=folder))
    return running


def built(running: list[subprocess.Popen], folder: Path, count: int) -> list[dict[str, str]]:
    """Wait for the builds; returns what is known of each kernel."""
    for process in running:
        process.wait()
    found = []
    for number in range(count):
        path = folder / f"{number}.json"
        text = path.read_text() if path.exists() else '{"error": "the process that builds it died"}'
        found.append({"library": str(folder / f"{number}.so"), **json.loads(text)})
    return found


# -- timing ---------------------------------------------------------------------------------------


def tensor_sets(kernel: Named) -> list[tuple[Any, ...]]:
    """Return sets of arguments, together larger than the cache."""
    if kernel.kind == "product":
        return product_sets(kernel.case)
    case = kernel.case
    set_bytes = (
        memory.SIZES[case.dtype] * memory.full_tensors(case.program) * case.rows * case.columns
    )
    count = max(2, -(-COLD_BYTES // set_bytes))
    if not case.is_small:
        return [tuple(chain(*memory.tensors(case))) for _ in range(count)]
    whole = dataclasses.replace(case, rows=case.rows * count)
    tensors = list(chain(*memory.tensors(whole)))
    parts = [x.split(case.rows) if x.dim() > 1 else (x,) * count for x in tensors]
    return list(zip(*parts, strict=True))


def time_pair(kernel: Named, libraries: tuple[str, str], repeats: int, warmup: float) -> Pair:
    """Time the kernels of both trees in turn on one GPU."""
    import tvm
    import tvm_ffi

    sets = tensor_sets(kernel)
    runs = [tvm.runtime.load_module(path)["main"] for path in libraries]
    contenders = [
        timing.Contender(name, lambda i, run=run: run(*sets[i]), tvm_ffi.use_torch_stream)
        for name, run in zip(("before", "after"), runs, strict=True)
    ]
    before, after = timing.measure_cold(contenders, len(sets), repeats, SHORT_CALLS, warmup)
    return before.median_us, after.median_us


def ratio(pair: Pair) -> float:
    """Return the time before over the time after: above 1 is faster."""
    before, after = (max(x, SHORTEST_US) for x in pair)
    return before / after


def time_case(measure: Callable[[], Pair]) -> dict[str, Any]:
    """Time one case, and five times more if it is below the floor; returns the median of those."""
    first = measure()
    pairs = [first]
    if ratio(first) < LEAST:
        pairs = sorted((measure() for _ in range(RETIMINGS)), key=ratio)
    before, after = pairs[len(pairs) // 2]
    found = {"before_us": before, "after_us": after, "ratio": ratio((before, after))}
    return found | ({"first": ratio(first)} if len(pairs) > 1 else {})


def compare(
    kernels: list[Named],
    before: list[dict[str, str]],
    after: list[dict[str, str]],
    measure: Callable[[Named, tuple[str, str]], Pair],
    until: float,
) -> list[dict[str, Any]]:
    """Return a row for each kernel: its ratio, or why it has none."""
    rows: list[dict[str, Any]] = []
    for kernel, old, new in zip(kernels, before, after, strict=True):
        row: dict[str, Any] = {"case": kernel.name}
        if "error" in new or "error" in old:
            which = "after" if "error" in new else "before"
            row |= {"not built": which, "message": new.get("error") or old["error"]}
        elif old.get("identity") and old["identity"] == new.get("identity"):
            row |= {"ratio": 1.0, "same": True}
        elif time.monotonic() > until:
            row["not timed"] = True
        else:
            paths = (old["library"], new["library"])
            row |= time_case(lambda kernel=kernel, paths=paths: measure(kernel, paths))
            print(f"{row['case']}: {row['ratio']:.4f}", flush=True)
        rows.append(row)
    return rows


# -- the verdict ----------------------------------------------------------------------------------


def geometric_mean(rows: list[dict[str, Any]]) -> float:
    """Return the geometric mean of the ratios, each clipped."""
    return math.exp(statistics.fmean(math.log(min(row["ratio"], CLIP)) for row in rows))


def exit_code(rows: list[dict[str, Any]]) -> int:
    """Return 0 if nothing got slower, 1 if something did, 2 if not all is known."""
    known = [row for row in rows if "ratio" in row]
    if any(row.get("not built") == "after" for row in rows):
        return 1
    if known and (geometric_mean(known) < LEAST_MEAN or min(r["ratio"] for r in known) < LEAST):
        return 1
    return 2 if not known or any("not timed" in row for row in rows) else 0


def summary(rows: list[dict[str, Any]]) -> list[str]:
    """Return the lines that matter: mean, least, the ten worst, and what has no ratio."""
    known = sorted((row for row in rows if "ratio" in row), key=lambda row: row["ratio"])
    lines = []
    if known:
        timed = [row for row in known if "same" not in row]
        lines += [
            f"Geometric mean {geometric_mean(known):.4f} (at least {LEAST_MEAN}), least "
            f"{known[0]['ratio']:.4f} (at least {LEAST}); {len(timed)} of {len(rows)} timed, "
            f"{len(known) - len(timed)} are the same code."
        ]
        lines += ["", "| ten worst | before us | after us | before / after | at first |"]
        lines += ["|---|---|---|---|---|"]
        lines += [
            f"| {row['case']} | {row['before_us']:.2f} | {row['after_us']:.2f} "
            f"| {row['ratio']:.4f} | {row.get('first', row['ratio']):.4f} |"
            for row in timed[:10]
        ]
    lines += [""]
    for row in rows:
        if "not built" in row:
            lines.append(f"not built {row['not built']}: {row['case']}: {row['message']}")
    left = sum("not timed" in row for row in rows)
    return lines + ([f"out of time before {left} cases"] if left else [])


def page(rows: list[dict[str, Any]], about: dict[str, str]) -> str:
    """Return the results as a markdown page."""
    lines = ["# Named kernels before and after", ""]
    lines += [f"- {name}: {value}" for name, value in about.items()]
    return "\n".join([*lines, "", *summary(rows)]) + "\n"


def parse(argv: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("before", help="a folder with the other package, or a commit")
    parser.add_argument("folder", nargs="?", type=Path, help="of --extract")
    parser.add_argument("--extract", action="store_true", help="write a commit's package, no more")
    parser.add_argument("--only", nargs="+", default=[], help="kernels whose name contains one")
    parser.add_argument("--gib", type=float, default=2.0, help="bytes of memory-bound programs")
    parser.add_argument("--seconds", type=float, default=400.0, help="start no case after this")
    parser.add_argument("--repeats", type=int, default=21)
    parser.add_argument("--warmup", type=float, default=0.2, help="seconds before each case")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 2)
    parser.add_argument(
        "--build-only", action="store_true", help="build both, time nothing: no GPU"
    )
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder")
    options = parser.parse_args(argv)
    if options.repeats < 15:
        parser.error("--repeats: a median of fewer than 15 is no figure")
    if options.extract and options.folder is None:
        parser.error("--extract needs COMMIT and FOLDER")
    return options


def main(argv: list[str]) -> int:
    """Build both, time both; see above for the exit code."""
    options = parse(argv)
    if options.extract:
        print(extract(options.before, options.folder))
        return 0
    until = time.monotonic() + options.seconds
    kernels = named_kernels(options.gib, options.only)
    folder = Path(tempfile.mkdtemp())
    try:
        trees = {"before": tree_of(options.before, folder / "tree"), "after": HERE}
        half = max(1, options.workers // 2)
        running = {x: start_builds(t, folder / x, kernels, half) for x, t in trees.items()}
        old, new = (built(running[x], folder / x, len(kernels)) for x in trees)
        print(f"built {2 * len(kernels)} libraries, {until - time.monotonic():.0f} s left")
        if options.build_only:
            until = 0.0
        else:
            register()
        measure = lambda kernel, paths: time_pair(  # noqa: E731
            kernel, paths, options.repeats, options.warmup
        )
        rows = compare(kernels, old, new, measure, until)
    finally:
        shutil.rmtree(folder)
    about = machine.describe()
    if not options.build_only:
        machine.write(
            options.output, "compare", page(rows, about), {"machine": about, "rows": rows}
        )
    print(page(rows, about))
    return exit_code(rows)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
