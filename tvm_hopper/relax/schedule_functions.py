"""Schedule each function of a model by the rules, and record which rule took it.

    @T.prim_func                                  T.func_attr({"tirx.is_scheduled": True})
    def linear(x, w, y): plain loops      ->      def linear(x, w, y): a kernel for each class

Needs: plain loops; what is marked `tirx.is_scheduled` is left as it is, but for kernels of TVM's
paged cache.
Leaves: `ATTR` on the module, the records as JSON text.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import tvm
from tvm import tirx
from tvm.target import Target

from tvm_hopper import dlight, schedule as hs
from tvm_hopper.dlight.attention import has_softmax
from tvm_hopper.dlight.decisions import Decision, is_scheduled
from tvm_hopper.dlight.rule import HopperRule
from tvm_hopper.errors import HopperError
from tvm_hopper.schedule import MatmulConfig
from tvm_hopper.schedule.memory_bound.widen import half_sums
from tvm_hopper.schedule.products.parts import without_allocator

from . import collect
from .cache_kernels import serve_cache_kernels
from .calls import find_calls
from .check_builds import find_fault
from .join_attention import LEFT
from .options import ModelOptions
from .records import FunctionRecord, to_text
from .tuned import TunedChoice, find_tuned, open_records

ATTR = "tvm_hopper.model"


@tvm.transform.module_pass(opt_level=0, name="tvm_hopper.ScheduleFunctions")
class ScheduleFunctions:
    """The pass; see the module."""

    def __init__(self, options: ModelOptions) -> None:
        self.options = options

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Schedule every function that is plain loops."""
        served = serve_cache_kernels(mod, self.options)
        mod, new, records = served.mod, {}, []
        database = open_records(self.options.database)
        for gv, func in mod.functions_items():
            name = str(gv.name_hint)
            if not isinstance(func, tirx.PrimFunc):
                continue
            if is_scheduled(func):
                records.append(collect.of_given(name, func, cache=served))
                continue
            target = func.attrs.get("target") or Target.current(allow_none=False)
            if collect.is_for_host(func, target):
                records.append(collect.of_given(name, func, "for the host"))
                continue
            tuned = find_tuned(database, name, func, target)
            done, decisions = self._schedule(name, func, target, tuned)
            record = collect.of_scheduled(name, func, done, decisions, tuned)
            if tuned.configs and record.rule != tuned.rule:  # a record is advice, no order
                done, untuned = self._schedule(name, func, target, TunedChoice())
                record = collect.of_scheduled(name, func, done, untuned)
                record = replace(record, note=_joined(record.note, tuned.refusal(decisions)))
            if done is not None:
                new[gv] = done
            records.append(record)
        calls, libraries = find_calls(mod)
        records += [collect.of_library(name, served) for name in libraries]
        counted = [_with_calls(x, calls) for x in records]
        if LEFT in (mod.attrs or {}):
            loops = {str(gv.name_hint): func for gv, func in mod.functions_items()}
            left = json.loads(str(mod.attrs[LEFT]))
            counted = [_with_reason(x, loops.get(x.name), left) for x in counted]
        functions = {gv: new.get(gv, func) for gv, func in mod.functions.items()}
        changed = tvm.IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)
        return changed.with_attr(ATTR, to_text(counted))

    def _schedule(
        self, name: str, func: tirx.PrimFunc, target: Target, tuned: TunedChoice
    ) -> tuple[Any, list[Decision]]:
        """Apply the rules in order; return the function as the first one that accepts it leaves it.

        TVM's rules make sums in the type that the function says: they are asked about the function
        with wide sums, as kernels of ours make them, and only if all refuse as it is.
        """
        decisions: list[Decision] = []
        wide, note = self._widened(func)
        rules = dlight.rules(
            decisions,
            accumulate=self.options.accumulate,
            classes=tuned.classes if tuned.configs else self.options.classes,
            config=tuned.config or without_allocator(MatmulConfig()),  # a model's calls have none
            batch_invariant=self.options.batch_invariant,
        )
        ours = [x for x in rules if isinstance(x, HopperRule)]
        others = [x for x in rules if not isinstance(x, HopperRule)]
        attempts = [*((x, func) for x in ours), *((x, wide) for x in others)]
        if wide is not func:
            attempts += [(x, func) for x in others]
        for rule, given in attempts:
            result = rule.apply(given, target, False)
            if result is None:
                continue
            if given is not func:
                decisions[-1] = replace(decisions[-1], reason=note)
            sch = result[0] if isinstance(result, list) else result
            if len(sch.mod.functions) != 1:
                raise HopperError(
                    f"function {name}: found {len(sch.mod.functions)} functions in the schedule of "
                    f"{type(rule).__name__}; need one"
                )
            (new,) = sch.mod.functions.values()
            fault = find_fault(new, target) if isinstance(rule, HopperRule) else None
            if fault is not None:
                decisions[-1] = replace(decisions[-1], taken=False, reason=fault)
                continue
            return _named_as(func, new).with_attr("tirx.is_scheduled", True), decisions
        return None, decisions

    def _widened(self, func: tirx.PrimFunc) -> tuple[tirx.PrimFunc, str]:
        """Return a function whose sums of 16 bits are wide ones, and what was done."""
        accumulate = self.options.accumulate
        narrow = half_sums(func, added=True) if accumulate else []
        if not narrow:
            return func, ""
        wide = hs.widen_sums(func)
        return wide, f"sums in {accumulate} instead of {', '.join(narrow)}"


def _named_as(old: tirx.PrimFunc, new: tirx.PrimFunc) -> tirx.PrimFunc:
    """Keep a private function private: a Schedule calls its function `main`."""
    if old.attrs and "global_symbol" in old.attrs:
        return new.with_attr("global_symbol", old.attrs["global_symbol"])
    return new.without_attr("global_symbol")


def _with_reason(record: FunctionRecord, func: Any, left: list[Any]) -> FunctionRecord:
    """Say of a softmax why the attention that it is part of is several kernels.

    - `left`: extents of the weights of such attentions, and the reasons.
    """
    if not isinstance(func, tirx.PrimFunc) or not has_softmax(func):
        return record
    shapes = [list(x.shape) for x in record.tensors]
    found = dict.fromkeys(why for shape, why in left if shape in shapes)
    return replace(
        record, note=_joined(record.note, *(f"part of an attention: {x}" for x in found))
    )


def _with_calls(record: FunctionRecord, calls: dict[str, Any]) -> FunctionRecord:
    return replace(record, calls=tuple(calls.get(record.name, ())))


def _joined(*notes: str) -> str:
    return "; ".join(x for x in notes if x)
