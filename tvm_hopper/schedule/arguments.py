"""Check and normalise the arguments of schedule helpers.

    stages=np.int64(3)  ->  3          stages=2.0, "2", True  ->  ScheduleError
    block="C"           ->  SBlockRV   block=None, a loop, a block of another schedule  ->  the same

None stands for "not requested" wherever a helper has it as default.
"""

from __future__ import annotations

import difflib
import operator
from collections.abc import Mapping
from typing import Any

from tvm import s_tir, tirx
from tvm.ir import Expr
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tvm_hopper import ir
from tvm_hopper.errors import cannot_schedule
from tvm_hopper.requests.keys import INT32_MAX

MOST_SIZE = 1 << 16  # of a tile, and of a ring: no shared memory holds one
MOST_NAMES = 8  # of a function's blocks that a message lists
UNKNOWN = (IndexError, ValueError)  # of another schedule's variable, of one whose node is gone


# -- numbers --------------------------------------------------------------------------------------


def as_int(
    where: str, name: str, value: Any, least: int | None = None, most: int | None = None
) -> int | None:
    """Return an int, or None, in place of any kind of integer; refuse every other type."""
    if value is None:
        return None
    number = _index(value)
    if number is None:
        raise cannot_schedule(where, f"{name}={_show(value)}", "an int or None")
    _check_bounds(where, name, number, least, most)
    return number


def as_size(
    where: str,
    name: str,
    value: Any,
    least: int = 1,
    most: int | None = None,
    symbolic: str = "",
) -> Any:
    """Return an int, or the integer expression that stands for one: a sample or an extent."""
    number = _index(value)
    if number is not None:
        _check_bounds(where, name, number, least, most)
        return number
    if not _is_integer_expr(value):
        need = f"an int, or {symbolic or 'a sampled random variable'}"
        raise cannot_schedule(where, f"{name}={_show(value)}", need)
    return value


def as_tile(where: str, tile: Any) -> tuple[Any, Any, Any]:
    """Return a tile as three sizes."""
    if not isinstance(tile, (tuple, list)) or len(tile) != 3:
        raise cannot_schedule(where, f"tile={_show(tile)}", "rows, columns and depth")
    numbers = [_index(size) for size in tile]
    sizes = [size if x is None else x for size, x in zip(tile, numbers, strict=True)]
    if any(
        not _is_integer_expr(size) if x is None else not 1 <= x <= MOST_SIZE
        for size, x in zip(tile, numbers, strict=True)
    ):
        need = f"ints from 1 to {MOST_SIZE}, or sampled random variables"
        raise cannot_schedule(where, f"tile={_show(tile)}", need)
    return sizes[0], sizes[1], sizes[2]


def as_sizes(where: str, sizes: Any) -> tuple[tuple[int, ...], ...]:
    """Return the values that each of the three sizes of a tile can take."""
    lists = isinstance(sizes, (tuple, list)) and all(isinstance(x, (tuple, list)) for x in sizes)
    numbers = [[_index(value) for value in values] for values in sizes] if lists else []
    plain = tuple(tuple(x for x in values if x is not None and x > 0) for values in numbers)
    if [len(x) for x in plain] != [len(x) for x in numbers] or len(plain) != 3 or not all(plain):
        need = "rows, columns and depth, a tuple of positive ints for each"
        raise cannot_schedule(where, f"sizes={_show(sizes)}", need)
    return plain


def as_bounds(where: str, name: str, value: Any, most: int | None = None) -> tuple[int, ...]:
    """Return positive ints that ascend."""
    is_list = isinstance(value, (tuple, list)) and len(value)
    numbers = [_index(x) for x in value] if is_list else []
    bounds = [x for x in numbers if x is not None and 0 < x <= INT32_MAX]
    if not bounds or len(bounds) < len(numbers) or bounds != sorted(set(bounds)):
        need = f"ascending ints from 1 to {INT32_MAX}, e.g. (16, 256, 4096)"
        raise cannot_schedule(where, f"{name}={_show(value)}", need)
    if most is not None and len(bounds) > most:
        found = f"{len(bounds)} {name}"
        raise cannot_schedule(where, found, f"at most {most}, each a kernel to build")
    return tuple(bounds)


