"""Run and judge a compiled module without a GPU: `simulate`, `verify` and the shell command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tvm_hopper.sim.result import Result


def simulate(
    ex_or_mod: Any,
    inputs: Mapping[str, Any],
    policy: str = "on_wait",
    seed: int = 0,
    blocks: Sequence[tuple[int, ...]] | None = None,
) -> Result:
    """Run a module (IRModule, PrimFunc or an Executable built here) on numpy inputs."""
    raise NotImplementedError("simulate: work in progress")


def verify_command(argv: Sequence[str]) -> int:
    """`python -m tvm_hopper verify kernel.py:make_module [--json]`; exit code by verdict."""
    raise NotImplementedError("verify: work in progress")
