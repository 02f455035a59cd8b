"""PTX calls to calls of `Warp.op_<instruction>`: operands by name, destinations assigned."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvm import ir, tirx

from tvm_hopper.sim.arithmetic.table import INSTRUCTIONS
from tvm_hopper.sim.machine.registers import RegRef
from tvm_hopper.sim.ops.forms import handler_of, refused_form
from tvm_hopper.sim.tir import PtxCall, decode_ptx, numpy_dtype, op_name
from tvm_hopper.sim.translate.address_sources import AddressSources, operands_in_own_window
from tvm_hopper.sim.translate.registers import ADDRESS, RegisterEmitter, form_name, operand_types

_HARMLESS = (
    "cp_async_bulk_prefetch",
    "cp_async_bulk_tensor_prefetch",
    "prefetch",
    "nanosleep",
    "applypriority",
)
_WORDS = ("ld", "st", "atom", "red")
_STORES = ("st", "st_vec", "st_vec256")
_ISSUES = ("expect_tx", "g2s", "cp_async_ca", "cp_async_cg", "st_async", "red_async")


def is_harmless(name: str) -> bool:
    """Return whether an instruction is a hint, which changes nothing that a kernel can see."""
    return name.startswith(_HARMLESS)


def _is_accumulator(ptx: PtxCall, name: str) -> bool:
    """Return whether an operand is the registers of a wgmma, which reads and writes them."""
    return name == "d" and ptx.name.startswith("wgmma")


class PtxEmitter(RegisterEmitter):
    """Emits PTX statements; a part of `StmtEmitter`."""

    address_sources: AddressSources

    def _ptx(self, call: ir.Call, site: int) -> None:
        ptx = decode_ptx(call)
        if ptx is None:
            self.unsupported(op_name(call))
            return
        if is_harmless(ptx.name):
            return
        mask = self.scope.mask
        if ptx.name in INSTRUCTIONS:
            self._guard(ptx.pred)
            self._register_instruction(ptx)
            self._unguard(ptx.pred, mask)
            return
        handler = handler_of(ptx.name, self.handlers)
        if handler is None:
            self.unsupported(f"ptx.{ptx.name}")
            return
        if reason := refused_form(ptx.name, ptx.mods):
            self.unsupported(f"{form_name(ptx)} ({reason})")
            return
        self._note_protocol(ptx, site)
        self._note_params(ptx)
        types = operand_types(ptx.name, ptx.mods)
        for name, values in ptx.operands.items():
            if types[name] == ADDRESS and self.address_sources.from_memory(values[0]):
                self.unsupported(f"{form_name(ptx)} at an address that is read from memory")
                return
        args = self._arguments(ptx, types)
        self._guard(ptx.pred)
        self.use_operands(ptx)
        for address in operands_in_own_window(ptx):
            text = self.code(address)
            self.flush()
            self.emit(f"w.in_own_window({site}, {self.scope.mask}, {text})")
        targets = [
            (types[name], target)
            for name in ptx.writes
            if not _is_accumulator(ptx, name)
            for target in ptx.operands.get(name, [])
        ]
        result = self.scope.name("r") if targets else ""
        self._call(handler, site, args, result)
        for position, (kind, target) in enumerate(targets):
            if isinstance(target, ir.TensorLoad):
                text = result if len(targets) == 1 else f"{result}[{position}]"
                needs = self.needs_of_result(ptx, position) if self.computes(ptx) else ()
                self._assign(target, self._from_operand(kind, target, text), needs)
        self._unguard(ptx.pred, mask)

    def _note_protocol(self, ptx: PtxCall, site: int) -> None:
        """Note waits for mbarriers, later issues, and changes of registers."""
        if "_wait" in ptx.name and ptx.name.startswith("mbarrier_"):
            self.waits[-1].append(site)
            if "try_wait" in ptx.name and not self.while_depth:
                self.program.lone_try_waits.append(site)
        if any(word in ptx.name for word in _ISSUES):
            for frame in self.waits:
                self.program.acquire_sites.update(frame)
        if ptx.name == "setmaxnreg":
            self.program.setmaxnreg_site = self.program.setmaxnreg_site or site

    def _arguments(self, ptx: PtxCall, types: Mapping[str, str]) -> list[str]:
        """Return the code of the operands that an instruction reads."""
        args = [self.constant("mods", dict(ptx.mods, ptx_name=ptx.name))]
        for name, values in ptx.operands.items():
            if name in ptx.writes and not _is_accumulator(ptx, name):
                continue
            if ptx.name.startswith("wgmma") and name in ("d", "a"):
                text = self._registers(values)
            else:
                codes = [
                    self._as_operand(types[name], v) if v is not None else "None" for v in values
                ]
                text = codes[0] if len(codes) == 1 else f"({', '.join(codes)})"
            args.append(f"{name}={text}")
        return args

    def _guard(self, pred: Any) -> None:
        """Begin the part that only lanes with a true predicate execute."""
        if pred is None:
            return
        inner = self.scope.name("m")
        self.use(pred)
        self.emit(f"{inner} = mand({self.scope.mask}, as_lanes({self.code(pred)}) != 0)")
        self.emit(f"if {inner} is not False:")
        self.depth += 1
        self.scope.mask = inner

    def _unguard(self, pred: Any, mask: str) -> None:
        """End it."""
        if pred is not None:
            self.scope.mask = mask
            self.depth -= 1

    def _note_params(self, ptx: PtxCall) -> None:
        """Note which parameters an instruction loads from and stores to."""
        named = (x for values in ptx.operands.values() for x in values if x is not None)
        params = set().union(*map(self.params_of, named))
        name = ptx.name
        if name.startswith(_WORDS) and ptx.mods.get("type") in ("b8", "u8", "s8"):
            self.program.min_itemsize = 1
        only_stores = name in _STORES or ("s2g" in name and "reduce" not in name)
        if not only_stores:
            self.program.loaded_params |= params
        if not any(word in name for word in ("g2s", "cp_async_c", "ld", "wgmma")):
            self.program.stored_params |= params

    def _registers(self, values: list[Any]) -> str:
        """Name the registers of a wgmma operand: array, state and indices."""
        info = self.buffer(values[0].source)
        if info is None or info.kind != "local":
            self.unsupported("wgmma operand that is no register")
            return "None"
        if any(not v.source.same_as(values[0].source) for v in values):
            self.unsupported("wgmma operand spread over several register buffers")
            return "None"
        size = numpy_dtype(info.dtype).itemsize
        indices = [v.indices[0] for v in values]
        if all(isinstance(i, tirx.IntImm) for i in indices):
            text = self.constant("regs", RegRef.indices_of([int(i.value) for i in indices]))
            return f"R_{info.root}.ref({info.name}, {text}, {size})"
        text = f"RegRef.indices_of([{', '.join(self.code(i) for i in indices)}])"
        return f"RegRef({info.name}, R_{info.root}, {text}, {size})"