def as_ranges(where: str, name: str, value: Mapping[Any, Any]) -> dict[int, int]:
    """Return ranges by their bounds, which ascend, and the rows that the kernel of each is for."""
    bounds = as_bounds(where, f"the bounds of {name}", tuple(value))
    ranges: dict[int, int] = {}
    for bound, one in zip(bounds, value.values(), strict=True):
        rows = _index(one)
        if rows is None or not 0 < rows <= INT32_MAX:
            need = "for each bound the rows that its kernel is chosen for, e.g. {64: 64, 256: 128}"
            raise cannot_schedule(where, f"{name}[{bound}]={_show(one)}", need)
        ranges[bound] = rows
    return ranges


def as_pair(where: str, name: str, value: Any, need: str) -> tuple[int, int] | None:
    """Return two ints, or None."""
    if value is None:
        return None
    numbers = [_index(x) for x in value] if isinstance(value, (tuple, list)) else []
    if len(numbers) != 2 or numbers[0] is None or numbers[1] is None:
        raise cannot_schedule(where, f"{name}={_show(value)}", need)
    return numbers[0], numbers[1]


def as_stages(where: str, stages: Any) -> Any:
    """Return the depth of a ring: an int, `last + 1` of a sampled variable `last`, or None."""
    if isinstance(stages, Expr) and _index(stages) is None:
        last = last_stage(stages)
        if last is None or not _is_integer_expr(last):
            need = "an int, or last + 1 with a sampled random variable `last`"
            raise cannot_schedule(where, f"stages={_show(stages)}", need)
        return stages
    return as_int(where, "stages", stages, 1, MOST_SIZE)


def last_stage(stages: Any) -> Any:
    """Return `stages - 1`: of the expression `last + 1` the variable, which a trace can hold."""
    if isinstance(stages, int):
        return stages - 1
    if not isinstance(stages, tirx.Add):
        return None
    return stages.a if _index(stages.b) == 1 else stages.b if _index(stages.a) == 1 else None


def as_choice(where: str, name: str, value: Any, legal: tuple[Any, ...]) -> Any:
    """Return one of the legal ints or texts, or None."""
    plain = value if isinstance(value, str) else _index(value)
    if value is not None and (plain is None or plain not in legal):
        need = f"one of {', '.join(map(repr, legal))} or None"
        raise cannot_schedule(where, f"{name}={_show(value)}", need)
    return plain


def check_type(where: str, name: str, value: Any, kind: type, need: str) -> None:
    """Refuse anything but an object of one class, or None."""
    if value is not None and not isinstance(value, kind):
        raise cannot_schedule(where, f"{name}={_show(value)}", f"{need} or None")


# -- schedules, blocks and loops ------------------------------------------------------------------


def check_schedule(step: str, sch: Any) -> None:
    """Refuse anything but a schedule."""
    if not isinstance(sch, s_tir.Schedule):
        fix = "make one: s_tir.Schedule(mod)"
        raise cannot_schedule(step, f"sch={_show(sch)}", "a schedule", fix)


def check_program(helper: str, sch: Any) -> None:
    """Refuse anything but a schedule, and arrays that TVM's primitives cannot move."""
    check_schedule(helper, sch)
    if sch.func_working_on is None:
        return
    for array in ir.find_all(sch.mod[sch.func_working_on].body, tirx.AllocBuffer):
        if str(array.buffer.scope()) in ("", "global"):
            raise cannot_schedule(
                f"{helper}, tensor {array.buffer.name}",
                "T.alloc_buffer, memory that no block allocates",
                "arrays of blocks, which a schedule moves",
                "write T.sblock_alloc_buffer",
            )


def as_block(sch: s_tir.Schedule, block: Any) -> Any:
    """Return the block itself, looked up when it is given by name."""
    if isinstance(block, str):
        return _find_block(sch, block)
    need = "the name of a block, or what sch.get_sblock returned"
    if not isinstance(block, SBlockRV):
        raise cannot_schedule("block", f"block={_show(block)}", need)
    _check_known(sch, "block", block)
    return block


def as_loop(sch: s_tir.Schedule, loop: Any) -> Any:
    """Return the loop itself."""
    if not isinstance(loop, LoopRV):
        need = "a loop, as sch.get_loops and sch.split return them"
        raise cannot_schedule("loop", f"loop={_show(loop)}", need)
    _check_known(sch, "loop", loop)
    return loop


