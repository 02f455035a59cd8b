"""Map a target to its processor.

`feature.num_sms` says how many SMs there are, `feature.part` whose rates it has ("h20"): of the
attributes that TVM gives a meaning to none does, and one named `feature.` survives export and JSON.
Only the choice of a configuration reads them: the kernel asks the device that it is launched on.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tvm_hopper.errors import cannot_lower, cannot_schedule
from tvm_hopper.facts.arch import ARCHS, DEFAULT_ARCH, Arch, Processor
from tvm_hopper.facts.devices import CHIPS, DEFAULT_NUM_SMS, NUM_SMS, NUM_SMS_ATTR, Chip, chip_of
from tvm_hopper.facts.hexagon import HEXAGONS, Hexagon
from tvm_hopper.requests.tags import ARCH, PART_ATTR

if TYPE_CHECKING:
    from tvm import tirx
    from tvm.target import Target


def target_arch(target: Target | None) -> str:
    """Return the arch of a cuda target, or an empty string."""
    if target is None or target.kind.name != "cuda":
        return ""
    return str(target.attrs.get("arch", ""))


def find_processor(target: Target | None) -> Processor | None:
    """Return what a target names, None where nothing is known of it."""
    if target is None:
        return None
    if target.kind.name != "hexagon":
        return ARCHS.get(target_arch(target))
    known: Hexagon | None = HEXAGONS.get(str(target.attrs.get("mcpu", "")))
    vtcm = int(target.attrs.get("vtcm-capacity", 0))  # 0 is what a target says that does not
    return replace(known, vtcm_bytes=vtcm) if known is not None and vtcm else known


def name_target(target: Target) -> str:
    """Name a target by its kind and the chip."""
    attr = "mcpu" if target.kind.name == "hexagon" else "arch"
    chip = target_arch(target) if attr == "arch" else str(target.attrs.get(attr, ""))
    return f"{target.kind.name} {chip}".rstrip()


def processor_of(func: tirx.PrimFunc) -> Processor:
    """Return what a function is built for, `DEFAULT_ARCH` without a target.

    - raises LoweringError: nothing is known of what its target names.
    """
    target = func.attrs.get("target", None) if func.attrs else None
    processor = find_processor(target)
    return arch_of(func) if processor is None else processor


def arch_of(func: tirx.PrimFunc) -> Arch:
    """Return the architecture of the GPU that a function is built for.

    One without a target, as a single pass may be given it, is taken to be for `DEFAULT_ARCH`.

    - raises LoweringError: nothing is known of the arch that its target names.
    """
    target = func.attrs.get("target", None) if func.attrs else None
    if target is None:
        return DEFAULT_ARCH
    arch = target_arch(target)
    if arch not in ARCHS:
        raise cannot_lower(
            f"function {func.attrs.get('global_symbol', 'without a name')}",
            f"target {target.kind.name} {arch}".rstrip(),
            f"a cuda target with arch {' or '.join(ARCHS)}",
        )
    return ARCHS[arch]


def arch_in_scope() -> Arch:
    """Return the architecture of the target in scope, `DEFAULT_ARCH` where it names no GPU."""
    from tvm.target import Target

    processor = find_processor(Target.current(allow_none=True))
    return processor if isinstance(processor, Arch) else DEFAULT_ARCH


def is_ours(target: Target | None) -> bool:
    """Tell whether a target names what kernels of ours are made for."""
    return target_arch(target) == ARCH


def num_sms(target: Target | None = None) -> int:
    """Return how many SMs a target, or else the one in scope, says that its device has.

    - raises ScheduleError: it says something that is no number of SMs.
    """
    from tvm.target import Target

    target = Target.current(allow_none=True) if target is None else target
    value = target.attrs.get(NUM_SMS_ATTR) if target is not None else None
    if value is None:
        return NUM_SMS.get(named_part(target), DEFAULT_NUM_SMS)
    if isinstance(value, (bool, float, str)) or int(value) < 1:
        raise cannot_schedule("target", f"{NUM_SMS_ATTR} = {value!r}", "a number of SMs, e.g. 132")
    return int(value)


def chip_of_target(target: Target | None = None) -> Chip:
    """Return the rates of the part that a target, or else the one in scope, names.

    - raises ScheduleError: it says something that is no number of SMs, or no part that is known.
    """
    from tvm.target import Target

    target = Target.current(allow_none=True) if target is None else target
    return chip_of(named_part(target), num_sms(target))


def named_part(target: Target | None) -> str:
    """Return which part a target names; an empty string where it leaves that open.

    - raises ScheduleError: it is none that is known.
    """
    value = target.attrs.get(PART_ATTR) if target is not None else None
    if value is not None and str(value) not in CHIPS:
        need = f"one of {', '.join(CHIPS)}"
        raise cannot_schedule("target", f"{PART_ATTR} = {str(value)!r}", need)
    return "" if value is None else str(value)
