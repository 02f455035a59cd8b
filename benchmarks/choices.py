"""Compare the configurations that two source trees choose, for named and drawn programs.

    python -m benchmarks.choices --write after.json                       this tree
    PYTHONPATH=OTHER python benchmarks/choices.py --write before.json     another one
    python -m benchmarks.choices --compare before.json after.json

Each function is scheduled for each target and its text is kept as a hash, beside what `explain`
says of the choice. `--population FILE` adds programs that a generator in a file draws: it has
`population(seed, count)`, and each case `name` and `relax()`. Nothing runs on a GPU.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

PARTS = ("h200",)


def named() -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield the named kernels: memory-bound ones, then products."""
    from benchmarks import memory
    from benchmarks.gemm import SIZES
    from benchmarks.matmul_case import Case
    from tvm_hopper.schedule import matmul
    from tvm_hopper.testing import workloads

    for case in memory.cases(1.0, []):
        yield case.name, lambda case=case: _scheduled(case)
    for size in SIZES:
        case = Case(*map(int, size.split("x")), "NT", "float16", "float16")

        def product(case: Any = case) -> Any:
            from tvm import s_tir

            sch = s_tir.Schedule(workloads.matmul(case.m, case.n, case.k, dtype=case.dtype))
            matmul(sch, "C")
            return sch.mod

        yield case.name, product


def _scheduled(case: Any) -> Any:
    """Schedule a named memory-bound program, without building it."""
    import tvm

    from benchmarks import memory

    found = []
    real, tvm.compile = tvm.compile, lambda mod, target: found.append(mod)
    try:
        memory.executable(case)
    finally:
        tvm.compile = real
    return found[0]


def drawn(path: Path, seeds: list[int], count: int) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield programs of a generator, scheduled as the functions of a model are."""
    import tvm
    from tvm.target import Target

    spec = importlib.util.spec_from_file_location("population_of_a_file", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)

    def scheduled(case: Any) -> Any:
        from tvm_hopper.relax.lowering import scheduling_passes
        from tvm_hopper.relax.options import ModelOptions

        passes = scheduling_passes(Target.current(), ModelOptions())
        return tvm.transform.Sequential(passes)(case.relax())

    for seed in seeds:
        for case in module.population(seed, count):
            yield case.name, lambda case=case: scheduled(case)


def describe(mod: Any) -> dict[str, Any]:
    """Return the text of a module's functions as a hash, and what was chosen for its kernels."""
    from tvm import tirx

    from tvm_hopper import ir
    from tvm_hopper.requests import keys

    texts, chosen = [], []
    for gv, func in sorted(mod.functions_items(), key=lambda x: x[0].name_hint):
        if isinstance(func, tirx.PrimFunc):
            text = re.sub(r'; then [^"]*', "", func.script())  # who came second in an estimate
            texts.append(f"{gv.name_hint}\n{text}")
            loops = ir.find_all(func.body, ir.For, lambda x: keys.CHOSEN in x.annotations)
            chosen += [str(x.annotations[keys.CHOSEN]).split("; then ")[0] for x in loops]
    return {"hash": hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16], "chosen": chosen}


def write(options: argparse.Namespace) -> None:
    """Schedule everything for each part, and write what came of it."""
    from tvm.target import Target

    from tvm_hopper.facts.devices import NUM_SMS_ATTR
    from tvm_hopper.requests.tags import PART_ATTR

    found: dict[str, Any] = {}
    for part in options.parts:
        target = Target({"kind": "cuda", "arch": "sm_90a", PART_ATTR: part})
        assert NUM_SMS_ATTR not in target.attrs
        programs = list(named())
        if options.population:
            programs += list(drawn(options.population, options.seeds, options.count))
        for name, make in programs:
            if options.only and not any(word in name for word in options.only):
                continue
            try:
                with target:
                    row = describe(make())
            except Exception as error:
                row = {"error": f"{type(error).__name__}: {str(error)[:300]}"}
            found[f"{part}: {name}"] = row
    options.write.write_text(json.dumps(found, indent=0))
    print(f"{len(found)} programs, {sum('error' in x for x in found.values())} not scheduled")


def compare(before: Path, after: Path) -> int:
    """Print the programs that two files disagree about; return how many there are."""
    one, other = (json.loads(x.read_text()) for x in (before, after))
    names = [x for x in one if x in other]
    changed = [x for x in names if one[x] != other[x]]
    for name in changed:
        print(name)
        for sign, row in (("-", one[name]), ("+", other[name])):
            for text in row.get("chosen", [row.get("error")]) or ["(no note)"]:
                print(f"  {sign} {text}")
    print(f"{len(names)} programs in both, {len(changed)} differ")
    return len(changed)


def main(arguments: list[str]) -> int:
    """Write a file, or compare two."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--write", type=Path)
    parser.add_argument("--compare", type=Path, nargs=2)
    parser.add_argument("--parts", nargs="+", default=list(PARTS), help="of facts/devices.py")
    parser.add_argument("--population", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--only", nargs="+")
    options = parser.parse_args(arguments)
    if options.compare:
        return min(compare(*options.compare), 1)
    if not options.write:
        parser.error("one of --write and --compare")
    write(options)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
