"""List the instructions of TVM's PTX table that the simulator models, as a document.

python -m tvm_hopper.sim.modelled > docs/simulator_instructions.md
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import Any

from tvm.backend.cuda.codegen.registry import CODEGEN_REGISTRY
from tvm.backend.cuda.ptx.table import TABLE, mods, variants

from tvm_hopper.sim.arithmetic.table import INSTRUCTIONS
from tvm_hopper.sim.kernel_code import HANDLERS
from tvm_hopper.sim.ops.forms import handler_of, refused_form
from tvm_hopper.sim.tir import PRINTED
from tvm_hopper.sim.translate.cuda_helpers import COMPUTED as COMPUTED_CALLS
from tvm_hopper.sim.translate.device_math import MATH
from tvm_hopper.sim.translate.emit_helpers import CONVERSIONS
from tvm_hopper.sim.translate.emit_ptx import is_harmless
from tvm_hopper.sim.translate.exprs import REINTERPRET, SAME
from tvm_hopper.sim.translate.translate import StmtEmitter

COMPUTED, MODELLED, NO_EFFECT, INCOMPLETE = "computed", "modelled", "no effect", "incomplete"
CHIP = 90  # Hopper: rows that TVM certifies only for later chips are not modelled

HEAD = """# PTX instructions in the simulator

TVM's wheel has a table of {count} PTX instructions (a row is one syntax shape, with all
its modifiers). {known} of them are modelled; the others, and the forms named in the last column,
make a verdict `incomplete` by name. This page is printed by `python -m tvm_hopper.sim.modelled`,
and a test compares it with the code.

* computed: a function of registers (`sim/arithmetic`), to the last bit, or for approximations the
  nearest number, from which a chip may differ within PTX's bound;
* modelled: memory, synchronisation and exchange between lanes, with their order and races;
* no effect: hints.

| instruction | rows of the table | state | but not |
|---|---|---|---|
"""


FUNCTIONS = """
TVM prints these device functions (`T.cuda.*`) as CUDA text of its own:

| calls | state |
|---|---|"""


@dataclass(frozen=True)
class TableRow:
    """Whether a row is modelled: `state`, and why some or all forms are not."""

    name: str
    mnemonic: str
    state: str
    missing: str


@functools.cache
def coverage() -> tuple[TableRow, ...]:
    """Return a row for each instruction, in the order of TVM's table."""
    return tuple(_row(name, entry) for name, entry in TABLE.items())


def _row(name: str, entry: Any) -> TableRow:
    if name in INSTRUCTIONS:
        reasons = {INSTRUCTIONS[name].refuses(mods(entry, v)) for v in variants(entry)}
        state = COMPUTED
    elif is_harmless(name):
        return TableRow(name, entry.ptx_name, NO_EFFECT, "")
    elif handler_of(name, HANDLERS):
        # One modifier alone decides; `ld` has hundred thousands of combinations.
        tokens = [{"space": "global", s.name: token} for s in entry.slots for token in s.choices]
        reasons, state = {refused_form(name, token) for token in tokens}, MODELLED
    else:
        number = re.search(r"\d+", entry.cert_arch or "")
        later = number is not None and int(number.group()) > CHIP
        why = f"a later chip, {entry.cert_arch}" if later else ""
        return TableRow(name, entry.ptx_name, INCOMPLETE, why)
    return TableRow(name, entry.ptx_name, state, "; ".join(sorted(reasons - {""})))


def device_functions() -> dict[str, bool]:
    """Return TVM's own device functions, and whether they are modelled."""
    names = sorted(key.removeprefix(PRINTED) for key in CODEGEN_REGISTRY if key.startswith(PRINTED))
    return {name: _knows(name) for name in names}


def _knows(name: str) -> bool:
    methods = (f"_helper_{name}", f"_call_cuda_{name}")
    return (
        f"op_cuda_{name}" in HANDLERS
        or name in (*COMPUTED_CALLS, *MATH, "wait_until")
        or f"cuda.{name}" in (*SAME, *REINTERPRET, *CONVERSIONS)
        or any(hasattr(StmtEmitter, method) for method in methods)
    )


def _listed(names: list[str], missing: str) -> str:
    """Name the rows of one instruction; of a later chip their number is enough."""
    if missing.startswith("a later chip,"):
        return f"{len(names)} rows" if len(names) > 1 else "1 row"
    return ", ".join(f"`{name}`" for name in names)


def document() -> str:
    """Return the page."""
    rows = coverage()
    known = sum(row.state != INCOMPLETE for row in rows)
    grouped: dict[tuple[str, str, str], list[str]] = {}
    for row in rows:
        grouped.setdefault((row.mnemonic, row.state, row.missing), []).append(row.name)
    lines = [
        f"| `{mnemonic}` | {_listed(names, missing)} | {state} | {missing} |"
        for (mnemonic, state, missing), names in sorted(grouped.items())
    ]
    lines += [FUNCTIONS]
    calls = device_functions()
    for state in (MODELLED, INCOMPLETE):
        named = [f"`cuda.{name}`" for name, known in calls.items() if known == (state == MODELLED)]
        lines.append(f"| {', '.join(named)} | {state} |")
    return HEAD.format(count=len(rows), known=known) + "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(document(), end="")
