"""`python -m tvm_hopper passes FILE:make`: which of our passes change a kernel."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm.ir.instrument import pass_instrument
from tvm.ir.transform import PassContext

from tvm_hopper import pipeline
from tvm_hopper.requests.kernel_file import load_kernel
from tvm_hopper.requests.keys import PREFIX
from tvm_hopper.transforms.stages import STAGES

ALL = "all"


@dataclass(frozen=True)
class Change:
    """The change that one pass makes to a module."""

    name: str
    before: tvm.IRModule
    after: tvm.IRModule

    def diff(self) -> str:
        """Return both sides' scripts as a unified diff."""
        old, new = (str(x.script()).splitlines() for x in (self.before, self.after))
        return "\n".join(difflib.unified_diff(old, new, "before", "after", lineterm=""))


@contextlib.contextmanager
def recorded(config: dict[str, Any] | None = None) -> Iterator[list[Change]]:
    """Collect the changes that our passes make meanwhile, under options of a PassContext."""
    found: list[Change] = []
    running: list[tvm.IRModule] = []  # a pass of a module runs one of its functions

    class ChangeRecorder:
        def run_before_pass(self, mod: tvm.IRModule, _: Any) -> None:
            running.append(mod)

        def run_after_pass(self, mod: tvm.IRModule, info: Any) -> None:
            before = running.pop()
            name = info.name.removeprefix(PREFIX)
            if name == info.name or any(x.name == name for x in found):
                return
            if not tvm_ffi.structural_equal(before, mod):
                found.append(Change(name, before, mod))

    with PassContext(config=config or {}, instruments=[pass_instrument(ChangeRecorder)()]):
        yield found


def passes_command(arguments: argparse.Namespace) -> int:
    """Print the passes that change the kernel that a Python file makes, by stage."""
    names = {stage.name: [make.__name__ for make in stage.passes] for stage in STAGES}
    known = [ALL, *(x for some in names.values() for x in some)]
    if unknown := [x for x in arguments.diff if x not in known]:
        raise ValueError(f"passes: found no pass named {unknown[0]!r}; need one of {known}")
    kernel = load_kernel(*arguments.kernel)
    with recorded() as changes:
        pipeline.lower_final(kernel, arguments.target)
    acted = {x.name: x for x in changes}
    by_stage = {stage: [x for x in some if x in acted] for stage, some in names.items()}
    if arguments.json:
        print(json.dumps({stage: some for stage, some in by_stage.items() if some}, indent=1))
        return 0
    for stage in STAGES:
        if by_stage[stage.name]:
            print(f"{stage.name}: {', '.join(by_stage[stage.name])}\n    leaves {stage.leaves}")
        for name in by_stage[stage.name]:
            if name in arguments.diff or ALL in arguments.diff:
                print(acted[name].diff())
    return 0
