"""Every form of a register instruction that the simulator models, and a kernel for each.

The text is the one that TVM prints for `T.ptx.*`: its own helper function for the form, called once
a thread between loads of the operands and stores of the results.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

from tvm.backend.cuda.ptx.render import C_BINDING, render_variant
from tvm.backend.cuda.ptx.table import (
    TABLE,
    imm_slots,
    mods,
    operand_dtypes,
    operand_layout,
    operand_type,
    variants,
)

from tvm_hopper.sim.arithmetic.table import INSTRUCTIONS
from tvm_hopper.sim.translate.registers import RegisterCall

TABLES = ("202", "128", "150", "23", "232", "0", "255", "105")  # of lop3, as immediates
IMMEDIATE = "imm"

HEAD = """
typedef unsigned char uint8_t; typedef signed char int8_t;
typedef unsigned short uint16_t; typedef short int16_t;
typedef unsigned int uint32_t; typedef int int32_t;
typedef unsigned long long uint64_t; typedef long long int64_t;
"""
# Forms that PTX has, and ptxas for sm_90a refuses: their chip is a newer one.
NEWER = "f32x2"


@dataclass(frozen=True)
class Form:
    """One combination of modifiers (and of an immediate, where there is one).

    Attributes
    ----------
    name : str
        Key of TVM's table.
    tokens : tuple of str
        Modifiers in the order of the table, "" where one is left out.
    sources, targets : tuple of (PTX type, TIR type)
    """

    name: str
    tokens: tuple[str, ...]
    sources: tuple[tuple[str, str], ...]
    targets: tuple[tuple[str, str], ...]
    immediate: str = ""

    @property
    def mods(self) -> Mapping[str, str]:
        """The modifiers by slot."""
        found: Mapping[str, str] = mods(TABLE[self.name], self.tokens)
        return found

    @property
    def opcode(self) -> str:
        """The instruction as PTX spells it."""
        text: str = self._rendered[0]
        return text + (f" {self.immediate}" if self.immediate else "")

    @functools.cached_property
    def _rendered(self) -> tuple[str, str, str]:
        chosen = (self.immediate,) if self.immediate else None
        found: tuple[str, str, str] = render_variant(TABLE[self.name], self.tokens, imms=chosen)
        return found

    @property
    def call(self) -> RegisterCall:
        """The simulator's function; operands without the immediate."""
        return RegisterCall(self.name, self.mods, list(self.sources), list(self.targets))

    @property
    def inputs(self) -> tuple[tuple[str, str], ...]:
        """The sources that are registers."""
        return tuple(source for source in self.sources if source[0] != IMMEDIATE)

    def source(self, kernel: str) -> str:
        """Return the CUDA text of a kernel of this form."""
        _, helper, text = self._rendered
        ins = [C_BINDING[dtype].c_type for _, dtype in self.inputs]
        outs = [C_BINDING[dtype].c_type for _, dtype in self.targets]
        params = [f"const {kind}* a{i}" for i, kind in enumerate(ins)]
        params += [f"{kind}* d{i}" for i, kind in enumerate(outs)]
        names = [f"r{i}" for i in range(len(outs))] + [f"a{i}[i]" for i in range(len(ins))]
        lines = [f"  {kind} r{i} = 0;" for i, kind in enumerate(outs)]
        ends = [f"  d{i}[i] = r{i};" for i in range(len(outs))]
        return "\n".join(
            [
                text.replace(f" {helper}(", f" {kernel}_body("),
                f'extern "C" __global__ void {kernel}({", ".join(params)}) {{',
                "  int i = blockIdx.x * blockDim.x + threadIdx.x;",
                *lines,
                f"  {kernel}_body({', '.join(names)});",
                *ends,
                "}",
            ]
        )


def forms_of(name: str) -> list[Form]:
    """Return the modelled forms of one entry of TVM's table that Hopper has."""
    entry, found = TABLE[name], []
    for tokens in variants(entry):
        chosen = mods(entry, tokens)
        if INSTRUCTIONS[name].refuses(chosen) or NEWER in chosen.values():
            continue
        sources, targets = [], []
        for slot, _, count in operand_layout(entry, chosen):
            if slot.kind == IMMEDIATE:
                sources.append((IMMEDIATE, ""))
                continue
            typed = (operand_type(slot, chosen), operand_dtypes(slot, chosen)[0])
            (targets if slot.rw == "w" else sources).extend([typed] * count)
        for immediate in TABLES if imm_slots(entry) else ("",):
            found.append(Form(name, tokens, tuple(sources), tuple(targets), immediate))
    return found


def families() -> list[str]:
    """Return the entries of the table to try."""
    return [name for name in INSTRUCTIONS if forms_of(name)]
