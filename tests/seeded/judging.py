"""Let every judge look at one kernel: static check, simulator, skeleton exploration, numbers."""

import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tvm_hopper.sim.protocol.check import explore_skeleton
from tvm_hopper.simulation import Program, verify
from tvm_hopper.static_check import check_sync

from .golden.common import Kernel
from .lowering import Lowered, lower
from .rows import NUMBERS, Mutation
from .running import run, tensors, wrong_outputs

POLICIES = (
    ("on_wait", 0),
    ("eager", 0),
    ("lifo", 0),
    ("random", 1),
    ("random", 2),
    ("random", 3),
    ("starve:consumer", 0),
    ("starve:producer", 0),
)
JUDGES = {"S": "static", "V": "simulator", "X": "skeleton", "N": "numbers"}
# ptxas repairs broken wgmma code and ignores setmaxnreg with no more than a line of information
ASSEMBLER_REPAIRS = re.compile(r"\(C75\d\d\)")


@dataclass(frozen=True)
class Judgement:
    """What each judge found, by letter of `JUDGES`: rule names."""

    found: dict[str, frozenset[str]]

    @property
    def everything(self) -> frozenset[str]:
        """All rules that any judge found."""
        return frozenset().union(*self.found.values())


def judge(
    kernel: Kernel,
    policies: tuple[tuple[str, int], ...] = POLICIES,
    mutation: Mutation | None = None,
) -> Judgement:
    """Run all judges on one kernel; of a mutation no more schedules than find it."""
    lowered = lower(kernel.func, kernel.arch)
    static = frozenset(f.rule for f in check_sync(lowered.device, lowered.host))
    skeleton = frozenset(explore_skeleton(lowered.device, lowered.host).rules)
    simulated: frozenset[str] = frozenset()
    numbers: frozenset[str] = frozenset()
    judgement = Judgement({"S": static, "V": simulated, "X": skeleton, "N": numbers})
    for policy, seed in policies:
        result = run(kernel, lowered, policy=policy, seed=seed)
        simulated |= result.rules
        if wrong_outputs(kernel, result):
            numbers |= {NUMBERS}
        judgement = Judgement({"S": static, "V": simulated, "X": skeleton, "N": numbers})
        if mutation is not None and not misses(mutation, judgement):
            break
    return judgement


def verdict(kernel: Kernel) -> str:
    """Return what `verify` says about the kernel, with the kernel's inputs."""
    lowered = lower(kernel.func, kernel.arch)
    kernels = {gv.name_hint: f for gv, f in lowered.device_module.functions.items()}
    arrays, outputs = tensors(kernel)
    given = {name: array for name, array in arrays.items() if name not in outputs}
    return str(verify(Program(lowered.host, kernels), given).verdict)


def misses(mutation: Mutation, judgement: Judgement) -> list[str]:
    """Say what of a mutation was not found; an empty list is what every mutation must give."""
    missing = [
        f"nobody found {'/'.join(sorted(group))}"
        for group in mutation.expected
        if not group & judgement.everything
    ]
    wanted = frozenset().union(*mutation.expected)
    for letter in mutation.layers:
        if letter in JUDGES and not judgement.found[letter] & wanted:
            missing.append(f"{JUDGES[letter]} found only {sorted(judgement.found[letter])}")
    return missing


def false_alarms(judgement: Judgement) -> list[str]:
    """Say what was found on a right kernel; what a judge left open (INCOMPLETE) is no alarm."""
    return [
        f"{JUDGES[letter]} found {rule}"
        for letter, rules in judgement.found.items()
        for rule in sorted(rules)
        if rule != "INCOMPLETE" or letter == "V"
    ]


def assembler_log(lowered: Lowered) -> str | None:
    """Return what nvcc's assembler says about the kernel, None where there is no nvcc."""
    if (nvcc := shutil.which("nvcc")) is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "kernel.cu")
        source.write_text(lowered.cuda_source())
        done = subprocess.run(
            [nvcc, f"-arch={lowered.arch}", "-cubin", "-w", "-Xptxas", "-v", "-o", "/dev/null",
             source],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"nvcc: found exit code {done.returncode}; need 0\n{done.stderr}")
    return done.stderr
