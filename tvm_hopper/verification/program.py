"""The final functions of one module, from any form that a user has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tvm import ir

from tvm_hopper.errors import HopperError
from tvm_hopper.facts.arch import DEFAULT_ARCH, Arch
from tvm_hopper.sim.implied import spell_out
from tvm_hopper.sim.launch.signature import Argument, signature
from tvm_hopper.sim.tir import arch_of_kernel, nodes_in, short_name


@dataclass(frozen=True)
class Program:
    """The final functions of one module: one host entry, and its kernels by name."""

    host: Any
    kernels: Mapping[str, Any]

    @property
    def arguments(self) -> list[Argument]:
        """Arguments of the entry, in order."""
        return signature(self.host)

    @property
    def arch(self) -> Arch:
        """The architecture of the kernels."""
        return next(map(arch_of_kernel, self.kernels.values()), DEFAULT_ARCH)

    def multiplies(self, kind: str) -> bool:
        """Tell whether a kernel has a WGMMA of a kind that PTX names: "tf32", "fp8"."""
        calls = [x for kernel in self.kernels.values() for x in nodes_in(kernel.body, ir.Call)]
        return any(f"wgmma_{kind}_" in short_name(call) for call in calls)


def load(ex_or_mod: Any, target: Any = None, entry: str | None = None) -> Program:
    """Return the final functions of a module, lowered here, or of an executable built here."""
    import tvm
    from tvm import s_tir, tirx

    if isinstance(ex_or_mod, s_tir.Schedule):
        ex_or_mod = ex_or_mod.mod
    if isinstance(ex_or_mod, Program):
        return ex_or_mod
    if isinstance(ex_or_mod, (tvm.IRModule, tirx.PrimFunc)):
        from tvm_hopper import pipeline

        if target is None:
            target = tvm.target.Target.current(allow_none=True) or {
                "kind": "cuda",
                "arch": DEFAULT_ARCH.name,
            }
        _check_scheduled(ex_or_mod)
        lowered: Any = pipeline.lower_final(ex_or_mod, target)
    else:
        from tvm_hopper.cuda_build import records

        lowered = records.lookup(ex_or_mod)
    kernels = {gv.name_hint: spell_out(func) for gv, func in lowered.device.functions.items()}
    if not kernels:
        raise HopperError(
            "simulate: found no kernel: no loop is bound to thread blocks; need a scheduled "
            "module; schedule it first, e.g. hs.matmul(sch, block) or sch.bind(loop, 'blockIdx.x')"
        )
    return Program(_entry(lowered.host, entry), kernels)


def _entry(host_module: Any, name: str | None) -> Any:
    entries = {}
    for gv, func in host_module.functions.items():
        if "calling_conv" in (func.attrs or {}) and int(func.attrs["calling_conv"]) == 1:
            entries[gv.name_hint] = func
    if name is None and len(entries) > 1:
        name = "main"
    if name is not None and name in entries:
        return entries[name]
    if len(entries) == 1 and name is None:
        return next(iter(entries.values()))
    found = f"entry={name!r}" if name is not None else f"{len(entries)} functions"
    raise ValueError(f"entry: found {found}; need one of {', '.join(sorted(entries))}")


def _check_scheduled(module: Any) -> None:
    """Refuse a module whose functions are split and packed already."""
    functions = module.functions.values() if hasattr(module, "functions") else [module]
    if any("calling_conv" in (func.attrs or {}) for func in functions):
        raise HopperError(
            "simulate: found a module that is lowered already; need the scheduled module, or what "
            "tvm.compile returned"
        )
