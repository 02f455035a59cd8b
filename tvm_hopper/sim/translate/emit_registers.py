"""Statements of PTX instructions on registers: one call that computes, one assignment each."""

from __future__ import annotations

from typing import Any

from tvm import ir

from tvm_hopper.sim.arithmetic.table import INSTRUCTIONS
from tvm_hopper.sim.tir import PtxCall, dtype_of
from tvm_hopper.sim.translate.registers import RegisterCall, operand_types, other_kind


def form_name(ptx: PtxCall) -> str:
    """Return an instruction with its modifiers, as a finding names it."""
    return ".".join([f"ptx.{ptx.name}", *[token for token in ptx.mods.values() if token]])


class RegisterEmitter:
    """A part of `StmtEmitter`, whose other methods it calls."""

    def _register_instruction(self, ptx: PtxCall) -> None:
        """Emit an instruction of `INSTRUCTIONS`."""
        reason = INSTRUCTIONS[ptx.name].refuses(ptx.mods)
        if reason:
            self.unsupported(f"{form_name(ptx)} ({reason})")
            self.flush()  # inside of a predicate's branch there must be a line
            return
        types = operand_types(ptx.name, ptx.mods)
        sources, codes, targets = [], [], []
        for name, values in ptx.operands.items():
            for value in values:
                if name in ptx.writes:
                    targets.append((types[name], value))
                else:
                    sources.append((types[name], "" if types[name] == "imm" else dtype_of(value)))
                    codes.append(self.code(value))
        if any(not isinstance(value, ir.TensorLoad | None) for _, value in targets):
            self.unsupported(f"{form_name(ptx)} into what is no register")
            self.flush()
            return
        kinds = [(kind, "uint64" if v is None else dtype_of(v)) for kind, v in targets]
        call = self.constant("form", RegisterCall(ptx.name, ptx.mods, sources, kinds))
        self.flush()
        needs = self.needs_of_result(ptx, 0)
        result = self.scope.name("r")
        self.emit(f"{result} = {call}({', '.join(codes)})")
        for position, (_, target) in enumerate(targets):
            if target is not None:
                self.program.stored_params |= self.params_of(target)
                self._assign(target, f"{result}[{position}]", needs)

    def _as_operand(self, kind: str, value: Any) -> str:
        """Return the text of a source operand, as the number that its PTX type means."""
        text: str = self.code(value)
        seen = other_kind(kind, dtype_of(value)) if isinstance(value, ir.Expr) else None
        if seen is None:
            return text
        ours, theirs = seen
        return f"reinterpret({text}, {self.dtype_const(theirs)}, {self.dtype_const(ours)})"

    def _from_operand(self, kind: str, target: Any, text: str) -> str:
        """Return the text of a result, as the register that takes it holds it."""
        seen = other_kind(kind, dtype_of(target))
        if seen is None:
            return text
        ours, theirs = seen
        return f"reinterpret({text}, {self.dtype_const(ours)}, {self.dtype_const(theirs)})"
