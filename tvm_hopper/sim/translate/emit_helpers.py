"""Statements that call TVM's device functions, most of them with pointers to registers.

T.cuda.ldg(addr, "float32", dst=(T.address_of(r[0]), T.address_of(r[1])), vec="v2")
T.cuda.half8tofloat8(T.address_of(h[0]), T.address_of(f[0]))
"""

from __future__ import annotations

from typing import Any

from tvm import ir

from tvm_hopper.sim.tir import DTYPE_OF, dtype_of, short_name
from tvm_hopper.sim.translate.questions import of_registers
from tvm_hopper.sim.translate.registers import RegisterCall

_NARROW = RegisterCall(
    "cvt",
    {n: "" for n in ("relu", "satfinite", "ftz", "sat")}
    | {"rnd": "rn", "dtype": "f16", "atype": "f32"},
    [("f32", "float32")],
    [("f16", "float16")],
)
_WIDEN = RegisterCall(
    "cvt",
    {n: "" for n in ("rnd", "relu", "satfinite", "ftz", "sat")} | {"dtype": "f32", "atype": "f16"},
    [("f16", "float16")],
    [("f32", "float32")],
)
# By name: position of destination and source, elements, their types, and the conversion.
CONVERSIONS: dict[str, tuple[int, int, int, str, str, RegisterCall]] = {
    "cuda.float22half2": (0, 1, 2, "float16", "float32", _NARROW),
    "cuda.float8tohalf8": (1, 0, 8, "float16", "float32", _NARROW),
    "cuda.half8tofloat8": (1, 0, 8, "float32", "float16", _WIDEN),
}


def pointee(pointer: Any) -> Any:
    """Return the element whose address an expression is; None if it is no such expression."""
    if isinstance(pointer, ir.Call) and short_name(pointer) == "address_of":
        target = pointer.args[0]
        return target if isinstance(target, ir.TensorLoad) else None
    return None


class HelperStatements:
    """A part of `StmtEmitter`, whose other methods it calls."""

    def helper_statement(self, name: str, call: ir.Call) -> bool:
        """Emit a call of a device function that writes through pointers; False if it is none."""
        if name == "cuda.ldg" and len(call.args) > 2:
            self._vector_ldg(call)
            return True
        if name in CONVERSIONS:
            self._converted(name, call)
            return True
        if name == "cuda.wait_until":
            self._wait_until(call)
            return True
        return False

    def _vector_ldg(self, call: ir.Call) -> None:
        *pointers, address, dtype, _, count = call.args
        targets = [pointee(pointer) for pointer in pointers]
        if any(target is None for target in targets):
            self.unsupported("cuda.ldg into a place that is no element of a buffer")
            return
        self.program.loaded_params |= self.params_of(address)
        self.flush()
        kind, lanes = self.dtype_const(str(dtype.value)), int(count.value)
        result = self.scope.name("r")
        args = f"{self.site}, {self.scope.mask}, {self.code(address)}, 0, ({kind}, {lanes}, 1)"
        self.emit(f"{result} = w.load({args})")
        for position, target in enumerate(targets):
            self.program.stored_params |= self.params_of(target)
            self._assign(target, f"{result}[:, {position}]")

    def _converted(self, name: str, call: ir.Call) -> None:
        into, from_, count, *types, conversion = CONVERSIONS[name]
        places = [pointee(call.args[position]) for position in (into, from_)]
        target, source = (None if p is None else self.buffer(p.source) for p in places)
        if (
            target is None
            or source is None
            or {target.kind, source.kind} != {"local"}
            or [dtype_of(p) for p in places] != types
        ):
            self.unsupported(
                f"{name} of operands other than registers of {types[1]} and {types[0]}"
            )
            return
        known = self.constant("convert", conversion)
        mask = self.scope.mask
        _, into_index, into_varies = self.index(target, places[0].indices)
        _, from_index, from_varies = self.index(source, places[1].indices)
        self.touch(source, from_index, count, from_varies)
        self.touch(target, into_index, count, into_varies)
        self.flush()
        for i in range(count):
            value = f"{known}(ldl({source.name}, {from_index} + {i}, {mask}))[0]"
            self.emit(f"stl({target.name}, {into_index} + {i}, {value}, {mask})")

    def _wait_until(self, call: ir.Call) -> None:
        """Emit a loop that loads with acquire until a condition holds in every lane."""
        target, address, condition = call.args[:3]
        mods = {"type": str(call.args[5].value), "sem": "acquire", "scope": str(call.args[3].value)}
        self.program.loaded_params |= self.params_of(address)
        name = self.constant("mods", mods)
        mask = self.scope.mask
        self.emit("while True:")
        self.depth += 1
        self._assign(target, f"w.op_ld({self.site}, {mask}, {name}, addr={self.code(address)})")
        test = self.scope.name("c")
        self.emit(f"{test} = as_lanes({self.code(condition)})")
        self.flush()
        self.emit(f"if {test}.all() if {mask} is None else {test}[{mask}].all(): break")
        if of_registers(condition):
            kind = self.dtype_const(DTYPE_OF[mods["type"]])
            self.emit(f"yield w.until({self.site}, {mask}, {self.code(address)}, {kind})")
        else:
            self.emit(f"yield w.spin({self.site})")
        self.depth -= 1
