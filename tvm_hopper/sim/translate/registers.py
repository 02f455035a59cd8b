"""PTX instructions on registers: their statements, TIR values to bits, bits to TIR registers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from tvm import ir
from tvm.backend.cuda.ptx.table import PTX_TYPE_DTYPES, TABLE, operand_layout, operand_type

from tvm_hopper.sim.arithmetic.table import INSTRUCTIONS, RegisterInstruction
from tvm_hopper.sim.machine.lanes import is_lanes
from tvm_hopper.sim.tir import DTYPE_OF, PtxCall, dtype_of, numpy_dtype

PREDICATE, IMMEDIATE, ADDRESS = "pred", "imm", "addr"


def operand_types(name: str, mods: Mapping[str, str]) -> dict[str, str]:
    """Return the PTX type of each operand of a form; immediates and addresses by their kind."""
    return {
        slot.name: operand_type(slot, dict(mods)) if slot.kind == "reg" else slot.kind
        for slot, _, _ in operand_layout(TABLE[name], dict(mods))
    }


def carrier_of(kind: str) -> np.dtype:
    """Return the unsigned type as wide as a PTX type."""
    return np.dtype(f"uint{8 * np.dtype(PTX_TYPE_DTYPES[kind][0]).itemsize}")


def other_kind(kind: str, dtype: str) -> tuple[str, str] | None:
    """Return (type of PTX, type of TIR) where bits are to be looked at as another kind of number.

    A `.b32` operand takes a float register (PTX ISA, 5.2.1); what a handler gets and gives is of
    the instruction's type.
    """
    ours = DTYPE_OF.get({"b32i": "b32", "b64i": "b64"}.get(kind, kind))
    if ours is None or "float" not in ours + dtype:
        return None
    here, there = numpy_dtype(ours), numpy_dtype(dtype)
    differs = here != there and here.itemsize == there.itemsize
    return (ours, dtype) if differs else None


def to_bits(value: Any, dtype: np.dtype, carrier: np.dtype) -> np.ndarray:
    """Return the bits of a register, of all lanes or of one for all, cut to the operand's width."""
    with np.errstate(all="ignore"):
        held = np.ascontiguousarray(np.ravel(np.asarray(value)).astype(dtype))
    bits = held.view(f"uint{8 * dtype.itemsize}")
    return bits.astype(carrier)


def from_bits(bits: np.ndarray, signed: bool, dtype: np.dtype) -> np.ndarray:
    """Return the bits of a register of a TIR type; a wider one is filled by sign or zeros."""
    if bits.dtype.kind == "b":
        return bits.astype(dtype)
    size = bits.dtype.itemsize
    held = bits.view(f"int{8 * size}") if signed else bits
    if dtype.itemsize != size:
        held = held.astype(f"{'int' if signed else 'uint'}{8 * dtype.itemsize}")
    return held.view(dtype)


def _source(kind: str, dtype: str) -> Callable[[Any], Any]:
    """Return the conversion of a source operand's value into the instruction's operand."""
    if kind == IMMEDIATE:
        return int
    if kind == PREDICATE:
        return lambda value: np.ravel(np.asarray(value)) != 0
    held, carrier = numpy_dtype(dtype), carrier_of(kind)
    return lambda value: to_bits(value, held, carrier)


class RegisterCall:
    """One form of an instruction between registers of given TIR types: values in, values out."""

    def __init__(
        self,
        name: str,
        mods: Mapping[str, str],
        sources: list[tuple[str, str]],
        targets: list[tuple[str, str]],
    ) -> None:
        """Take (PTX type, TIR type) of each source and destination, in order."""
        self.instruction: RegisterInstruction = INSTRUCTIONS[name]
        self.mods = mods
        self.sources = [_source(kind, dtype) for kind, dtype in sources]
        self.targets = [(kind[0] == "s", numpy_dtype(dtype)) for kind, dtype in targets]

    def __call__(self, *values: Any) -> list[Any]:
        """Return the value of each destination: an array of 32, or one for all lanes."""
        operands = [take(value) for take, value in zip(self.sources, values, strict=True)]
        found = self.instruction(self.mods, *operands)
        whole = any(is_lanes(value) for value in values)
        held = [
            from_bits(np.ascontiguousarray(bits), signed, dtype)
            for bits, (signed, dtype) in zip(found, self.targets, strict=True)
        ]
        return held if whole else [h[0] for h in held]


def form_name(ptx: PtxCall) -> str:
    """Return an instruction with its modifiers, as a finding names it."""
    return ".".join([f"ptx.{ptx.name}", *[token for token in ptx.mods.values() if token]])


class RegisterEmitter:
    """Mixin of `StmtEmitter`."""

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
            self.unsupported(f"{form_name(ptx)} into a place that is no register")
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
