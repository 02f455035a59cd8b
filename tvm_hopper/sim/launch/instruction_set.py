"""Instructions that the architecture of a kernel's target lacks: its assembler refuses them."""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import ir, tirx

from tvm_hopper.facts.arch import ARCHS, Arch
from tvm_hopper.facts.instruction_archs import FUNCTIONS, has_instructions, needed_arch
from tvm_hopper.sim.findings import Finding, finding
from tvm_hopper.sim.tir import PTX, arch_name, decode_ptx, op_name, short_name, statement_text


def missing_instructions(func: Any, arch: Arch) -> list[Finding]:
    """Return a finding for each instruction of a device function that an architecture lacks.

    Parameters
    ----------
    func : tvm.tirx.PrimFunc
        Final device function.
    arch : Arch
        Whose limits are taken for those of its target.
    """
    found: dict[str, Finding] = {}

    def look(call: ir.Call) -> None:
        name, needed = _needed(call)
        if needed and name not in found and not has_instructions(arch, needed):
            found[name] = finding(
                "TARGET_ARCH",
                f"{name} needs {needed}; the kernel is built for {arch.name}",
                statements=(statement_text(tirx.Evaluate(call)),),
            )

    tvm_ffi.structural_walk(func.body, [(ir.Call, look)])
    named = arch_name(func)
    if named and named not in ARCHS:
        text = f"built for {named}: its limits are not known, those of {arch.name} were taken"
        hint = f"verify for one of {', '.join(ARCHS)}"
        found[""] = finding("INCOMPLETE", text, hint=hint)
    return list(found.values())


def _needed(call: ir.Call) -> tuple[str, str]:
    """Return the name of an instruction, and the arch that it needs if that is more than sm_80."""
    name = op_name(call)
    if not name.startswith(PTX):
        helper = short_name(call).removeprefix("cuda.")
        return f"T.cuda.{helper}", FUNCTIONS.get(helper, "")
    ptx = decode_ptx(call)
    if ptx is None:
        return name, ""
    return ptx.name, needed_arch(ptx.name, [token for token in ptx.mods.values() if token])
