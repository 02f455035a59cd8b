"""Check the ptxas log of our kernels, and raise errors for serialised WGMMA and spills.

ptxas fixes a broken WGMMA sequence and goes on: it adds the fence or the wait that is missing, runs
the multiplications one by one, or drops a `setmaxnreg`.  Each of these is one line of kind C75xx
in its log.  A missing commit is fixed without a word, and a missing fence by assemblers later than
CUDA 13.0: these are for the static check.

Where registers run out in the multiplications, ptxas serialises them and says so (C7512). Spills
without that remark lie in the epilogue, which stores far more than a few of them cost; when they
happen is unknown beforehand. They are a fallback, that `explain` reports. What a stack frame
holds next to spills is an array in local memory, which is memory: an error, with or without spills.
PTX declares such arrays; where it declares none, the rest of a frame is holes between spills.
Of CUDA's functions only sine, cosine and tangent have one; `codegen_patches/trigonometry.py` is
in for these.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from tvm_hopper.errors import CompileError

_ENTRY = re.compile(r"Compiling entry function '([^']+)'")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_BARRIERS = re.compile(r"used (\d+) barriers")
_SHARED = re.compile(r"(\d+) bytes smem")
_FUNCTION = re.compile(rb"\.(entry|func)\s+(?:\([^)]*\)\s*)?([\w$]+)")
_LOCAL_ARRAY = re.compile(rb"\.local\s+\.align")
_REMARK = re.compile(r"\((C75\d\d)\)\s*(.*)")
FRAME_ALIGNMENT = 16  # bytes; spills of fewer leave holes in a stack frame
_IGNORED = re.compile(r"'?setmaxnreg'? ignored")

MEANING = {  # remark -> what a correct kernel has, what to do
    "C7507": (
        "register counts that cover what the code needs",
        "raise the consumers' count in tvm_hopper.registers",
    ),
    "C7508": ("launch bounds on the kernel", "keep the threadIdx extents constant"),
    "C7512": (
        "registers for the accumulators and what is computed next to them",
        "make the tile smaller, add a consumer or give it more registers",
    ),
    "C7517": ("a wgmma.wait_group before accumulators are read", ""),
    "C7519": ("a wgmma.fence before the first wgmma that touches registers", ""),
}
_SERIAL = ("WGMMA groups that the assembler may leave in flight", "")


@dataclass(frozen=True)
class KernelFacts:
    """The assembler's report on one kernel; bytes are per thread except `shared_bytes`."""

    name: str
    registers: int = 0
    barriers: int = 0
    shared_bytes: int = 0  # static shared memory; the dynamic part is set at launch
    stack_bytes: int = 0
    spill_store_bytes: int = 0
    spill_load_bytes: int = 0
    has_arrays: bool = True  # whether its PTX may declare local memory

    @property
    def spills(self) -> bool:
        """Whether the assembler says that it spilled registers."""
        return bool(self.spill_store_bytes or self.spill_load_bytes)

    @property
    def array_bytes(self) -> int:
        """Bytes of a stack frame that spills do not fill: each of their bytes is stored once."""
        spilled = self.spill_store_bytes
        if not self.has_arrays:
            return 0
        return max(0, self.stack_bytes - spilled - (FRAME_ALIGNMENT if spilled else 0))


def read_facts(log: str, assembly: bytes = b"") -> dict[str, KernelFacts]:
    """Return the facts of each kernel in a log of `ptxas -v`, and of its PTX, if it is known."""
    facts: dict[str, KernelFacts] = {}
    arrays = _with_arrays(assembly)
    parts = _ENTRY.split(log)
    for name, text in zip(parts[1::2], parts[2::2], strict=True):
        stack = _STACK.search(text)
        frame, stores, loads = map(int, stack.groups()) if stack else (0, 0, 0)
        used, barriers, shared = (_number(x, text) for x in (_USED, _BARRIERS, _SHARED))
        has_arrays = arrays is None or name in arrays
        facts[name] = KernelFacts(
            name, used, barriers, shared, frame, stores, loads, has_arrays=has_arrays
        )
    return facts


def _with_arrays(assembly: bytes) -> set[str] | None:
    """Return the kernels whose PTX declares local memory; None if others' may be theirs."""
    parts = _FUNCTION.split(assembly)
    found = {
        (kind, name.decode())
        for kind, name, text in zip(parts[1::3], parts[2::3], parts[3::3], strict=True)
        if _LOCAL_ARRAY.search(text)
    }
    unknown = not assembly or any(kind == b"func" for kind, _ in found)
    return None if unknown else {name for _, name in found}


def _number(pattern: re.Pattern[str], text: str) -> int:
    match = pattern.search(text)
    return int(match.group(1)) if match else 0


def remarks(log: str) -> dict[str, list[str]]:
    """Return the C75xx lines of a log by their code."""
    found: dict[str, list[str]] = {}
    for line in log.splitlines():
        match = _REMARK.search(line)
        if match:
            found.setdefault(match.group(1), []).append(match.group(2).strip())
        elif _IGNORED.search(line):
            found.setdefault("C7508", []).append(line.strip())
    return found


def check(log: str, facts: Mapping[str, KernelFacts], strict: bool = False) -> None:
    """Raise one CompileError that lists every remark of a log, and every array in local memory.

    - `log`: what the assembler says.
    - `facts`: the facts of each kernel in it.
    - `strict`: whether spills are refused, too.
    - raises CompileError: there is one.
    """
    problems = []
    for code, lines in sorted(remarks(log).items()):
        need, fix = MEANING.get(code, _SERIAL)
        times = f" ({len(lines)} times)" if len(lines) > 1 else ""
        problems.append(
            f"found {code} {lines[0]}{times}; need {need}" + (f"; {fix}" if fix else "")
        )
    for kernel in facts.values():
        if kernel.array_bytes:
            problems.append(
                f"found a stack frame of {kernel.stack_bytes} bytes in {kernel.name}, "
                f"{kernel.array_bytes} of them without spills; need arrays of a thread in "
                "registers; make them smaller, and index them by constants and unrolled loops"
            )
        if strict and max(kernel.spill_store_bytes, kernel.spill_load_bytes):
            problems.append(
                f"found {kernel.spill_store_bytes} bytes of spill stores and "
                f"{kernel.spill_load_bytes} of spill loads in {kernel.name}; need none; "
                "make the tile smaller, add a consumer or give it more registers"
            )
    if problems:
        names = ", ".join(facts) or "CUDA module"
        raise CompileError(
            f"assembler log of {names}: " + " | ".join(problems) + " (the option "
            "tvm_hopper.checks='synchronization' lets it pass)"
        )