def check_sampled(sch: s_tir.Schedule, where: str, name: str, *values: Any) -> None:
    """Refuse random variables that the schedule does not know."""
    for value in values:
        if not isinstance(value, Expr):
            continue
        try:
            sch.get(value)
        except UNKNOWN as error:
            found = f"{name}={_show(value)}, which is not sampled by this schedule"
            raise cannot_schedule(where, found, "an int, or a sample of this schedule") from error


def label(sch: s_tir.Schedule, thing: Any) -> str:
    """Name a block or a loop of a schedule in a message; an empty string for anything else."""
    try:
        if isinstance(thing, SBlockRV):
            return f"block {sch.get(thing).name_hint}"
        if isinstance(thing, LoopRV):
            return f"loop {sch.get(thing).loop_var.name}"
    except UNKNOWN:
        return ""
    return f"block {thing}" if isinstance(thing, str) else ""


def _find_block(sch: s_tir.Schedule, name: str) -> Any:
    where = f"block {name}"
    if sch.func_working_on is None:
        functions = ", ".join(sorted(gv.name_hint for gv in sch.mod.get_global_vars()))
        found = f"a module of several functions ({functions})"
        fix = "say which one: sch.work_on(name)"
        raise cannot_schedule(where, found, "one function to look it up in", fix)
    function = sch.mod[sch.func_working_on]
    names = [str(block.name_hint) for block in ir.find_all(function.body, ir.SBlock)]
    if names.count(name) == 1:
        return sch.get_sblock(name)
    where_to = f"function {sch.func_working_on.name_hint}"
    if name in names:
        fix = "take the block from sch.get_consumers, sch.get_producers or sch.get_child_blocks"
        raise cannot_schedule(where, f"{names.count(name)} of that name in {where_to}", "one", fix)
    others = sorted(set(names) - {"root"})
    near = difflib.get_close_matches(name, others, n=1)
    more = ", ..." if len(others) > MOST_NAMES else ""
    need = f"one of {', '.join(others[:MOST_NAMES])}{more}"
    fix = f"did you mean {near[0]}?" if near else ""
    if f"{name}_update" in names:  # as `decompose_reduction` leaves it
        fix = f"{name} is scheduled already, {name}_update is what became of it: begin again"
    raise cannot_schedule(where, f"none of that name in {where_to}", need, fix)


def _check_known(sch: s_tir.Schedule, kind: str, variable: Any) -> None:
    try:
        sch.get(variable)
    except UNKNOWN as error:
        gone = isinstance(error, ValueError)
        found = f"a {kind} that no longer exists" if gone else f"a {kind} of another schedule"
        fix = "look it up again" if gone else ""
        raise cannot_schedule(kind, found, f"a {kind} of this schedule", fix) from error


def _index(value: Any) -> int | None:
    """Return the value of an integer of any kind; None for a bool and for every other type."""
    if isinstance(value, bool):
        return None
    if isinstance(value, tirx.IntImm):
        return None if ir.dtype_of(value) == "bool" else int(value)
    try:
        return operator.index(value)
    except TypeError:
        return None


def _is_integer_expr(value: Any) -> bool:
    if not isinstance(value, Expr) or tirx.is_buffer_var(value) or not hasattr(value.ty, "dtype"):
        return False
    return ir.dtype_of(value).startswith(("int", "uint"))


def _check_bounds(where: str, name: str, number: int, least: int | None, most: int | None) -> None:
    if least is not None and number < least:
        raise cannot_schedule(where, f"{name}={number}", f"{least} or more")
    if most is not None and number > most:
        raise cannot_schedule(where, f"{name}={number}", f"at most {most}")


def _show(value: Any) -> str:
    """Return a short text for any argument; a block or a loop has none of its own."""
    if isinstance(value, (SBlockRV, LoopRV)):
        return f"a {'block' if isinstance(value, SBlockRV) else 'loop'}"
    if isinstance(value, s_tir.Schedule):
        return "a schedule"
    text = repr(value)
    return text if len(text) <= 80 and "\n" not in text else f"a {type(value).__name__}"
